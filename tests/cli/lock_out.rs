//! Tests that a bottle whose agent guesses a credential with curl is locked, and that its user is notified.
//! Runs on the Linux backend.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_policy::lock_out::HITS;
use bottle_test_support::home::TestHome;
use bottle_test_support::server;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::home::{keeper, run};

/// The time limit for a step of a bottle on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A real credential that only the proxy is given. Requests that contain parts of this credential are treated as
/// guesses and lock the bottle.
const KEY: &str = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4Po6As8Dg1Hj3Kl5";

/// A script for bash that sends a different correct part of `$K` in each request. It prints the
/// `x-bottle-reason` of each response, or `passed` if the status is 200.
const GUESS: &str = "i=0; while [ $i -lt 12 ]; do curl -s -D - -o /dev/null -H \"x-guess: ${K:$i:16}\" \
    http://api.site.example/open | tr -d '\\r' | sed -n -e 's/^x-bottle-reason: //p' -e 's/^HTTP[^ ]* 200.*/passed/p'; \
    i=$((i+1)); done";

/// Returns a home whose bottle `walks` may reach one site, and whose proxy inserts [`KEY`] for another. The agent runs
/// `script`. If the backend is not available, reports that the test is skipped and returns `None`.
fn home(test: &str, script: &str) -> Result<Option<TestHome>> {
    let mut home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(None);
    }
    let site = server::says_yes(Ipv4Addr::LOCALHOST.into())?;
    let script = home.write("project/script", &format!("K={KEY}\n{script}\n"))?;
    let script = std::fs::read_to_string(script)?.replace('\'', "''").replace('\n', "\n\n      ");
    home.bottle(
        "walks",
        &format!(
            "---\nbackend: linux\nagent_provider:\n  template: command\n  command:\n    - bash\n    - -c\n    - '{script}'\n\
             egress:\n  log: 1\n  routes:\n  - host: '*.site.example'\n    ports: [80]\n    connect_to: \"{site}\"\n  \
             - host: key.example\n    auth: {{scheme: Bearer, token_ref: WALK_KEY}}\n---\n"
        ),
    )?;
    home.agent("walks", "---\nbottle: walks\n---\n")?;
    home.env("WALK_KEY", KEY);
    Ok(Some(home))
}

fn bash(home: &TestHome, script: &str) -> Result<String> {
    let script = format!("K={KEY}; {script}");
    let mut program = home.program(["exec", "one", "--", "bash", "-c", &script])?;
    Ok(program.deadline(PATIENCE).run()?.expect_code(0).stdout)
}

fn guessed_credential() -> String {
    let line = |number: usize| if number + 1 < HITS { "secret-found\n" } else { "locked-out\n" };
    (0..12).map(line).collect()
}

fn listed(home: &TestHome) -> Result<Value> {
    Ok(run(home, &["list", "--json"])?.expect_code(0).json()?[0].clone())
}

/// Returns the locks in the audit log.
fn locks(home: &TestHome) -> Result<Vec<Value>> {
    let _ = run(home, &["audit", "verify", "one"])?.expect_code(0);
    let audit = run(home, &["audit", "show", "one", "--json"])?.expect_code(0).json()?;
    let all = audit.as_array().context("lines")?.iter();
    Ok(all.filter(|line| line["entry"]["what"] == "locked-out").cloned().collect())
}

fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !done()? {
        ensure!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn locks_a_bottle_that_guesses_a_credential_and_notifies_the_user() -> Result<()> {
    let Some(home) = home("an agent that guesses", &format!("{GUESS}; bottle-ask routes; sleep 2"))? else {
        return Ok(());
    };
    let told = home.outside("told");
    let notify = home.write("notify", &format!("#!/bin/sh\ncat > {}\n", told.display()))?;
    std::fs::set_permissions(&notify, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    home.write("home/.bottle/settings.yml", &format!("supervise: {{notify: '{}'}}\n", notify.display()))?;
    let start = ["start", "walks", "--label", "one", "--yes"];
    let outcome = home.program(start)?.deadline(PATIENCE).run()?;
    ensure!(outcome.stdout.starts_with(&guessed_credential()), "{outcome:?}");
    ensure!(outcome.stdout.contains("This bottle is locked"), "bottle-ask: {}", outcome.stdout);
    let line = "one is locked: its agent sent 5 different parts of credentials that it does not have, on \
                their way to api.site.example";
    ensure!(outcome.stderr.contains(line), "{}", outcome.stderr);
    ensure!(!outcome.stderr.contains(&KEY[..16]), "{}", outcome.stderr);
    let locks = locks(&home)?;
    ensure!(locks.len() == 1 && locks[0]["by"] == "egress", "{locks:?}");
    let entry = &locks[0]["entry"];
    ensure!(
        entry["hits"].as_u64() == u64::try_from(HITS).ok() && entry["places"][0] == "api.site.example",
        "{entry}"
    );
    until("the user's own command hears of it", || Ok(told.exists() && std::fs::metadata(&told)?.len() > 0))?;
    let told: Value = serde_json::from_str(&std::fs::read_to_string(told)?)?;
    ensure!(told["event"] == "locked-out" && told["bottle_slug"] == "one", "{told}");
    Ok(())
}

#[test]
fn a_lock_survives_the_keeper_and_ends_with_the_run() -> Result<()> {
    let Some(home) = home("a locked bottle", "sleep 600")? else { return Ok(()) };
    let start = ["start", "walks", "--detach", "--label", "one", "-q", "--yes"];
    let _ = home.program(start)?.deadline(PATIENCE).run()?.expect_code(0);
    ensure!(bash(&home, "curl -s -o /dev/null -w '%{http_code}' http://api.site.example/open")? == "200");
    ensure!(listed(&home)?["locked"].is_null());
    ensure!(bash(&home, GUESS)? == guessed_credential());
    until("it is listed as locked", || Ok(listed(&home)?["locked"]["daemon"] == "egress"))?;
    let table = run(&home, &["list"])?.expect_code(0).stdout;
    ensure!(table.contains("locked"), "{table}");
    // The next keeper learns that the bottle is locked, and does not record this in the audit log again.
    let before = keeper(&home)?;
    kill_process(before, Signal::KILL)?;
    let still = "curl -s http://api.site.example/open";
    ensure!(bash(&home, still)?.contains("locked-out"));
    ensure!(keeper(&home)? != before && listed(&home)?["locked"]["daemon"] == "egress");
    ensure!(locks(&home)?.len() == 1);
    // The bottle is no longer locked after it was stopped and resumed.
    let _ = bash(&home, "echo kept > note")?;
    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    let resume = ["resume", "one", "--detach", "-q", "--yes"];
    let _ = home.program(resume)?.deadline(PATIENCE).run()?.expect_code(0);
    ensure!(bash(&home, "curl -s -o /dev/null -w '%{http_code}' http://api.site.example/open")? == "200");
    ensure!(listed(&home)?["locked"].is_null());
    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    Ok(())
}
