//! Tests deploy keys at a forge: `bottle` registers a key, uses it, and revokes it however the bottle ends.
//!
//! The forge is a test double that is reached over TLS. On the Linux backend, git also connects to it,
//! through OpenSSH.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::authority::Authority;
use bottle_test_support::forge::{Dialect, Forge, GitHost, TOKEN, Trouble};
use bottle_test_support::home::TestHome;
use bottle_test_support::skip;
use http::Method;

use crate::asking::wait_for_log;
use crate::home::{kill_keeper, run};
use crate::resume::note;

/// The time limit for each step, which is longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A home whose bottle `work` has a repository with a deploy key.
struct Scene {
    home: TestHome,
    forge: Forge,
    host: Option<GitHost>,
}

impl Scene {
    /// Creates a scene on the fake backend, with a forge that has no git server.
    fn new(dialect: Dialect) -> Result<Self> {
        Self::with(dialect, None, "backend: fake", "sleep, '600'", "")
    }

    fn with(
        dialect: Dialect,
        host: Option<GitHost>,
        backend: &str,
        command: &str,
        more: &str,
    ) -> Result<Self> {
        let mut home = TestHome::new()?;
        let authority = Authority::new("of a forge")?;
        let forge = match &host {
            Some(host) => Forge::before(dialect, &authority, host)?,
            None => Forge::start(dialect, &authority)?,
        };
        let ca = home.outside("forge.pem");
        authority.write_pem(&ca)?;
        let url = host.as_ref().map_or("ssh://git@127.0.0.1:2/team/tool.git".to_owned(), GitHost::url);
        let host_key = match &host {
            Some(host) => host.host_key()?,
            None => {
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned()
            }
        };
        let provider = match dialect {
            Dialect::Gitea => "gitea",
            Dialect::Github => "github",
        };
        let text = format!(
            "---\n{backend}\nagent_provider: {{template: command, command: [{command}]}}\n\
             egress: {{ca_bundle: {}}}\ngit-gate:\n  user: {{name: Coder, email: coder@example.com}}\n  repos:\n    \
             tool:\n      url: {url}\n      host_key: {host_key}\n      refs: {{allow: ['refs/heads/agent/**']}}\n      \
             key: {{provider: {provider}, api_url: '{}', token_ref: FORGE_TOKEN{more}}}\n---\n",
            ca.display(),
            forge.api()
        );
        home.bottle("work", &text)?.agent("work", "---\nbottle: work\n---\n")?;
        home.env("FORGE_TOKEN", TOKEN);
        Ok(Self { home, forge, host })
    }

    /// Creates a scene on the Linux backend, with a forge that has an OpenSSH server. If one of them is not available,
    /// reports that the test is skipped and returns `None`.
    fn real(test: &str, dialect: Dialect, script: &str, more: &str) -> Result<Option<Self>> {
        if let Some(why) = GitHost::missing() {
            skip::aloud(test, &why);
            return Ok(None);
        }
        let command = format!("/bin/sh, -ec, \"{script}\"");
        let scene = Self::with(dialect, Some(GitHost::start()?), "backend: linux", &command, more)?;
        if !scene.home.runs(test, "linux")? {
            return Ok(None);
        }
        Ok(Some(scene))
    }

    /// Starts the bottle `one` detached.
    fn start(&self) -> Result<()> {
        let _ = run(&self.home, &["start", "work", "--detach", "--label", "one", "-q"])?.expect_code(0);
        Ok(())
    }

    /// Starts the bottle `one`, which must fail. Returns the error message.
    fn start_fails(&self) -> Result<String> {
        let outcome = run(&self.home, &["start", "work", "--detach", "--label", "one"])?.expect_code(1);
        self.assert_no_secrets(&outcome.stderr)?;
        Ok(outcome.stderr)
    }

    fn titles(&self) -> Vec<String> {
        self.forge.keys().into_iter().map(|key| key.title).collect()
    }

    /// Returns the record of the bottle `one`.
    fn record(&self) -> Result<serde_json::Value> {
        let path = self.home.bottle_home().join("state/one/metadata.json");
        Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
    }

    /// Asserts that neither the token nor a private key is in `text` or anywhere in the home.
    fn assert_no_secrets(&self, text: &str) -> Result<()> {
        for secret in [TOKEN, "OPENSSH PRIVATE KEY", "b3BlbnNzaC1rZXktdjE"] {
            ensure!(!text.contains(secret), "{secret} is told: {text}");
            let found = Command::new("grep").args(["-rlF", "--", secret]).arg(self.home.root()).output()?;
            ensure!(found.stdout.is_empty(), "{secret}: {}", String::from_utf8_lossy(&found.stdout));
        }
        Ok(())
    }
}

fn until(mut there: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !there()? {
        ensure!(Instant::now() < end, "it did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn a_deploy_key_lives_as_long_as_its_run() -> Result<()> {
    for dialect in [Dialect::Gitea, Dialect::Github] {
        let scene = Scene::new(dialect)?;
        scene.start()?;
        assert_eq!(scene.titles(), ["bottle one"]);
        let first = scene.forge.keys().remove(0);
        assert!(!first.read_only);
        let record = scene.record()?;
        assert_eq!(record["deploy_keys"][0]["id"], first.id, "{record}");
        scene.assert_no_secrets(&record.to_string())?;
        // Adds a file, so that the bottle is kept.
        scene.home.write("project/note", "kept\n")?;
        let _ = run(&scene.home, &["cp", "note", "one:note"])?.expect_code(0);
        let _ = run(&scene.home, &["stop", "one", "--time", "0"])?.expect_code(0);
        assert_eq!(scene.titles(), [""; 0]);
        assert_eq!(scene.record()?["deploy_keys"], serde_json::json!([]));
        let _ = run(&scene.home, &["resume", "one", "--detach", "-q"])?.expect_code(0);
        assert_eq!(scene.titles(), ["bottle one"]);
        assert_ne!(scene.forge.keys()[0].key, first.key);
        let _ = run(&scene.home, &["stop", "one", "--time", "0"])?.expect_code(0);
        assert_eq!(scene.titles(), [""; 0]);
        assert_eq!(scene.forge.faults(), [""; 0]);
    }
    Ok(())
}

#[test]
fn reports_a_forges_refusal_before_creating_anything() -> Result<()> {
    let scene = Scene::new(Dialect::Gitea)?;
    for (trouble, words) in [
        (Trouble::Status(401, vec![], "bad"), "does not accept the token (401)"),
        (Trouble::Status(403, vec![], "missing scope"), "`write:repository`"),
        (Trouble::Status(404, vec![], ""), "check `url` and `api_url`"),
        (Trouble::Status(429, vec![("retry-after", "7")], ""), "try again in 7 s"),
    ] {
        scene.forge.next(Method::POST, trouble);
        let said = scene.start_fails()?;
        for word in [words, "\"bottle one\"", "team/tool at 127.0.0.1:"] {
            assert!(said.contains(word), "no {word}: {said}");
        }
        assert!(!said.contains("not undone:"), "{said}");
        assert!(!scene.home.bottle_home().join("state/one").exists(), "{said}");
    }
    // Another key at the forge already has the title of the new key.
    scene.forge.add("bottle one", "ssh-ed25519 AAAA");
    let said = scene.start_fails()?;
    assert!(said.contains("Key title has been used") && said.contains("choose another --label"), "{said}");
    assert_eq!(scene.titles(), ["bottle one"], "which is somebody's");
    Ok(())
}

#[test]
fn a_missing_forge_token_starts_nothing() -> Result<()> {
    let mut scene = Scene::new(Dialect::Github)?;
    scene.home.env("FORGE_TOKEN", "");
    let outcome = run(&scene.home, &["start", "work", "--detach", "--label", "one"])?.expect_code(2);
    assert!(outcome.stderr.contains("FORGE_TOKEN is not set"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the deploy key of the repository tool"), "{}", outcome.stderr);
    assert_eq!(scene.forge.calls(), [""; 0]);
    assert!(!scene.home.bottle_home().join("state/one").exists());
    let shown = run(&scene.home, &["start", "work", "--dry-run", "--label", "one"])?.expect_code(0);
    assert!(shown.stdout.contains("the deploy key of the repository tool"), "{}", shown.stdout);
    Ok(())
}

#[test]
fn a_failed_launch_revokes_its_deploy_keys() -> Result<()> {
    let mut scene = Scene::new(Dialect::Gitea)?;
    scene.home.env("BOTTLE_FAKE_FAIL", "start_bundle:fail");
    let _ = scene.start_fails()?;
    assert_eq!(scene.titles(), [""; 0]);
    let calls = scene.forge.calls();
    assert!(calls.iter().any(|call| call.starts_with("POST")), "{calls:?}");
    assert!(calls.iter().any(|call| call.starts_with("DELETE")), "{calls:?}");
    assert!(!scene.home.bottle_home().join("state/one").exists());
    Ok(())
}

#[test]
fn a_lost_forge_response_leaves_no_deploy_key() -> Result<()> {
    let scene = Scene::new(Dialect::Github)?;
    scene.forge.next(Method::POST, Trouble::ClosesAfter);
    let said = scene.start_fails()?;
    assert!(said.contains("was interrupted"), "{said}");
    assert_eq!(scene.titles(), [""; 0]);
    Ok(())
}

#[test]
fn cleanup_revokes_deploy_keys_after_a_killed_keeper() -> Result<()> {
    let mut scene = Scene::new(Dialect::Gitea)?;
    let mut client = scene
        .home
        .program(["start", "work", "--yes", "--label", "one"])?
        .command()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    until(|| Ok(scene.record().is_ok_and(|record| record["status"] == "running")))?;
    kill_keeper(&scene.home, "one")?;
    client.wait()?;
    assert_eq!(scene.titles(), ["bottle one"]);

    let shown = run(&scene.home, &["cleanup", "--dry-run"])?.expect_code(0);
    let line = "the deploy key \"bottle one\" of team/tool at 127.0.0.1:";
    assert!(shown.stdout.contains(line) && shown.stdout.contains("would be revoked"), "{}", shown.stdout);

    // Without the token, the bottle is removed, but the record of the key remains.
    scene.home.env("FORGE_TOKEN", "");
    let failed = run(&scene.home, &["cleanup", "--yes"])?.expect_code(1);
    for words in [line_of_failure(&scene)?.as_str(), "FORGE_TOKEN is not set", "delete it by hand"] {
        assert!(failed.stderr.contains(words), "no {words}: {}", failed.stderr);
    }
    assert_eq!(scene.titles(), ["bottle one"]);
    assert_eq!(scene.record()?["resources"], serde_json::json!([]));
    // The slug stays in use as long as the key is not revoked.
    scene.home.env("FORGE_TOKEN", TOKEN);
    let taken = run(&scene.home, &["start", "work", "--detach", "--label", "one"])?.expect_code(1);
    assert!(taken.stderr.contains("cleanup"), "{}", taken.stderr);

    let done = run(&scene.home, &["cleanup", "--yes", "--json"])?.expect_code(0);
    assert!(
        done.json()?["removed"][0]["deploy_keys"][0].as_str().is_some_and(|key| key.contains("team/tool"))
    );
    assert_eq!(scene.titles(), [""; 0]);
    assert!(!scene.home.bottle_home().join("state/one").exists());
    Ok(())
}

/// Returns the error line that identifies the key of a failed revocation.
fn line_of_failure(scene: &Scene) -> Result<String> {
    let id = scene.record()?["deploy_keys"][0]["id"].as_u64().context("an id")?;
    Ok(format!("the deploy key \"bottle one\" (id {id}) of team/tool at "))
}

#[test]
fn cleanup_finds_a_deploy_key_whose_id_was_never_received() -> Result<()> {
    let scene = Scene::new(Dialect::Github)?;
    scene.forge.next(Method::POST, Trouble::HangsAfter);
    let mut client = scene
        .home
        .program(["start", "work", "--detach", "--yes", "--label", "one"])?
        .command()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    until(|| Ok(scene.titles() == ["bottle one"]))?;
    assert_eq!(scene.record()?["deploy_keys"][0]["id"], serde_json::Value::Null);
    kill_keeper(&scene.home, "one")?;
    client.wait()?;
    let _ = run(&scene.home, &["cleanup", "--yes"])?.expect_code(0);
    assert_eq!(scene.titles(), [""; 0]);
    assert!(!scene.home.bottle_home().join("state/one").exists());
    Ok(())
}

#[test]
fn reports_a_failed_revocation_at_the_end_and_cleanup_retries() -> Result<()> {
    let scene = Scene::new(Dialect::Gitea)?;
    scene.start()?;
    scene.forge.next(Method::DELETE, Trouble::Status(500, vec![], "down"));
    let stopped = run(&scene.home, &["stop", "one", "--time", "0"])?.expect_code(1);
    assert!(stopped.stderr.contains(&line_of_failure(&scene)?), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("`bottle cleanup` tries again"), "{}", stopped.stderr);
    assert_eq!(scene.titles(), ["bottle one"]);
    let _ = run(&scene.home, &["cleanup", "--yes"])?.expect_code(0);
    assert_eq!(scene.titles(), [""; 0]);
    Ok(())
}

#[test]
fn cleanup_revokes_the_keys_that_discard_could_not() -> Result<()> {
    let scene = Scene::new(Dialect::Gitea)?;
    scene.start()?;
    note(&scene.home, "one", "kept\n")?;
    for _ in ["at the end", "at the discard"] {
        scene.forge.next(Method::DELETE, Trouble::Status(500, vec![], "down"));
    }
    let _ = run(&scene.home, &["stop", "one", "--time", "0"])?.expect_code(1);
    let discarded = run(&scene.home, &["discard", "one", "--yes"])?.expect_code(1);
    assert!(discarded.stderr.contains("`bottle cleanup` continues"), "{}", discarded.stderr);
    assert_eq!(scene.titles(), ["bottle one"]);
    let _ = run(&scene.home, &["cleanup", "--yes"])?.expect_code(0);
    assert_eq!(scene.titles(), [""; 0]);
    assert!(!scene.home.bottle_home().join("state/one").exists());
    Ok(())
}

#[test]
fn an_adopted_bottle_revokes_with_the_adopters_token() -> Result<()> {
    let scene = Scene::new(Dialect::Gitea)?;
    scene.start()?;
    kill_keeper(&scene.home, "one")?;
    let _ = run(&scene.home, &["stop", "one", "--time", "0"])?.expect_code(0);
    assert_eq!(scene.titles(), [""; 0]);
    Ok(())
}

#[test]
fn a_new_keeper_revokes_with_the_token_of_the_killed_one() -> Result<()> {
    let mut scene = Scene::new(Dialect::Gitea)?;
    scene.start()?;
    let record = scene.home.bottle_home().join("state/one/metadata.json");
    let keeper = || -> Result<serde_json::Value> {
        let record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&record)?)?;
        Ok(record["keeper"].clone())
    };
    let killed = keeper()?;
    let pid = killed.as_str().and_then(|keeper| keeper.split(':').next()).context("its pid")?;
    // The watcher knows the token only after it is connected.
    wait_for_log(&scene.home, "a watcher is connected")?;
    ensure!(Command::new("kill").args(["-9", pid]).status()?.success());
    until(|| Ok(keeper()? != killed))?;
    scene.home.env("FORGE_TOKEN", "");
    let _ = run(&scene.home, &["stop", "one", "--time", "0"])?.expect_code(0);
    assert_eq!(scene.titles(), [""; 0]);
    Ok(())
}

/// The agent's script: clones the repository, commits, and pushes a branch.
const WORK: &str = "git clone -q $URL work; cd work; git checkout -qb agent/two; echo two >two; git add .; \
    git commit -qm two; git push -q origin HEAD; echo pushed";

#[test]
fn git_clones_and_pushes_with_a_deploy_key_revoked_at_the_end() -> Result<()> {
    for dialect in [Dialect::Gitea, Dialect::Github] {
        let test = "git_clones_and_pushes_with_a_deploy_key_revoked_at_the_end";
        let Some(scene) = Scene::real(test, dialect, WORK, "")? else { return Ok(()) };
        let host = scene.host.as_ref().context("a host")?;
        scene.set_url()?;
        let outcome = run(&scene.home, &["start", "work", "--yes", "--label", "one"])?.expect_code(0);
        assert!(outcome.stdout.contains("pushed"), "{}", outcome.transcript());
        assert_eq!(host.log("refs/heads/agent/two")?, "two\none\n");
        scene.assert_no_secrets(&outcome.transcript())?;
        let calls: Vec<String> = scene.forge.calls().iter().map(|call| call[..4].to_owned()).collect();
        assert_eq!(calls, ["POST", "DELE"]);
        assert_eq!(scene.titles(), [""; 0]);
        assert_eq!(scene.forge.faults(), [""; 0]);
    }
    Ok(())
}

#[test]
fn a_read_only_deploy_key_clones_and_cannot_push() -> Result<()> {
    let test = "a_read_only_deploy_key_clones_and_cannot_push";
    let Some(scene) = Scene::real(test, Dialect::Gitea, WORK, ", read_only: true")? else { return Ok(()) };
    scene.set_url()?;
    let outcome = run(&scene.home, &["start", "work", "--yes", "--label", "one"])?;
    assert_ne!(outcome.code, 0, "{}", outcome.transcript());
    assert!(outcome.stderr.contains("may only read"), "{}", outcome.transcript());
    assert!(scene.host.as_ref().context("a host")?.log("refs/heads/agent/two").is_err());
    let _ = run(&scene.home, &["cleanup", "--yes"])?.expect_code(0);
    assert_eq!(scene.titles(), [""; 0]);
    Ok(())
}

impl Scene {
    /// Writes the URL of the repository into the agent's script.
    fn set_url(&self) -> Result<()> {
        let path = self.home.bottle_home().join("bottles/work.md");
        let url = self.host.as_ref().context("a host")?.url();
        Ok(std::fs::write(&path, std::fs::read_to_string(&path)?.replace("$URL", &url))?)
    }
}
