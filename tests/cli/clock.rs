//! Tests bottles whose system clock is set while they run.

use anyhow::Result;
use bottle_test_support::home::TestHome;
use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};

use crate::home::{home, run};

const YEAR: SignedDuration = SignedDuration::from_hours(24 * 365);

/// Writes the state of a bottle whose keeper was killed, with a file of its agent. The system clock was wrong
/// by `off` when the bottle started. `noted` says whether the record contains the offset between the system
/// clock and the boot clock.
fn orphan_with_clock_offset(home: &TestHome, slug: &str, off: SignedDuration, noted: bool) -> Result<()> {
    let (clock, running) = (clock_gettime(ClockId::Realtime), clock_gettime(ClockId::Boottime));
    let lead = SignedDuration::new(clock.tv_sec - running.tv_sec, 0) + off;
    let ready = Timestamp::now() - SignedDuration::from_mins(10) + off;
    let record = serde_json::json!({
        "schema": 1, "slug": slug, "label": slug, "color": null, "agent": "hi", "bottles": ["hi"],
        "cwd": "/", "copied_cwd": false, "backend": "fake", "mode": "attached", "status": "running",
        "started_at": ready, "keeper": "1:1", "resources": [], "manifest_hash": "x",
        "workspace_ready": ready, "clock_lead": noted.then_some(lead),
    });
    home.write(&format!("home/.bottle/state/{slug}/metadata.json"), &record.to_string())?;
    home.write(&format!("home/.bottle/state/{slug}/agent.fake/workspace/note"), "work\n")?;
    Ok(())
}

#[test]
fn detects_work_after_the_clock_was_set_back() -> Result<()> {
    let mut home = home()?;
    home.without_cleanup();
    orphan_with_clock_offset(&home, "right", SignedDuration::ZERO, true)?;
    orphan_with_clock_offset(&home, "set-back", YEAR, true)?;
    orphan_with_clock_offset(&home, "set-forward", -YEAR, true)?;
    // This bottle shows the result that a comparison of times alone would have for `set-back`: the agent's file is not
    // detected as work.
    orphan_with_clock_offset(&home, "not-noted", YEAR, false)?;
    let cleaned = run(&home, &["cleanup", "--yes"])?.expect_code(0);
    for slug in ["right", "set-back", "set-forward"] {
        let note = home.bottle_home().join(format!("state/{slug}/agent.fake/workspace/note"));
        assert_eq!(std::fs::read_to_string(note)?, "work\n", "{slug}: {}", cleaned.transcript());
    }
    let listed = run(&home, &["list"])?.expect_code(0).stdout;
    assert_eq!(listed.matches("kept").count(), 3, "{listed}");
    assert!(!home.bottle_home().join("state/not-noted").exists(), "{}", cleaned.transcript());
    Ok(())
}

#[test]
fn lists_a_bottle_from_another_year_and_keeps_its_slug_taken() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    // The lock, and not the time in the record, shows that the bottle is running.
    let path = home.bottle_home().join("state/one/metadata.json");
    let record = std::fs::read_to_string(&path)?;
    for year in ["1971", "2199"] {
        let started = record.lines().find(|line| line.contains("started_at")).expect("a time");
        let other = started.split_once(": \"").map(|(key, time)| format!("{key}: \"{year}{}", &time[4..]));
        std::fs::write(&path, record.replace(started, &other.expect("a time")))?;
        let listed = run(&home, &["list"])?.expect_code(0).stdout;
        assert!(listed.contains("running (detached)"), "{year}: {listed}");
        let again = run(&home, &["start", "nap", "--label", "one", "-q"])?.expect_code(1);
        assert!(again.stderr.contains("a bottle named one is running"), "{}", again.stderr);
        let cleaned = run(&home, &["cleanup", "--yes"])?.expect_code(0);
        assert!(cleaned.stdout.is_empty(), "{}", cleaned.transcript());
        let _ = run(&home, &["exec", "one", "--", "echo"])?.expect_code(0);
    }
    Ok(())
}
