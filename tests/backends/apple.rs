//! Tests the backend apple: logs that are not text.

use bottle_backend::Origin;
use bottle_test_support::engine;

use crate::fixture::{Bottle, Fixture, every_backend};

/// The apple backend, if the test double of `container` is usable.
async fn apple() -> Vec<Fixture> {
    let mut fixtures = every_backend().await;
    fixtures.retain(|fixture| fixture.name() == "apple");
    fixtures
}

/// Returns the name of a bottle's container.
fn container(bottle: &Bottle<'_>, part: &str) -> String {
    format!("bottle-{}-{part}-{}", bottle.fixture.host.home_hash(), bottle.slug())
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
