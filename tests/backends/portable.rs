//! Tests moving the files of a bottle to another home and to another backend.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bottle_backend::portable_image::{ContentScanner, Export, Import, Imported, LayerStore, RootKind};
use bottle_backend::{BackendError, BackendErrorKind, Origin, ProgressSink, Snapshot};
use bottle_instance::portable::{FORMAT, Metadata, Writer, receive};
use bottle_plan::ImageSource;
use bottle_policy::names::{AGENT_USER, WORKSPACE};

use crate::fixture::{Bottle, Fixture, every_backend, read, write as write_file};

/// The image on which a bottle was started.
fn base<'a>(bottle: &'a Bottle<'_>) -> Option<&'a str> {
    bottle.prepared.inside.as_ref().map(|inside| inside.image.as_str())
}

/// The image that was imported.
fn image(imported: &Imported) -> Option<&str> {
    match &imported.image {
        Some(ImageSource::Imported(image)) => Some(image),
        _ => None,
    }
}

/// Writes the archive of a snapshot. Returns which part of the root file system the archive contains.
async fn export(fixture: &Fixture, base: Option<&str>, snapshot: &Snapshot, file: &Path) -> RootKind {
    let scratch = tempfile::tempdir().expect("directory");
    let mut metadata = metadata(fixture, snapshot);
    let writer = Writer::begin(File::create(file).expect("file"), &metadata, "").expect("begun");
    let scanner = Arc::new(ContentScanner::new(&[], Default::default()).expect("scanner"));
    let layers = LayerStore::new(writer.blobs(), scanner, ProgressSink::discard());
    let request = Export { snapshot, base, scratch: scratch.path(), layers };
    let image = fixture.backend.export(request).await;
    let image = image.unwrap_or_else(|error| panic!("{}: {}", fixture.name(), error.one_line()));
    // A snapshot of the apple or smolvm backend does not record which files belong to the image, so the image's files
    // are scanned too.
    let of_image =
        |path: &str| ["apple", "smolvm"].contains(&fixture.name()) && path.starts_with("/usr/lib/");
    let findings = image.layers.findings().iter().filter(|finding| !of_image(&finding.path));
    let findings: Vec<_> = findings.collect();
    assert!(findings.is_empty(), "{}: {findings:?}", fixture.name());
    metadata.root = image.root;
    metadata.home.clone_from(&image.home);
    writer.finish(&metadata, &image, None).expect("written");
    image.root
}

fn metadata(fixture: &Fixture, snapshot: &Snapshot) -> Metadata {
    Metadata {
        format: FORMAT,
        program: String::new(),
        slug: snapshot.slug.clone(),
        name: None,
        label: None,
        agent: "tester".parse().expect("name"),
        bottles: Vec::new(),
        backend: fixture.name().to_owned(),
        root: RootKind::Complete,
        home: String::new(),
        made_at: snapshot.made_at,
        accepted: Vec::new(),
        canaries: Vec::new(),
    }
}

async fn import(fixture: &Fixture, file: &Path, slug: &str) -> Result<Imported, BackendError> {
    let scratch = tempfile::tempdir().expect("directory");
    let layout = scratch.path().join("image");
    let mut archive = std::fs::File::open(file).expect("file");
    let received = receive(&mut archive, &layout, &ProgressSink::discard()).expect("received");
    let root = received.metadata.root;
    let prepared = match root {
        RootKind::Complete => Default::default(),
        RootKind::Home => fixture.prepared().await.expect("prepared"),
    };
    let slug = slug.parse().expect("slug");
    let progress = ProgressSink::discard();
    fixture.backend.import(Import { slug: &slug, layout: &layout, root, prepared: &prepared, progress }).await
}

/// Starts a bottle from imported files.
async fn started<'a>(fixture: &'a Fixture, slug: &str, imported: &Imported) -> Bottle<'a> {
    let mut bottle = fixture.planned(slug);
    bottle.origin = Origin::Snapshot(imported.snapshot.clone());
    bottle.prepared = match &imported.image {
        None => fixture.prepared().await.expect("prepared"),
        Some(image) => {
            bottle.plan.image = image.clone();
            let none = Default::default();
            let prepared = fixture.backend.prepare(&bottle.plan, &none, &ProgressSink::discard()).await;
            prepared.unwrap_or_else(|error| panic!("{}: {}", fixture.name(), error.one_line()))
        }
    };
    bottle.begin().await;
    bottle
}

/// Describes a test's files: kinds, modes, sizes, times, links and contents. The owner is the agent.
const DESCRIBE: &str = "cd /workspace; find . -printf '%p %y %m %s %n %l\\n' | sed 's/^\\(\\S* d \\S*\\) .*/\\1/' | sort; \
     find . ! -type d -printf '%p %T@\\n' | sed 's/[.][0-9]*$//' | sort; \
     cat plain 'a name' /home/agent/note; stat -c '%U' plain /home/agent/note | sort -u";

const MAKE: &str = "cd /workspace; mkdir -p sub/closed; echo one >plain; ln plain sub/hard; ln -s ../plain sub/soft; \
     ln -s /etc/hostname absolute; echo two >'a name'; chmod 640 'a name'; echo x >sub/program; \
     chmod 755 sub/program; truncate -s 64M sparse; mkfifo pipe; chmod 500 sub/closed; \
     touch -d '2001-02-03 04:05:06' plain 'a name' sub/program; touch -h -d '2002-03-04 05:06:07' sub/soft; \
     long=$(printf 'n%.0s' $(seq 120)); mkdir $long; echo long >$long/$long; echo remember >/home/agent/note";

#[tokio::test(flavor = "multi_thread")]
async fn a_bottle_moves_to_every_backend_that_can_have_its_files() {
    let mut fixtures = every_backend().await;
    fixtures.retain(|fixture| fixture.name() != "docker");
    fixtures.extend(Fixture::docker_on_small_image().await);
    let directory = tempfile::tempdir().expect("directory");
    for from in &fixtures {
        let bottle = from.bottle("moving").await;
        let is_fake = from.name() == "fake";
        let described = if is_fake {
            let channel = bottle.provisioned().await;
            write_file(&channel, &format!("{WORKSPACE}/plain"), b"one").await;
            write_file(&channel, &format!("/home/{AGENT_USER}/note"), b"remember").await;
            String::new()
        } else {
            assert_eq!(bottle.shell(MAKE).await, "", "{}", from.name());
            bottle.once(&["/bin/sh", "-c", DESCRIBE]).await.expect("described").0
        };
        let snapshot = bottle.make_snapshot(None).await;
        let file = directory.path().join("archive");
        let root = export(from, base(&bottle), &snapshot, &file).await;
        bottle.remove().await;
        let _ = from.backend.remove_snapshot(&snapshot).await;
        for to in &fixtures {
            let names = format!("{}{} to {}{}", from.name(), from.is_in_image(), to.name(), to.is_in_image());
            let imported = import(to, &file, "moved").await;
            let is_refused = match root {
                RootKind::Complete => to.name() == "fake",
                // The bottles of apple and smolvm have their own system, which this archive does not contain.
                RootKind::Home => ["apple", "smolvm"].contains(&to.name()),
            };
            if is_refused {
                let error = imported.expect_err("it has no images, or nothing else");
                assert_eq!(error.kind, BackendErrorKind::Unsupported, "{names}");
                continue;
            }
            let imported = imported.unwrap_or_else(|error| panic!("{names}: {}", error.one_line()));
            let listed = to.backend.snapshots().await.expect("listed");
            assert!(listed.contains(&imported.snapshot), "{names}: {listed:?}");
            if is_fake != (to.name() == "fake") {
                // The home directories of the fake backend and of the other backends have different paths.
                to.backend.remove_snapshot(&imported.snapshot).await.expect("removed");
                continue;
            }
            let moved = started(to, "moved", &imported).await;
            if is_fake {
                let channel = moved.provisioned().await;
                assert_eq!(read(&channel, "plain").await.as_deref(), Some("one"), "{names}");
            } else {
                assert_eq!(moved.shell(DESCRIBE).await, described, "{names}");
                if from.name() == "linux" && to.name() == "linux" {
                    let (blocks, _) = moved.once(&["stat", "-c", "%b", "sparse"]).await.expect("stat");
                    assert_eq!(blocks, "0\n", "{names}: holes stay holes");
                }
            }
            moved.remove().await;
            to.backend.remove_snapshot(&imported.snapshot).await.expect("removed");
        }
    }
}

/// The kind, mode, owner, time, link target and content of each entry of a bottle.
type Tree = BTreeMap<String, (u8, u32, u64, u64, u64, String, Vec<u8>)>;

/// Reads the files of an archive. Each layer is applied over the previous layers.
fn tree(file: &Path) -> Tree {
    let blobs = tempfile::tempdir().expect("directory");
    tar::Archive::new(File::open(file).expect("archive")).unpack(blobs.path()).expect("unpacked");
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(blobs.path().join(name)).expect("a blob")).expect("JSON")
    };
    let blob = |descriptor: &serde_json::Value| {
        let digest = descriptor["digest"].as_str().expect("a digest");
        format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"))
    };
    let manifest = json(&blob(&json("index.json")["manifests"][0]));
    let mut tree = Tree::new();
    for layer in manifest["layers"].as_array().expect("layers") {
        let layer = File::open(blobs.path().join(blob(layer))).expect("a layer");
        let mut layer = tar::Archive::new(flate2::read::MultiGzDecoder::new(layer));
        for entry in layer.entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("path").to_string_lossy().into_owned();
            let path = path.trim_start_matches("./").trim_end_matches('/').to_owned();
            let (directory, name) = path.rsplit_once('/').unwrap_or(("", &path));
            if let Some(removed) = name.strip_prefix(".wh.") {
                let gone = if removed == ".wh..opq" {
                    directory.to_owned()
                } else {
                    format!("{directory}/{removed}")
                };
                let below = format!("{gone}/");
                tree.retain(|path, _| !path.starts_with(&below) && (*path != gone || removed == ".wh..opq"));
                continue;
            }
            let link = entry.link_name().expect("link").map(|link| link.to_string_lossy().into_owned());
            if entry.header().entry_type() == tar::EntryType::Link {
                let first = tree[link.expect("a target").trim_start_matches("./")].clone();
                tree.insert(path, first);
                continue;
            }
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("content");
            let header = entry.header();
            let mode = header.mode().expect("mode") & 0o7777;
            let (uid, gid) = (header.uid().expect("uid"), header.gid().expect("gid"));
            let mtime = header.mtime().expect("mtime");
            let kind = header.entry_type().as_byte();
            tree.insert(path, (kind, mode, uid, gid, mtime, link.unwrap_or_default(), content));
        }
    }
    tree.remove("");
    tree
}

/// The paths that differ after a bottle was on the linux backend: mount points, and a setting of dpkg.
const OF_LINUX: [&str; 4] = ["dev", "proc", "sys", "etc/dpkg/dpkg.cfg.d/bottle"];

#[tokio::test(flavor = "multi_thread")]
async fn a_bottle_of_containers_comes_back_from_linux_with_equal_files() {
    let Some(docker) = Fixture::docker_on_small_image().await else { return };
    let mut fixtures = every_backend().await;
    fixtures.retain(|fixture| fixture.is_in_image() && fixture.name() == "linux");
    let Some(linux) = fixtures.pop() else { return };
    let directory = tempfile::tempdir().expect("directory");
    let bottle = docker.bottle("there").await;
    let make = format!("{MAKE}; mkdir -m 1777 sticky; rm -f /home/agent/.profile");
    assert_eq!(bottle.shell(&make).await, "");
    let snapshot = bottle.make_snapshot(None).await;
    let [there, away, back] = ["there", "away", "back"].map(|name| directory.path().join(name));
    export(&docker, base(&bottle), &snapshot, &there).await;
    bottle.remove().await;
    docker.backend.remove_snapshot(&snapshot).await.expect("removed");
    let on_linux = import(&linux, &there, "away").await.expect("imported");
    export(&linux, image(&on_linux), &on_linux.snapshot, &away).await;
    let again = import(&docker, &away, "back").await.expect("imported");
    export(&docker, image(&again), &again.snapshot, &back).await;
    docker.backend.remove_snapshot(&again.snapshot).await.expect("removed");
    let (mut first, mut last) = (tree(&there), tree(&back));
    for path in OF_LINUX {
        first.remove(path);
        last.remove(path);
    }
    // Bottles do not use the devices of an image.
    first.retain(|path, _| !path.starts_with("dev/"));
    let differs: Vec<&String> = first
        .iter()
        .filter(|(path, entry)| last.get(*path) != Some(entry))
        .map(|(path, _)| path)
        .chain(last.keys().filter(|path| !first.contains_key(*path)))
        .collect();
    assert!(differs.is_empty(), "{} of {} differ: {differs:?}", differs.len(), first.len());
    assert_eq!(tree(&away), tree(&back));
}
