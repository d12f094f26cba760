//! Tests the backend apple with each version of `container`: logs that are not text, and sockets that a crash left.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_backend::{BackendErrorKind, Origin, Resource};
use bottle_test_support::engine;

use crate::fixture::{Bottle, Fixture, every_backend};

/// The apple backend with each version of `container`, if the test double is usable.
async fn apple() -> Vec<Fixture> {
    let mut fixtures = every_backend().await;
    fixtures.retain(|fixture| fixture.name() == "apple");
    fixtures
}

/// Returns the name of a bottle's container.
fn container(bottle: &Bottle<'_>, part: &str) -> String {
    format!("bottle-{}-{part}-{}", bottle.fixture.host.home_hash(), bottle.slug())
}

/// Returns all sockets below the directory.
fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| if entry.path().is_dir() { sockets(&entry.path()) } else { vec![entry.path()] })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_text_in_the_log_hide_no_start() {
    for fixture in apple().await {
        let bottle = fixture.bottle("noisy").await;
        // The log keeps the output of earlier starts.
        let pid = engine::docker(&["inspect", "--format", "{{.State.Pid}}", &container(&bottle, "agent")]);
        std::fs::write(format!("/proc/{}/fd/2", pid.expect("a process")), b"a\xffb\n").expect("written");
        bottle.stop().await;
        let again = fixture.bottle_from("noisy", Origin::Kept).await;
        assert_eq!(again.shell("echo works").await, "works\n");
        again.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_a_crash_left_are_removed_on_every_way_in() {
    for fixture in apple().await {
        let bottle = fixture.bottle("crashed").await;
        bottle.start_bundle().await;
        let runtime = fixture.host.runtime.join(".apple").join(bottle.slug().as_str());
        let published = ["guest", "bundle", "b/443"].map(|name| runtime.join(name));
        for part in ["agent", "bundle"] {
            engine::docker(&["kill", &container(&bottle, part)]).expect("killed");
        }
        while published.iter().any(|path| path.exists()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // If `container` is killed too, it removes no socket.
        let crash = || published.each_ref().map(|path| drop(UnixListener::bind(path).expect("bound")));

        crash();
        let backend = &fixture.backend;
        let error = backend.connect_guest(bottle.slug()).await.err().expect("it does not run");
        assert_eq!(error.kind, BackendErrorKind::NotRunning, "{error}");
        let error = backend.connect_bundle(bottle.slug()).await.err().expect("it does not run");
        assert_eq!(error.kind, BackendErrorKind::NotRunning, "{error}");
        assert!(!published.iter().any(|path| path.exists()), "{:?}", sockets(&runtime));

        crash();
        let again = fixture.bottle_from("crashed", Origin::Kept).await;
        again.start_bundle().await;
        assert_eq!(again.shell("echo works").await, "works\n");
        // The sockets of a running bottle stay.
        backend.connect_bundle(again.slug()).await.expect("connected");

        let mut processes = again.found().await;
        processes.retain(|resource: &Resource| resource.kind.ends_with("process"));
        assert_eq!(processes.len(), 2, "{processes:?}");
        backend.remove(&processes).await.expect("removed");
        assert_eq!(sockets(&runtime), [] as [PathBuf; 0]);
        again.remove().await;
    }
}
