//! Tests archives: a round trip, and archives that are damaged or hostile.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use bottle_backend::ProgressSink;
use bottle_backend::image::saved::{Container, Digest, Saved, architecture, check, layer};
use bottle_backend::portable_image::{
    CANARY, ContentScanner, ExportedImage, ImageConfig, LayerStore, RootKind,
};
use jiff::Timestamp;
use proptest::prelude::*;
use tar::EntryType;

use super::*;

fn metadata() -> Metadata {
    Metadata {
        format: FORMAT,
        program: "1.0.0".to_owned(),
        slug: "one".parse().expect("slug"),
        name: None,
        label: None,
        agent: "worker".parse().expect("name"),
        bottles: Vec::new(),
        backend: "fake".to_owned(),
        root: RootKind::Home,
        home: "/home/agent".to_owned(),
        made_at: Timestamp::UNIX_EPOCH,
        accepted: Vec::new(),
        canaries: Vec::new(),
    }
}

/// Creates a layer with one file.
pub(super) fn layer_of(path: &str, content: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    builder.append_data(&mut header, path, content).expect("added");
    builder.into_inner().expect("layer")
}

/// Begins an archive in `file`.
fn begun(file: &File, manifest: &str) -> Writer {
    Writer::begin(file.try_clone().expect("a file"), &metadata(), manifest).expect("begun")
}

fn image(writer: &Writer, canaries: &[&str], layers: &[Vec<u8>]) -> ExportedImage {
    let canaries: Vec<_> = canaries.iter().map(|canary| (*canary).into()).collect();
    let scanner = ContentScanner::new(&canaries, Default::default()).expect("scanner");
    let mut store = LayerStore::new(writer.blobs(), Arc::new(scanner), ProgressSink::discard());
    for layer in layers {
        store.add(true, |out| out.write_all(layer)).expect("added");
    }
    let config = ImageConfig { user: "1000:1000".to_owned(), ..ImageConfig::default() };
    ExportedImage { layers: store, config, root: RootKind::Home, home: "/home/agent".to_owned() }
}

/// Completes an archive, and returns its content.
fn content(writer: Writer, image: &ExportedImage, key: Option<&SigningKey>, mut file: File) -> Vec<u8> {
    let size = writer.finish(&metadata(), image, key).expect("written");
    let mut bytes = Vec::new();
    file.rewind().expect("the beginning");
    file.read_to_end(&mut bytes).expect("read");
    assert_eq!(size, bytes.len() as u64);
    bytes
}

pub(super) fn archive(layers: &[Vec<u8>], key: Option<&SigningKey>) -> Vec<u8> {
    let file = tempfile::tempfile().expect("file");
    let writer = begun(&file, "a: 1\n");
    let image = image(&writer, &[], layers);
    content(writer, &image, key, file)
}

fn read(archive: &mut dyn Read) -> (tempfile::TempDir, Result<Received, BadArchive>) {
    let here = tempfile::tempdir().expect("directory");
    let received = receive(archive, &here.path().join("image"), &ProgressSink::discard());
    (here, received)
}

fn refusal(archive: &[u8]) -> String {
    let (_, received) = read(&mut { archive });
    received.expect_err("refused").to_string()
}

/// The entries of an archive: their types, names and contents.
type Entries = Vec<(EntryType, String, Vec<u8>)>;

fn entries(archive: &[u8]) -> Entries {
    let mut archive = tar::Archive::new(archive);
    let entry = |entry: io::Result<tar::Entry<'_, &[u8]>>| {
        let mut entry = entry.expect("entry");
        let name = entry.path().expect("path").to_str().expect("UTF-8").to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("content");
        (entry.header().entry_type(), name, content)
    };
    archive.entries().expect("entries").map(entry).collect()
}

fn packed(entries: &Entries) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_slice()).expect("added");
    }
    builder.into_inner().expect("archive")
}

/// Returns the message with which the reader refuses an archive whose entries `change` has changed.
fn refusal_of(change: impl FnOnce(&mut Entries)) -> String {
    let mut all = entries(&archive(&[layer_of("workspace/a", b"work")], None));
    change(&mut all);
    refusal(&packed(&all))
}

fn position(entries: &Entries, beginning: &str) -> usize {
    entries.iter().position(|(_, name, _)| name.starts_with(beginning)).expect("there")
}

#[test]
fn an_archive_is_read_back_and_its_signature_names_the_key() {
    let home = tempfile::tempdir().expect("directory");
    let key = SigningKey::of_home(home.path()).expect("key");
    let layers = [layer_of("workspace/a", b"work"), layer_of("home/agent/b", &[7; 3 << 20])];
    let bytes = archive(&layers, Some(&key));
    assert_eq!(bytes, archive(&layers, Some(&key)), "equal files result in equal archives");
    let (here, received) = read(&mut bytes.as_slice());
    let received = received.expect("received");
    assert_eq!((&received.metadata, received.manifest.as_str()), (&metadata(), "a: 1\n"));
    let signature = received.signature.expect("signed");
    assert_eq!(signature.verify(&received.digests), Some(key.public()));
    let container = Container::directory(&here.path().join("image")).expect("directory");
    let saved = Saved::read(&container, architecture()).expect("an image");
    let mut budget = layer::Budget::full();
    for (one, expected) in saved.layers.iter().zip(&layers) {
        let mut content = Vec::new();
        let read = layer::read(&container, one, &mut budget, |layer| {
            layer.read_to_end(&mut content).map(drop).map_err(Into::into)
        });
        read.expect("a layer");
        assert_eq!(&content, expected);
    }
    // Changes the digests after they were signed.
    let mut all = entries(&bytes);
    let at = position(&all, "bottle/digests");
    all[at].2[0] ^= 1;
    assert!(refusal(&packed(&all)).contains("list of digests"));
}

#[test]
fn damaged_and_hostile_archives_are_refused_with_their_cause() {
    let digest = |content: &[u8]| format!("blobs/sha256/{}", Digest::from_bytes(content).digits());
    let metadata_with = |json: &str| {
        let json = json.as_bytes().to_vec();
        refusal_of(|all| all[0].2 = json)
    };
    for (refusal, words) in [
        (refusal(b""), "incomplete"),
        (refusal(&[0; 2048]), "incomplete"),
        (refusal(&[b'x'; 2048]), "not an archive that `bottle export` wrote"),
        (refusal(b"hello"), "not an archive that `bottle export` wrote"),
        (refusal(b"\x1f\x8b\x08\0\0\0\0\0\0\0"), "it is compressed with gzip"),
        (refusal_of(|all| drop(all.remove(0))), "not an archive that `bottle export` wrote"),
        (metadata_with("{\"format\": 2, \"new\": 1}"), "it was written by a newer bottle (format 2)"),
        (metadata_with("{\"format\": 0}"), "no version"),
        (metadata_with("{\"format\": 1}"), "damaged"),
        (metadata_with("["), "damaged"),
        (refusal_of(|all| all.retain(|entry| entry.1 != "bottle/digests")), "incomplete"),
        (refusal_of(|all| all.retain(|entry| entry.1 != "index.json")), "list of digests"),
        (refusal_of(|all| drop(all.remove(position(all, "blobs/")))), "list of digests"),
        (refusal_of(|all| all[1].2.push(b'x')), "list of digests"),
        (
            refusal_of(|all| {
                let at = position(all, "blobs/");
                all[at].2[0] ^= 1;
            }),
            "is damaged: its content, from byte",
        ),
        (
            refusal_of(|all| {
                let at = position(all, "blobs/");
                let same = all[at].clone();
                all.push(same);
            }),
            "twice",
        ),
        (
            refusal_of(|all| {
                let same = all[1].clone();
                all.push(same);
            }),
            "twice",
        ),
        (
            refusal_of(|all| all.push((EntryType::Regular, digest(b"more"), b"more".to_vec()))),
            "list of digests",
        ),
        (
            refusal_of(|all| all.push((EntryType::Regular, "blobs/sha256/../x".to_owned(), vec![]))),
            "not named by a digest",
        ),
        (
            refusal_of(|all| all.push((EntryType::Regular, "../../etc/cron.d/x".to_owned(), vec![]))),
            "unknown name",
        ),
        (refusal_of(|all| all.push((EntryType::Regular, "/etc/passwd".to_owned(), vec![]))), "unknown name"),
        (refusal_of(|all| all.push((EntryType::Regular, "bottle/more".to_owned(), vec![]))), "unknown name"),
        (refusal_of(|all| all.push((EntryType::Symlink, digest(b"x"), vec![]))), "without a target"),
        (refusal_of(|all| all.push((EntryType::Directory, "blobs".to_owned(), vec![]))), "not a plain file"),
        (refusal_of(|all| all.push((EntryType::Char, "blobs/x".to_owned(), vec![]))), "not a plain file"),
        (
            refusal_of(|all| all.push((EntryType::Regular, "bottle/signature".to_owned(), b"x".to_vec()))),
            "signature is damaged",
        ),
        (
            refusal_of(|all| {
                all.push((EntryType::Regular, "bottle/signature".to_owned(), vec![0; (16 << 20) + 1]))
            }),
            "larger than 16 MiB",
        ),
    ] {
        assert!(refusal.contains(words), "{refusal:?} does not contain {words:?}");
    }
}

#[test]
fn damage_is_named_with_its_byte_and_its_entry() {
    let bytes = archive(&[layer_of("workspace/a", b"work")], None);
    let mut tar = tar::Archive::new(bytes.as_slice());
    let headers = tar.entries().expect("entries").map(|entry| entry.expect("entry").raw_header_position());
    let headers: Vec<usize> = headers.map(|at| usize::try_from(at).expect("small")).collect();
    let (manifest, blob) = (headers[1], headers[3]);
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        refusal(&bytes)
    };
    for (refusal, expected) in [
        (refusal(&[]), "it is incomplete: it ends at byte 0".to_owned()),
        (
            refusal(&bytes[..700]),
            "it is incomplete: it ends at byte 700, in its entry \"bottle/bottle.json\"".to_owned(),
        ),
        (
            refusal(&bytes[..manifest + 100]),
            format!(
                "it is incomplete: it ends at byte {}, after its entry \"bottle/bottle.json\"",
                manifest + 100
            ),
        ),
        (
            refusal(&bytes[..manifest]),
            format!("it is incomplete: it ends at byte {manifest}, after its entry \"bottle/bottle.json\""),
        ),
        (
            flipped(manifest + 5),
            format!(
                "it is damaged: no valid header is at byte {manifest}, after its entry \"bottle/bottle.json\""
            ),
        ),
        (
            flipped(manifest + 512),
            "its entry \"bottle/manifest.yml\" does not match its list of digests".to_owned(),
        ),
    ] {
        assert_eq!(refusal, expected);
    }
    let refusal = flipped(blob + 512 + 20);
    let place = format!("is damaged: its content, from byte {}, is sha256:", blob + 512);
    assert!(refusal.starts_with("its entry \"blobs/sha256/") && refusal.contains(&place), "{refusal}");
}

#[test]
fn a_truncated_archive_leaves_no_entry_outside_the_directory() {
    let bytes = archive(&[layer_of("workspace/a", &[b'x'; 5000])], None);
    for length in (0..bytes.len() - 1024).step_by(97) {
        let (here, received) = read(&mut &bytes[..length]);
        assert!(received.is_err(), "{length}");
        let names: Vec<_> = fs::read_dir(here.path()).expect("directory").collect();
        assert_eq!(names.len(), 1, "{length}");
    }
}

#[test]
fn endless_and_sparse_entries_are_refused_before_they_are_stored() {
    // The headers contain sizes that no disk has.
    for name in ["blobs/sha256/", "index.json"] {
        let mut all = entries(&archive(&[], None));
        all.retain(|(_, name, _)| name == "bottle/bottle.json");
        let mut bytes = packed(&all);
        bytes.truncate(bytes.len() - 1024);
        let mut header = tar::Header::new_gnu();
        let name = if name == "index.json" { name.to_owned() } else { format!("{name}{}", "0".repeat(64)) };
        header.set_path(&name).expect("path");
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(1 << 60);
        header.set_cksum();
        let mut endless = bytes.chain(header.as_bytes().as_slice()).chain(io::repeat(b'x'));
        let (_, received) = read(&mut endless);
        let refusal = received.expect_err("too large");
        let error = std::error::Error::source(&refusal).map(ToString::to_string).unwrap_or_default();
        assert!(
            error.contains("it takes more than is free there") || refusal.to_string().contains("larger than"),
            "{refusal}: {error}"
        );
    }
    // The test reads a sparse file of 100 GiB.
    let mut sparse = tempfile::tempfile().expect("file");
    sparse.set_len(100 << 30).expect("length");
    sparse.write_all(b"x").expect("written");
    let mut all = entries(&archive(&[], None));
    all.retain(|(_, name, _)| name == "bottle/bottle.json");
    let mut start = packed(&all);
    start.truncate(start.len() - 1024);
    let mut builder = tar::Builder::new(start);
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(100 << 30);
    let name = format!("blobs/sha256/{}", "0".repeat(64));
    bottle_guest::archive::append_file(&mut builder, &mut header, Path::new(&name), sparse).expect("added");
    let refused = refusal(&builder.into_inner().expect("archive"));
    assert!(refused.contains("not a plain file"), "{refused}");
}

#[test]
fn the_scan_names_the_rule_and_the_file_but_not_the_value() {
    let file = tempfile::tempfile().expect("file");
    let token = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
    let canary = "HARBOR-canary-5f1d8a7c2b9e4d3f6a0c";
    let text = format!("TOKEN={token}\n");
    let layers = [
        layer_of("workspace/.env", text.as_bytes()),
        layer_of("home/agent/env", format!("X={canary}").as_bytes()),
        layer_of("workspace/src", b"nothing"),
    ];
    let image = image(&begun(&file, ""), &[canary], &layers);
    let found = image.layers.findings();
    let places: Vec<&str> = found.iter().map(|finding| finding.path.as_str()).collect();
    assert_eq!(places, ["/workspace/.env", "/home/agent/env"]);
    assert_eq!(found[1].rule, CANARY);
    for finding in found {
        let shown = format!("{finding:?}");
        assert!(!shown.contains(token) && !shown.contains(canary), "{shown}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn changed_bytes_never_pass_and_never_panic(at: proptest::sample::Index, bit in 0_u8..8) {
        let bytes = archive(&[layer_of("workspace/a", &[b'x'; 5000])], None);
        let mut changed = bytes.clone();
        let at = at.index(changed.len());
        changed[at] ^= 1 << bit;
        let (_, received) = read(&mut changed.as_slice());
        if let Ok(received) = received {
            // The reader accepted the archive, because the change was in a part of a header that does not matter, such
            // as a time.
            let (_, unchanged) = read(&mut bytes.as_slice());
            prop_assert_eq!(received.digests, unchanged.expect("received").digests);
        }
    }

    #[test]
    fn any_files_come_back(contents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..5000), 0..4)) {
        let layers: Vec<Vec<u8>> = contents.iter().map(|content| layer_of("workspace/a", content)).collect();
        let bytes = archive(&layers, None);
        let (here, received) = read(&mut bytes.as_slice());
        received.expect("received");
        let container = Container::directory(&here.path().join("image")).expect("directory");
        let saved = Saved::read(&container, architecture()).expect("an image");
        prop_assert_eq!(saved.layers.len(), layers.len());
        for (one, layer) in saved.layers.iter().zip(&layers) {
            prop_assert_eq!(one.content, Digest::from_bytes(layer));
        }
    }
}

/// Creates a layer with one entry, whose name and link target are written unchanged.
fn hostile_layer(kind: EntryType, name: &str, target: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(0);
    header.set_cksum();
    builder.append(&header, io::empty()).expect("added");
    builder.into_inner().expect("layer")
}

#[test]
fn hostile_layers_are_refused_before_an_engine_gets_them() {
    let mut sparse = tempfile::tempfile().expect("file");
    sparse.write_all(b"x").expect("written");
    sparse.set_len(100 << 30).expect("length");
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(100 << 30);
    bottle_guest::archive::append_file(&mut builder, &mut header, Path::new("huge"), sparse).expect("added");
    let huge = builder.into_inner().expect("layer");
    for (layer, words) in [
        (layer_of("workspace/a", b"work"), None),
        (hostile_layer(EntryType::Symlink, "workspace/up", "../etc"), None),
        (hostile_layer(EntryType::Regular, "../x", ""), Some("points outside")),
        (hostile_layer(EntryType::Regular, "/etc/x", ""), Some("is an absolute name")),
        (
            hostile_layer(EntryType::Symlink, "workspace/up", "../../etc"),
            Some("is a link that points outside"),
        ),
        (hostile_layer(EntryType::Link, "x", "../../etc/passwd"), Some("is a hard link that points outside")),
        (hostile_layer(EntryType::Block, "workspace/disk", ""), Some("is a device")),
        (hostile_layer(EntryType::new(b'Z'), "x", ""), Some("unsupported type")),
        (vec![b'x'; 1024], Some("is damaged")),
        (huge, Some("above 64 GiB")),
    ] {
        let file = tempfile::tempfile().expect("file");
        let writer = begun(&file, "");
        let scanner = ContentScanner::new(&[], Default::default()).expect("scanner");
        let mut store = LayerStore::new(writer.blobs(), Arc::new(scanner), ProgressSink::discard());
        store.add(false, |out| out.write_all(&layer)).expect("added");
        let (config, home) = (ImageConfig::default(), String::new());
        let image = ExportedImage { layers: store, config, root: RootKind::Complete, home };
        let bytes = content(writer, &image, None, file);
        let (place, received) = read(&mut bytes.as_slice());
        received.expect("the digests are right");
        let checked = check::image(&place.path().join("image")).map(drop).map_err(|error| error.to_string());
        match words {
            None => assert_eq!(checked, Ok(())),
            Some(words) => {
                assert!(checked.as_ref().is_err_and(|why| why.contains(words)), "{words}: {checked:?}")
            }
        }
    }
}
