//! Tests that failed, cancelled and killed builds report the cause and leave nothing on the engine.

use std::time::{Duration, Instant};

use bollard::Docker;
use bottle_backend::ProgressSink;
use bottle_containers::docker::images::Images;
use bottle_test_support::engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use crate::fixture::{Fixture, docker};

#[tokio::test]
async fn a_failed_build_shows_the_builders_output() {
    let Some(fixture) = Fixture::new("a build that fails") else { return };
    let word = fixture.word();
    let text = format!(
        "FROM debian:bookworm-slim\nRUN echo so far so good && echo but not this >&2 && exit 7 # {word}"
    );
    let error = fixture.of_dockerfile(&text).await.expect_err("it fails");
    let message = &error.one_line();
    assert!(message.starts_with("cannot build the image of the Dockerfile Dockerfile: "), "{message}");
    assert!(message.contains("returned a non-zero code: 7"), "{message}");
    assert!(message.contains("\nso far so good\n") && message.contains("but not this"), "{message}");
    assert!(error.hint.is_some_and(|hint| hint.starts_with("correct /")), "{message}");
    let containers = docker(&["ps", "--all", "--no-trunc", "--format", "{{.Command}}"]);
    assert!(!containers.contains(&word), "a container was left: {containers}");
    let error =
        fixture.of_dockerfile("FROM debian:bookworm-slim\nNONSENSE").await.expect_err("no instruction");
    assert!(error.one_line().contains("unknown instruction: NONSENSE"), "{error}");
}

#[tokio::test]
async fn a_cancelled_build_ends_in_the_engine() {
    let Some(fixture) = Fixture::new("a build that is given up") else { return };
    let word = fixture.word();
    let text = format!("FROM debian:bookworm-slim\nRUN echo {word} && sleep 600");
    let running = || docker(&["ps", "--quiet", "--no-trunc", "--filter", "status=running"]);
    let ours = || {
        running()
            .lines()
            .find(|id| {
                // Another test may have removed its container meanwhile.
                let command = engine::docker(&["inspect", "--format", "{{.Config.Cmd}}", id]);
                command.is_some_and(|command| command.contains(&word))
            })
            .map(str::to_owned)
    };
    let building = fixture.of_dockerfile(&text);
    let given_up = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::select! {
            ended = building => panic!("it ended: {ended:?}"),
            () = async { while !fixture.reports.contains(&word) { tokio::time::sleep(Duration::from_millis(20)).await } } => {}
        }
    });
    given_up.await.expect("the step begins");
    let end = Instant::now() + Duration::from_secs(30);
    while let Some(container) = ours() {
        assert!(Instant::now() < end, "{container} is still running");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_missing_base_image_is_reported_with_a_hint() {
    // The engine is a fake that has no images and cannot reach a registry.
    let Some(fixture) = Fixture::new("no base image") else { return };
    let socket = fixture.host.home.join("engine.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let engine = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let read = client.read(&mut request).await.unwrap_or(0);
            let asked = String::from_utf8_lossy(&request[..read]).into_owned();
            let (status, body) = match asked.split(' ').nth(1).unwrap_or_default() {
                path if path.ends_with("/version") => ("200 OK", r#"{"Arch":"amd64"}"#),
                path if path.contains("/images/create") => {
                    ("500 Oh", r#"{"message":"no route to the registry"}"#)
                }
                _ => ("404 Not Found", r#"{"message":"no such image"}"#),
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            let _ = client.write_all(answer.as_bytes()).await;
        }
    });
    let docker = Docker::connect_with_unix(&socket.display().to_string(), 10, bollard::API_DEFAULT_VERSION)
        .expect("an engine");
    let images = Images::new(&docker, &socket, &fixture.host);
    let error = images
        .agent(&fixture.plan(), &Default::default(), &ProgressSink::discard())
        .await
        .expect_err("no base");
    let expected = "the base image debian:bookworm-slim is not on this engine and cannot be pulled from docker.io: no route to the registry";
    assert_eq!(error.one_line(), expected);
    assert!(error.hint.is_some_and(|hint| hint.contains("scripts/base-image")));
    engine.abort();
}

#[tokio::test]
async fn cleanup_skips_running_builds_and_foreign_objects() {
    let Some(fixture) = Fixture::new("sweeping") else { return };
    let make = |home: &str| {
        docker(&["create", "--label", &format!("bottle.scratch={home}"), "debian:bookworm-slim"])
    };
    let made = [make(&fixture.host.home_hash()), make("another")];
    let volume = fixture.images().program().await.expect("a volume");
    let guards = fixture.images().sidecars(&ProgressSink::discard()).await.expect("an image");
    fixture.images().sweep().await.expect("swept");
    for container in &made {
        docker(&["inspect", container]);
        docker(&["rm", container]);
    }
    docker(&["volume", "inspect", &volume]);
    docker(&["image", "inspect", &guards]);
}

#[tokio::test]
async fn a_cleanup_lists_build_leftovers_before_removing_them() {
    let Some(fixture) = Fixture::new("left by a build") else { return };
    let made = |home: &str| {
        let dockerfile = format!(
            "FROM debian:bookworm-slim\nLABEL bottle.image=stage bottle.built-by={home} test={}\n",
            fixture.word()
        );
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("Dockerfile"), dockerfile).expect("written");
        docker(&["build", "--quiet", &directory.path().display().to_string()])
    };
    let [ours, used, anothers] =
        [fixture.host.home_hash(), fixture.host.home_hash() + " more=1", "another".to_owned()]
            .map(|home| made(&home));
    let container = docker(&["create", &used, "true"]);
    let left = |images: &[bottle_backend::Unused]| -> Vec<String> {
        images.iter().map(|one| one.id.clone()).collect()
    };
    let found = fixture.images().unused().await.expect("looked");
    assert!(left(&found).contains(&ours), "{found:?}");
    assert!(found.iter().all(|one| ![&used, &anothers].contains(&&one.id)), "{found:?}");
    assert!(found.iter().find(|one| one.id == ours).is_some_and(|one| one.bytes > Some(1 << 20)));

    // The command lists the image with `--dry-run`, and removes it only with `--yes`.
    let command_output = |arguments: &[&str]| {
        let mut program = bottle_test_support::program::Program::bottle().expect("built");
        program
            .arguments(arguments)
            .env("BOTTLE_HOME", &fixture.host.home)
            .env("XDG_RUNTIME_DIR", fixture.runtime());
        program.env("HOME", &fixture.host.home).run().expect("run").expect_code(0).stdout
    };
    let shown = command_output(&["cleanup", "--dry-run"]);
    assert!(
        shown.contains(&format!("the image {ours} would be removed: a build left it (docker, ")),
        "{shown}"
    );
    docker(&["image", "inspect", &ours]);
    assert!(command_output(&["cleanup", "--yes", "--json"]).contains(&ours));
    assert_eq!(engine::docker(&["image", "inspect", &ours]), None);
    for image in [&used, &anothers] {
        docker(&["image", "inspect", image]);
    }
    docker(&["rm", &container]);
    docker(&["rmi", &used, &anothers]);
}
