//! Tests the access log of a bottle's proxy with real decisions, and with readers that close their pipe.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::skip;
use bottle_test_support::upstream::Upstream;
use serde_json::Value;

use crate::home::{home, run, snapshot, transcripts};

/// The time limit for a background step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Returns a home with a bottle `one` that may reach `site.example`, and this site. If the backend is not available,
/// reports that the test is skipped and returns `None`.
fn with_a_route(test: &str) -> Result<Option<(TestHome, Upstream)>> {
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
    home.bottle(
        "works",
        &format!(
            "---\nbackend: linux\nagent_provider: {{template: command, command: [sleep, '600']}}\negress:\n  log: 2\n  \
             ca_bundle: {}\n  routes:\n    - host: site.example\n      connect_to: \"{}\"\n      \
             dlp: {{outbound_on_match: block}}\n---\n",
            serde_json::json!(ca),
            site.address(),
        ),
    )?;
    home.agent("works", "---\nbottle: works\n---\n")?;
    let _ = run(&home, &["start", "works", "--detach", "--label", "one", "-q", "--yes"])?.expect_code(0);
    Ok(Some((home, site)))
}

/// Sends a request from the bottle. Returns the status of the response.
fn ask(home: &TestHome, url: &str) -> Result<String> {
    let script = "import sys, urllib.request as u, urllib.error as e\n\
                  try: print(u.urlopen(sys.argv[1]).status)\n\
                  except e.HTTPError as error: print(error.code)\n\
                  except e.URLError as error: print(error.reason)";
    let asked = run(home, &["exec", "one", "--", "/usr/bin/python3", "-c", script, url])?.expect_code(0);
    Ok(asked.stdout.trim().to_owned())
}

/// Starts a command. Returns its process, and the lines that it prints.
fn follow(home: &TestHome, arguments: &[&str]) -> Result<(Child, Receiver<String>)> {
    let mut command = home.program(arguments.iter().copied())?.command();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("piped")?;
    let (lines, read) = mpsc::sync_channel(64);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    Ok((child, read))
}

/// Waits until the command exits by itself. Returns its exit code.
fn ended(child: &mut Child) -> Result<Option<i32>> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads lines until one contains all of `words`. Returns this line as JSON; all lines must be JSON.
fn until(read: &Receiver<String>, words: &[&str]) -> Result<Value> {
    let mut seen = String::new();
    loop {
        let line = read.recv_timeout(PATIENCE).with_context(|| format!("{words:?} is not in\n{seen}"))?;
        let object = serde_json::from_str(&line).with_context(|| line.clone())?;
        if words.iter().all(|word| line.contains(word)) {
            return Ok(object);
        }
        seen += &format!("{line}\n");
    }
}

#[test]
fn follows_the_access_log_until_the_bottle_ends() -> Result<()> {
    let test = "follows_the_access_log_until_the_bottle_ends";
    let Some((home, site)) = with_a_route(test)? else { return Ok(()) };
    let (mut child, read) = follow(&home, &["logs", "one", "--egress", "--follow", "--json"])?;
    assert_eq!(ask(&home, "https://site.example/first")?, "200");
    assert_eq!(site.visits().len(), 1);
    let line = until(&read, &["site.example", "/first"])?;
    assert!(line["time"].as_str().is_some_and(|time| time.parse::<jiff::Timestamp>().is_ok()), "{line}");
    assert!(ask(&home, "https://blocked.example/second")?.contains("403"));
    until(&read, &["blocked.example", "host-not-allowed"])?;
    assert!(child.try_wait()?.is_none(), "it follows");
    let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
    assert_eq!(ended(&mut child)?, Some(0));
    Ok(())
}

/// Formats the proxy's decisions as text: every verdict, and a finding without the secret.
#[test]
fn formats_every_kind_of_access_log_line() -> Result<()> {
    let Some((home, _site)) = with_a_route("formats_every_kind_of_access_log_line")? else {
        return Ok(());
    };
    let token = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
    // The requests of the isolation probe at the start are older than `then`, so they are not shown.
    let then = jiff::Timestamp::now().to_string();
    let shown = ["logs", "one", "--egress", "--since", &then];
    let read = |more: &[&str]| -> Result<String> {
        Ok(run(&home, &[&shown[..], more].concat())?.expect_code(0).stdout)
    };
    for (lines, url, answer) in [
        (1, "https://site.example/status/204", "204"),
        (2, "https://blocked.example/a", "403"),
        (3, &format!("https://site.example/x?note={token}"), "403"),
    ] {
        let answered = ask(&home, url)?;
        assert!(answered.contains(answer), "{url}: {answered}");
        // The proxy writes a request's line after the request has ended.
        let end = Instant::now() + PATIENCE;
        while read(&[])?.lines().count() < lines {
            ensure!(Instant::now() < end, "{}", read(&[])?);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(!read(&[])?.contains(token) && !read(&["--json"])?.contains(token));
    let colours = read(&["--color", "always"])?;
    assert!(colours.contains("\u{1b}[") && !read(&[])?.contains('\u{1b}'), "{colours}");
    snapshot!(transcripts(&home, &[&shown, &["logs", "one", "--egress", "--tail", "1"]])?);
    Ok(())
}

#[test]
fn since_shows_only_newer_decisions() -> Result<()> {
    let Some((home, _site)) = with_a_route("since_shows_only_newer_decisions")? else {
        return Ok(());
    };
    assert_eq!(ask(&home, "https://site.example/before")?, "200");
    // Waits, because the times in the log may have whole seconds only.
    std::thread::sleep(Duration::from_millis(1100));
    let then = jiff::Timestamp::now().to_string();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask(&home, "https://site.example/after")?, "200");
    let shown = |since: &str| -> Result<(bool, bool)> {
        let text =
            run(&home, &["logs", "one", "--egress", "--json", "--since", since])?.expect_code(0).stdout;
        for line in text.lines() {
            ensure!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
        }
        Ok((text.contains("/before"), text.contains("/after")))
    };
    // The proxy writes a request's line after the request has ended.
    let end = Instant::now() + PATIENCE;
    while shown("1h")? != (true, true) {
        ensure!(Instant::now() < end, "{:?}", shown("1h")?);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(shown(&then)?, (false, true));
    assert_eq!(shown("2999-01-01T00:00:00Z")?, (false, false));
    // `--follow` does not print older lines either.
    let (mut child, read) =
        follow(&home, &["logs", "one", "--egress", "--json", "--follow", "--since", &then])?;
    let line = read.recv_timeout(PATIENCE)?;
    assert!(line.contains("/after"), "{line}");
    child.kill()?;
    child.wait()?;
    Ok(())
}

#[test]
fn shows_what_an_agent_printed_until_it_was_stopped() -> Result<()> {
    let mut home = TestHome::new()?;
    if !home.runs("the output of a stopped agent", "linux")? {
        return Ok(());
    }
    let command = "[sh, -c, \"echo hello; trap 'echo bye; exit 3' TERM; sleep 60 & wait\"]";
    let manifest =
        format!("---\nbackend: linux\nagent_provider: {{template: command, command: {command}}}\n---\n");
    home.bottle("says", &manifest)?;
    home.agent("says", "---\nbottle: says\n---\n")?;
    let _ = run(&home, &["start", "says", "--detach", "--label", "one", "-q", "--yes"])?.expect_code(0);
    let end = Instant::now() + Duration::from_secs(30);
    while run(&home, &["logs", "one"])?.stdout != "hello\n" {
        ensure!(Instant::now() < end, "the agent prints nothing");
    }
    let _ = run(&home, &["stop", "one", "-q"])?.expect_code(0);
    let shown = run(&home, &["logs", "one"])?.expect_code(0).stdout;
    ensure!(shown == "hello\nbye\n", "{shown}");
    Ok(())
}

#[test]
fn follow_ends_when_its_reader_is_gone() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    for arguments in [&["logs", "one", "--follow"][..], &["logs", "one", "--egress", "--follow"]] {
        let mut command = home.program(arguments.iter().copied())?.command();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        std::thread::sleep(Duration::from_millis(700));
        assert!(child.try_wait()?.is_none(), "{arguments:?}: there is a reader, and the bottle runs");
        drop(child.stdout.take());
        // The agent sleeps, so the command prints nothing in the meantime and must detect the closed pipe by
        // itself.
        assert_eq!(ended(&mut child)?, Some(141), "{arguments:?}");
        let said = child.wait_with_output()?.stderr;
        assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
    }
    assert!(run(&home, &["list"])?.stdout.contains("running"));
    Ok(())
}
