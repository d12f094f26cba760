//! Tests the reader with thousands of changed archives. A seed determines the changes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bottle_backend::ProgressSink;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};
use tar::EntryType;

use super::tests::{archive, layer_of};
use super::*;

/// The number of changed archives.
const CASES: u64 = 2500;

/// The maximum time for one archive of a few kilobytes.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The size of a header and of a block in bytes.
const BLOCK: usize = 512;

/// The positions of the fields in a header.
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const KIND: usize = 156;

/// Reads an archive into the directory `case` in `root`. Checks that no file is created outside of this directory, and
/// that the directory takes no more space than the archive.
fn check(bytes: &[u8], root: &Path, case: u64) -> Option<Received> {
    let directory = root.join("case");
    let begun = Instant::now();
    let received = receive(&mut { bytes }, &directory.join("image"), &ProgressSink::discard());
    assert!(begun.elapsed() < TIMEOUT, "case {case}: {:?}", begun.elapsed());
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(root), ["case"], "case {case}");
    assert!(names(&directory).iter().all(|name| name == "image"), "case {case}");
    let known = ["blobs", "index.json", "oci-layout"];
    assert!(names(&directory.join("image")).iter().all(|name| known.contains(&&**name)), "case {case}");
    let stored = stored(&directory);
    assert!(stored <= bytes.len() as u64, "case {case}: {stored} bytes were stored");
    let _ = fs::remove_dir_all(directory.join("image"));
    received.ok()
}

/// The size of all files below a directory in bytes.
fn stored(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => stored(&entry.path()),
        found => found.map_or(0, |found| found.len()),
    };
    entries.map(size).sum()
}

/// Returns the blocks of each entry: its header and its content.
fn entries(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut archive = tar::Archive::new(bytes);
    let starts = archive.entries().expect("entries").map(|entry| entry.expect("entry").raw_header_position());
    let starts: Vec<usize> = starts.map(|start| usize::try_from(start).expect("small")).collect();
    let ends = starts.iter().skip(1).copied().chain([bytes.len() - 2 * BLOCK]);
    starts.iter().zip(ends).map(|(start, end)| bytes[*start..end].to_vec()).collect()
}

fn joined(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}

/// Recomputes the checksum of a header, so that the change reaches the code after the checksum check.
fn seal(header: &mut [u8]) {
    header[CHECKSUM].fill(b' ');
    let sum: u32 = header[..BLOCK].iter().map(|byte| u32::from(*byte)).sum();
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Changes one entry. The checksum of its header stays valid.
fn change_entry(entry: &mut [u8], rng: &mut StdRng) {
    match rng.random_range(0..6) {
        // The first two changes set a size in the usual octal form, or an absurd size in base 256.
        0 => {
            let size = rng.random_range(0..1_u64 << 33);
            entry[SIZE].copy_from_slice(format!("{size:011o}\0").as_bytes());
        }
        1 => {
            entry[SIZE].fill(0xff);
            entry[SIZE.start] = 0x80;
            let zeros = rng.random_range(0..9);
            entry[SIZE.start + 1..SIZE.start + 1 + zeros].fill(0);
        }
        2 => {
            let kinds = [
                EntryType::Symlink,
                EntryType::Link,
                EntryType::GNUSparse,
                EntryType::GNULongName,
                EntryType::XHeader,
                EntryType::XGlobalHeader,
                EntryType::Char,
                EntryType::new(rng.random()),
            ];
            entry[KIND] = kinds[rng.random_range(0..kinds.len())].as_byte();
        }
        3 => {
            let names: [&[u8]; 6] = [
                b"../../outside",
                b"/tmp/outside",
                b"blobs/sha256/../../../x",
                b"",
                b"bottle/digests",
                b"blobs",
            ];
            let name = names[rng.random_range(0..names.len())];
            entry[..100].fill(0);
            entry[..name.len()].copy_from_slice(name);
        }
        4 => {
            let at = rng.random_range(0..BLOCK);
            entry[at] = rng.random();
        }
        _ => {
            let at = rng.random_range(0..entry.len());
            entry[at] ^= 1 << rng.random_range(0..8);
        }
    }
    seal(entry);
}

/// Changes an archive as damage or an attacker would.
fn changed(valid: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let mut all = entries(valid);
    let one = rng.random_range(0..all.len());
    match rng.random_range(0..7) {
        0 => {
            let mut bytes = valid.to_vec();
            for _ in 0..rng.random_range(1..5) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
            return bytes;
        }
        1 => return valid[..rng.random_range(0..valid.len())].to_vec(),
        2 => {
            let copy = all[one].clone();
            all.insert(rng.random_range(0..=all.len()), copy);
        }
        3 => {
            let other = rng.random_range(0..all.len());
            all.swap(one, other);
        }
        4 => drop(all.remove(one)),
        _ => change_entry(&mut all[one], rng),
    }
    joined(&all)
}

#[test]
fn changed_archives_never_panic_and_write_only_to_their_directory() {
    let root = tempfile::tempdir().expect("directory");
    let home = tempfile::tempdir().expect("directory");
    let key = SigningKey::of_home(home.path()).expect("key");
    let valid = archive(&[layer_of("workspace/a", b"work"), layer_of("home/agent/b", b"note")], Some(&key));
    fs::create_dir(root.path().join("case")).expect("directory");
    let digests = check(&valid, root.path(), 0).expect("it is valid").digests;
    assert_eq!(joined(&entries(&valid)), valid);
    let mut refused = 0;
    for case in 1..=CASES {
        let bytes = changed(&valid, &mut StdRng::seed_from_u64(case));
        match check(&bytes, root.path(), case) {
            // The reader accepted the archive, because the change was in a part that does not matter, such as the order
            // of entries or a time.
            Some(received) => assert_eq!(received.digests, digests, "case {case}"),
            None => refused += 1,
        }
    }
    assert!(refused > CASES / 2, "{refused} of {CASES} were refused");
}

#[test]
fn the_number_of_entries_is_limited() {
    let valid = archive(&[], None);
    let first = entries(&valid).swap_remove(0);
    let mut all = vec![first];
    for number in 0..1100_u32 {
        let content = number.to_le_bytes();
        let digest = bottle_backend::portable_image::Digest::from_bytes(&content);
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, digest.blob(), content.as_slice()).expect("added");
        all.push(builder.into_inner().expect("archive")[..2 * BLOCK].to_vec());
    }
    let root = tempfile::tempdir().expect("directory");
    let refused = receive(&mut joined(&all).as_slice(), &root.path().join("image"), &ProgressSink::discard());
    assert_eq!(refused.expect_err("too many").to_string(), "it has more than 1024 entries");
}
