//! Tests that Claude Code can commit and push through the git gate to an OpenSSH server for which Claude Code has no
//! key.
//!
//! Claude Code pushes a clean commit, then a branch with a key in an earlier commit, then a fixture that its author
//! marked as allowed. The first push succeeds. The second push is refused with the id of the commit. The third push
//! waits until the user approves it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::forge::GitHost;
use bottle_test_support::{agents, skip};
use serde_json::Value;

use super::claude::API_KEY;
use super::scene::{Place, Scene, agent, engine};

/// The time limit for the agent's last push, which includes building its image.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// The command that clones the repository and pushes a clean commit. `$1` is the URL of the upstream.
const CLEAN: &str = "git clone -q $1 tool && cd tool && git checkout -q -b agent/clean && echo made > made && git add . \
                     && git commit -q -m 'made by the agent' && git push -q origin agent/clean; echo clean $?.";
/// The command that pushes a key in an earlier commit, which the last commit removes. The key is split in
/// this text, so that the text itself contains no key.
const PLANTED: &str = "cd /workspace/tool && git checkout -q -b agent/planted origin/main \
                       && printf 'AKIA%s\\n' Q5T3X7YZ4WUJ2K6M > key && git add . && git commit -q -m key \
                       && git rm -q key && git commit -q -m gone; git push -q origin agent/planted 2> ../said; \
                       echo planted $? named $(grep -c \"key, line 1 in commit $(git rev-parse HEAD^ | cut -c1-12)\" ../said).";
const FIXTURE: &str = "cd /workspace/tool && git checkout -q -b agent/fixture origin/main \
                       && printf 'AKIA%s # gitleaks:allow\\n' Q5T3X7YZ4WUJ2K6M > fixture && git add . \
                       && git commit -q -m fixture && git push -q origin agent/fixture; echo fixture $?.";

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_pushes_through_the_gate() -> Result<()> {
    let Some(claude) = agent("claude pushes", agents::claude())? else { return Ok(()) };
    pushes("claude pushes", &Place::Linux(claude), Ipv4Addr::LOCALHOST.into())
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_claude_on_docker_pushes_through_the_gate() -> Result<()> {
    let Some(place) = engine("claude pushes on docker")? else { return Ok(()) };
    let Place::Docker(machine) = place else { return Ok(()) };
    pushes("claude pushes on docker", &place, machine)
}

fn pushes(test: &str, place: &Place, address: IpAddr) -> Result<()> {
    if let Some(why) = GitHost::missing() {
        skip::aloud(test, &why);
        return Ok(());
    }
    let host = GitHost::start_at(address)?;
    let clean = CLEAN.replace("$1", &host.url());
    let mut scene = Scene::playing(place, &API_KEY, &[&clean, PLANTED, FIXTURE])?;
    let repos = format!(
        "git-gate:\n  user: {{name: Coder, email: coder@example.com}}\n  repos:\n    tool:\n      url: {}\n      \
         host_key: {}\n      on_match: block\n      key: {{provider: static, path: {}}}\n",
        host.url(),
        host.host_key()?,
        Value::from(host.admit()?.display().to_string()),
    );
    scene.add_to_bottle(API_KEY.name, &repos)?;
    let outcome = std::thread::scope(|scope| {
        let starting = scope.spawn(|| scene.start_headless(API_KEY.name));
        let approved = approve(&scene, || starting.is_finished());
        let outcome = starting.join().map_err(|_| anyhow::anyhow!("the agent's thread ended"))??;
        approved.map(|()| outcome)
    })?;
    let calls: Vec<_> = scene.llm.seen().into_iter().filter(|call| call.step.is_some()).collect();
    let conversation = &calls.last().context("a call of the model")?.body;
    for effect in ["clean 0.", "planted 1 named 1.", "fixture 0."] {
        ensure!(conversation.contains(effect), "no {effect:?} in {conversation}\n{}", outcome.transcript());
    }
    ensure!(host.log("agent/clean")? == "made by the agent\none\n");
    ensure!(host.log("agent/fixture")? == "fixture\none\n");
    ensure!(host.log("agent/planted").is_err(), "the commit with a key is upstream");
    scene.assert_key_not_on_disk();
    Ok(())
}

/// Approves the push of the fixture, and fails if the agent exits before the question arrives.
fn approve(scene: &Scene, ended: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let pending = scene.bottle(&["supervise", "list", "--json"])?.json()?;
        if let Some(question) = pending.as_array().and_then(|all| all.first()) {
            let file = question["proposed_file"].as_str().unwrap_or_default();
            ensure!(file.contains("gitleaks:allow") && file.contains("\"fixture\""), "{file}");
            let id = question["id"].as_str().context("its name")?;
            scene.bottle(&["supervise", "approve", id, "--reason", "a fixture"])?;
            return Ok(());
        }
        ensure!(!ended() && Instant::now() < end, "no proposal for the fixture");
        std::thread::sleep(Duration::from_millis(100));
    }
}
