//! Tests the restrictions of each mount, as the kernel reports them.

use bottle_plan::Workspace;
use bottle_policy::names::GIT_OBJECTS_DIR;

use crate::fixture::{every_isolating_backend, run};

/// The mounts that a bottle may write: its own directories, its tmpfs mounts, and the virtual file systems `/proc` and
/// `/dev/pts`.
const OWN: [&str; 9] =
    ["/home/agent", "/workspace", "/usr/local", "/opt", "/tmp", "/run", "/proc", "/dev/shm", "/dev/pts"];

/// Whether the mount is a harmless device. Each harmless device is a separate mount.
fn is_device(directory: &str, kind: &str) -> bool {
    kind == "devtmpfs" && directory.starts_with("/dev/")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mount_has_its_restrictions() {
    for fixture in every_isolating_backend().await {
        if fixture.name() != "linux" {
            // A container engine sets its own mount flags. Other tests check their effect.
            continue;
        }
        let mut bottle = fixture.planned("mounts");
        // The git objects of a copied directory are a mount too.
        bottle.plan.workspace = Workspace::Copy;
        bottle.prepared = fixture.prepared().await.expect("prepared");
        bottle.begin().await;
        let channel = bottle.provisioned().await;
        let (mounts, _) = run(&channel, &["cat", "/proc/self/mounts"]).await.expect("ran");
        let mounts: Vec<[&str; 3]> = mounts
            .lines()
            .filter_map(|line| line.split(' ').skip(1).take(3).collect::<Vec<_>>().try_into().ok())
            .collect();
        let system = if fixture.is_in_image() { "/" } else { "/usr" };
        assert!(mounts.iter().any(|[directory, ..]| *directory == system), "the control: {mounts:?}");
        assert!(
            mounts.iter().any(|[directory, ..]| *directory == GIT_OBJECTS_DIR),
            "the objects: {mounts:?}"
        );
        for [directory, kind, options] in mounts {
            let has = |option| options.split(',').any(|one| one == option);
            assert!(has("nosuid"), "set-id programs work at {directory}");
            assert!(has("nodev") || kind == "devtmpfs" || kind == "devpts", "devices work at {directory}");
            // The files of an image belong to the bottle and are writable.
            let own = OWN.contains(&directory) || fixture.is_in_image() && directory == "/";
            assert!(has("ro") || own || is_device(directory, kind), "{directory} can be written");
        }
        bottle.remove().await;
    }
}
