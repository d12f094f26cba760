//! Tests `bottle usage`: the tokens that models used, by several criteria and in several formats.

use std::fmt::Write as _;

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcripts};

/// Writes the usage files of two bottles: one of this version, and one with records of an older version.
fn with_usage() -> Result<TestHome> {
    let home = home()?;
    let labels = r#""agent":"claude","run":"00c0ffee00c0ffee","template":"claude","bottles":["team"],"lineage":["base","team"]"#;
    let mut new = String::new();
    for (number, time, rest) in [
        (
            1,
            "2026-01-30T23:30:00Z",
            r#""input":4,"output":92,"cached":20512,"cache_written":1830,"interrupted":false,"estimated":false,"provider_route":true,"source":"main""#,
        ),
        (
            2,
            "2026-01-31T00:30:00Z",
            r#""input":2000,"output":31,"interrupted":true,"estimated":true,"provider_route":true,"source":"subagent""#,
        ),
        (
            3,
            "2026-01-31T12:00:00.5Z",
            r#""input":9021,"output":310,"cached":8960,"interrupted":false,"estimated":false"#,
        ),
    ] {
        let (host, api, model) = match number {
            3 => ("llm.example", "responses", "=evil,model"),
            _ => ("api.anthropic.com", "messages", "claude-sonnet-4-5"),
        };
        writeln!(
            new,
            r#"{{{labels},"id":"{number:032x}","time":"{time}","provider":"x","host":"{host}","api":"{api}","model":"{model}",{rest}}}"#
        )?;
    }
    home.write("home/.bottle/usage/demo.jsonl", &new)?;
    let old = r#"{"agent":"mini","id":"0123","time":"2026-01-31T13:00:00Z","provider":"openai","host":"api.openai.com","api":"chat-completions","input":1340,"output":77,"cached":1024,"interrupted":false}"#;
    home.write("home/.bottle/usage/old-one.jsonl", &format!("{old}\nno record\n"))?;
    Ok(home)
}

#[test]
fn sums_up_tokens_by_every_criterion() -> Result<()> {
    let home = with_usage()?;
    let by = |criterion| ["usage", "--by", criterion];
    let mut text = transcripts(&home, &[&["usage"], &["usage", "--quiet"]])?;
    for criterion in ["day", "provider", "agent", "bottle", "model", "host"] {
        write!(text, "\n{}", transcripts(&home, &[&by(criterion)])?)?;
    }
    text += &transcripts(
        &home,
        &[
            &["usage", "--by", "provider", "--since", "2026-01-31T12:30:00Z"],
            &["usage", "--since", "2026-02-01"],
            &["usage", "--since", "never"],
            &["usage", "--by", "week"],
        ],
    )?;
    snapshot!(text);
    Ok(())
}

#[test]
fn prints_records_and_sums_as_json_and_csv() -> Result<()> {
    let home = with_usage()?;
    snapshot!(transcripts(
        &home,
        &[
            &["usage", "--json"],
            &["usage", "--csv"],
            &["usage", "--by", "provider", "--json"],
            &["usage", "--by", "model", "--csv"],
            &["usage", "--json", "--since", "2026-02-01"],
            &["usage", "--csv", "--json"],
        ],
    )?);
    let records = run(&home, &["usage", "--json"])?.expect_code(0).json()?;
    assert_eq!(records.as_array().map(Vec::len), Some(4), "the output is one document");
    Ok(())
}

#[test]
fn explains_a_ledger_that_cannot_be_used() -> Result<()> {
    let home = with_usage()?;
    let mut text = transcripts(&home, &[&["usage", "--by", "agent"]])?;
    let path = home.bottle_home().join("bottle.db");
    std::fs::write(&path, "this is a text and no database".repeat(100))?;
    for other in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(home.bottle_home().join(format!("bottle.db{other}")));
    }
    text += &transcripts(&home, &[&["usage"], &["usage", "--json"], &["start", "hi"]])?;
    std::fs::remove_file(&path)?;
    std::fs::create_dir(&path)?;
    text += &transcripts(&home, &[&["usage"]])?;
    std::fs::remove_dir(&path)?;
    // The usage files still have every record.
    text += &transcripts(&home, &[&["usage", "--by", "agent"]])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn cleanup_keeps_the_sums_of_old_records() -> Result<()> {
    let home = with_usage()?;
    let first = transcripts(&home, &[&["cleanup", "--yes"]])?;
    assert!(!home.bottle_home().join("usage/demo.jsonl").exists(), "{first}");
    let sums = transcripts(&home, &[&["usage", "--by", "provider"]])?;
    snapshot!(format!("{first}\n{sums}"));
    // A ledger that cannot be written prevents the removal.
    let home = with_usage()?;
    std::fs::create_dir(home.bottle_home().join("bottle.db"))?;
    let refused = run(&home, &["cleanup", "--yes"])?.expect_code(1);
    assert!(refused.stderr.contains("old usage records stay: cannot open"), "{}", refused.stderr);
    assert!(home.bottle_home().join("usage/demo.jsonl").exists());
    Ok(())
}

#[test]
fn rates_fill_a_column() -> Result<()> {
    let home = with_usage()?;
    let rates =
        "currency: USD\nmodels:\n  claude-sonnet-4-5: {input: 3000, output: 15000, cache_read: 300}\n";
    home.write("home/.bottle/rates.yml", rates)?;
    let mut text = transcripts(
        &home,
        &[
            &["usage", "--by", "model"],
            &["usage", "--by", "provider", "--csv"],
            &["usage", "--by", "model", "--json", "--since", "2026-01-31T00:00:00Z"],
        ],
    )?;
    // An invalid `rates.yml` affects only the column with the costs.
    home.write("home/.bottle/rates.yml", "currency: USD\nmodels: {m: free}\n")?;
    text += &transcripts(&home, &[&["usage", "--by", "model"]])?;
    snapshot!(text);
    Ok(())
}
