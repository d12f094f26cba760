//! What the kernel itself says of each mount, whatever else stands before it.

use crate::stand::{every_isolating_backend, run};

/// Where a bottle writes: its own folders, its own memory, and what a process says of itself.
const OWN: [&str; 9] =
    ["/home/agent", "/workspace", "/usr/local", "/opt", "/tmp", "/run", "/proc", "/dev/shm", "/dev/pts"];

/// Single devices that are harmless, each mounted by itself.
fn is_device(folder: &str, kind: &str) -> bool {
    kind == "devtmpfs" && folder.starts_with("/dev/")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mount_forbids_what_nobody_needs_of_it() {
    for stand in every_isolating_backend().await {
        if stand.name() != "linux" {
            // An engine mounts by its own rules; what comes of them is tried in the other files.
            continue;
        }
        let bottle = stand.bottle("mounts").await;
        let channel = bottle.provisioned().await;
        let (mounts, _) = run(&channel, &["cat", "/proc/self/mounts"]).await.expect("ran");
        let mounts: Vec<[&str; 3]> = mounts
            .lines()
            .filter_map(|line| line.split(' ').skip(1).take(3).collect::<Vec<_>>().try_into().ok())
            .collect();
        let system = if stand.is_in_image() { "/" } else { "/usr" };
        assert!(mounts.iter().any(|[folder, ..]| *folder == system), "the control: {mounts:?}");
        for [folder, kind, options] in mounts {
            let has = |option| options.split(',').any(|one| one == option);
            assert!(has("nosuid"), "set-id programs work at {folder}");
            assert!(has("nodev") || kind == "devtmpfs" || kind == "devpts", "devices work at {folder}");
            // An image's files are the bottle's own.
            let own = OWN.contains(&folder) || stand.is_in_image() && folder == "/";
            assert!(has("ro") || own || is_device(folder, kind), "{folder} can be written");
        }
        bottle.remove().await;
    }
}
