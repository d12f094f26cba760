//! Tests the backend without a machine: limits, exports and imports.

use std::path::Path;
use std::sync::Arc;

use bottle_backend::portable_image::{BlobDirectory, ContentScanner, LAYOUT, LayerStore};
use bottle_backend::{NewSnapshot, Snapshot, Snapshots};

use super::*;
use crate::local::layers::COPY;

#[test]
fn a_machine_has_whole_processors_and_memory_for_its_kernel() {
    for (limit, expected) in [(Some(1000), 1), (Some(1500), 2), (Some(2000), 2), (Some(0), 1)] {
        assert_eq!(cpus(limit), expected, "{limit:?}");
    }
    assert!(cpus(None) >= 1);
    let asked = Resources { memory: Some(1 << 30), ..Resources::default() };
    assert_eq!(machine_memory(&asked), (1 << 30) + KERNEL_MEMORY);
    let none = Resources::default();
    assert!(machine_memory(&none) <= MEMORY + KERNEL_MEMORY);
    let endless = Resources { memory: Some(u64::MAX), ..Resources::default() };
    assert_eq!(machine_memory(&endless), u64::MAX);
}

/// Creates a backend for a home that has an image. smolvm is not installed.
fn backend(home: &Path) -> SmolvmBackend {
    let image = home.join("base");
    for directory in ["etc", "usr/bin", "home/agent"] {
        std::fs::create_dir_all(image.join(directory)).expect("directory");
    }
    std::fs::write(image.join("usr/bin/tool"), "one").expect("written");
    std::fs::write(image.join("etc/passwd"), "agent:x:1000:1000::/home/agent:/bin/sh\n").expect("written");
    SmolvmBackend::new(&Host::of_home(home))
}

/// Makes the layers of a bottle in the same way as the bottle's first start.
async fn layers(backend: &SmolvmBackend, slug: &Slug, image: &str) -> Layers {
    let layers = backend.0.scope.layers(slug);
    std::fs::create_dir_all(layers.workspace()).expect("directory");
    layers.set_image(image).expect("written");
    let image = backend.0.images.open_shared(image).expect("read").expect("an image");
    backend.0.copy_image(&image, &layers).await.expect("copied");
    layers
}

/// Exports a snapshot to an OCI layout in the form that an import expects. Returns the kind of the root file system and
/// the agent's home.
async fn moved(
    backend: &SmolvmBackend,
    snapshot: &Snapshot,
    directory: &Path,
    layout: &Path,
) -> (RootKind, String) {
    let blobs = layout.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("directory");
    let scanner = Arc::new(ContentScanner::new(&[], Default::default()).expect("scanner"));
    let layers = LayerStore::new(BlobDirectory(blobs), scanner, ProgressSink::discard());
    let request = Export { snapshot, base: None, scratch: directory, layers };
    let image = backend.export(request).await.expect("exported");
    let (index, _) = image.finish().expect("complete");
    std::fs::write(layout.join("oci-layout"), LAYOUT).expect("written");
    std::fs::write(layout.join("index.json"), index).expect("written");
    (image.root, image.home)
}

#[tokio::test]
async fn a_bottle_is_exported_and_its_files_come_back_in_a_new_one() {
    let directory = tempfile::tempdir().expect("directory");
    let backend = backend(directory.path());
    let (info, _) =
        backend.0.images.prepare(Path::new("base"), &ProgressSink::discard()).await.expect("prepared");
    let [one, two]: [Slug; 2] = ["one", "two"].map(|slug| slug.parse().expect("slug"));
    let first = layers(&backend, &one, &info.image).await;
    let root = first.directory().join(COPY);
    std::fs::write(root.join("usr/bin/tool"), "two").expect("written");
    std::fs::write(root.join("home/agent/note"), "remember").expect("written");
    std::fs::write(first.workspace().join("work"), "work").expect("written");
    let snapshot = backend.make_snapshot(&one, &NewSnapshot::default(), ProgressSink::discard()).await;
    let snapshot = snapshot.expect("made").snapshot;

    let archive = directory.path().join("layout");
    let (root, agent_home) = moved(&backend, &snapshot, directory.path(), &archive).await;
    assert_eq!((root, &*agent_home), (RootKind::Complete, "/home/agent"));

    let prepared = Prepared::default();
    let import = |root| {
        let progress = ProgressSink::discard();
        backend.import(Import { slug: &two, layout: &archive, root, prepared: &prepared, progress })
    };
    let refused = import(RootKind::Home).await.expect_err("a home needs a system");
    assert_eq!(refused.kind, bottle_backend::BackendErrorKind::Unsupported);
    let imported = import(RootKind::Complete).await.expect("imported");
    let Some(ImageSource::Imported(name)) = &imported.image else { panic!("{:?}", imported.image) };
    assert!(backend.0.images.imported(name).is_ok());

    // Does the same as the first start of the new bottle: restores the snapshot and copies the image.
    let second = backend.0.scope.layers(&two);
    std::fs::create_dir_all(second.directory()).expect("directory");
    let state = second.directory().parent().expect("a directory").to_owned();
    let progress = ProgressSink::discard();
    backend.0.scope.restore_snapshot(&state, &imported.snapshot, None, progress).await.expect("restored");
    assert_eq!(second.kind(), Some(Kind::Upper));
    assert_eq!(second.image().expect("read").as_deref(), Some(&**name));
    let image = backend.0.images.open_shared(name).expect("read").expect("an image");
    backend.0.copy_image(&image, &second).await.expect("copied");
    let read = |path: &str| std::fs::read_to_string(second.directory().join(path)).expect("there");
    assert_eq!(read("root/usr/bin/tool"), "two");
    assert_eq!(read("root/home/agent/note"), "remember");
    assert_eq!(read("workspace/work"), "work");
}
