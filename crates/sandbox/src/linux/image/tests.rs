//! Tests with valid and with hostile image archives.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bottle_backend::image::saved::{Digest, architecture};
use bottle_backend::{BackendError, BackendErrorKind, ImageInfo, ProgressSink};
use bottle_host::Host;
use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::json;
use tar::EntryType;

use super::store::Images;

/// One entry of a layer.
struct Entry {
    kind: EntryType,
    name: Vec<u8>,
    /// The target of a link, or the content of a file.
    rest: Vec<u8>,
    mode: u32,
    attributes: Vec<(&'static str, &'static [u8])>,
}

fn entry(kind: EntryType, name: &str, rest: &[u8]) -> Entry {
    let mode = if kind == EntryType::Directory { 0o755 } else { 0o644 };
    Entry { kind, name: name.as_bytes().to_vec(), rest: rest.to_vec(), mode, attributes: Vec::new() }
}

fn file(name: &str, content: &str) -> Entry {
    entry(EntryType::Regular, name, content.as_bytes())
}

fn directory(name: &str) -> Entry {
    entry(EntryType::Directory, name, b"")
}

fn link(name: &str, target: &str) -> Entry {
    entry(EntryType::Symlink, name, target.as_bytes())
}

fn hard(name: &str, target: &str) -> Entry {
    entry(EntryType::Link, name, target.as_bytes())
}

/// Creates the tar archive of a layer. Writes the names of the entries unchanged, because the checked functions of the
/// tar library would refuse some of these names.
fn layer(entries: &[Entry]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut extended: Vec<(String, Vec<u8>)> = Vec::new();
        let is_link = matches!(entry.kind, EntryType::Symlink | EntryType::Link);
        let mut header = tar::Header::new_ustar();
        let plain = entry.name.len() < 100 && !entry.name.contains(&0) && !entry.name.contains(&b'\n');
        if plain {
            header.as_old_mut().name[..entry.name.len()].copy_from_slice(&entry.name);
        } else {
            extended.push(("path".to_owned(), entry.name.clone()));
        }
        if is_link {
            extended.push(("linkpath".to_owned(), entry.rest.clone()));
        }
        let attributes = entry.attributes.iter();
        extended.extend(attributes.map(|(name, value)| (format!("SCHILY.xattr.{name}"), value.to_vec())));
        let extended: Vec<(&str, &[u8])> =
            extended.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        if !extended.is_empty() {
            archive.append_pax_extensions(extended).expect("extended");
        }
        header.set_entry_type(entry.kind);
        header.set_mode(entry.mode);
        header.set_mtime(1_000_000_000);
        let content: &[u8] = if is_link { b"" } else { &entry.rest };
        header.set_size(content.len() as u64);
        header.set_cksum();
        archive.append(&header, content).expect("entry");
    }
    archive.into_inner().expect("archive")
}

fn sha(bytes: &[u8]) -> String {
    Digest::from_bytes(bytes).to_string()
}

fn config(layers: &[Vec<u8>], more: serde_json::Value) -> Vec<u8> {
    let ids: Vec<String> = layers.iter().map(|layer| sha(layer)).collect();
    let mut config = json!({"architecture": architecture(), "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": ids}});
    for (key, value) in more.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config.to_string().into_bytes()
}

/// Returns the files that `docker save` writes, by name.
fn saved(layers: &[Vec<u8>], more: serde_json::Value) -> BTreeMap<String, Vec<u8>> {
    let config = config(layers, more);
    let name = format!("{}.json", sha(&config).trim_start_matches("sha256:"));
    let names: Vec<String> = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect();
    let manifest = json!([{"Config": name, "RepoTags": ["a:1"], "Layers": names}]);
    let mut files =
        BTreeMap::from([(name, config), ("manifest.json".to_owned(), manifest.to_string().into())]);
    files.extend(names.into_iter().zip(layers.iter().cloned()));
    files
}

/// Returns the files of an OCI layout, by name. `stored` contains the layers in the form in which the layout stores
/// them, which may be compressed.
fn layout(layers: &[Vec<u8>], stored: &[Vec<u8>]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut blob = |bytes: Vec<u8>| {
        let digest = sha(&bytes);
        files.insert(format!("blobs/sha256/{}", digest.trim_start_matches("sha256:")), bytes);
        digest
    };
    let config = blob(config(layers, json!({})));
    let layers: Vec<_> = stored.iter().map(|layer| json!({"digest": blob(layer.clone())})).collect();
    let manifest = blob(json!({"config": {"digest": config}, "layers": layers}).to_string().into());
    let own = json!({"architecture": architecture(), "os": "linux"});
    let inner = blob(
        json!({"manifests": [
            {"digest": sha(b"another"), "platform": {"architecture": "s390x", "os": "linux"}},
            {"digest": sha(b"how it was built"), "platform": {"architecture": "unknown", "os": "unknown"}},
            {"digest": manifest, "platform": own}]})
        .to_string()
        .into(),
    );
    let media = "application/vnd.oci.image.index.v1+json";
    let index = json!({"manifests": [{"digest": inner, "mediaType": media}]});
    files.insert("index.json".to_owned(), index.to_string().into());
    files.insert("oci-layout".to_owned(), b"{}".to_vec());
    files
}

fn archive(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    layer(&files.iter().map(|(name, bytes)| entry(EntryType::Regular, name, bytes)).collect::<Vec<_>>())
}

/// The files in an archive, by name.
type Files = BTreeMap<String, Vec<u8>>;

struct Home {
    directory: tempfile::TempDir,
    images: Images,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let host = Host::of_home(directory.path());
        Self { images: Images::new(&host), directory }
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.directory.path().join(name), bytes).expect("written");
    }

    async fn prepare(&self, name: &str) -> Result<(ImageInfo, Vec<String>), BackendError> {
        self.images.prepare(Path::new(name), &ProgressSink::discard()).await
    }

    /// Unpacks a saved image with these files and returns the directory of the image's files.
    async fn unpacked(&self, files: &BTreeMap<String, Vec<u8>>) -> PathBuf {
        self.put("a.tar", &archive(files));
        let (inside, _) = self.prepare("a.tar").await.expect("unpacked");
        self.root(&inside)
    }

    fn root(&self, inside: &ImageInfo) -> PathBuf {
        self.directory.path().join("images").join(&inside.image).join("root")
    }

    /// Expects that these files are refused as an image and that nothing of them is stored. Returns the error.
    async fn refused(&self, files: &BTreeMap<String, Vec<u8>>) -> String {
        self.put("a.tar", &archive(files));
        let error = self.prepare("a.tar").await.expect_err("refused");
        assert_eq!(error.kind, BackendErrorKind::Unsupported, "{error}");
        if let Ok(left) = std::fs::read_dir(self.directory.path().join("images")) {
            let left: Vec<_> = left.map(|entry| entry.expect("entry").path()).collect();
            assert_eq!(left, [] as [PathBuf; 0], "{error}");
        }
        error.one_line()
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn unpacks_layers_over_each_other() {
    let below = layer(&[
        directory("./"),
        directory("opt/"),
        file("opt/kept", "kept"),
        file("opt/gone", "gone"),
        file("opt/changed", "one"),
        directory("opt/tree"),
        directory("opt/tree/deep"),
        file("opt/tree/deep/file", "x"),
        directory("opt/emptied"),
        file("opt/emptied/old", "old"),
        directory("opt/emptied/both"),
        file("opt/emptied/both/old", "old"),
        file("opt/was-a-file", "x"),
        directory("usr/bin"),
        link("bin", "usr/bin"),
        Entry { mode: 0o4755, ..file("usr/bin/tool", "tool") },
        hard("usr/bin/same", "usr/bin/tool"),
        link("etc/mtab", "/proc/mounts"),
        link("opt/dangling", "/nowhere/at/all"),
        entry(EntryType::Fifo, "opt/pipe", b""),
        entry(EntryType::Char, "dev/null", b""),
        Entry {
            attributes: vec![("user.note", b"kept"), ("security.capability", b"x"), ("trusted.x", b"y")],
            ..file("opt/noted", "n")
        },
    ]);
    let above = layer(&[
        file("opt/.wh.gone", ""),
        file("opt/.wh.tree", ""),
        file("opt/.wh.never-there", ""),
        file("nowhere/.wh.at-all", ""),
        file("opt/changed", "two"),
        file("opt/emptied/both/new", "new"),
        file("opt/emptied/.wh..wh..opq", ""),
        file("opt/emptied/new", "new"),
        directory("opt/was-a-file"),
        file("opt/was-a-file/inner", "y"),
        file("bin/other", "through a link that stays"),
        Entry { mode: 0o500, ..directory("opt/closed") },
        file("opt/closed/inner", "z"),
        // The whiteout affects only lower layers, so this file stays.
        file("opt/fresh", "fresh"),
        file("opt/.wh.fresh", ""),
    ]);
    let home = Home::new();
    let root = home.unpacked(&saved(&[below, above], json!({}))).await;
    for (name, content) in [
        ("opt/kept", "kept"),
        ("opt/changed", "two"),
        ("opt/emptied/new", "new"),
        ("opt/emptied/both/new", "new"),
        ("opt/was-a-file/inner", "y"),
        ("opt/fresh", "fresh"),
        ("opt/closed/inner", "z"),
        ("usr/bin/other", "through a link that stays"),
        ("usr/bin/same", "tool"),
    ] {
        assert_eq!(text(&root.join(name)), content, "{name}");
    }
    for name in
        ["opt/gone", "opt/tree", "opt/emptied/old", "opt/emptied/both/old", "dev/null", "opt/.wh.gone"]
    {
        assert!(root.join(name).symlink_metadata().is_err(), "{name}");
    }
    let facts = |name: &str| root.join(name).symlink_metadata().expect(name);
    assert_eq!(facts("usr/bin/tool").ino(), facts("usr/bin/same").ino());
    assert_eq!(facts("usr/bin/tool").permissions().mode() & 0o7777, 0o755, "no right is lent");
    assert_eq!(facts("opt/closed").permissions().mode() & 0o777, 0o500);
    assert_eq!(facts("opt/kept").mtime(), 1_000_000_000);
    assert!(facts("opt/pipe").file_type().is_fifo() && facts("opt/dangling").is_symlink());
    assert!(facts("etc/mtab").is_symlink());
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(facts("opt/kept").uid(), own);
    let mut names = [0; 256];
    let length = rustix::fs::listxattr(root.join("opt/noted"), &mut names).unwrap_or(0);
    assert!(matches!(&names[..length], b"user.note\0" | b""), "{:?}", &names[..length]);
    // The directory can be removed even if the modes of its files forbid access.
    bottle_backend::trees::remove_tree(&root).expect("removed");
}

#[tokio::test]
async fn reads_compressed_layers_and_both_manifest_formats() {
    let one = layer(&[directory("a"), file("a/one", &"text ".repeat(10_000))]);
    let two = layer(&[file("a/two", "two"), file("a/.wh.one", "")]);
    let gzip = |bytes: &[u8]| {
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        out.write_all(bytes).expect("compressed");
        out.finish().expect("compressed")
    };
    // Several zstd frames, with a skippable frame between them.
    let zstd = |bytes: &[u8]| {
        let (begin, end) = bytes.split_at(bytes.len() / 2);
        let frame = |bytes: &[u8]| compress_to_vec(bytes, CompressionLevel::Fastest);
        let skipped = [&0x184d_2a50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
        [frame(begin), skipped, frame(end)].concat()
    };
    let stored = [gzip(&one), zstd(&two)];
    let home = Home::new();
    let layers = [one, two];
    let root = home.unpacked(&layout(&layers, &stored)).await;
    assert_eq!(text(&root.join("a/two")), "two");
    assert!(!root.join("a/one").exists());

    // The same image in a directory has the same name.
    let files = layout(&layers, &stored);
    for (name, bytes) in &files {
        let path = home.directory.path().join("directory").join(name);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        std::fs::write(path, bytes).expect("written");
    }
    let (inside, _) = home.prepare("directory").await.expect("a directory");
    assert_eq!(home.root(&inside), root);
    // The same image in the format of `docker save` has the same name.
    assert_eq!(home.unpacked(&saved(&layers, json!({}))).await, root);

    let mut cut = stored.clone();
    let half = cut[0].len() / 2;
    cut[0].truncate(half);
    let why = Home::new().refused(&layout(&layers, &cut)).await;
    assert!(why.contains("is damaged: \"blobs/sha256/"), "{why}");
    let mut cut = stored.clone();
    let half = cut[1].len() / 2;
    cut[1].truncate(half);
    let why = Home::new().refused(&layout(&layers, &cut)).await;
    assert!(why.contains("is damaged: \"blobs/sha256/"), "{why}");
    let mut wrong = files.clone();
    let name = format!("blobs/sha256/{}", sha(&stored[0]).trim_start_matches("sha256:"));
    *wrong.get_mut(&name).expect("layer") = gzip(&layer(&[file("a/one", "other")]));
    let why = Home::new().refused(&wrong).await;
    assert!(why.contains(", expected sha256:"), "{why}");
    wrong.remove(&name);
    let why = Home::new().refused(&wrong).await;
    assert!(why.contains("is incomplete: \"blobs/sha256/"), "{why}");
}

#[tokio::test]
async fn copies_a_plain_file_system_unchanged() {
    let home = Home::new();
    home.put("plain.tar", &layer(&[directory("./etc"), file("./etc/passwd", "root:x:0:0::/root:/bin/sh\n")]));
    let (inside, notes) = home.prepare("plain.tar").await.expect("unpacked");
    assert_eq!((inside.uid, inside.user.as_str(), inside.home.as_str()), (1000, "agent", "/home/agent"));
    assert_eq!(notes, [] as [&str; 0]);
    assert!(
        text(&home.root(&inside).join("etc/passwd")).ends_with("agent:x:1000:1000::/home/agent:/bin/sh\n")
    );

    let root = home.directory.path().join("rootfs");
    std::fs::create_dir_all(root.join("usr/bin")).expect("directory");
    std::os::unix::fs::symlink("usr/bin", root.join("bin")).expect("link");
    std::fs::write(root.join("usr/bin/tool"), "tool").expect("written");
    std::fs::set_permissions(root.join("usr/bin/tool"), PermissionsExt::from_mode(0o4755)).expect("mode");
    let (inside, _) = home.prepare("rootfs").await.expect("copied");
    let made = home.root(&inside);
    assert_eq!(text(&made.join("bin/tool")), "tool");
    assert_eq!(made.join("bin/tool").metadata().expect("there").permissions().mode() & 0o7777, 0o755);
    // A changed file results in another image. No bottle uses the first image after that.
    std::fs::write(root.join("usr/bin/other"), "other").expect("written");
    let (other, _) = home.prepare("rootfs").await.expect("copied");
    assert_ne!(other.image, inside.image);
}

#[tokio::test]
async fn refuses_invalid_entries_with_name_and_reason() {
    let deep = format!("{}file", "d/".repeat(129));
    let cases: Vec<(Vec<Entry>, &str)> = vec![
        (vec![file("/etc/cron.d/x", "x")], "\"/etc/cron.d/x\" is an absolute name"),
        (vec![file("../x", "x")], "\"../x\" points outside the image"),
        (vec![file("a/../../x", "x")], "\"a/../../x\" points outside the image"),
        (vec![link("out", "../../etc")], "\"out\" is a link that points outside"),
        (vec![link("out", "/etc"), file("out/passwd", "x")], "\"out\" must be a directory"),
        (vec![link("a", "b"), link("b", "a"), file("a/x", "x")], "\"a\" must be a directory"),
        (vec![link("out", "nowhere"), file("out/x", "x")], "\"out\" must be a directory"),
        (vec![file("a", "x"), file("a/b", "x")], "\"a\" must be a directory, and is not"),
        (vec![hard("x", "../../etc/passwd")], "\"x\" is a hard link that points outside"),
        (vec![hard("x", "/etc/passwd")], "\"x\" is a hard link that points outside"),
        (vec![link("out", "/etc"), hard("x", "out/passwd")], "\"x\" is a hard link that points outside"),
        (vec![hard("x", "y")], "\"x\" is a hard link to \"y\", which is not there"),
        (vec![directory("d"), hard("x", "d")], "\"x\" is a hard link to a directory"),
        (vec![entry(EntryType::Char, "opt/null", b"")], "\"opt/null\" is a device"),
        (vec![entry(EntryType::Block, "dev/shm/sda", b"")], "\"dev/shm/sda\" is a device"),
        (vec![entry(EntryType::GNUSparse, "x", b"")], "\"x\": a sparse file has no size"),
        (vec![file("a", "x"), file("a", "y")], "\"a\" occurs twice in its layer"),
        (vec![file("a", "x"), link("./a", "y")], "\"a\" occurs twice in its layer"),
        (vec![file("nul\0", "x")], "has a name with a NUL byte"),
        (vec![file(&deep, "x")], "directories deep"),
        (vec![file("a/.wh...", "")], "\"a/.wh...\" is a whiteout without a valid name"),
        (vec![file("a/.wh..", "")], "\"a/.wh..\" is a whiteout without a valid name"),
        (vec![file("a/.wh.", "")], "\"a/.wh.\" is a whiteout without a valid name"),
        (vec![file("a/.wh..wh.plnk", "")], "is a whiteout without a valid name"),
        (
            vec![link("out", "/etc"), file("out/.wh.passwd", "")],
            "\"out/.wh.passwd\" is in a directory that is a link",
        ),
        (vec![link("out", "/etc"), file("out/.wh..wh..opq", "")], "is in a directory that is a link"),
        (
            vec![Entry { attributes: vec![("user.overlay.redirect", b"/etc")], ..directory("a") }],
            "\"a\" has an attribute that only overlay file systems set",
        ),
        (vec![link("dev", "/etc")], "must have a directory at \"dev\""),
        (vec![file("run", "")], "must have a directory at \"run\""),
        (vec![file("workspace", "")], "must have a directory at \"workspace\""),
    ];
    for (entries, why) in cases {
        let home = Home::new();
        std::fs::write(home.directory.path().join("canary"), "whole").expect("written");
        let message = home.refused(&saved(&[layer(&entries)], json!({}))).await;
        assert!(message.starts_with("the image ./a.tar ") && message.contains(why), "{why}: {message}");
        assert_eq!(text(&home.directory.path().join("canary")), "whole");
    }
}

#[tokio::test]
async fn refuses_an_image_that_does_not_match_its_manifest() {
    let layers = [layer(&[file("a", "x")])];
    let good = || saved(&layers, json!({}));
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = good();
        change(&mut files);
        files
    };
    let manifest = |text: &str| with(&|files| drop(files.insert("manifest.json".to_owned(), text.into())));
    let other = if architecture() == "arm64" { "amd64" } else { "arm64" };
    for (files, why) in [
        (with(&|files| files.get_mut("0/layer.tar").expect("layer").extend([0; 512])), "expected sha256:"),
        (with(&|files| drop(files.remove("0/layer.tar"))), "is incomplete: \"0/layer.tar\" is missing"),
        (
            with(&|files| {
                let name =
                    files.keys().find(|name| name.ends_with(".json") && name.len() > 60).expect("config");
                *files.get_mut(&name.clone()).expect("config") = b"{}".to_vec();
            }),
            "expected sha256:",
        ),
        (manifest("[]"), "contains no image"),
        (manifest("{"), "manifest.json cannot be read"),
        (manifest(r#"[{"Config": "../../x", "Layers": []}]"#), "\"../../x\" is missing"),
        (manifest(r#"[{"Config": "a"}, {"Config": "b"}]"#), "contains 2 images"),
        (saved(&layers, json!({"architecture": other})), "not for this machine"),
        (saved(&layers, json!({"os": "windows"})), "is for windows"),
        (saved(&layers, json!({"rootfs": {"diff_ids": []}})), "it lists 1 layers, but its configuration 0"),
        (saved(&layers, json!({"rootfs": {"diff_ids": ["sha512:00"]}})), "is not a SHA-256 digest"),
        (saved(&layers, json!({"config": {"User": "somebody"}})), "no such user in its /etc/passwd"),
        (saved(&[b"no archive".repeat(100)], json!({})), "is damaged"),
    ] {
        let message = Home::new().refused(&files).await;
        assert!(message.contains(why), "{why}: {message}");
    }
    // One archive contains a file twice, and another one is truncated.
    let home = Home::new();
    let twice = layer(&[file("manifest.json", "[]"), file("manifest.json", "[]")]);
    home.put("a.tar", &twice);
    assert!(home.prepare("a.tar").await.expect_err("twice").message.contains("occurs twice"));
    let mut cut = archive(&good());
    cut.truncate(cut.len() - 1024 - 500);
    home.put("a.tar", &cut);
    assert!(home.prepare("a.tar").await.is_err());
}

#[tokio::test]
async fn stops_at_a_decompression_bomb() {
    let size: usize = 300 << 20;
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..4].copy_from_slice(b"zero");
    header.set_mode(0o644);
    header.set_size(size as u64);
    header.set_cksum();
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(header.as_bytes()).expect("compressed");
    let zeros = vec![0; 1 << 20];
    for _ in 0..size >> 20 {
        out.write_all(&zeros).expect("compressed");
    }
    let bomb = out.finish().expect("compressed");
    // The configuration names another layer, because unpacking fails before the digest of the layer is compared.
    let content = [layer(&[])];
    let message = Home::new().refused(&layout(&content, &[bomb])).await;
    assert!(message.contains("\"zero\" cannot be read: it expands to more than 200 times"), "{message}");
}

#[tokio::test]
async fn applies_the_configuration_like_an_engine() {
    let passwd = "root:x:0:0::/root:/bin/sh\nnode:x:1234:1234::/srv/node:/bin/bash\n";
    let layers = [layer(&[directory("etc"), file("etc/passwd", passwd), directory("srv/node")])];
    let config = json!({"config": {"User": "node", "Env": ["PATH=/opt/bin:/bin", "A=b=c"], "Entrypoint": ["/run"],
        "Volumes": {"/data": {}}, "WorkingDir": "/opt", "Healthcheck": {"Test": ["CMD", "x"]}}});
    let home = Home::new();
    home.put("a.tar", &archive(&saved(&layers, config)));
    let (inside, notes) = home.prepare("a.tar").await.expect("unpacked");
    assert_eq!((inside.uid, inside.gid, inside.user.as_str()), (1234, 1234, "node"));
    assert_eq!(inside.home, "/srv/node");
    assert_eq!(inside.env["A"], "b=c");
    assert_eq!(inside.env["PATH"], "/opt/bin:/bin");
    assert_eq!(notes, ["the image's ENTRYPOINT, HEALTHCHECK has no effect in a bottle"]);
    let root = home.root(&inside);
    assert_eq!(root.join("home/agent").read_link().expect("link"), Path::new("/srv/node"));
    assert!(root.join("workspace").is_dir());
}

#[tokio::test]
async fn a_second_start_waits_for_the_unpacking_and_reports_it() {
    let home = Home::new();
    home.put("a.tar", &archive(&saved(&[layer(&[file("big", &"x".repeat(8 << 20))])], json!({}))));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let progress = || {
        let heard = heard.clone();
        ProgressSink::new(move |step: bottle_backend::Step| heard.lock().expect("lock").push(step.line))
    };
    let (one, other) = (progress(), progress());
    let path = Path::new("a.tar");
    let (one, other) = tokio::join!(home.images.prepare(path, &one), home.images.prepare(path, &other));
    assert_eq!(one.expect("unpacked").0, other.expect("found").0);
    let heard = heard.lock().expect("lock");
    assert_eq!(heard.iter().filter(|line| *line == "unpacking it").count(), 1, "{heard:?}");
    assert!(heard.iter().any(|line| line.starts_with("waiting for another start")), "{heard:?}");
}

#[tokio::test]
async fn finds_and_removes_only_unused_images() {
    let home = Home::new();
    let image = |text: &str| archive(&saved(&[layer(&[file("a", text)])], json!({})));
    let fresh = || Images::new(&home.images.host());
    home.put("a.tar", &image("one"));
    let (one, _) = fresh().prepare(Path::new("a.tar"), &ProgressSink::discard()).await.expect("unpacked");
    home.put("a.tar", &image("two"));
    let (two, _) = fresh().prepare(Path::new("a.tar"), &ProgressSink::discard()).await.expect("unpacked");
    let directory = home.directory.path().join("images");
    std::fs::create_dir_all(directory.join(".new-0123").join("root")).expect("killed");
    std::fs::create_dir(directory.join("mine")).expect("a user's");
    let names =
        |unused: &[bottle_backend::Unused]| unused.iter().map(|one| one.id.clone()).collect::<Vec<_>>();

    let images = fresh();
    let used = [one.image.clone()];
    assert_eq!(names(&images.unused(&used).expect("listed")), [".new-0123"], "it is used");
    let unused = images.unused(&[]).expect("listed");
    assert_eq!(names(&unused), [".new-0123".to_owned(), one.image.clone()]);
    assert!(unused[1].why.contains("took its place"), "{unused:?}");
    // A bottle that starts begins to use the image after the image was listed as unused.
    let starting = fresh();
    assert!(starting.open_shared(&one.image).expect("held").is_some());
    let removed = images.remove(unused.clone(), || Ok(Vec::new())).expect("removed");
    assert_eq!(names(&removed), [".new-0123"]);
    drop(starting);
    let now_used = images.remove(unused.clone(), || Ok(vec![one.image.clone()])).expect("looked");
    assert_eq!(names(&now_used), [".new-0123"], "gone already is gone");
    images.remove(unused, || Ok(Vec::new())).expect("removed");
    assert!(!directory.join(&one.image).exists() && directory.join(&two.image).is_dir());
    assert!(images.open_shared(&one.image).expect("looked").is_none());
    std::fs::remove_file(home.directory.path().join("a.tar")).expect("removed");
    let gone = images.unused(&[]).expect("listed");
    assert_eq!(names(&gone), [two.image]);
    assert!(gone[0].why.contains("is gone"), "{gone:?}");
    assert!(directory.join("mine").is_dir());
}

#[tokio::test]
async fn rejects_image_names_that_are_paths() {
    let home = Home::new();
    for name in ["", "..", "../state", "/etc", ".new-0", "a/b", "0\n"] {
        assert!(home.images.open_shared(name).is_err(), "{name:?}");
    }
}
