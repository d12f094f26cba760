//! Tests concurrent builds of the same image, and leftovers of a killed build.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bottle_test_support::engine;

use crate::fixture::{Fixture, ReportLog, docker};

/// The time limit for the engine to stop a build after `bottle` was killed.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// Lists the unnamed images that builds of this home have left.
fn nameless(fixture: &Fixture) -> String {
    let label = format!("label=bottle.built-by={}", fixture.host.home_hash());
    docker(&["images", "--quiet", "--filter", "dangling=true", "--filter", &label])
}

#[tokio::test]
async fn of_two_starts_one_builds_and_the_other_uses_the_result() {
    let Some(fixture) = Fixture::new("two builds of the same") else { return };
    let text =
        format!("FROM debian:bookworm-slim\nRUN sleep 1 && echo built\nLABEL test={}\n", fixture.word());
    fixture.write("Dockerfile", &text);
    let plan = fixture.plan_with("template: command, command: [sh], dockerfile: Dockerfile");
    let reports: Vec<ReportLog> = (0..3).map(|_| ReportLog::default()).collect();
    let starts: Vec<_> = reports.iter().map(|reports| (fixture.images(), reports.sink())).collect();
    let none = Default::default();
    let made = starts.iter().map(|(images, sink)| images.agent(&plan, &none, sink));
    let made = futures_util::future::join_all(made).await;
    let ids: Vec<String> = made.into_iter().map(|image| image.expect("an image").id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let (built, waited): (Vec<_>, Vec<_>) = reports.iter().partition(|reports| reports.contains("built"));
    assert_eq!((built.len(), waited.len()), (1, 2));
    for reports in waited {
        assert_eq!(reports.take(), ["> waiting for another start that is making it"]);
    }
    assert_eq!(fixture.stand_ins(), "", "a container was left");
}

#[tokio::test]
async fn stages_are_removed_only_while_nothing_is_built() {
    let Some(fixture) = Fixture::new("stages") else { return };
    let word = fixture.word();
    let text = format!(
        "FROM debian:bookworm-slim AS one\nRUN echo {word} > /one\nFROM debian:bookworm-slim\nCOPY --from=one /one /two\nRUN echo almost {word} && sleep 2"
    );
    let building = fixture.of_dockerfile(&text);
    let sweeping = async {
        while !fixture.reports.contains("almost") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fixture.images().sweep().await.expect("swept");
        assert_ne!(nameless(&fixture), "", "a stage was swept while it is built on");
    };
    let (image, ()) = tokio::join!(building, sweeping);
    let image = image.expect("an image");
    assert_ne!(nameless(&fixture), "", "the engine keeps no stages: this test looks at nothing");
    fixture.images().sweep().await.expect("swept");
    assert_eq!(nameless(&fixture), "");
    docker(&["image", "inspect", &image.id]);
}

#[tokio::test]
async fn leftovers_of_a_killed_build_are_found_and_the_next_start_builds() {
    let Some(fixture) = Fixture::new("a start that is killed") else { return };
    let word = fixture.word();
    let text = format!(
        "FROM debian:bookworm-slim\nRUN echo first {word}\nRUN echo second {word} && sleep 6\nLABEL test={word}\n"
    );
    fixture.write("Dockerfile", &text);
    // Writes the manifests that the following command selects.
    let plan = fixture.plan_with("template: command, command: [sh], dockerfile: Dockerfile");
    let mut start = Command::new(env!("CARGO_BIN_EXE_bottle"))
        .args([
            "start",
            "here",
            "--bottle",
            "here",
            "--yes",
            "--backend",
            "docker",
            "--detach",
            "--label",
            "killed",
        ])
        .env("BOTTLE_HOME", &fixture.host.home)
        .env("XDG_RUNTIME_DIR", fixture.runtime())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bottle");
    let step = || {
        let running = docker(&["ps", "--quiet", "--no-trunc"]);
        // Another test may have removed its container meanwhile.
        let commands =
            running.lines().filter_map(|id| engine::docker(&["inspect", "--format", "{{.Config.Cmd}}", id]));
        commands.into_iter().any(|command| command.contains(&format!("second {word}")))
    };
    let end = Instant::now() + Duration::from_secs(120);
    while !step() && start.try_wait().expect("asked").is_none() {
        assert!(Instant::now() < end, "the second step never began");
        std::thread::sleep(Duration::from_millis(50));
    }
    start.kill().expect("killed");
    let stderr = start.wait_with_output().expect("ended").stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("bottle: the image of the Dockerfile Dockerfile: Step "), "{stderr}");
    let end = Instant::now() + NOTICED_WITHIN;
    while step() {
        assert!(Instant::now() < end, "the build goes on without anybody");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_ne!(nameless(&fixture), "", "the engine keeps no steps: this test looks at nothing");
    fixture.images().sweep().await.expect("swept");
    assert_eq!(nameless(&fixture), "");
    assert_eq!(fixture.stand_ins(), "", "a container was left");
    let containers = docker(&["ps", "--all", "--no-trunc", "--format", "{{.Command}}"]);
    assert!(!containers.contains(&word), "{containers}");
    fixture.agent(&plan).await.expect("built anew");
    assert!(fixture.reports.contains(&format!("second {word}")), "{:?}", fixture.reports.take());
}
