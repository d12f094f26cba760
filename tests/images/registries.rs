//! Tests pulls from a registry: with and without a login, for builds, and of newer images.

use std::os::unix::fs::PermissionsExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bottle_plan::{Plan, Renewal};
use bottle_test_support::registry::{Access, Registry};

use crate::fixture::{Fixture, docker};

/// A layer with one file, and with the users of an image.
fn layer(word: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, text) in [("word", word), ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")] {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(text.len() as u64);
        archive.append_data(&mut header, path, text.as_bytes()).expect("append");
    }
    archive.into_inner().expect("an archive")
}

/// This machine's architecture, as engines name it.
fn architecture() -> String {
    docker(&["version", "--format", "{{.Server.Arch}}"])
}

fn published(registry: &Registry, fixture: &Fixture, tag: &str, word: &str) -> String {
    registry.publish("team/agent", tag, &architecture(), layer(&format!("{word} {}", fixture.word())));
    registry.reference("team/agent", tag)
}

fn plan(fixture: &Fixture, image: &str) -> Plan {
    fixture.plan_with(&format!("template: command, command: [sh], {image}"))
}

/// Writes the file of `docker login`.
fn logins(fixture: &Fixture, config: &serde_json::Value) {
    let directory = fixture.host.user_home.join(".docker");
    std::fs::create_dir_all(&directory).expect("directory");
    std::fs::write(directory.join("config.json"), config.to_string()).expect("written");
}

fn auth(registry: &Registry, login: &str) -> serde_json::Value {
    serde_json::json!({"auths": {registry.host(): {"auth": STANDARD.encode(login)}}})
}

#[tokio::test]
async fn a_private_image_is_pulled_with_the_users_login() {
    let Some(mut fixture) = Fixture::new("a private image") else { return };
    let registry =
        Registry::start(Access::Basic("me".to_owned(), "pass:word".to_owned())).expect("a registry");
    let reference = published(&registry, &fixture, "1", "private");
    let plan = plan(&fixture, &format!("image: '{reference}'"));
    for config in [serde_json::json!({}), auth(&registry, "me:wrong-password")] {
        logins(&fixture, &config);
        let error = fixture.agent(&plan).await.expect_err("no login");
        let expected = format!(
            "the image {reference} is not on this engine and cannot be pulled from {}: ",
            registry.host()
        );
        assert!(error.one_line().starts_with(&expected), "{error}");
        let hint = error.hint.expect("a hint");
        assert!(hint.contains(&format!("`docker login {}`", registry.host())), "{hint}");
        assert!(!hint.contains("wrong-password") && !error.message.contains("wrong-password"));
    }
    logins(&fixture, &auth(&registry, "me:pass:word"));
    let image = fixture.agent(&plan).await.expect("pulled");
    docker(&["rmi", "--force", &image.id, &reference]);
    // A credential helper in PATH has the same login.
    helper(&mut fixture, r#"{"Username":"me","Secret":"pass:word"}"#);
    logins(&fixture, &serde_json::json!({"credHelpers": {registry.host(): "test"}}));
    let image = fixture.agent(&plan).await.expect("pulled");
    docker(&["rmi", "--force", &image.id, &reference]);
    assert!(!fixture.reports.take().concat().contains("pass:word"));
}

/// Puts the program `docker-credential-test` into PATH.
fn helper(fixture: &mut Fixture, answer: &str) {
    let directory = fixture.host.home.join("helpers");
    std::fs::create_dir_all(&directory).expect("directory");
    let path = directory.join("docker-credential-test");
    std::fs::write(&path, format!("#!/bin/sh\nread -r registry\necho '{answer}'\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
    fixture.host.env.insert("PATH".into(), format!("{}:/usr/bin:/bin", directory.display()).into());
}

#[tokio::test]
async fn an_identity_token_of_a_helper_pulls_the_bases_of_builds() {
    let Some(mut fixture) = Fixture::new("an identity token") else { return };
    let access = Access::Bearer {
        password: ("me".to_owned(), "unused".to_owned()),
        identity_token: "identity-of-the-test".to_owned(),
    };
    let registry = Registry::start(access).expect("a registry");
    helper(&mut fixture, r#"{"Username":"<token>","Secret":"identity-of-the-test"}"#);
    logins(&fixture, &serde_json::json!({"credsStore": "test"}));
    let platform = format!("linux/{}", architecture());
    // Without a platform, `bottle` pulls the base. With a platform, the builder pulls the base, and BuildKit asks for
    // the login.
    for (tag, from, rest) in [
        ("classic", String::new(), ""),
        ("kit", format!("--platform={platform} "), "COPY --link <<EOF /x\nx\nEOF\n"),
    ] {
        let reference = published(&registry, &fixture, tag, tag);
        let rest = if rest.is_empty() { "" } else { "COPY --chmod=644 word /copy\n" };
        fixture.write("images/word", "x");
        fixture
            .write("images/dev", &format!("FROM {from}{reference}\n{rest}LABEL test={}\n", fixture.word()));
        let image = fixture.agent(&plan(&fixture, "dockerfile: images/dev")).await.expect(tag);
        docker(&["rmi", "--force", &image.id]);
        let _ = bottle_test_support::engine::docker(&["rmi", "--force", &reference]);
        let requests = registry.take_requests();
        assert!(requests.iter().any(|request| request.contains("/token")), "{tag}: {requests:?}");
        assert!(requests.iter().any(|request| request.contains("/blobs/")), "{tag}: {requests:?}");
    }
}

#[tokio::test]
async fn a_newer_image_is_fetched_and_used_only_on_request() {
    let Some(fixture) = Fixture::new("newer images") else { return };
    let registry = Registry::start(Access::Everyone).expect("a registry");
    let reference = published(&registry, &fixture, "1", "old");
    fixture.write("images/dev", &format!("FROM {reference}\nLABEL test={}\n", fixture.word()));
    let by_name = plan(&fixture, &format!("image: '{reference}'"));
    let built = plan(&fixture, "dockerfile: images/dev");
    let renewed = |plan: &Plan, pull, rebuild| Plan { renewal: Renewal { pull, rebuild }, ..plan.clone() };
    let first = fixture.agent(&by_name).await.expect("pulled");
    let first_built = fixture.agent(&built).await.expect("built");
    published(&registry, &fixture, "1", "new");
    assert_eq!(fixture.agent(&by_name).await.expect("there"), first);
    assert_eq!(fixture.agent(&built).await.expect("there"), first_built);
    let preview = fixture.images().preview(&renewed(&by_name, true, false)).await.expect("a preview");
    assert!(preview.makes[0].contains("is fetched: its registry is asked"), "{:?}", preview.makes);
    let second = fixture.agent(&renewed(&by_name, true, false)).await.expect("pulled");
    assert_ne!(second.id, first.id);
    // The reference names another image now. `bottle` suggests to build the image again, and keeps the built image
    // until then.
    let preview = fixture.images().preview(&built).await.expect("a preview");
    let expected =
        format!("the base image {reference} is another one than at the build: `--rebuild` builds on it");
    assert!(preview.notes.contains(&expected) && preview.makes.iter().all(|line| line.contains("sidecars")));
    assert_eq!(fixture.agent(&built).await.expect("there"), first_built);
    let rebuilt = fixture.agent(&renewed(&built, false, true)).await.expect("built");
    assert_ne!(rebuilt.id, first_built.id);
    assert!(!fixture.images().preview(&built).await.expect("a preview").notes.contains(&expected));
    assert_eq!(fixture.agent(&built).await.expect("there"), rebuilt);
    // With `--pull`, a Dockerfile is built again only if its base changed.
    assert_eq!(fixture.agent(&renewed(&built, true, false)).await.expect("there"), rebuilt);
    published(&registry, &fixture, "1", "newest");
    let newest = fixture.agent(&renewed(&built, true, false)).await.expect("built");
    assert_ne!(newest.id, rebuilt.id);
    for id in [&first.id, &second.id, &first_built.id, &rebuilt.id, &newest.id, &reference] {
        let _ = bottle_test_support::engine::docker(&["rmi", "--force", id]);
    }
}
