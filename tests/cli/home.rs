//! Provides homes with agents for the fake backend.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use rustix::process::{Pid, Signal, kill_process};

/// Returns a home with one bottle and one agent for each program of the fake backend that tests use.
pub(crate) fn home() -> Result<TestHome> {
    let mut home = TestHome::new()?;
    for (agent, command) in [
        ("hi", "[echo, hi]"),
        ("copy", "[cat]"),
        ("env", "[env]"),
        ("nap", "[sleep, \"60\"]"),
        ("fail", "[exit, \"7\"]"),
    ] {
        home.bottle(agent, &bottle(command))?;
        home.agent(agent, &format!("---\nbottle: {agent}\n---\n"))?;
    }
    Ok(home)
}

/// Returns a home with the agent `works`, which sleeps on the backend `linux`. `None` if this machine cannot run the
/// agent in a bottle with git.
pub(crate) fn home_on_linux(test: &str) -> Result<Option<TestHome>> {
    let mut home = home()?;
    let agent = "agent_provider: {template: command, command: [sleep, \"600\"]}";
    home.bottle("works", &format!("---\nbackend: linux\n{agent}\n---\n"))?;
    home.agent("works", "---\nbottle: works\n---\n")?;
    Ok(home.runs_with_git(test, "linux")?.then_some(home))
}

/// Returns the manifest of a bottle that runs `command` on the fake backend.
pub(crate) fn bottle(command: &str) -> String {
    format!("---\nbackend: fake\nagent_provider: {{template: command, command: {command}}}\n---\n")
}

/// Returns the keeper process of the bottle `one`.
pub(crate) fn keeper(home: &TestHome) -> Result<Pid> {
    let record = fs::read_to_string(home.bottle_home().join("state/one/metadata.json"))?;
    let record: serde_json::Value = serde_json::from_str(&record)?;
    let keeper = record["keeper"].as_str().and_then(|keeper| keeper.split(':').next()?.parse().ok());
    keeper.and_then(Pid::from_raw).context("a keeper")
}

/// Kills the keeper of the bottle `slug`, and the bottle's watcher, which would start a new keeper.
pub(crate) fn kill_keeper(home: &TestHome, slug: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let mut found = pids(home, "__watcher", slug)?;
        found.extend(pids(home, "__keeper", slug)?);
        if found.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "the keeper does not end");
        for pid in found {
            // A process may end by itself in the meantime.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Kills the process of a bottle on the fake backend that has this role.
pub(crate) fn kill_role(home: &TestHome, role: &str, slug: &str) -> Result<()> {
    let found = labelled(role, &format!("{}.fake", bottle_host::home_hash(&home.bottle_home())), slug)?;
    ensure!(!found.is_empty(), "{slug} has no process {role}");
    for pid in found {
        kill_process(pid, Signal::KILL)?;
    }
    Ok(())
}

/// The processes of a bottle of this home that have this role, except zombies.
fn pids(home: &TestHome, role: &str, slug: &str) -> Result<Vec<Pid>> {
    labelled(role, &bottle_host::home_hash(&home.bottle_home()), slug)
}

/// The processes with this role, label of a home, and slug in their command line, except zombies.
fn labelled(role: &str, label: &str, slug: &str) -> Result<Vec<Pid>> {
    let own = format!("{role}\0{label}\0{slug}\0");
    let processes = fs::read_dir("/proc")?.filter_map(Result::ok).map(|entry| entry.path());
    let of_role = processes.filter(|directory| {
        fs::read(directory.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(&own))
    });
    Ok(of_role
        .filter_map(|directory| Pid::from_raw(directory.file_name()?.to_str()?.parse().ok()?))
        .collect())
}

/// Runs a `bottle` command in this home until it exits.
pub(crate) fn run(home: &TestHome, arguments: &[&str]) -> Result<Outcome> {
    home.program(arguments.iter().copied())?.run()
}

/// Runs a `bottle` command. Returns the command line and the complete output, in which varying values are
/// replaced.
pub(crate) fn transcript(home: &TestHome, arguments: &[&str]) -> Result<String> {
    let outcome = run(home, arguments)?;
    let text = format!("$ bottle {}\n{}", arguments.join(" "), outcome.transcript());
    Ok(home.scrub()?.apply(&text))
}

/// Runs several `bottle` commands, one after the other. Returns their outputs like [`transcript`].
pub(crate) fn transcripts(home: &TestHome, commands: &[&[&str]]) -> Result<String> {
    let each: Result<Vec<String>> = commands.iter().map(|arguments| transcript(home, arguments)).collect();
    Ok(each?.join("\n"))
}

/// Compares a text with the snapshot under `snapshots/`.
macro_rules! snapshot {
    ($text:expr) => {{
        let text: String = $text;
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(text) })
    }};
}
pub(crate) use snapshot;
