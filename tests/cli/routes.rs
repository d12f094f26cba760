//! Tests `bottle allow` and `bottle deny`: the user changes the routes of a running bottle, and the next request is
//! decided by the new routes.

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::asking::{answer, fetched, inside, propose, running_bottle};
use crate::home::{home, keeper, run};

/// Runs `bottle allow` or `bottle deny` and returns its JSON.
fn change(home: &TestHome, arguments: &[&str]) -> Result<Value> {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    run(home, &arguments)?.expect_code(0).json()
}

/// Returns the status of one request from inside the bottle.
fn status(home: &TestHome) -> Result<String> {
    let line = fetched(home, "1")?;
    Ok(line.split(' ').nth(1).unwrap_or_default().to_owned())
}

fn opened_and_closed(backend: &str) -> Result<()> {
    let test = format!("allow and deny on {backend}");
    let Some(home) = running_bottle(&test, backend, &[])? else { return Ok(()) };
    ensure!(status(&home)? == "403");
    let allowed = run(&home, &["allow", "one", "api.site.example/new/", "--method", "get"])?.expect_code(0);
    ensure!(allowed.stderr.contains("+ api.site.example: GET of /new/*"), "{}", allowed.stderr);
    ensure!(allowed.stderr.contains("live as revision 2 until one ends"), "{}", allowed.stderr);
    ensure!(
        allowed.stderr.contains("`bottle allow one api.site.example --undo` undoes it"),
        "{}",
        allowed.stderr
    );
    ensure!(allowed.stdout.starts_with("- host: api.site.example\n  ports:\n"), "{}", allowed.stdout);
    ensure!(status(&home)? == "200");
    // `policy check` also uses the current routes.
    let checked =
        run(&home, &["policy", "check", "--slug", "one", "GET", "http://api.site.example/new", "--json"])?;
    ensure!(checked.expect_code(0).json()?["verdict"] == "allow");

    let again = change(&home, &["allow", "one", "api.site.example/new", "--method", "GET"])?;
    ensure!(again["changed"] == false && again["undo"].is_null() && again["revision"] == 2, "{again}");

    // After the denial of a part, the rest of the host is still allowed.
    let denied = change(&home, &["deny", "one", "API.site.example/new"])?;
    ensure!(
        denied["changed"] == true && denied["losses"][0] == "api.site.example: GET of /new/*",
        "{denied}"
    );
    ensure!(status(&home)? == "403");
    // The denial of a host under a wildcard excludes this host from the wildcard.
    let denied = change(&home, &["deny", "one", "api.site.example"])?;
    ensure!(denied["routes"][0].as_str().is_some_and(|route| route.contains("except:\n- {}")), "{denied}");
    ensure!(status(&home)? == "403");
    // An agent cannot propose requests that the user denied.
    let refused = inside(&home, &["bottle-ask", "allow", "--why", "x", "api.site.example"])?;
    ensure!(refused.code != 0, "{}", refused.stdout);
    ensure!((refused.stderr + &refused.stdout).contains("the user denied these requests"));

    // Each undo reverts the last change.
    for (revision, routes, now) in [(5, 1, "403"), (6, 1, "200"), (7, 1, "403")] {
        let undone = change(&home, &["allow", "one", "api.site.example", "--undo"])?;
        ensure!(undone["revision"] == revision, "{undone}");
        ensure!(undone["routes"].as_array().is_some_and(|list| list.len() == routes), "{undone}");
        ensure!(status(&home)? == now, "after the undo of revision {revision}");
    }
    let nothing = run(&home, &["deny", "one", "api.site.example", "--undo"])?.expect_code(1);
    ensure!(nothing.stderr.contains("there is no change of api.site.example to undo"), "{}", nothing.stderr);

    // The agent sees the routes, and the audit log contains each change.
    let _ = change(&home, &["allow", "one", "docs.example", "--git-fetch"])?;
    let routes = inside(&home, &["bottle-ask", "routes"])?.expect_code(0).stdout;
    ensure!(
        routes.contains("docs.example") && serde_json::from_str::<Value>(&routes)?["revision"] == 8,
        "{routes}"
    );
    let _ = change(&home, &["deny", "one", "docs.example"])?;
    let audit = run(&home, &["audit", "show", "one"])?.expect_code(0).stdout;
    ensure!(
        audit.contains("allowed\tapi.site.example, routes 2: allows api.site.example: GET of /new/*"),
        "{audit}"
    );
    ensure!(audit.contains("denied\tdocs.example, routes 9: denies docs.example: every request"), "{audit}");
    ensure!(audit.contains("undone\tapi.site.example, routes 5"), "{audit}");
    let _ = run(&home, &["audit", "verify"])?.expect_code(0);
    Ok(())
}

#[test]
fn allows_and_denies_requests_of_a_running_bottle_on_linux() -> Result<()> {
    opened_and_closed("linux")
}

#[test]
fn allows_and_denies_requests_of_a_running_bottle_on_docker() -> Result<()> {
    opened_and_closed("docker")
}

/// A changed route still applies after another keeper adopts the bottle, a denial ends a one-time grant, and an
/// approval merges into the changed routes.
#[test]
fn changed_routes_outlive_their_keeper_and_end_one_time_grants() -> Result<()> {
    let Some(home) = running_bottle("allow and a killed keeper", "linux", &[])? else { return Ok(()) };
    let (asks, id) = propose(&home, "api.site.example")?;
    let _ = run(&home, &["supervise", "approve", &id, "--scope", "once"])?.expect_code(0);
    let _ = answer(asks)?.expect_code(0);
    let _ = change(&home, &["deny", "one", "api.site.example"])?;
    ensure!(status(&home)? == "403", "the grant ended");
    let _ = change(&home, &["allow", "one", "api.site.example"])?;
    kill_process(keeper(&home)?, Signal::KILL)?;
    ensure!(status(&home)? == "200", "the new keeper has the routes");
    let _ = change(&home, &["allow", "one", "api.site.example", "--undo"])?;
    ensure!(status(&home)? == "403");
    let audit = home.bottle_home().join("audit");
    std::fs::rename(&audit, home.bottle_home().join("moved"))?;
    std::fs::write(&audit, "no directory")?;
    let failed = run(&home, &["allow", "one", "api.site.example"])?.expect_code(1);
    ensure!(failed.stderr.contains("cannot write the audit log"), "{}", failed.stderr);
    ensure!(status(&home)? == "403", "nothing was applied");
    Ok(())
}

/// A change that weakens the protection is shown in red and needs the user's agreement.
#[test]
fn asks_before_a_change_that_weakens_the_protection() -> Result<()> {
    let Some(home) = running_bottle("allow and ask", "linux", &[])? else { return Ok(()) };
    let unscanned = ["allow", "one", "api.site.example/new", "--outbound-detectors", "false"];
    let refused = run(&home, &unscanned)?.expect_code(2);
    let weaker = "api.site.example: requests are not scanned for known_secrets";
    ensure!(
        refused.stderr.contains(weaker) && refused.stderr.contains("`--yes` agrees"),
        "{}",
        refused.stderr
    );
    ensure!(status(&home)? == "403", "nothing was changed");
    for (word, code) in [("n\r", "403"), ("y\r", "200")] {
        let mut pty = home.on_terminal(&unscanned, 24, 100)?;
        let screen = pty.wait_for("Change the routes of one? [y/N]")?;
        ensure!(screen.contains(&format!("weaker: {weaker}")), "{screen}");
        pty.type_keys(word)?;
        ensure!(pty.wait_exit()? == 0, "{}", pty.screen());
        ensure!(status(&home)? == code, "after {word:?}");
    }
    // A stricter setting needs no question, and `default` removes the setting.
    let strict = change(&home, &["allow", "one", "api.site.example", "--outbound-detectors", "default"])?;
    ensure!(strict["weakenings"] == serde_json::json!([]), "{strict}");
    ensure!(strict["routes"][0].as_str().is_some_and(|route| !route.contains("dlp")), "{strict}");
    ensure!(status(&home)? == "200", "the requests of the route stay allowed");
    let yes = run(&home, &[&unscanned[..], &["-y", "-q"]].concat())?.expect_code(0);
    ensure!(yes.stdout.contains("outbound_detectors: false"), "{}", yes.stdout);
    Ok(())
}

/// `--save` makes the same change in the user's bottle file, and prints the routes if the file cannot be changed.
#[test]
fn saves_a_change_to_the_bottle_file() -> Result<()> {
    let Some(home) = running_bottle("allow and save", "linux", &[])? else { return Ok(()) };
    let file = home.bottle_home().join("bottles/asks.md");
    let before = std::fs::read_to_string(&file)?;
    let saved = run(&home, &["allow", "one", "docs.example/api", "--save"])?.expect_code(0);
    ensure!(saved.stderr.contains("  +   - host: docs.example\n"), "{}", saved.stderr);
    ensure!(
        saved.stderr.contains("saved to ") && saved.stderr.contains("bottles/asks.md"),
        "{}",
        saved.stderr
    );
    let _ = change(&home, &["deny", "one", "docs.example/api/admin", "--save=asks"])?;
    let after = std::fs::read_to_string(&file)?;
    let added = "  - host: docs.example\n    matches:\n    - paths:\n      - type: prefix\n        value: /api\n    \
                 except:\n    - paths:\n      - type: prefix\n        value: /api/admin\n---\n";
    ensure!(after == before.replacen("\n---\n", &format!("\n{added}"), 1), "{after}");
    let removed = change(&home, &["deny", "one", "docs.example", "--save"])?;
    ensure!(removed["saved"].as_str().is_some_and(|path| path.ends_with("bottles/asks.md")), "{removed}");
    ensure!(std::fs::read_to_string(&file)? == before);
    // The bottle file has no route for this host.
    let none = change(&home, &["deny", "one", "docs.example", "--save"])?;
    ensure!(none["unsaved"]["why"].as_str().is_some_and(|why| why.contains("need no change")), "{none}");
    // A new bottle file gets the route. A shipped bottle file is not changed, and then the live routes are not changed
    // either.
    let _ = change(&home, &["allow", "one", "new.example", "--save=mine"])?;
    let mine = std::fs::read_to_string(home.bottle_home().join("bottles/mine.md"))?;
    ensure!(mine == "---\negress:\n  routes:\n    - host: new.example\n---\n", "{mine}");
    let shipped = run(&home, &["allow", "one", "other.example", "--save=dev"])?.expect_code(2);
    ensure!(shipped.stderr.contains("it is not yours"), "{}", shipped.stderr);
    ensure!(shipped.stderr.contains("`--save=NAME` names a bottle file of yours"), "{}", shipped.stderr);
    let routes = inside(&home, &["bottle-ask", "routes"])?.expect_code(0).stdout;
    ensure!(routes.contains("new.example") && !routes.contains("other.example"), "{routes}");
    Ok(())
}

/// The user changes routes on the screen of `bottle supervise`.
#[test]
fn a_key_on_the_screen_changes_routes() -> Result<()> {
    let Some(home) = running_bottle("allow on the screen", "linux", &[])? else { return Ok(()) };
    let mut pty = home.on_terminal(&["supervise"], 24, 100)?;
    pty.wait_for("No pending proposals")?;
    pty.type_keys("+")?;
    pty.wait_for("Allow: _")?;
    pty.type_keys("one api.site.example/new\r")?;
    pty.wait_for("one is live with + api.site.example: every method of /new/*")?;
    ensure!(status(&home)? == "200");
    pty.type_keys("+")?;
    pty.type_keys("one api.site.example --outbound-detectors false\r")?;
    pty.wait_for("Change the routes nevertheless? [y/N]")?;
    pty.type_keys("n")?;
    pty.wait_for("nothing was changed")?;
    pty.type_keys("-")?;
    pty.type_keys("one api.site.example\r")?;
    pty.wait_for("one is live with - api.site.example")?;
    ensure!(status(&home)? == "403");
    pty.type_keys("-")?;
    pty.type_keys("nine api.site.example\r")?;
    pty.wait_for("there is no bottle named nine")?;
    pty.type_keys("q")?;
    ensure!(pty.wait_exit()? == 0, "{}", pty.screen());
    Ok(())
}

#[test]
fn refuses_what_no_route_can_say() -> Result<()> {
    let empty = home()?;
    let unknown = run(&empty, &["allow", "nine", "a.example"])?.expect_code(2);
    ensure!(unknown.stderr.contains("there is no bottle named nine"), "{}", unknown.stderr);
    for (arguments, words) in [
        (&["allow", "nine", "http://a.example/x"][..], "write the host alone: `a.example`"),
        (&["allow", "nine", "a.example:8443"], "ports go into `ports`"),
        (&["allow", "nine", "a.example/x?y=1"], "a path has no query"),
        (&["deny", "nine", "a.example/a//b"], "the path"),
        (&["deny", "nine", "*"], "whole labels"),
        (&["allow", "nine", "localhost"], "is the bottle itself"),
        (&["deny", "nine", "a.example", "--method", "TRACE"], "`TRACE` is never allowed"),
        (&["deny", "nine", "a.example", "--method", "G@T"], "a method is a word"),
        (&["allow", "nine", "a.example/x", "--undo"], "`--undo` takes a host without a path"),
        (&["allow", "nine", "a.example", "--outbound-detectors", "tokens"], "unknown variant `tokens`"),
        (&["allow", "nine", "a.example", "--outbound-on-match", "ask"], "unknown variant `ask`"),
        (&["deny", "nine", "a.example", "--git-fetch"], "unexpected argument"),
    ] {
        let refused = run(&empty, arguments)?.expect_code(2);
        ensure!(refused.stderr.contains(words), "{arguments:?}: {}", refused.stderr);
    }
    let Some(home) = running_bottle("allow and end", "linux", &[])? else { return Ok(()) };
    let private = run(&home, &["allow", "one", "10.0.0.1"])?.expect_code(1);
    ensure!(private.stderr.contains("`private: true`"), "{}", private.stderr);
    let _ = run(&home, &["stop", "one"])?.expect_code(0);
    let ended = run(&home, &["deny", "one", "api.site.example"])?;
    ensure!(ended.code == 1 && !ended.stderr.is_empty(), "{}", ended.stderr);
    let error = run(&home, &["deny", "one", "api.site.example", "--json"])?.expect_code(1).stderr;
    let error: Value = serde_json::from_str(&error).context("the error as JSON")?;
    ensure!(error["error"]["subject"] == "one", "{error}");
    Ok(())
}
