//! Builds that fail, are given up or killed leave nothing but a clear word.

use std::time::{Duration, Instant};

use bollard::Docker;
use bottle::backend::ProgressSink;
use bottle::backend::docker::images::Images;
use bottle_test_support::engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use crate::stand::{Stand, docker};

#[tokio::test]
async fn a_build_that_fails_says_all_that_the_builder_said() {
    let Some(stand) = Stand::new("a build that fails") else { return };
    let word = stand.word();
    let text = format!(
        "FROM debian:bookworm-slim\nRUN echo so far so good && echo but not this >&2 && exit 7 # {word}"
    );
    let error = stand.of_dockerfile(&text).await.expect_err("it fails");
    let message = &error.message;
    assert!(message.starts_with("cannot build the image of the Dockerfile Dockerfile: "), "{message}");
    assert!(message.contains("returned a non-zero code: 7"), "{message}");
    assert!(message.contains("\nso far so good\n") && message.contains("but not this"), "{message}");
    assert!(error.hint.is_some_and(|hint| hint.contains("without a context")), "{message}");
    let containers = docker(&["ps", "--all", "--no-trunc", "--format", "{{.Command}}"]);
    assert!(!containers.contains(&word), "a container was left: {containers}");
    let error = stand.of_dockerfile("FROM debian:bookworm-slim\nNONSENSE").await.expect_err("no instruction");
    assert!(error.message.contains("unknown instruction: NONSENSE"), "{error}");
}

#[tokio::test]
async fn a_build_that_is_given_up_ends_in_the_engine_too() {
    let Some(stand) = Stand::new("a build that is given up") else { return };
    let word = stand.word();
    let text = format!("FROM debian:bookworm-slim\nRUN echo {word} && sleep 600");
    let running = || docker(&["ps", "--quiet", "--no-trunc", "--filter", "status=running"]);
    let ours = || {
        running()
            .lines()
            .find(|id| {
                // One of another test may be gone by now.
                let command = engine::docker(&["inspect", "--format", "{{.Config.Cmd}}", id]);
                command.is_some_and(|command| command.contains(&word))
            })
            .map(str::to_owned)
    };
    let building = stand.of_dockerfile(&text);
    let given_up = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::select! {
            ended = building => panic!("it ended: {ended:?}"),
            () = async { while !stand.heard.said(&word) { tokio::time::sleep(Duration::from_millis(20)).await } } => {}
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
async fn without_a_base_image_the_way_to_one_is_named() {
    // An engine that has nothing and reaches nobody.
    let Some(stand) = Stand::new("no base image") else { return };
    let socket = stand.host.home.join("engine.sock");
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
    let images = Images::new(&docker, &stand.host);
    let error = images.agent(&stand.plan(), &ProgressSink::nobody()).await.expect_err("no base");
    let expected = "the base image debian:bookworm-slim is not on this engine and cannot be pulled: no route to the registry";
    assert_eq!(error.message, expected);
    assert!(error.hint.is_some_and(|hint| hint.contains("scripts/base-image")));
    engine.abort();
}

#[tokio::test]
async fn what_is_being_made_and_what_is_anothers_is_not_swept_away() {
    let Some(stand) = Stand::new("sweeping") else { return };
    let make = |home: &str| {
        docker(&["create", "--label", &format!("bottle.scratch={home}"), "debian:bookworm-slim"])
    };
    let made = [make(&stand.host.home_hash()), make("another")];
    let volume = stand.images().program().await.expect("a volume");
    let guards = stand.images().sidecars(&ProgressSink::nobody()).await.expect("an image");
    stand.images().sweep().await.expect("swept");
    for container in &made {
        docker(&["inspect", container]);
        docker(&["rm", container]);
    }
    docker(&["volume", "inspect", &volume]);
    docker(&["image", "inspect", &guards]);
}

#[tokio::test]
async fn what_a_build_left_is_shown_by_a_cleanup_before_it_goes() {
    let Some(stand) = Stand::new("left by a build") else { return };
    let made = |home: &str| {
        let dockerfile = format!(
            "FROM debian:bookworm-slim\nLABEL bottle.image=stage bottle.built-by={home} test={}\n",
            stand.word()
        );
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("Dockerfile"), dockerfile).expect("written");
        docker(&["build", "--quiet", &folder.path().display().to_string()])
    };
    let [ours, used, anothers] =
        [stand.host.home_hash(), stand.host.home_hash() + " more=1", "another".to_owned()]
            .map(|home| made(&home));
    let container = docker(&["create", &used, "true"]);
    let left = |images: &[bottle::backend::Unused]| -> Vec<String> {
        images.iter().map(|one| one.id.clone()).collect()
    };
    let found = stand.images().unused().await.expect("looked");
    assert!(left(&found).contains(&ours), "{found:?}");
    assert!(found.iter().all(|one| ![&used, &anothers].contains(&&one.id)), "{found:?}");
    assert!(found.iter().find(|one| one.id == ours).is_some_and(|one| one.bytes > Some(1 << 20)));

    // By the command: shown, and gone only after the yes.
    let said = |arguments: &[&str]| {
        let mut program = bottle_test_support::program::Program::bottle().expect("built");
        program
            .arguments(arguments)
            .env("BOTTLE_HOME", &stand.host.home)
            .env("XDG_RUNTIME_DIR", stand.runtime());
        program.env("HOME", &stand.host.home).run().expect("run").expect_code(0).stdout
    };
    let shown = said(&["cleanup", "--dry-run"]);
    assert!(
        shown.contains(&format!("the image {ours} would be removed: a build left it (docker, ")),
        "{shown}"
    );
    docker(&["image", "inspect", &ours]);
    assert!(said(&["cleanup", "--yes", "--json"]).contains(&ours));
    assert_eq!(engine::docker(&["image", "inspect", &ours]), None);
    for image in [&used, &anothers] {
        docker(&["image", "inspect", image]);
    }
    docker(&["rm", &container]);
    docker(&["rmi", &used, &anothers]);
}
