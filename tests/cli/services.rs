//! Tests `services` of bottle manifests and `bottle service`, with real servers.

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use serde_json::Value;

use crate::home::{home, run, snapshot, transcripts};

/// An HTTP server on this port of the bottle.
fn server(port: u16) -> String {
    format!("[python3, -m, http.server, --bind, 127.0.0.1, '{port}']")
}

/// A bottle on the backend `linux` with these services.
fn bottle(services: &str) -> String {
    format!(
        "---\nbackend: linux\nagent_provider: {{template: command, command: [sleep, '600']}}\nservices:\n{services}---\n"
    )
}

fn list(home: &TestHome) -> Result<Vec<Value>> {
    let listed = run(home, &["service", "list", "one", "--json"])?.expect_code(0).json()?;
    Ok(listed.as_array().context("a list")?.clone())
}

fn states(services: &[Value]) -> Vec<(&str, &str)> {
    services.iter().filter_map(|one| Some((one["name"].as_str()?, one["state"].as_str()?))).collect()
}

#[test]
fn the_agent_starts_when_its_services_are_ready() -> Result<()> {
    let mut home = home()?;
    if !home.runs("services", "linux")? {
        return Ok(());
    }
    let web = server(8124);
    // The readiness check of the second service needs the first service.
    home.bottle(
        "served",
        &bottle(&format!(
            "  web: {{command: {web}, readiness: {{http: 'http://localhost:8124/'}}, restart: on-failure}}\n  \
             client:\n    command: [sh, -c, 'echo client; exec sleep 600']\n    after: [web]\n    \
             readiness: {{command: [python3, -c, \"import urllib.request as u; u.urlopen('http://127.0.0.1:8124/')\"]}}\n"
        )),
    )?;
    home.agent("served", "---\nbottle: served\n---\n")?;
    let started = run(&home, &["start", "served", "--label", "one", "--yes", "--detach"])?.expect_code(0);
    ensure!(started.stderr.contains("starting the services"), "{}", started.stderr);
    ensure!(states(&list(&home)?) == [("web", "ready"), ("client", "ready")], "{:?}", list(&home)?);
    let log = run(&home, &["service", "logs", "one", "client"])?.expect_code(0).stdout;
    ensure!(log == "client\n", "{log}");
    // A service that is killed is started again, and the user sees why.
    let _ = run(&home, &["process", "signal", "one", "web", "KILL"])?.expect_code(0);
    let again = home.program(["service", "start", "one", "web"])?.run()?;
    ensure!(again.code == 1 && again.stderr.contains("web runs already"), "{}", again.transcript());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while list(&home)?[0]["restarts"] != 1 || list(&home)?[0]["state"] != "ready" {
        ensure!(std::time::Instant::now() < end, "{:?}", list(&home)?);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let stopped = run(&home, &["service", "stop", "one", "client", "--json"])?.expect_code(0).json()?;
    ensure!(stopped["state"] == "stopped" && stopped["signal"] == 15, "{stopped}");
    let adhoc =
        ["--tcp", "localhost:8125", "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "8125"];
    let adhoc = [&["service", "start", "one", "more", "--json"], &adhoc[..]].concat();
    let adhoc = run(&home, &adhoc)?.expect_code(0).json()?;
    ensure!(adhoc["state"] == "ready" && adhoc["handle"] == "p4", "{adhoc}");
    let _ = run(&home, &["stop", "one"])?.expect_code(0);
    Ok(())
}

#[test]
fn a_service_that_is_not_ready_prevents_the_start() -> Result<()> {
    let mut home = home()?;
    if !home.runs("services", "linux")? {
        return Ok(());
    }
    for (name, service) in [
        ("ends", "  db: {command: [sh, -c, 'echo no disk; exit 3'], readiness: {tcp: 'localhost:8126'}}\n"),
        (
            "slow",
            "  db: {command: [sleep, '600'], readiness: {file: /tmp/db}, start_period: 200ms, interval: 50ms}\n",
        ),
        ("gone", "  db: {command: [no-such-database], restart: always}\n"),
    ] {
        home.bottle(name, &bottle(service))?;
    }
    let start = |bottle| ["start", "hi", "--bottle", bottle, "--label", "one", "--yes", "--detach", "-q"];
    snapshot!(transcripts(&home, &[&start("ends"), &start("slow"), &start("gone"), &["list"]])?);
    Ok(())
}

#[test]
fn refuses_bad_services_with_their_position() -> Result<()> {
    let mut home = home()?;
    for (name, services) in [
        ("a-command", "  web: {restart: always}\n"),
        ("an-empty-command", "  web: {command: []}\n"),
        ("a-handle", "  p1: {command: [x]}\n"),
        ("a-bad-name", "  'a b': {command: [x]}\n"),
        ("a-remote-url", "  web: {command: [x], readiness: {http: 'http://db.example/'}}\n"),
        ("a-remote-address", "  web: {command: [x], readiness: {tcp: '192.0.2.1:80'}}\n"),
        ("two-checks", "  web: {command: [x], readiness: {file: a, tcp: 'localhost:1'}}\n"),
        ("a-bad-time", "  web: {command: [x], interval: 5}\n"),
        ("a-short-time", "  web: {command: [x], timeout: 1ms}\n"),
        ("a-bad-policy", "  web: {command: [x], restart: sometimes}\n"),
        ("an-unknown-key", "  web: {command: [x], depends_on: [db]}\n"),
        ("an-unknown-service", "  web: {command: [x], after: [db]}\n"),
        ("a-circle", "  a: {command: [x], after: [b]}\n  b: {command: [x], after: [a]}\n"),
    ] {
        home.bottle(name, &bottle(services))?;
    }
    let names: Vec<String> = std::fs::read_dir(home.bottle_home().join("bottles"))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .filter(|name| name.starts_with("a-") || name.starts_with("an-") || name == "two-checks")
        .collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    let commands: Vec<Vec<&str>> =
        names.iter().map(|name| vec!["start", "hi", "--bottle", name, "--dry-run"]).collect();
    let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
    snapshot!(transcripts(&home, &commands)?);
    Ok(())
}

#[test]
fn the_last_bottle_replaces_a_service_as_a_whole() -> Result<()> {
    let mut home = home()?;
    home.bottle(
        "far",
        &bottle(
            "  web: {command: [far], restart: always}\n  db: {command: [db], readiness: {file: /tmp/x}}\n",
        ),
    )?;
    home.bottle(
        "near",
        "---\nextends: far\nservices:\n  web: {command: [near], after: [db], interval: 2s}\n---\n",
    )?;
    let text = transcripts(&home, &[&["info", "hi", "--bottle", "near", "--explain"]])?;
    let services = text.lines().skip_while(|line| !line.starts_with("services:"));
    snapshot!(services.collect::<Vec<_>>().join("\n"));
    Ok(())
}
