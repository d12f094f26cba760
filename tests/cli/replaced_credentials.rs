//! Tests `bottle secrets`: the user replaces credentials of a running bottle, and the agent's next request has the new
//! value.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::skip;
use bottle_test_support::upstream::Upstream;
use rustix::process::{Signal, kill_process};

use crate::home::{keeper, run};

/// The time limit for a background step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const FIRST: &str = "first-Xk3v9QpL2wZrTy8N";
const SECOND: &str = "second-Jw6m1RfG5xVeBn4K";
const THIRD: &str = "third-Hq2z8TkDcS7uLp0M";

/// The agent requests the site again and again.
const AGENT: &str = "import time, urllib.request as u\n\
                     while True:\n    u.urlopen('https://site.example/of-agent').read()\n    time.sleep(0.1)\n";

/// Returns a home with a running bottle `one`, whose agent requests the site with the credential in `$ROTATES`. The
/// bottle has a second credential in a file. If the backend is not available, returns `None`.
fn rotating(test: &str) -> Result<Option<(TestHome, Upstream)>> {
    let mut home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(None);
    }
    if !Path::new("/usr/bin/python3").exists() {
        skip::aloud(test, &"python3 is not here");
        return Ok(None);
    }
    let site = Upstream::start(&["site.example"])?;
    let ca = home.outside("site-ca.pem");
    site.write_ca(&ca)?;
    home.write("home/other", "other-Yt7n4BsM8cHdWf5J\n")?;
    let command = serde_json::json!(["/usr/bin/python3", "-c", AGENT]);
    home.bottle(
        "rotates",
        &format!(
            "---\nbackend: linux\nagent_provider: {{template: command, command: {command}}}\negress:\n  log: 2\n  \
             ca_bundle: {}\n  routes:\n    - host: site.example\n      connect_to: \"{}\"\n      \
             auth: {{scheme: Bearer, token_ref: ROTATES}}\n      dlp: {{outbound_on_match: block}}\n    \
             - host: other.example\n      auth: {{scheme: Bearer, token_ref: 'file:~/other'}}\n---\n",
            serde_json::json!(ca),
            site.address(),
        ),
    )?;
    home.agent("rotates", "---\nbottle: rotates\n---\n")?;
    home.env("ROTATES", FIRST);
    let _ = run(&home, &["start", "rotates", "--detach", "--label", "one", "-q", "--yes"])?.expect_code(0);
    Ok(Some((home, site)))
}

/// Waits until the agent's requests have this credential, and the last of them has it too.
fn sends(site: &Upstream, value: &str) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    let before = site.visits().len();
    loop {
        let visits = site.visits();
        let header = visits.last().and_then(|visit| visit.header("authorization").map(str::to_owned));
        if visits.len() > before && header.as_deref() == Some(&format!("Bearer {value}")) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "no request has {value}: {header:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Requests a path of the site from the bottle. Returns the status.
fn status(home: &TestHome, path: &str) -> Result<String> {
    let script = "import sys, urllib.request as u, urllib.error as e\n\
                  try: print(u.urlopen('https://site.example/' + sys.argv[1]).status)\n\
                  except e.HTTPError as error: print(error.code)";
    let asked = run(home, &["exec", "one", "--", "/usr/bin/python3", "-c", script, path])?.expect_code(0);
    Ok(asked.stdout.trim().to_owned())
}

/// Fails if a file below the directory contains one of the values.
fn holds_no_value(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let kind = path.symlink_metadata()?;
        if kind.is_dir() {
            holds_no_value(&path)?;
        } else if kind.is_file() {
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            ensure!(![FIRST, SECOND, THIRD].iter().any(|value| text.contains(value)), "{}", path.display());
        }
    }
    Ok(())
}

#[test]
fn the_next_request_of_a_running_agent_has_the_new_value() -> Result<()> {
    let Some((mut home, site)) = rotating("the_next_request_of_a_running_agent_has_the_new_value")? else {
        return Ok(());
    };
    sends(&site, FIRST)?;
    let listed = run(&home, &["secrets", "list", "one", "--json"])?.expect_code(0).json()?;
    ensure!(listed[0]["name"] == "site.example" && listed[0]["source"] == "$ROTATES", "{listed}");
    ensure!(listed[1]["name"] == "other.example", "{listed}");

    // Nothing changes if one of the values cannot be used, or if the bottle has no such credential.
    home.env("ROTATES", SECOND);
    let unknown = run(&home, &["secrets", "set", "one", "site.example", "nowhere.example"])?.expect_code(2);
    ensure!(unknown.stderr.contains("no credential `nowhere.example`"), "{}", unknown.stderr);
    ensure!(unknown.stderr.contains("it has site.example, other.example"), "{}", unknown.stderr);
    let on_command_line = run(&home, &["secrets", "set", "one", "site.example=not a reference"])?;
    ensure!(on_command_line.expect_code(2).stderr.contains("must be a secret reference"));
    home.write("home/other", "two\nlines")?;
    let bad = run(&home, &["secrets", "set", "one"])?;
    ensure!(
        bad.code != 0 && bad.stderr.contains("the credential `other.example` contains"),
        "{}",
        bad.stderr
    );
    sends(&site, FIRST)?;

    let set = run(&home, &["secrets", "set", "one", "site.example"])?.expect_code(0);
    ensure!(set.stderr.contains("one uses the new values of site.example"), "{}", set.stderr);
    let from = site.visits().len();
    sends(&site, SECOND)?;
    // Requests that were in flight may still have the old value, but only they.
    let old = format!("Bearer {FIRST}");
    let late =
        site.visits()[from..].iter().filter(|visit| visit.header("authorization") == Some(&old)).count();
    ensure!(late <= 1, "{late} requests have the old value");
    ensure!(status(&home, "fine")? == "200");
    for value in [FIRST, SECOND] {
        ensure!(status(&home, value)? == "403", "{value} is searched");
    }
    let environment = run(&home, &["exec", "one", "--", "env"])?.expect_code(0).stdout;
    ensure!(!environment.contains(SECOND), "{environment}");

    // The credentials of a bottle whose keeper was killed can be replaced too.
    kill_process(keeper(&home)?, Signal::KILL)?;
    home.write("home/rotated", &format!("{THIRD}\n"))?;
    let set = ["secrets", "set", "one", "site.example=file:~/rotated", "--json"];
    let set = run(&home, &set)?.expect_code(0).json()?;
    ensure!(set["credentials"] == serde_json::json!(["site.example"]), "{set}");
    std::fs::remove_file(home.home().join("rotated"))?;
    sends(&site, THIRD)?;

    let audit = run(&home, &["audit", "show", "one"])?.expect_code(0).stdout;
    let replaced = audit.lines().filter(|line| line.contains("new values of the credentials site.example"));
    ensure!(replaced.count() == 2 && audit.contains("failed\tthe new values of credentials"), "{audit}");
    ensure!(!audit.contains(SECOND), "{audit}");
    let _ = run(&home, &["audit", "verify", "one"])?.expect_code(0);
    holds_no_value(&home.bottle_home())?;
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    holds_no_value(&home.bottle_home())?;
    let ended = run(&home, &["secrets", "set", "one"])?;
    ensure!(ended.code != 0, "{}", ended.stderr);
    site.visits().first().context("a visit")?;
    Ok(())
}
