//! Tests state on disk that another version, a crash or a user left.

use anyhow::Result;

use crate::home::{home, snapshot, transcripts};

/// The record of a bottle whose keeper has exited.
const ORPHAN: &str = r#"{"schema": 1, "slug": "orphan", "label": "Mine\u001b[2J", "color": null, "agent": "hi",
    "bottles": ["hi"], "cwd": "/", "copied_cwd": false, "backend": "fake", "mode": "attached", "status": "running",
    "started_at": "2026-01-01T00:00:00Z", "keeper": "1:1", "resources": [], "manifest_hash": "x"}"#;

#[test]
fn newer_and_damaged_records_do_not_hide_others() -> Result<()> {
    let home = home()?;
    let state =
        |slug: &str, text: &str| home.write(&format!("home/.bottle/state/{slug}/metadata.json"), text);
    state("from-tomorrow", r#"{"schema": 99, "slug": "from-tomorrow"}"#)?;
    state("torn", "{\"schema\": 1, \"slug\"")?;
    state("orphan", ORPHAN)?;
    snapshot!(transcripts(
        &home,
        &[
            &["list"],
            &["list", "active", "--json"],
            &["attach", "from-tomorrow"],
            &["attach", "torn"],
            &["attach", "orphan"],
            &["attach", "orphans"],
            &["start", "hi", "--label", "orphan"],
            &["cleanup"],
            &["cleanup", "--dry-run"],
            &["cleanup", "--yes"],
            &["list"],
        ],
    )?);
    Ok(())
}

#[test]
fn a_bottle_without_decisions_has_an_empty_audit_log() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/state/orphan/metadata.json", ORPHAN)?;
    snapshot!(transcripts(
        &home,
        &[
            &["audit", "show", "orphan"],
            &["audit", "show", "orphan", "--json"],
            &["audit", "verify", "orphan"],
            &["audit", "verify", "orphan", "--json"],
            &["audit", "show", "orphans"],
        ],
    )?);
    Ok(())
}

#[test]
fn verbose_prints_each_cause_on_its_own_line() -> Result<()> {
    let mut home = home()?;
    home.write("home/.bottle/empty.pem", "")?;
    home.bottle(
        "untrusting",
        "---\nbackend: fake\nagent_provider: {template: command, command: [echo, hi]}\n\
         egress: {ca_bundle: empty.pem}\n---\n",
    )?;
    home.agent("untrusting", "---\nbottle: untrusting\n---\n")?;
    let start = ["start", "untrusting", "--label", "one", "--yes", "--quiet"];
    let started = transcripts(&home, &[&start, &[&start[..], &["-v"]].concat()])?;
    std::fs::remove_dir_all(home.bottle_home().join("state"))?;
    home.write("home/.bottle/state", "no directory\n")?;
    let listed = transcripts(&home, &[&["list"], &["list", "-v"], &["list", "-v", "--json"]])?;
    snapshot!(format!("{started}\n{listed}"));
    Ok(())
}
