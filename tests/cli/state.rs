//! State on disk that another version, a crash or a person left behind.

use anyhow::Result;

use crate::home::{home, snapshot, transcripts};

#[test]
fn newer_and_damaged_records_are_named_and_the_others_still_list() -> Result<()> {
    let home = home()?;
    let state =
        |slug: &str, text: &str| home.write(&format!("home/.bottle/state/{slug}/metadata.json"), text);
    state("from-tomorrow", r#"{"schema": 99, "slug": "from-tomorrow"}"#)?;
    state("torn", "{\"schema\": 1, \"slug\"")?;
    state(
        "orphan",
        r#"{"schema": 1, "slug": "orphan", "label": "Mine\u001b[2J", "color": null, "agent": "hi", "bottles": ["hi"],
            "cwd": "/", "copied_cwd": false, "backend": "fake", "mode": "attached", "status": "running",
            "started_at": "2026-01-01T00:00:00Z", "keeper": "1:1", "resources": [], "manifest_hash": "x"}"#,
    )?;
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
