//! Tests `bottle dashboard` on a terminal: the real program, with bottles, usage, budgets and a proposal.

use std::fmt::Write as _;
use std::fs::File;

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;

use crate::home::{bottle, run, snapshot, transcripts};

/// A proposal of the bottle `one`.
pub(crate) const PROPOSAL: &str = r#"{
    "id": "00000000-0000-4000-8000-000000000000", "bottle_slug": "one", "tool": "egress-allow",
    "proposed_file": "- host: registry.example\n", "justification": "to install the packages of the project",
    "arrival_timestamp": "2026-01-01T00:00:00Z", "expires_at": "2099-01-02T00:00:00Z"
}"#;

/// Returns a home with a running bottle `one`, which has a budget and has used a part of it, and with usage of a bottle
/// that no longer exists.
pub(crate) fn dashboard_home() -> Result<TestHome> {
    let mut home = TestHome::new()?;
    let budget =
        "budget: {llm.example: {day: 20000, total: 900000}}\negress: {routes: [{host: llm.example}]}\n";
    home.bottle("dev", &bottle("[sleep, \"600\"]").replace("\n---\n", &format!("\n{budget}---\n")))?;
    home.agent("worker", "---\nbottle: dev\n---\n")?;
    let start = ["start", "worker", "--detach", "--yes", "--label", "one", "-q"];
    let _ = run(&home, &start)?.expect_code(0);
    spend(&home, "one", "main", 5)?;
    spend(&home, "gone", "subagent", 40)?;
    Ok(home)
}

/// Adds responses of 1000 tokens each to the usage file of a bottle.
pub(crate) fn spend(home: &TestHome, slug: &str, source: &str, responses: u64) -> Result<()> {
    let now = jiff::Timestamp::now();
    let mut text = String::new();
    for number in 0..responses {
        writeln!(
            text,
            "{{\"agent\":\"worker\",\"run\":\"{slug}\",\"bottles\":[\"dev\"],\"lineage\":[\"dev\"],\"id\":\"{slug}{number:028x}\",\
             \"time\":\"{now}\",\"provider\":\"x\",\"host\":\"llm.example\",\"api\":\"messages\",\"model\":\"m-1\",\
             \"source\":\"{source}\",\"input\":900,\"output\":100,\"interrupted\":false}}"
        )?;
    }
    home.write(&format!("home/.bottle/usage/{slug}.jsonl"), &text)?;
    Ok(())
}

/// Adds a proposal. While the returned file is open, a process waits for the answer: the file is locked.
pub(crate) fn propose(home: &TestHome, proposal: &str) -> Result<File> {
    let id = "00000000-0000-4000-8000-000000000000";
    home.write("home/.bottle/queue/one/processed/none", "")?;
    let file = File::open(home.write(&format!("home/.bottle/queue/one/{id}.proposal.json"), proposal)?)?;
    file.lock()?;
    Ok(file)
}

fn open(home: &TestHome) -> Result<Pty> {
    let pty = home.on_terminal(&["dashboard"], 24, 80)?;
    pty.wait_for("q quits")?;
    Ok(pty)
}

fn is_clean(mut pty: Pty, code: i32) -> Result<()> {
    ensure!(pty.wait_exit()? == code, "{}", pty.screen());
    pty.last_screen()?;
    ensure!(pty.left_on().is_empty() && pty.is_cooked()?, "{:?}", pty.left_on());
    Ok(())
}

#[test]
fn shows_bottles_budgets_usage_and_proposals() -> Result<()> {
    let home = dashboard_home()?;
    let _asker = propose(&home, PROPOSAL)?;
    let mut pty = open(&home)?;
    // 45,000 of 20,000 tokens of the day are spent.
    let screen =
        pty.wait_until("the budget", |screen| screen.contains("100%") && screen.contains("spent"))?;
    ensure!(screen.contains("one") && screen.contains("running"), "{screen}");
    pty.type_keys("\r")?;
    pty.wait_until("the detail", |screen| screen.contains("dev.md:") && screen.contains("Budgets"))?;
    pty.type_keys("G")?;
    pty.wait_for("none are logged")?;
    pty.type_keys("2p")?;
    pty.wait_until("usage", |screen| screen.contains("llm.example") && screen.contains("45.0k"))?;
    pty.type_keys("b")?;
    pty.wait_until("usage by bottle", |screen| screen.contains("gone") && screen.contains("40.0k"))?;
    pty.type_keys("3")?;
    pty.wait_for("registry.example")?;
    pty.type_keys("\r")?;
    pty.wait_for("Justification from the bottle")?;
    pty.resize(30, 100)?;
    pty.wait_for("Justification from the bottle")?;
    // Two Esc at once are read as one key.
    pty.type_keys("\x1b")?;
    pty.wait_for("KIND")?;
    pty.type_keys("\x1b")?;
    pty.wait_for("TIME LEFT")?;
    pty.type_keys("q")?;
    is_clean(pty, 0)
}

#[test]
fn raises_a_budget_and_stops_a_bottle_after_a_question() -> Result<()> {
    let home = dashboard_home()?;
    let mut pty = open(&home)?;
    pty.wait_for("100%")?;
    pty.type_keys("b")?;
    pty.wait_for("Raise llm.example per day, manifest dev by:")?;
    pty.type_keys("80000\r")?;
    pty.wait_for("the limit becomes 100,000")?;
    pty.type_keys("n")?;
    pty.wait_for("nothing was done")?;
    pty.type_keys("b80000\ry")?;
    pty.wait_for("the limit is now 100,000 tokens")?;
    pty.wait_for("45%")?;
    pty.type_keys("sy")?;
    pty.wait_for("one has ended")?;
    pty.type_keys("\x03")?;
    is_clean(pty, 0)?;
    let active = run(&home, &["list", "--json"])?.json()?;
    ensure!(
        active.as_array().is_some_and(|all| all.iter().all(|one| one["status"] != "running")),
        "{active}"
    );
    Ok(())
}

#[test]
fn pauses_cuts_off_freezes_and_kills_a_bottle_after_a_question() -> Result<()> {
    let home = dashboard_home()?;
    let mut pty = open(&home)?;
    for (keys, result, word) in [
        ("zy", "one is paused", "paused"),
        ("zy", "one goes on, as far as its budgets allow", "running"),
        ("cy", "one runs on, and its requests to models are denied", "cut off"),
        ("cy", "one goes on, as far as its budgets allow", "running"),
        ("fy", "one has ended", "snapshot"),
    ] {
        pty.type_keys(keys)?;
        pty.wait_until(result, |screen| {
            screen.contains(result) && screen.contains(&format!("one     {word}"))
        })?;
    }
    let more = ["budget", "add", "bottle:dev", "900000", "--provider", "llm.example", "--window", "day"];
    let _ = run(&home, &more)?.expect_code(0);
    let _ = run(&home, &["resume", "one", "--yes", "--detach", "-q"])?.expect_code(0);
    pty.wait_for("one     running")?;
    pty.type_keys("xn")?;
    pty.wait_for("nothing was done")?;
    pty.type_keys("xy")?;
    pty.wait_for("one has ended")?;
    pty.type_keys("q")?;
    is_clean(pty, 0)
}

#[test]
fn a_signal_leaves_a_clean_screen() -> Result<()> {
    let home = dashboard_home()?;
    let pty = open(&home)?;
    let pid = i32::try_from(pty.pid())?;
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| anyhow::anyhow!("a process"))?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    is_clean(pty, 128 + 15)
}

#[test]
fn refuses_without_a_terminal() -> Result<()> {
    let home = TestHome::new()?;
    snapshot!(transcripts(&home, &[&["dashboard"], &["dashboard", "--json"], &["dashboard", "--help"]])?);
    Ok(())
}
