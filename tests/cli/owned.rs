//! Tests `--owned`: a bottle ends with the program that started it.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{home, kill_keeper, run};

/// The time limit for a step of a bottle on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that starts bottles. Dropping the value kills the program.
struct Driver(Child);

impl Driver {
    fn sleeping() -> Result<Self> {
        Ok(Self(Command::new("sleep").arg("600").stdout(Stdio::null()).spawn()?))
    }

    /// Starts a bottle, and then sleeps.
    fn starting(home: &TestHome, arguments: &[&str]) -> Result<Self> {
        let start = home.program(arguments.iter().copied())?.command();
        let mut driver = Command::new("sh");
        driver.args(["-c", "\"$@\" || exit 1; exec sleep 600", "driver"]).arg(start.get_program());
        driver.args(start.get_args()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        driver.env_clear();
        for (name, value) in start.get_envs() {
            if let Some(value) = value {
                driver.env(name, value);
            }
        }
        if let Some(directory) = start.get_current_dir() {
            driver.current_dir(directory);
        }
        Ok(Self(driver.spawn()?))
    }

    /// Kills the program with SIGKILL.
    fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Returns the names of the bottles that run.
fn running(home: &TestHome) -> Result<Vec<String>> {
    let listed = run(home, &["list", "--json"])?.expect_code(0).json()?;
    let bottles = listed.as_array().context("a list")?.iter();
    let running = bottles.filter(|bottle| bottle["status"] == "running");
    Ok(running.filter_map(|bottle| bottle["slug"].as_str()).map(str::to_owned).collect())
}

pub(crate) fn wait_until_running(home: &TestHome, expected: &[&str]) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let running = running(home)?;
        if running == expected {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{running:?} run, and not {expected:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_bottle_ends_with_the_program_that_started_it() -> Result<()> {
    let home = home()?;
    let start = ["start", "nap", "--detach", "--yes", "-q", "--label"];
    let mut driver = Driver::starting(&home, &[&start[..], &["one", "--owned"]].concat())?;
    wait_until_running(&home, &["one"])?;
    let _ = run(&home, &[&start[..], &["two"]].concat())?.expect_code(0);
    driver.kill()?;
    wait_until_running(&home, &["two"])
}

#[test]
fn a_bottle_ends_with_a_process_also_after_its_keeper_was_replaced() -> Result<()> {
    let home = home()?;
    let mut driver = Driver::sleeping()?;
    let owned = format!("--owned={}", driver.0.id());
    let start = ["start", "nap", "--detach", "--yes", "-q", "--label"];
    for label in ["one", "two"] {
        let _ = run(&home, &[&start[..], &[label, &owned]].concat())?.expect_code(0);
    }
    kill_keeper(&home, "two")?;
    let _ = run(&home, &["exec", "two", "--", "true"])?.expect_code(0);
    ensure!(running(&home)?.len() == 2);
    driver.kill()?;
    wait_until_running(&home, &[])?;
    let gone = run(&home, &[&start[..], &["three", &owned]].concat())?.expect_code(2);
    ensure!(gone.stderr.contains("this process has ended"), "{}", gone.stderr);
    let word = run(&home, &["start", "nap", "--owned=me"])?.expect_code(2);
    ensure!(word.stderr.contains("write the id of a process"), "{}", word.stderr);
    Ok(())
}
