//! Tests budgets: their forms, their precedence, the counted tokens, top-ups, and starts that are refused.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcript, transcripts};

/// A bottle with a route to a model, whose program prints `hi`.
fn bottle(rest: &str) -> String {
    format!(
        "---\nbackend: fake\nagent_provider: {{template: command, command: [echo, hi]}}\n\
         egress: {{routes: [{{host: llm.example}}, {{host: other.example}}]}}\n{rest}---\n"
    )
}

/// Writes a usage file: responses of 1000 tokens each of llm.example, by the agent `worker` in the bottle `near`, which
/// extends `far`.
fn spend(home: &TestHome, responses: u64) -> Result<()> {
    let now = jiff::Timestamp::now();
    let mut text = String::new();
    for number in 0..responses {
        writeln!(
            text,
            "{{\"agent\":\"worker\",\"run\":\"0a\",\"bottles\":[\"near\"],\"lineage\":[\"far\",\"near\"],\"id\":\"{number:032x}\",\
             \"time\":\"{now}\",\"provider\":\"x\",\"host\":\"llm.example\",\"api\":\"messages\",\"input\":900,\"output\":100,\
             \"interrupted\":false}}"
        )?;
    }
    home.write("home/.bottle/usage/earlier.jsonl", &text)?;
    Ok(())
}

fn with_budgets() -> Result<TestHome> {
    let mut home = home()?;
    home.bottle("far", &bottle("budget: {llm.example: {total: 4000, month: 3500}}\n"))?;
    home.bottle("near", "---\nextends: far\nbudget: {llm.example: {day: 3000, run: 500}}\n---\n")?;
    home.agent("worker", "---\nbottle: near\n---\n")?;
    home.agent("frugal", "---\nbottle: near\nbudget: {other.example: 10}\n---\n")?;
    home.write(
        "home/.bottle/settings.yml",
        "budget:\n  claude: 5000000\n  llm.example: {day: 1}\n  ceiling:\n    llm.example: 2000000\n",
    )?;
    Ok(home)
}

#[test]
fn shows_every_budget_and_which_of_them_govern() -> Result<()> {
    let home = with_budgets()?;
    spend(&home, 2)?;
    snapshot!(transcripts(
        &home,
        &[
            &["budget"],
            &["budget", "--explain"],
            &["budget", "--agent", "worker", "--explain"],
            &["budget", "--agent", "frugal", "--bottle", "far"],
            &["budget", "--agent", "frugal", "--json"],
            &["info", "frugal", "--explain"],
            &["settings", "--json"],
        ],
    )?);
    Ok(())
}

#[test]
fn refuses_a_start_under_a_spent_budget_until_it_is_raised() -> Result<()> {
    let home = with_budgets()?;
    spend(&home, 3)?;
    let start = ["start", "worker", "--label", "one", "--yes"];
    let mut text = transcripts(
        &home,
        &[
            &start,
            &["start", "worker", "--dry-run", "--json"],
            &["budget", "add", "bottle:near", "5000"],
            &["budget", "add", "bottle:near", "5000", "--window", "run"],
            &["budget", "add", "bottle:near", "5000", "--window", "day"],
        ],
    )?;
    // The narrowest scope takes precedence, so the monthly budget of the parent manifest and the daily budget of the
    // settings have no effect.
    text += &transcripts(
        &home,
        &[
            &start,
            &["budget", "--agent", "worker"],
            &["budget", "add", "bottle:far", "1", "--window", "month", "--json"],
            &["start", "hi", "--bottle", "far", "--yes"],
        ],
    )?;
    // The ceiling applies in addition to the budget.
    home.write("home/.bottle/settings.yml", "budget: {ceiling: {llm.example: 2999}}\n")?;
    text += &transcripts(&home, &[&start, &["budget", "add", "ceiling", "1000", "--json"], &start])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn refuses_a_start_whose_budget_limits_nothing() -> Result<()> {
    let mut home = home()?;
    let host = "generativelanguage.googleapis.com";
    home.bottle("gemini", &bottle("").replace("llm.example", host))?;
    home.bottle("other", &bottle(""))?;
    home.agent("lost", "---\nbottle: other\nbudget: {codex: 10}\n---\n")?;
    let mut text = transcripts(
        &home,
        &[
            &["start", "hi", "--bottle", "gemini", "--yes", "--budget", "500"],
            &["start", "hi", "--bottle", "gemini", "--yes", "--budget", &format!("{host}=500")],
            &["start", "hi", "--bottle", "other", "--yes", "--budget", "claude=500"],
            &["start", "lost", "--yes"],
        ],
    )?;
    // The budget in the settings applies to all bottles, so it may name providers that this bottle does not have.
    home.write(
        "home/.bottle/settings.yml",
        "budget: {codex: 5}\nmetering: {unmetered: [llm.example/v1/x/*]}\n",
    )?;
    text += &transcript(&home, &["start", "hi", "--bottle", "other", "--yes"])?;
    home.write("home/.bottle/settings.yml", &format!("budget: {{{host}: 5}}\n"))?;
    text += &transcript(&home, &["start", "hi", "--bottle", "gemini", "--yes"])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn refuses_a_start_if_a_budget_is_unknown() -> Result<()> {
    let home = with_budgets()?;
    std::fs::create_dir(home.bottle_home().join("bottle.db"))?;
    let mut text = transcript(&home, &["start", "worker", "--yes"])?;
    // Without a budget, the ledger is not needed.
    text += &transcript(&home, &["start", "hi"])?;
    std::fs::remove_file(home.bottle_home().join("settings.yml"))?;
    text += &transcript(&home, &["start", "hi"])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn a_launch_has_a_budget_of_its_own() -> Result<()> {
    let mut home = home()?;
    home.bottle("napping", &bottle("").replace("[echo, hi]", "[sleep, '60']"))?;
    let start =
        ["start", "hi", "--bottle", "napping", "--label", "one", "--yes", "--detach", "--budget", "500"];
    let _ = run(&home, &start)?.expect_code(0);
    let metadata = std::fs::read_to_string(home.bottle_home().join("state/one/metadata.json"))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let launch = metadata["run"].as_str().unwrap_or_default();
    assert_eq!(launch.len(), 16, "{metadata}");
    let line = format!(
        "{{\"agent\":\"hi\",\"run\":\"{launch}\",\"id\":\"{:032x}\",\"time\":\"2026-01-31T12:00:00Z\",\"provider\":\"x\",\
         \"host\":\"llm.example\",\"api\":\"messages\",\"input\":123,\"output\":0,\"interrupted\":false}}\n",
        7
    );
    home.write(
        "home/.bottle/usage/one.jsonl",
        &(line.clone() + &line.replace(launch, "another").replace("07\"", "08\"")),
    )?;
    let text = transcripts(
        &home,
        &[
            &["budget", "--explain"],
            &["budget", "add", "run:one", "77"],
            &["budget", "add", "run:two", "77"],
            &["budget", "--json"],
        ],
    )?;
    let _ = run(&home, &["stop", "one", "--time", "0"])?;
    snapshot!(text);
    Ok(())
}

#[test]
fn stops_and_continues_a_bottle_on_command() -> Result<()> {
    let mut home = home()?;
    home.bottle("napping", &bottle("").replace("[echo, hi]", "[sleep, '60']"))?;
    let start = ["start", "hi", "--bottle", "napping", "--label", "one", "--yes", "--detach"];
    let _ = run(&home, &start)?.expect_code(0);
    let mut text = transcripts(
        &home,
        &[
            &["budget", "stop", "one", "--policy", "pause"],
            &["list"],
            &["budget", "continue", "one"],
            &["list"],
            &["budget", "stop", "one", "--policy", "cutoff"],
            &["list"],
            &["budget", "stop", "one", "--policy", "stop"],
            &["budget", "stop", "one", "--policy", "kill"],
            &["budget", "stop", "two", "--policy", "freeze"],
            &["budget", "stop", "one", "--policy", "freeze"],
            &["budget", "continue", "one"],
            &["snapshots"],
        ],
    )?;
    let _ = run(&home, &["resume", "one", "--yes", "--detach"])?.expect_code(0);
    text += &transcripts(&home, &[&["budget", "stop", "one", "--policy", "kill", "--yes"], &["list"]])?;
    snapshot!(text);
    let audit = run(&home, &["audit", "show", "one", "--json"])?.expect_code(0).json()?;
    let orders: Vec<&str> = audit
        .as_array()
        .into_iter()
        .flatten()
        .filter(|line| line["entry"]["what"] == "enforced" && line["by"] != "keeper")
        .filter_map(|line| line["entry"]["action"].as_str())
        .collect();
    ensure!(orders == ["pause", "continue", "cutoff", "freeze", "kill"], "{audit:#}");
    Ok(())
}

#[test]
fn refuses_bad_budgets_with_their_position() -> Result<()> {
    let mut home = home()?;
    let mut text = String::new();
    for budget in ["0", "-5", "9007199254740993", "5M", "cluade=5", "claude=", "=5"] {
        text += &transcript(&home, &["start", "hi", &format!("--budget={budget}")])?;
    }
    for budget in ["claude: 0", "claude: {week: 5}", "cluade: 5", "ceiling: {claude: 5}", "claude: 5 tokens"]
    {
        home.bottle("bad", &bottle(&format!("budget: {{{budget}}}\n")))?;
        text += &transcript(&home, &["start", "hi", "--bottle", "bad"])?;
    }
    text += &transcript(&home, &["budget"])?;
    for budget in ["claude: {run: 5}", "codex: 99999999999999999999999"] {
        home.write("home/.bottle/settings.yml", &format!("keep_days: 7\nbudget: {{{budget}}}\n"))?;
        text += &transcript(&home, &["start", "hi"])?;
    }
    home.write("home/.bottle/settings.yml", "")?;
    text += &transcripts(
        &home,
        &[
            &["budget", "add", "host", "5"],
            &["budget", "add", "home", "5"],
            &["budget", "add", "host", "0"],
            &["budget", "add", "host", "5", "--window", "week"],
        ],
    )?;
    snapshot!(text);
    Ok(())
}

#[test]
fn a_project_neither_sets_nor_removes_a_budget() -> Result<()> {
    let home = with_budgets()?;
    home.write(
        "project/.bottle/agents/setting.md",
        "---\nbottle: near\nbudget: {llm.example: 9000000}\n---\n",
    )?;
    home.write("project/.bottle/agents/cutting.md", "---\nbottle: near\ncutoff: cutoff\n---\n")?;
    // The project has an agent with the name of the user's agent. The user's agent has a budget.
    home.write("project/.bottle/agents/frugal.md", "---\nbottle: near\n---\nDo as you like.\n")?;
    snapshot!(transcripts(
        &home,
        &[
            &["start", "setting", "--bottle", "near", "--yes"],
            &["start", "cutting", "--bottle", "near", "--yes"],
            &["budget", "--agent", "frugal", "--bottle", "near", "--explain"],
            &["budget", "add", "agent:frugal", "5"],
        ],
    )?);
    Ok(())
}
