//! Two that make the same at once, and what is left when one is killed on the way.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bottle_test_support::engine;

use crate::stand::{Heard, Stand, docker};

/// How long an engine may take to notice that nobody listens any more.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// Images without a name that builds of this home left.
fn nameless(stand: &Stand) -> String {
    let label = format!("label=bottle.built-by={}", stand.host.home_hash());
    docker(&["images", "--quiet", "--filter", "dangling=true", "--filter", &label])
}

#[tokio::test]
async fn of_two_starts_one_builds_and_the_other_takes_what_came_of_it() {
    let Some(stand) = Stand::new("two builds of the same") else { return };
    let text = format!("FROM debian:bookworm-slim\nRUN sleep 1 && echo built\nLABEL test={}\n", stand.word());
    stand.write("Dockerfile", &text);
    let plan = stand.plan_with("template: command, command: [sh], dockerfile: Dockerfile");
    let heard: Vec<Heard> = (0..3).map(|_| Heard::default()).collect();
    let starts: Vec<_> = heard.iter().map(|heard| (stand.images(), heard.told())).collect();
    let made = starts.iter().map(|(images, told)| images.agent(&plan, told));
    let made = futures_util::future::join_all(made).await;
    let ids: Vec<String> = made.into_iter().map(|image| image.expect("an image").id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let (built, waited): (Vec<_>, Vec<_>) = heard.iter().partition(|heard| heard.said("built"));
    assert_eq!((built.len(), waited.len()), (1, 2));
    for heard in waited {
        assert_eq!(heard.take(), ["> another start is making it, and this one waits for that"]);
    }
    assert_eq!(stand.stand_ins(), "", "a container was left");
}

#[tokio::test]
async fn stages_are_swept_when_nothing_is_built_and_not_before() {
    let Some(stand) = Stand::new("stages") else { return };
    let word = stand.word();
    let text = format!(
        "FROM debian:bookworm-slim AS one\nRUN echo {word} > /one\nFROM debian:bookworm-slim\nCOPY --from=one /one /two\nRUN echo almost {word} && sleep 2"
    );
    let building = stand.of_dockerfile(&text);
    let sweeping = async {
        while !stand.heard.said("almost") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stand.images().sweep().await.expect("swept");
        assert_ne!(nameless(&stand), "", "a stage was swept while it is built on");
    };
    let (image, ()) = tokio::join!(building, sweeping);
    let image = image.expect("an image");
    assert_ne!(nameless(&stand), "", "the engine keeps no stages: this test looks at nothing");
    stand.images().sweep().await.expect("swept");
    assert_eq!(nameless(&stand), "");
    docker(&["image", "inspect", &image.id]);
}

#[tokio::test]
async fn a_start_that_is_killed_while_it_builds_leaves_what_is_found_and_the_next_one_builds() {
    let Some(stand) = Stand::new("a start that is killed") else { return };
    let word = stand.word();
    let text = format!(
        "FROM debian:bookworm-slim\nRUN echo first {word}\nRUN echo second {word} && sleep 6\nLABEL test={word}\n"
    );
    stand.write("Dockerfile", &text);
    // The manifests of a bottle and its agent.
    let plan = stand.plan_with("template: command, command: [sh], dockerfile: Dockerfile");
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
        .env("BOTTLE_HOME", &stand.host.home)
        .env("XDG_RUNTIME_DIR", stand.runtime())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bottle");
    let step = || {
        let running = docker(&["ps", "--quiet", "--no-trunc"]);
        // One of another test may be gone by now.
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
    let said = start.wait_with_output().expect("ended").stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("bottle: the image of the Dockerfile Dockerfile: Step "), "{said}");
    let end = Instant::now() + NOTICED_WITHIN;
    while step() {
        assert!(Instant::now() < end, "the build goes on without anybody");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_ne!(nameless(&stand), "", "the engine keeps no steps: this test looks at nothing");
    stand.images().sweep().await.expect("swept");
    assert_eq!(nameless(&stand), "");
    assert_eq!(stand.stand_ins(), "", "a container was left");
    let containers = docker(&["ps", "--all", "--no-trunc", "--format", "{{.Command}}"]);
    assert!(!containers.contains(&word), "{containers}");
    stand.agent(&plan).await.expect("built anew");
    assert!(stand.heard.said(&format!("second {word}")), "{:?}", stand.heard.take());
}
