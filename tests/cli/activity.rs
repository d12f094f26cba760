//! Tests what `bottle list` shows of running bottles: what the agent does, and the size.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bottle_protocol::queue::Tool;
use bottle_test_support::home::TestHome;
use jiff::SignedDuration;
use serde_json::Value;

use crate::home::{bottle, home, run};
use crate::supervise::{Asking, question};

/// The time limit for a background step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Waits until `wanted` accepts the only bottle in the output of `bottle list --json`.
fn until(home: &TestHome, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let end = Instant::now() + PATIENCE;
    loop {
        let listed = run(home, &["list", "--json"])?.json()?;
        if wanted(&listed[0]) {
            return Ok(listed[0].clone());
        }
        if Instant::now() > end {
            bail!("it was never listed so:\n{listed}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn start(home: &TestHome, agent: &str) -> Result<()> {
    let _ = run(home, &["start", agent, "--detach", "--label", "one", "-y", "-q"])?.expect_code(0);
    Ok(())
}

#[test]
fn an_agent_works_while_it_writes_and_asks_while_a_proposal_waits() -> Result<()> {
    let mut home = home()?;
    home.bottle("prompt", &bottle("[read-line]"))?.agent("prompt", "---\nbottle: prompt\n---\n")?;
    // Without a terminal the agent would end immediately.
    let terminal = home.on_terminal(&["start", "prompt", "--label", "one", "-y"], 24, 100)?;
    terminal.wait_for("? ")?;
    let listed = until(&home, |bottle| bottle["activity"] == "working")?;
    assert!(listed["active_at"].is_string(), "{listed}");
    let idle = until(&home, |bottle| bottle["activity"] == "idle")?;
    let at = |bottle: &Value| bottle["active_at"].as_str().unwrap_or_default().parse::<jiff::Timestamp>();
    assert!(at(&idle)?.duration_since(at(&listed)?).abs() < SignedDuration::from_secs(1), "{idle} {listed}");
    let text = "a push to work holds 1 thing that may be a secret";
    let asking = Asking::begin(&home, "one", question(1, Tool::GitleaksAllow, text))?;
    until(&home, |bottle| bottle["activity"] == "asking")?;
    let wide = home.on_terminal(&["list"], 24, 120)?;
    let screen = wide.wait_for("needs an answer (attached), 1 proposal")?;
    assert!(screen.contains("SIZE"), "{screen}");
    asking.give_up();
    until(&home, |bottle| bottle["activity"] == "idle")?;
    let wide = home.on_terminal(&["list"], 24, 120)?;
    wide.wait_for("idle <1 min (attached)")?;
    // If the output is not a terminal, the columns and words for scripts are unchanged.
    let piped = run(&home, &["list"])?.stdout;
    assert_eq!(piped.trim_end().split('\t').nth(3), Some("running (attached)"), "{piped}");
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}

#[test]
fn a_program_that_computes_without_output_works() -> Result<()> {
    let mut home = home()?;
    if !home.runs("a_program_that_computes_without_output_works", "linux")? {
        return Ok(());
    }
    let agent = "agent_provider: {template: command, command: [sh, -c, 'sleep 600; :']}";
    home.bottle("quiet", &format!("---\nbackend: linux\n{agent}\n---\n"))?;
    home.agent("quiet", "---\nbottle: quiet\n---\n")?;
    start(&home, "quiet")?;
    let idle = until(&home, |bottle| bottle["activity"] == "idle")?;
    assert_eq!(idle["active_at"], Value::Null, "it wrote nothing");
    let busy = ["process", "start", "one", "--name", "busy", "-q", "--", "sh", "-c", "while :; do :; done"];
    let _ = run(&home, &busy)?.expect_code(0);
    until(&home, |bottle| bottle["activity"] == "working")?;
    let _ = run(&home, &["process", "kill", "one", "busy", "-q"])?.expect_code(0);
    until(&home, |bottle| bottle["activity"] == "idle")?;
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    Ok(())
}

#[test]
fn the_size_is_that_of_the_own_files_and_stays_known_after_the_end() -> Result<()> {
    let home = home()?;
    start(&home, "nap")?;
    std::fs::write(home.project().join("large"), vec![b'x'; 3 << 20])?;
    let _ = run(&home, &["cp", "large", "one:large", "-q"])?.expect_code(0);
    let large = |bottle: &Value| {
        bottle["disk_bytes"].as_u64().is_some_and(|bytes| (3 << 20..4 << 20).contains(&bytes))
    };
    let listed = until(&home, large)?;
    assert!(listed["measured_at"].is_string(), "{listed}");
    // The next listing shows the same measurement.
    assert_eq!(run(&home, &["list", "--json"])?.json()?[0]["measured_at"], listed["measured_at"]);
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    let kept = run(&home, &["list", "--json"])?.json()?[0].clone();
    assert_eq!((&kept["status"], &kept["activity"]), (&Value::from("kept"), &Value::Null));
    assert!(large(&kept), "{kept}");
    Ok(())
}
