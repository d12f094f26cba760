//! Tests forks: new bottles with the files of another bottle, and with their own identity.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcripts};

fn stdout(home: &TestHome, arguments: &[&str]) -> Result<String> {
    Ok(run(home, arguments)?.expect_code(0).stdout)
}

/// Runs a script in a bottle. Returns its output.
fn shell(home: &TestHome, slug: &str, script: &str) -> Result<String> {
    stdout(home, &["exec", slug, "--", "/bin/sh", "-c", script])
}

#[test]
fn a_running_bottle_and_a_kept_one_are_forked() -> Result<()> {
    let home = home()?;
    home.write("project/note", "remember\n")?;
    home.write("project/other", "changed\n")?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["cp", "note", "one:note"])?.expect_code(0);
    snapshot!(transcripts(
        &home,
        &[
            &["fork", "one", "--label", "two"],
            &["exec", "two", "--", "cat", "note"],
            // After the fork, a change in one bottle does not affect the other bottle.
            &["cp", "other", "two:note", "-q"],
            &["exec", "one", "--", "cat", "note"],
            &["fork", "one", "--label", "two"],
            &["fork", "one", "--count", "2", "--label", "more", "--json"],
            &["list"],
            // The snapshot from which the forks were started is removed, so it is not listed.
            &["snapshots"],
            &["fork", "one", "--label", "three", "--dry-run", "-q"],
            &["fork", "nobody"],
            &["fork", "one@good"],
            &["fork", "one", "--count", "0"],
            &["stop", "one", "--time", "0", "-q"],
            &["fork", "one", "--label", "four", "-q"],
            &["exec", "four", "--", "cat", "note"],
            // The copied work is unsaved in the new bottle too.
            &["stop", "two", "--time", "0"],
        ],
    )?);
    Ok(())
}

#[test]
fn a_snapshot_is_forked_by_its_name() -> Result<()> {
    let home = home()?;
    home.write("project/note", "remember\n")?;
    home.write("project/later", "later\n")?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    for arguments in [
        &["cp", "note", "one:note"][..],
        &["commit", "one", "--as", "good", "-q"],
        &["cp", "later", "one:note", "-q"],
        &["fork", "one@good", "--label", "two", "-q"],
    ] {
        let _ = run(&home, arguments)?.expect_code(0);
    }
    assert_eq!(stdout(&home, &["exec", "two", "--", "cat", "note"])?, "remember\n");
    let listed = stdout(&home, &["snapshots"])?;
    ensure!(listed.contains("one@good") && listed.lines().count() == 1, "{listed}");
    // If only snapshots of the bottle are left, the newest snapshot is used.
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?;
    let _ = run(&home, &["fork", "one", "--label", "three", "-q"])?.expect_code(0);
    assert_eq!(stdout(&home, &["exec", "three", "--", "cat", "note"])?, "remember\n");
    Ok(())
}

/// The value of the canary in the bottle's environment.
fn canary(home: &TestHome, slug: &str) -> Result<String> {
    let script = "env | grep -E '^[A-Z]+_[A-Z]+_(SECRET|TOKEN|KEY|PASSWORD)='";
    let found = shell(home, slug, script)?;
    Ok(found.trim().split_once('=').context("a variable")?.1.to_owned())
}

#[test]
fn each_fork_has_its_own_identity_and_knows_earlier_canaries() -> Result<()> {
    let mut home = home()?;
    let test = "each_fork_has_its_own_identity_and_knows_earlier_canaries";
    if !home.runs(test, "linux")? {
        return Ok(());
    }
    let routes = "egress: {routes: [{host: api.example.com, ports: [80], connect_to: '127.0.0.1:1', \
                  dlp: {outbound_on_match: block}}]}";
    let agent = "agent_provider: {template: command, command: [sleep, '600']}";
    home.bottle("real", &format!("---\nbackend: linux\n{agent}\n{routes}\n---\n"))?;
    home.agent("real", "---\nbottle: real\n---\n")?;
    let _ = run(&home, &["start", "real", "--detach", "--label", "one", "-y", "-q"])?.expect_code(0);
    let mut canaries = vec![canary(&home, "one")?];
    shell(&home, "one", "env >environment; cat /etc/hostname /etc/machine-id >own")?;
    let _ = run(&home, &["fork", "one", "--label", "two", "-y", "-q"])?.expect_code(0);
    canaries.push(canary(&home, "two")?);
    let _ = run(&home, &["fork", "two", "--count", "2", "--label", "n", "-y", "-q"])?.expect_code(0);
    canaries.push(canary(&home, "n-1")?);
    assert_eq!(canaries.iter().collect::<BTreeSet<_>>().len(), canaries.len());
    let own = "cat /etc/hostname /etc/machine-id; sha256sum <\"$SSL_CERT_FILE\"";
    let identities: BTreeSet<String> = ["one", "two", "n-1", "n-2"]
        .map(|slug| shell(&home, slug, own))
        .into_iter()
        .collect::<Result<_>>()?;
    assert_eq!(identities.len(), 4, "{identities:?}");
    assert_eq!(shell(&home, "n-1", "head -n 1 own")?, "one\n");
    // The agent sends the canary that it found in the copied files.
    let reason = |canary: &str| {
        let header = "curl -s -o /dev/null -D - http://api.example.com/ -d";
        shell(&home, "n-1", &format!("{header} '{canary}' | grep -i x-bottle-reason"))
    };
    for canary in &canaries {
        assert_eq!(reason(canary)?.trim(), "x-bottle-reason: secret-found");
    }
    assert_eq!(reason("nothing")?.trim(), "x-bottle-reason: upstream-unreachable");
    // The proxy of a resumed bottle also detects these canaries.
    let _ = run(&home, &["stop", "n-1", "--time", "0", "-q"])?.expect_code(0);
    let _ = run(&home, &["resume", "n-1", "--detach", "-y", "-q"])?.expect_code(0);
    for canary in &canaries {
        assert_eq!(reason(canary)?.trim(), "x-bottle-reason: secret-found");
    }
    Ok(())
}
