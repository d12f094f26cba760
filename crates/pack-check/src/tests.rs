use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::*;

const LIMITS: PackLimits = PackLimits { objects: 1000, blob: 1 << 20, buffered: 1 << 16, total: 1 << 22 };

fn deflate(text: &[u8]) -> Vec<u8> {
    let mut writer = ZlibEncoder::new(Vec::new(), Compression::best());
    writer.write_all(text).expect("write");
    writer.finish().expect("finish")
}

fn size(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        bytes.push(if number > 0 { low | 0x80 } else { low });
        if number == 0 {
            return bytes;
        }
    }
}

fn distance(mut number: u64) -> Vec<u8> {
    let mut bytes = vec![(number & 0x7f) as u8];
    while number > 0x7f {
        number = (number >> 7) - 1;
        bytes.insert(0, 0x80 | (number & 0x7f) as u8);
    }
    bytes
}

/// The header of an object: its type and its size.
fn head(kind: u8, length: u64) -> Vec<u8> {
    let first = kind << 4 | (length & 15) as u8;
    match length >> 4 {
        0 => vec![first],
        rest => [vec![first | 0x80], size(rest)].concat(),
    }
}

fn object(kind: u8, text: &[u8]) -> Vec<u8> {
    [head(kind, text.len() as u64), deflate(text)].concat()
}

/// A delta with a single instruction that announces these sizes.
fn delta(base: u64, result: u64, by: &[u8]) -> Vec<u8> {
    let text = [size(base), size(result), vec![0x90, 1]].concat();
    let kind = if by.len() == 20 { 7 } else { 6 };
    [head(kind, text.len() as u64), by.to_vec(), deflate(&text)].concat()
}

fn header(count: u32) -> Vec<u8> {
    [b"PACK\0\0\0\x02", &count.to_be_bytes()[..]].concat()
}

fn pack(objects: &[Vec<u8>]) -> Vec<u8> {
    [header(u32::try_from(objects.len()).expect("few")), objects.concat(), vec![7; 20]].concat()
}

/// Checks a pack in parts of several sizes, which must not change the result.
fn checked(pack: &[u8]) -> Result<PackSummary, PackError> {
    let result = check(pack, LIMITS, ObjectFormat::Sha1);
    for size in [1, 2, 3, 7, 1000] {
        let mut checker = PackChecker::new(LIMITS, ObjectFormat::Sha1);
        let fed = pack.chunks(size).try_for_each(|part| checker.feed(part));
        assert_eq!(fed.and_then(|()| checker.finish()), result, "in parts of {size}");
    }
    result
}

#[test]
fn accepts_what_is_within_the_limits() {
    let commit = object(1, b"commit");
    let objects = [
        object(3, &vec![b'a'; 100_000]),
        commit.clone(),
        // The delta names the commit, because the blob is too large to be a base.
        delta(9, 65_536, &distance(commit.len() as u64)),
        object(2, b""),
        object(4, &[b't'; 65_536]),
        delta(65_536, 100, &[5; 20]),
    ];
    let total = 100_000 + 6 + 65_536 + 65_536 + 100;
    let expected = PackSummary { objects: 6, total, buffered: 65_536 };
    assert_eq!(checked(&pack(&objects)), Ok(expected));
    assert_eq!(checked(&pack(&[])), Ok(PackSummary::default()));
    let third = [b"PACK\0\0\0\x03\0\0\0\0".to_vec(), vec![0; 20]].concat();
    assert_eq!(checked(&third), Ok(PackSummary::default()));
}

#[test]
fn refuses_sizes_beyond_the_limits_before_they_are_unpacked() {
    let large = object(3, &vec![b'a'; 100_000]);
    let too_large = |part, size, most| PackError::Size { part, size, most };
    let near = distance(large.len() as u64);
    for (name, objects, error) in [
        ("a blob", vec![head(3, 1 << 40)], too_large(Part::Blob, 1 << 40, LIMITS.blob)),
        ("a tree", vec![head(2, 65_537)], too_large(Part::Other, 65_537, LIMITS.buffered)),
        ("instructions", vec![head(7, 65_537)], too_large(Part::DeltaText, 65_537, LIMITS.buffered)),
        ("a base", vec![delta(65_537, 1, &[1; 20])], too_large(Part::DeltaBase, 65_537, LIMITS.buffered)),
        (
            "a result",
            vec![delta(1, 8 << 30, &[1; 20])],
            too_large(Part::DeltaResult, 8 << 30, LIMITS.buffered),
        ),
        (
            "a base with another size than the delta claims",
            vec![large.clone(), delta(1, 1, &near)],
            too_large(Part::DeltaBase, 100_000, LIMITS.buffered),
        ),
        ("many results", vec![delta(1, 65_536, &[1; 20]); 65], PackError::Total { most: LIMITS.total }),
        ("many blobs", vec![object(3, &vec![0; 1 << 20]); 5], PackError::Total { most: LIMITS.total }),
    ] {
        assert_eq!(checked(&pack(&objects)), Err(error), "{name}");
    }
    let count = 4_000_000_000;
    assert_eq!(checked(&header(count)), Err(PackError::Objects { count, most: 1000 }));
}

#[test]
fn refuses_malformed_packs() {
    let blob = object(3, b"text");
    let mut flipped = pack(std::slice::from_ref(&blob));
    flipped[16] ^= 0xff;
    let long = [head(3, 3), deflate(b"text")].concat();
    let short = [head(3, 5), deflate(b"text")].concat();
    let endless = [vec![0xb0 | 0x80], vec![0xff; 12]].concat();
    let outside = delta(1, 1, &distance(500));
    let itself = delta(1, 1, &distance(0));
    // Empty stored blocks before the text. Each of these blocks consists only of its header.
    let zlib = deflate(b"text");
    let padded = [&zlib[..2], &[0, 0, 0, 0xff, 0xff].repeat(40), &zlib[2..]].concat();
    let padded = [head(3, 4), padded].concat();
    let no_sizes = [head(7, 1), vec![1; 20], deflate(&[0x80])].concat();
    for (name, pack) in [
        ("a flipped byte", flipped),
        ("more than the header says", pack(&[long])),
        ("less than the header says", pack(&[short])),
        ("an unknown type", pack(&[object(5, b"x")])),
        ("no type", pack(&[object(0, b"x")])),
        ("an endless size", pack(&[endless])),
        ("a base before the pack", pack(&[outside])),
        ("a delta on itself", pack(&[itself])),
        ("a delta without sizes", pack(&[no_sizes])),
        ("empty blocks", pack(&[padded])),
        ("bytes after the checksum", [pack(std::slice::from_ref(&blob)), vec![0]].concat()),
    ] {
        assert!(matches!(checked(&pack), Err(PackError::Damaged(_))), "{name}: {:?}", checked(&pack));
    }
    for (name, text) in
        [("another word", b"JUNK\0\0\0\x02\0\0\0\0"), ("a version", b"PACK\0\0\0\x04\0\0\0\0")]
    {
        assert_eq!(checked(text), Err(PackError::NotAPack), "{name}");
    }
    let whole = pack(&[blob, delta(4, 1, &[5; 20]), delta(1, 1, &distance(35))]);
    for end in 0..whole.len() {
        assert_eq!(checked(&whole[..end]), Err(PackError::Incomplete), "{end} bytes");
    }
}

/// Deltas of a few bytes that describe gigabytes, as in an attack on a program that runs `git index-pack`.
#[test]
fn refuses_a_chain_of_deltas_that_grows() {
    let base = vec![0; 1 << 14];
    let mut objects = vec![object(3, &base)];
    let mut length = base.len() as u64;
    for _ in 0..5 {
        let near = distance(objects.last().map_or(0, Vec::len) as u64);
        objects.push(delta(length, length * 16, &near));
        length *= 16;
    }
    let bomb = pack(&objects);
    assert!(bomb.len() < 400, "{} bytes", bomb.len());
    let error = PackError::Size { part: Part::DeltaResult, size: 1 << 18, most: LIMITS.buffered };
    assert_eq!(checked(&bomb), Err(error));
}

#[test]
fn accepts_objects_that_cannot_be_compressed() {
    for level in [Compression::none(), Compression::fast(), Compression::best()] {
        for length in [0, 1, 100, 65_535, 65_536, 300_000_u32] {
            let noise: Vec<u8> =
                (0..length).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[1]).collect();
            let mut writer = ZlibEncoder::new(Vec::new(), level);
            writer.write_all(&noise).expect("write");
            let deflated = writer.finish().expect("finish");
            let object = [head(3, noise.len() as u64), deflated].concat();
            assert!(checked(&pack(&[object])).is_ok(), "{length} bytes");
        }
    }
}

#[test]
fn accepts_the_packs_of_git() {
    for format in ["sha1", "sha256"] {
        let directory = tempfile::tempdir().expect("a directory");
        let git = |arguments: &[&str], input: &[u8]| git(directory.path(), arguments, input);
        git(&["init", "-q", "--object-format", format], b"");
        let mut text: String = (0..4000).map(|line| format!("{line}\n")).collect();
        for version in 0..20 {
            text.push_str(&format!("version {version}\n"));
            std::fs::write(directory.path().join("f"), &text).expect("written");
            git(&["add", "."], b"");
            git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"], b"");
        }
        let format = if format == "sha1" { ObjectFormat::Sha1 } else { ObjectFormat::Sha256 };
        let objects = git(&["rev-list", "--objects", "--no-object-names", "HEAD"], b"");
        let thin: Vec<u8> = b"HEAD\n^HEAD~3\n".to_vec();
        for (arguments, input) in [
            (&["pack-objects", "-q", "--stdout", "--delta-base-offset"][..], &objects),
            (&["pack-objects", "-q", "--stdout"], &objects),
            (&["pack-objects", "-q", "--stdout", "--thin", "--revs"], &thin),
        ] {
            let pack = git(arguments, input);
            let summary = check(&pack[..], LIMITS, format).expect("within the limits");
            assert!(summary.objects >= 9 && summary.total > 50_000, "{summary:?}");
        }
    }
}

fn git(directory: &Path, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("git")
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git");
    child.stdin.take().expect("a pipe").write_all(input).expect("written");
    let output = child.wait_with_output().expect("git ends");
    assert!(output.status.success(), "{arguments:?}");
    output.stdout
}

proptest::proptest! {
    #[test]
    fn never_panics_on_any_bytes(bytes: Vec<u8>, count: u32, size in 1_usize..9) {
        let mut checker = PackChecker::new(LIMITS, ObjectFormat::Sha256);
        let pack = [header(count % 2000), bytes].concat();
        let _ = pack.chunks(size).try_for_each(|part| checker.feed(part));
        let _ = checker.finish();
    }
}
