//! Tests the inputs of the build of a user's Dockerfile: its directory, arguments, secrets, and BuildKit.

use std::collections::BTreeMap;

use bottle_backend::BackendError;
use bottle_containers::docker::images::AgentImage;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::SecretText;

use crate::fixture::{Fixture, docker, in_image};

const BASE: &str = "FROM debian:bookworm-slim";

/// Builds the image of `images/dev` with these other keys of `agent_provider`. The images are removed with the fixture.
async fn built(fixture: &Fixture, keys: &str) -> Result<AgentImage, BackendError> {
    let plan = fixture.plan_with(&format!("template: command, command: [sh], dockerfile: images/dev{keys}"));
    let value = |id: &str| SecretText(Secret::new(format!("value of {id}")));
    let secrets: BTreeMap<_, _> =
        plan.secrets.iter().map(|need| (need.id.clone(), value(&need.id))).collect();
    fixture.images().agent(&plan, &secrets, &fixture.reports.sink()).await
}

/// Writes `images/dev`, with a unique label so that another test's image is not reused.
fn write(fixture: &Fixture, text: &str) {
    fixture.write("images/dev", &format!("{text}\nLABEL test={}\n", fixture.word()));
}

#[tokio::test]
async fn a_dockerfile_copies_files_of_its_directory_and_no_others() {
    let Some(fixture) = Fixture::new("a build context") else { return };
    fixture.write("outside", "no part of it");
    fixture.write("images/src/main", "one");
    fixture.write("images/target/big", "ignored");
    fixture.write("images/.dockerignore", "target\n");
    std::os::unix::fs::symlink("../outside", fixture.host.home.join("images/link")).expect("link");
    write(&fixture, &format!("{BASE}\nCOPY . /seen/\nCOPY --chown=0:0 src/main /main"));
    let image = built(&fixture, "").await.expect("an image");
    let seen = in_image(&image.id, "cd /seen && find . -type f | sort; readlink link; cat /main");
    assert_eq!(seen, "./.dockerignore\n./dev\n./src/main\n../outside\none");
    let own = in_image(&image.id, "cat /seen/dev /seen/.dockerignore");
    assert!(!own.contains("bottle.image=stage") && own.lines().any(|line| line == "target"), "{own}");
    assert!(fixture.reports.take().iter().any(|line| line.starts_with("> sending 5 files, ")));
    // No input of the build has changed.
    assert_eq!(built(&fixture, "").await.expect("there"), image);
    assert_eq!(fixture.reports.take(), [""; 0], "an unchanged directory is built again");
    // First an ignored file changes, and then a file of the context.
    fixture.write("images/target/big", "other");
    assert_eq!(built(&fixture, "").await.expect("there"), image);
    fixture.write("images/src/main", "two");
    let other = built(&fixture, "").await.expect("an image");
    assert_eq!(in_image(&other.id, "cat /main"), "two");
    for id in [image.id, other.id] {
        docker(&["rmi", "--force", &id]);
    }
}

#[tokio::test]
async fn a_dockerfile_in_the_home_itself_has_no_context() {
    let Some(fixture) = Fixture::new("a Dockerfile in the home") else { return };
    fixture.write("state/secret", "of another bottle");
    let error = fixture.of_dockerfile(&format!("{BASE}\nCOPY . /seen/")).await.expect_err("no context");
    assert_eq!(error.one_line(), "the image of the Dockerfile Dockerfile has no build context");
    assert!(error.hint.is_some_and(|hint| hint.contains("into a directory below $BOTTLE_HOME")));
}

#[tokio::test]
async fn build_arguments_choose_the_base_and_change_the_image() {
    let Some(fixture) = Fixture::new("build arguments") else { return };
    write(&fixture, "ARG TAG=missing\nFROM debian:${TAG}\nARG WORD=default\nRUN echo ${WORD} > /word");
    let image = built(&fixture, ", build_args: {TAG: bookworm-slim, WORD: one}").await.expect("an image");
    assert_eq!(in_image(&image.id, "cat /word"), "one");
    let other = built(&fixture, ", build_args: {TAG: bookworm-slim, WORD: two}").await.expect("an image");
    assert_eq!(in_image(&other.id, "cat /word"), "two");
    for id in [image.id, other.id] {
        docker(&["rmi", "--force", &id]);
    }
}

#[tokio::test]
async fn a_parse_error_names_the_users_file_and_line() {
    let Some(fixture) = Fixture::new("a parse error") else { return };
    for extra in ["", "\nRUN --mount=type=cache,target=/c true"] {
        write(&fixture, &format!("{BASE} AS one\nRUN true{extra}\n{BASE}\nNONSENSE x"));
        let error = built(&fixture, "").await.expect_err("no instruction").one_line();
        let line = if extra.is_empty() { 4 } else { 5 };
        let expected = format!(
            "cannot build the image of the Dockerfile images/dev: images/dev, line {line}: unknown instruction: NONSENSE"
        );
        assert_eq!(error.lines().next(), Some(expected.as_str()), "{error}");
    }
}

#[tokio::test]
async fn buildkit_mounts_secrets_and_caches_that_no_layer_contains() {
    let Some(fixture) = Fixture::new("BuildKit") else { return };
    fixture.write("images/word", "of the context");
    fixture.write("images/dev.dockerignore", "*\n!word\n");
    let word = fixture.word();
    write(
        &fixture,
        &format!(
            "{BASE}\nCOPY . /seen/\nARG NAME\n\
             RUN --mount=type=secret,id=npm --mount=type=cache,target=/cache,id={word} \\\n \
             wc -c < /run/secrets/npm > /length && echo ${{NAME}} >> /length && touch /cache/x && echo from a step"
        ),
    );
    let image = built(&fixture, ", build_args: {NAME: me}, build_secrets: {npm: NPM_TOKEN}").await;
    let image = image.expect("an image");
    let said = fixture.reports.take();
    assert!(said.iter().any(|line| line.starts_with("> [stage-0 2/3] COPY . /seen/")), "{said:?}");
    assert!(said.iter().any(|line| line == "from a step"), "{said:?}");
    let length = "value of build-secret:npm".len();
    let inside = in_image(&image.id, "cat /length; ls -A /cache /run/secrets /seen; id -un");
    assert_eq!(inside, format!("{length}\nme\n/cache:\n\n/run/secrets:\n\n/seen:\ndev\nword\nagent"));
    let history = docker(&["history", "--no-trunc", &image.id]);
    let inspected = docker(&["image", "inspect", &image.id]);
    assert!(!(history + &inspected + &said.concat()).contains("value of"), "the secret is in the image");
    let again =
        built(&fixture, ", build_args: {NAME: me}, build_secrets: {npm: NPM_TOKEN}").await.expect("there");
    assert_eq!(again, image);
    assert_eq!(fixture.reports.take(), [""; 0], "an unchanged image is built again");
    docker(&["rmi", "--force", &image.id]);
}

#[tokio::test]
async fn a_failed_buildkit_build_shows_the_output_of_its_step() {
    let Some(fixture) = Fixture::new("a failing BuildKit build") else { return };
    write(&fixture, &format!("{BASE}\nRUN --mount=type=cache,target=/c echo so far so good && exit 7"));
    let error = built(&fixture, "").await.expect_err("it fails").one_line();
    assert!(error.contains("so far so good") && error.contains("exit code: 7"), "{error}");
    write(&fixture, &format!("{BASE}\nRUN <<EOF\necho hello > /word\nEOF"));
    match built(&fixture, "").await {
        Ok(image) => {
            assert_eq!(in_image(&image.id, "cat /word"), "hello");
            docker(&["rmi", "--force", &image.id]);
        }
        Err(error) => {
            let message = error.one_line();
            assert_eq!(message, "images/dev, line 2: this engine's builder has no here-documents");
            assert!(error.hint.is_some_and(|hint| hint.contains("# syntax=docker/dockerfile:1")));
        }
    }
}
