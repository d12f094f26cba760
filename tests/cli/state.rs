//! State on disk left by another version, a crash or a user.

use anyhow::Result;

use crate::home::{home, snapshot, transcripts};

/// The state of a bottle whose keeper is gone.
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
