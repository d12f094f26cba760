//! An agent is refused, asks, a user says yes, and its next request passes: on every backend that is here.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::forge::GitHost;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::pty::Pty;
use bottle_test_support::{engine, server, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::home::run;

/// How long a bottle may take to get somewhere on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A value that the keeper knows and the agent has.
const HELD: &str = "held-8f3Kq2Lm9Zx4Vb7N";

/// Asks the proxy for a page until it is given one or `$1` tries are over; the status lines. Every image's shell can.
const FETCH: &str = "i=0; while [ $i -lt $1 ]; do exec 3<>/dev/tcp/egress/9099; \
    printf 'GET http://api.site.example/new HTTP/1.1\\r\\nHost: api.site.example\\r\\nConnection: close\\r\\n\\r\\n' >&3; \
    read -r line <&3; exec 3>&-; case $line in *' 200 '*) break;; esac; i=$((i+1)); sleep 0.01; done; echo \"$line\"";

/// A home with a bottle `one` that runs and may reach little; nothing where it cannot be had.
fn asking(test: &str, backend: &str, flags: &[&str]) -> Result<Option<TestHome>> {
    let address: IpAddr = if backend == "docker" {
        if let Err(missing) = engine::here() {
            skip::aloud(test, &missing);
            return Ok(None);
        }
        engine::machine().context("the engine has no network of its own")?
    } else {
        Ipv4Addr::LOCALHOST.into()
    };
    let mut home = TestHome::new()?;
    if !home.runs(test, backend)? {
        return Ok(None);
    }
    let site = server::says_yes(address)?;
    let provider = "{template: command, command: [sleep, '600']}";
    home.bottle(
        "asks",
        &format!(
            "---\nbackend: {backend}\nagent_provider: {provider}\nenv: {{HELD: $HELD}}\negress:\n  routes:\n  - host: '*.site.example'\n    \
             ports: [80]\n    connect_to: \"{site}\"\n    matches: [{{methods: [GET], paths: [{{type: exact, value: /open}}]}}]\n---\n"
        ),
    )?;
    home.agent("asks", "---\nbottle: asks\n---\n")?;
    home.env("HELD", HELD);
    let start = ["start", "asks", "--detach", "--label", "one", "-q", "--yes"];
    let mut start = home.program(start.iter().chain(flags).copied())?;
    let _ = start.deadline(PATIENCE).run()?.expect_code(0);
    Ok(Some(home))
}

fn inside(home: &TestHome, arguments: &[&str]) -> Result<Outcome> {
    let mut program = home.program(["exec", "one", "--"].iter().chain(arguments).copied())?;
    program.deadline(PATIENCE).run()
}

/// The status line of the page, asked for until it passes or so often.
fn fetched(home: &TestHome, tries: &str) -> Result<String> {
    Ok(inside(home, &["bash", "-c", FETCH, "fetch", tries])?.expect_code(0).stdout)
}

/// Asks from inside for this, and goes on when a user can see it.
fn ask(home: &TestHome, routes: &str) -> Result<(thread::JoinHandle<Result<Outcome>>, String)> {
    let mut program =
        home.program(["exec", "one", "--", "bottle-ask", "allow", "--why", "for the tests", routes])?;
    program.deadline(PATIENCE);
    let asking = thread::spawn(move || program.run());
    let end = Instant::now() + PATIENCE;
    loop {
        let listed = run(home, &["supervise", "list", "--json"])?.json()?;
        if let Some(id) = listed[0]["id"].as_str() {
            return Ok((asking, id.to_owned()));
        }
        ensure!(Instant::now() < end && !asking.is_finished(), "nothing waits: {:?}", asking.join());
        thread::sleep(Duration::from_millis(20));
    }
}

/// The keeper of the bottle `one`.
fn keeper(home: &TestHome) -> Result<Pid> {
    let record = std::fs::read_to_string(home.bottle_home().join("state/one/metadata.json"))?;
    let record: Value = serde_json::from_str(&record)?;
    let keeper = record["keeper"].as_str().and_then(|keeper| keeper.split(':').next()?.parse().ok());
    keeper.and_then(Pid::from_raw).context("a keeper")
}

fn answer(asking: thread::JoinHandle<Result<Outcome>>) -> Result<Outcome> {
    asking.join().ok().context("asked")?
}

fn refused_asked_allowed(backend: &str) -> Result<()> {
    let test = format!("asking on {backend}");
    let Some(home) = asking(&test, backend, &[])? else { return Ok(()) };
    ensure!(fetched(&home, "1")?.contains("403"));
    let (asks, id) = ask(&home, "api.site.example")?;
    let shown = run(&home, &["supervise", "show", &id])?.expect_code(0).stdout;
    ensure!(shown.contains("It would open:\n  - api.site.example: every request"), "{shown}");
    ensure!(shown.contains("Justification from the bottle:\n  | for the tests\n"), "{shown}");
    ensure!(fetched(&home, "1")?.contains("403"), "asking opens nothing");

    let begun = Instant::now();
    let approved = run(&home, &["supervise", "approve", &id, "--reason", "it may"])?.expect_code(0);
    let took = begun.elapsed();
    ensure!(approved.stderr.contains("is live"), "{}", approved.stderr);
    // The very next one.
    ensure!(fetched(&home, "1")?.contains("200"));
    let said: Value = serde_json::from_str(&answer(asks)?.expect_code(0).stdout)?;
    ensure!(said["status"] == "approved" && said["revision"] == 2 && said["notes"] == "it may", "{said}");
    #[allow(clippy::print_stderr, reason = "a figure for whoever runs the test")]
    {
        eprintln!("measured: on {backend}, `supervise approve` to live routes: {took:?}");
    }

    // What was allowed already is no question; and a no is told.
    let again = inside(&home, &["bottle-ask", "allow", "--why", "x", "api.site.example"])?.expect_code(0);
    ensure!(again.stdout.contains("allowed already"), "{}", again.stdout);
    let (asks, id) = ask(&home, "[{host: other.example}]")?;
    let _ = run(&home, &["supervise", "reject", &id, "--reason", "not that one"])?.expect_code(0);
    let said = answer(asks)?.expect_code(1).stdout;
    ensure!(said.contains("not that one"), "{said}");
    // Other routes than those it asked for.
    let (asks, id) = ask(&home, "[{host: wide.example}]")?;
    let file = home.write("project/routes.yaml", "- host: wide.example\n  matches: [{methods: [GET]}]\n")?;
    let edit = file.to_str().context("a path")?;
    let _ = run(&home, &["supervise", "approve", &id, "--edit", edit])?.expect_code(0);
    let said: Value = serde_json::from_str(&answer(asks)?.expect_code(0).stdout)?;
    ensure!(
        said["status"] == "modified" && said["routes"].as_str().is_some_and(|it| it.contains("GET")),
        "{said}"
    );
    let routes = inside(&home, &["bottle-ask", "routes"])?.expect_code(0).stdout;
    ensure!(serde_json::from_str::<Value>(&routes)?["revision"] == 3, "{routes}");

    let audit = run(&home, &["audit", "show", "one", "--json"])?.expect_code(0).json()?;
    let whats: Vec<&str> =
        audit.as_array().into_iter().flatten().filter_map(|line| line["entry"]["what"].as_str()).collect();
    ensure!(whats == ["intent", "live", "decided", "intent", "live"], "{audit:#}");
    let verified = run(&home, &["audit", "verify", "--json"])?.expect_code(0).json()?;
    ensure!(verified[0]["whole"] == true && verified[0]["lines"] == 5, "{verified}");
    Ok(())
}

#[test]
fn what_a_user_allows_passes_at_once_on_linux() -> Result<()> {
    refused_asked_allowed("linux")
}

#[test]
fn what_a_user_allows_passes_at_once_on_docker() -> Result<()> {
    refused_asked_allowed("docker")
}

/// With nothing that can be written, nothing is applied; the question waits on, and then is answered.
#[test]
fn what_cannot_be_applied_waits_on_and_a_killed_keeper_loses_nothing() -> Result<()> {
    let Some(home) = asking("asking and failing", "linux", &[])? else { return Ok(()) };
    let (asks, id) = ask(&home, "api.site.example")?;
    let audit = home.bottle_home().join("audit");
    std::fs::write(&audit, "no folder")?;
    let failed = run(&home, &["supervise", "approve", &id])?;
    ensure!(failed.code == 1 && failed.stderr.contains("the audit cannot be written"), "{}", failed.stderr);
    ensure!(fetched(&home, "1")?.contains("403"), "nothing was applied");
    let unfit = home.write("project/unfit.yaml", "- host: api.site.example\n  private: true\n")?;
    let unfit = unfit.to_str().context("a path")?;
    let refused = run(&home, &["supervise", "approve", &id, "--edit", unfit])?;
    ensure!(refused.stderr.contains("take out `private`"), "{}", refused.stderr);
    std::fs::remove_file(&audit)?;

    // The keeper is killed; whoever comes next has the bottle adopted, and the question is still there.
    kill_process(keeper(&home)?, Signal::KILL)?;
    // Whoever waited through it lost its connection, not its question.
    let _ = answer(asks);
    let checked = inside(&home, &["true"])?.expect_code(0);
    ensure!(checked.stdout.is_empty());
    let end = Instant::now() + PATIENCE;
    loop {
        let approved = run(&home, &["supervise", "approve", &id])?;
        if approved.code == 0 {
            break;
        }
        // The new keeper is told of the question in a moment.
        ensure!(Instant::now() < end, "{}", approved.stderr);
        thread::sleep(Duration::from_millis(50));
    }
    ensure!(fetched(&home, "1")?.contains("200"));
    let said = inside(&home, &["bottle-ask", "check", &id])?.expect_code(0).stdout;
    ensure!(said.contains("approved"), "{said}");
    let _ = run(&home, &["audit", "verify"])?.expect_code(0);
    Ok(())
}

/// Refused, learned, allowed for one request and then for all; and what a bottle was refused outlives it.
#[test]
fn what_was_refused_is_learned_and_asked_for() -> Result<()> {
    let Some(home) = asking("learning", "linux", &["--learn"])? else { return Ok(()) };
    ensure!(fetched(&home, "2")?.contains("403"));
    let dry = run(&home, &["learn", "one", "--dry-run"])?.expect_code(0);
    ensure!(dry.stdout.contains("api.site.example, 2 times"), "{}", dry.stdout);
    ensure!(dry.stdout.contains("value: /new"), "{}", dry.stdout);
    ensure!(run(&home, &["supervise", "list"])?.stdout.is_empty(), "only shown");
    let learned = run(&home, &["learn", "one", "--json"])?.expect_code(0).json()?;
    ensure!(learned["asked"] == true && learned["hosts"][0]["times"] == 2, "{learned}");
    // Asked for again it is the same question.
    let _ = run(&home, &["learn", "one"])?.expect_code(0);
    let listed = run(&home, &["supervise", "list", "--json"])?.json()?;
    ensure!(listed.as_array().is_some_and(|listed| listed.len() == 1), "{listed}");
    let id = listed[0]["id"].as_str().context("an id")?;
    ensure!(listed[0]["summary"] == "learned from 2 denied requests", "{listed}");
    let _ = run(&home, &["supervise", "approve", id])?.expect_code(0);
    ensure!(fetched(&home, "1")?.contains("200"));
    let nothing = run(&home, &["learn", "one"])?.expect_code(0);
    ensure!(nothing.stderr.contains("refused nothing that routes could let through"), "{}", nothing.stderr);
    ensure!(
        inside(&home, &["bash", "-c", &FETCH.replace("/new", "/more"), "fetch", "1"])?.stdout.contains("403")
    );
    let stopped = run(&home, &["stop", "one"])?.expect_code(0);
    ensure!(stopped.stderr.contains("one host was refused"), "{}", stopped.stderr);
    ensure!(stopped.stderr.contains("its audit log ends at 2:"), "{}", stopped.stderr);
    let after = run(&home, &["learn", "one", "--json"])?.expect_code(0).json()?;
    ensure!(after["asked"] == false, "nobody is there to ask: {after}");
    ensure!(after["routes"].as_str().is_some_and(|routes| routes.contains("/more")), "{after}");
    let file = home.bottle_home().join("bottles/mine.md");
    let saved = run(&home, &["learn", "one", "--save", "mine"])?.expect_code(0);
    ensure!(saved.stderr.contains("these lines are added to mine.md"), "{}", saved.stderr);
    ensure!(std::fs::read_to_string(&file)?.contains("value: /more"));
    let again = run(&home, &["learn", "one", "--save", "mine"])?.expect_code(1);
    ensure!(again.stderr.contains("has a route for `api.site.example`"), "{}", again.stderr);
    let shipped = run(&home, &["learn", "one", "--save", "dev"])?.expect_code(2);
    ensure!(shipped.stderr.contains("the bottle `dev` is not yours"), "{}", shipped.stderr);
    Ok(())
}

#[test]
fn nobody_is_asked_where_the_user_says_so() -> Result<()> {
    let Some(home) = asking("not asking", "linux", &["--no-supervise"])? else { return Ok(()) };
    let refused = inside(&home, &["bottle-ask", "routes"])?;
    ensure!(refused.code != 0, "{}", refused.stdout);
    let learned = run(&home, &["learn", "one"])?.expect_code(0);
    ensure!(learned.stderr.contains("refused nothing"), "{}", learned.stderr);
    Ok(())
}

/// Once, and for good: the file gets what was allowed, or the user gets it to paste.
#[test]
fn a_yes_holds_as_long_as_the_user_says() -> Result<()> {
    let Some(home) = asking("asking for a while", "linux", &[])? else { return Ok(()) };
    let file = home.bottle_home().join("bottles/asks.md");
    let before = std::fs::read_to_string(&file)?;
    let approve = |id: &str, scope: &str| run(&home, &["supervise", "approve", id, "--scope", scope]);

    let (asks, id) = ask(&home, "api.site.example")?;
    let once = approve(&id, "once")?.expect_code(0);
    ensure!(once.stderr.contains("is live for one request"), "{}", once.stderr);
    let _ = answer(asks)?.expect_code(0);
    ensure!(fetched(&home, "1")?.contains("200") && fetched(&home, "1")?.contains("403"), "one passes");

    // The file has a route for these hosts already: it is the user's to edit.
    let (asks, id) = ask(&home, "api.site.example")?;
    let listed = approve(&id, "save")?.expect_code(0);
    ensure!(listed.stderr.contains("has a route for `*.site.example` already"), "{}", listed.stderr);
    ensure!(listed.stdout == "routes:\n- host: api.site.example\n", "to paste: {:?}", listed.stdout);
    let _ = answer(asks)?.expect_code(0);
    ensure!(fetched(&home, "1")?.contains("200") && std::fs::read_to_string(&file)? == before);

    let (asks, id) = ask(&home, "[{host: other.example}]")?;
    let saved = approve(&id, "save")?.expect_code(0);
    ensure!(saved.stderr.contains("  +   - host: other.example\n"), "{}", saved.stderr);
    ensure!(saved.stderr.contains(&format!("stands in {}", file.display())), "{}", saved.stderr);
    let _ = answer(asks)?.expect_code(0);
    let after = std::fs::read_to_string(&file)?;
    ensure!(after == before.replace("\n---\n", "\n  - host: other.example\n---\n"), "{after}");

    let (asks, id) = ask(&home, "[{host: third.example}]")?;
    let arguments = ["supervise", "approve", &id, "--scope", "save:learned", "--json"];
    let saved = run(&home, &arguments)?.expect_code(0).json()?;
    ensure!(saved["saved"].as_str().is_some_and(|path| path.ends_with("bottles/learned.md")), "{saved}");
    let _ = answer(asks)?.expect_code(0);
    let new = std::fs::read_to_string(home.bottle_home().join("bottles/learned.md"))?;
    ensure!(new == "---\negress:\n  routes:\n    - host: third.example\n---\n", "{new}");
    let _ = run(&home, &["info", "asks", "--bottle", "asks", "--bottle", "learned"])?.expect_code(0);
    Ok(())
}

/// The same from the screen, by one key.
#[test]
fn a_key_on_the_screen_opens_the_proxy() -> Result<()> {
    let Some(home) = asking("asking and pressing a key", "linux", &[])? else { return Ok(()) };
    let (asks, _) = ask(&home, "api.site.example")?;
    let mut pty = home.on_terminal(&["supervise"], 24, 80)?;
    let screen = pty.wait_for("+ api.site.example: every request")?;
    ensure!(screen.contains("| for the tests"), "{screen}");
    pty.type_keys("\r")?;
    pty.wait_for("The routes after the approval")?;
    pty.wait_for("+ - host: api.site.example")?;
    let begun = Instant::now();
    pty.type_keys("a")?;
    pty.wait_for("was approved, and is live: api.site.example")?;
    let took = begun.elapsed();
    ensure!(fetched(&home, "1")?.contains("200"));
    let _ = answer(asks)?.expect_code(0);
    #[allow(clippy::print_stderr, reason = "a figure for whoever runs the test")]
    {
        eprintln!("measured: a key on the screen to live routes, and the word of it: {took:?}");
    }

    // A keeper that takes its time holds nothing up but its own answer.
    let (asks, _) = ask(&home, "[{host: slow.example}]")?;
    pty.wait_for("+ slow.example: every request")?;
    thread::sleep(Duration::from_secs(1));
    let keeper = keeper(&home)?;
    kill_process(keeper, Signal::STOP)?;
    pty.type_keys("a")?;
    pty.wait_for("approving for one")?;
    pty.type_keys("?")?;
    pty.wait_for("any key goes back")?;
    pty.type_keys("xa")?;
    pty.wait_for("it is already being answered")?;
    pty.type_keys("q")?;
    pty.wait_for("`q` once more leaves")?;
    kill_process(keeper, Signal::CONT)?;
    pty.wait_for("was approved, and is live: slow.example")?;
    let _ = answer(asks)?.expect_code(0);

    // Saved from the screen, after a look at what is written; the routes moved on since.
    let (asks, id) = ask(&home, "[{host: other.example}]")?;
    pty.wait_for("+ other.example: every request")?;
    // A key at once could have been meant for the one before.
    thread::sleep(Duration::from_secs(1));
    pty.type_keys("oo")?;
    pty.wait_for("It would be added to")?;
    pty.type_keys("a")?;
    pty.wait_for("this is all of it")?;
    pty.type_keys("G")?;
    pty.wait_for("asks.md, as it would be")?;
    pty.wait_for("+   - host: other.example")?;
    let approved = run(&home, &["supervise", "approve", &id])?;
    ensure!(approved.code == 0, "{}", approved.stderr);
    pty.wait_for("waits no more: somebody else has answered it")?;
    let _ = answer(asks)?.expect_code(0);
    let (asks, _) = ask(&home, "[{host: third.example}]")?;
    pty.wait_for("+ third.example: every request")?;
    thread::sleep(Duration::from_secs(1));
    pty.type_keys("oo\r")?;
    pty.wait_for("It would be added to")?;
    pty.type_keys("a")?;
    pty.wait_for("and stands in")?;
    let _ = answer(asks)?.expect_code(0);
    let file = std::fs::read_to_string(home.bottle_home().join("bottles/asks.md"))?;
    ensure!(file.contains("  - host: third.example\n---\n"), "{file}");
    pty.type_keys("q")?;
    ensure!(pty.wait_exit()? == 0 && pty.is_cooked()? && pty.left_on().is_empty());
    Ok(())
}

/// Asks from inside the bottle `two`, which is somebody's session; its question's id, once a user can see it.
fn ask_in_two(home: &TestHome, host: &str) -> Result<(thread::JoinHandle<Result<Outcome>>, String)> {
    let mut program = home.program(["exec", "two", "--", "bottle-ask", "allow", "--why", "x", host])?;
    program.deadline(PATIENCE);
    let asking = thread::spawn(move || program.run());
    let end = Instant::now() + PATIENCE;
    loop {
        let listed = run(home, &["supervise", "list", "--json"])?.json()?;
        if let Some(id) = listed[0]["id"].as_str() {
            return Ok((asking, id.to_owned()));
        }
        ensure!(Instant::now() < end && !asking.is_finished(), "nothing waits: {:?}", asking.join());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the terminal was sent this.
fn wait_for_raw(pty: &Pty, wanted: &str) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !String::from_utf8_lossy(&pty.raw()).contains(wanted) {
        ensure!(Instant::now() < end, "{wanted:?} is not in {:?}", String::from_utf8_lossy(&pty.raw()));
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Beside an agent that has the terminal: a bell and a mark in the title, which goes with the question.
#[test]
fn a_question_rings_and_marks_the_title_until_it_is_answered() -> Result<()> {
    let Some(home) = asking("asking beside a session", "linux", &[])? else { return Ok(()) };
    for (settings, before, after) in [
        ("", "", "\x1b]0;two\x07"),
        // What may be the agent's own comes back from behind ours.
        ("terminal: {pass: [title]}\n", "\x1b[22;0t", "\x1b[23;0t"),
    ] {
        home.write("home/.bottle/settings.yml", settings)?;
        let mut pty = home.on_terminal(&["start", "asks", "--label", "two", "--yes"], 24, 80)?;
        wait_for_raw(&pty, "\x1b]0;two\x07")?;
        let (asks, id) = ask_in_two(&home, "api.site.example")?;
        wait_for_raw(&pty, &format!("\x07{before}\x1b]0;two - 1 question\x07"))?;
        let _ = run(&home, &["supervise", "reject", &id, "--reason", "no"])?.expect_code(0);
        wait_for_raw(&pty, &format!("\x1b]0;two - 1 question\x07{after}"))?;
        let _ = answer(asks)?.expect_code(1);
        // One more, which waits when the session ends: its titles come back in their order.
        let (asks, _) = ask_in_two(&home, "[{host: other.example}]")?;
        let marks = |pty: &Pty| String::from_utf8_lossy(&pty.raw()).matches("two - 1 question").count();
        let end = Instant::now() + PATIENCE;
        while marks(&pty) < 2 {
            ensure!(Instant::now() < end, "{:?}", String::from_utf8_lossy(&pty.raw()));
            thread::sleep(Duration::from_millis(20));
        }
        pty.type_keys("\x1dd")?;
        ensure!(pty.wait_exit()? == 0);
        let last = pty.last_screen()?;
        ensure!(last.contains("a proposal waits for you: `bottle supervise`"), "{last}");
        let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
        let (kept, back) = (raw.matches("\x1b[22;0t").count(), raw.matches("\x1b[23;0t").count());
        ensure!(kept == back, "{kept} titles were kept, {back} came back: {raw:?}");
        let _ = run(&home, &["stop", "two", "--time", "0"])?.expect_code(0);
        let _ = answer(asks);
        let _ = run(&home, &["discard", "two"]);
        for listed in run(&home, &["supervise", "list", "--json"])?.json()?.as_array().context("a list")? {
            let id = listed["id"].as_str().context("an id")?;
            let _ = run(&home, &["supervise", "reject", id, "--reason", "gone"])?.expect_code(0);
        }
    }
    Ok(())
}

/// A command of the user's, and a desktop, are told once; what they do holds nothing up.
#[test]
fn a_new_question_is_told_wherever_the_user_is() -> Result<()> {
    let Some(home) = asking("telling of questions", "linux", &[])? else { return Ok(()) };
    let tell = |home: &TestHome, script: &str| -> Result<()> {
        let path = home.write("project/tell me", &format!("#!/bin/sh\n{script}\n"))?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let line = format!("supervise: {{notify: \"'{}' one 'two words'\"}}\n", path.display());
        home.write("home/.bottle/settings.yml", &line).map(drop)
    };
    let told = home.project().join("told");
    tell(
        &home,
        &format!(
            "cd '{}'; echo \"$1/$2/$#\" > how; env > seen; cat > told.new; mv told.new told",
            home.project().display()
        ),
    )?;
    let (asks, id) = ask(&home, "api.site.example")?;
    let end = Instant::now() + PATIENCE;
    while !told.exists() {
        ensure!(Instant::now() < end, "nobody was told");
        thread::sleep(Duration::from_millis(20));
    }
    let proposal: Value = serde_json::from_str(&std::fs::read_to_string(&told)?)?;
    ensure!(proposal["id"] == id.as_str() && proposal["bottle_slug"] == "one", "{proposal}");
    ensure!(proposal["tool"] == "egress-allow" && proposal["justification"] == "for the tests", "{proposal}");
    ensure!(std::fs::read_to_string(home.project().join("how"))? == "one/two words/2\n");
    let seen = std::fs::read_to_string(home.project().join("seen"))?;
    let names: Vec<&str> = seen.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let own =
        ["PWD", "OLDPWD", "SHLVL", "_", "BOTTLE_HOME", "HOME", "PATH", "USER", "TMPDIR", "XDG_RUNTIME_DIR"];
    ensure!(names.iter().all(|name| own.contains(name)), "{names:?}");
    let _ = run(&home, &["supervise", "reject", &id, "--reason", "no"])?.expect_code(0);
    let _ = answer(asks)?.expect_code(1);

    // One that hangs, one that fails and one that is not there: the question is asked all the same.
    for (host, script, words) in [
        ("a.site.example", "sleep 60", "did not end within 10 s and was killed"),
        ("b.site.example", "exit 3", "ended with exit status: 3"),
    ] {
        tell(&home, script)?;
        let (asks, id) = ask(&home, host)?;
        let _ = run(&home, &["supervise", "reject", &id, "--reason", "no"])?.expect_code(0);
        let _ = answer(asks)?.expect_code(1);
        wait_for_log(&home, words)?;
    }
    home.write("home/.bottle/settings.yml", "supervise: {notify: /no/such/program}\n")?;
    let (asks, id) = ask(&home, "c.site.example")?;
    wait_for_log(&home, "`/no/such/program` cannot be started to notify you")?;
    let _ = run(&home, &["supervise", "reject", &id, "--reason", "no"])?.expect_code(0);
    let _ = answer(asks)?.expect_code(1);
    Ok(())
}

fn wait_for_log(home: &TestHome, words: &str) -> Result<()> {
    let log = home.bottle_home().join("state/one/logs/keeper.log");
    let end = Instant::now() + PATIENCE;
    loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains(words) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{words:?} is not in the keeper's log:\n{text}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A request with a token and a push with a marked one wait; both are decided on one screen, and stand in the audit.
/// What was allowed to leave is forgotten with the proxy.
#[test]
fn a_held_token_and_a_marked_push_are_decided_on_one_screen() -> Result<()> {
    let test = "deciding on one screen";
    if let Some(why) = GitHost::missing() {
        skip::aloud(test, &why);
        return Ok(());
    }
    let mut home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(());
    }
    let (host, site) = (GitHost::start()?, server::says_yes(Ipv4Addr::LOCALHOST.into())?);
    home.bottle(
        "both",
        &format!(
            "---\nbackend: linux\nagent_provider: {{template: command, command: [sleep, '600']}}\negress:\n  routes:\n  \
             - host: api.site.example\n    ports: [80]\n    connect_to: \"{site}\"\ngit-gate:\n  \
             user: {{name: Coder, email: coder@example.com}}\n  repos:\n    tool:\n      url: {}\n      host_key: {}\n      \
             key: {{provider: static, path: {}}}\n---\n",
            host.url(),
            host.host_key()?,
            Value::from(host.admit()?.display().to_string()),
        ),
    )?;
    home.agent("both", "---\nbottle: both\n---\n")?;
    let start = ["start", "both", "--detach", "--label", "one", "-q", "--yes"];
    let _ = home.program(start)?.deadline(PATIENCE).run()?.expect_code(0);

    // Neither stands whole in a command that says it.
    let send = "curl -s -o /dev/null -w '%{http_code}' -d \"t=glpat-$1\" http://api.site.example/";
    let push = format!(
        "git clone -q {} tool && cd tool && git checkout -q -b agent/marked && \
         printf 'AKIA%s # gitleaks:allow\\n' Q5T3X7YZ4WUJ2K6M > key && git add . && git commit -q -m key && \
         git push -q origin agent/marked",
        host.url()
    );
    let sending = ["bash", "-c", send, "send", "Xk3Vw9QzR7tYp2LmNb5c"];
    let sent = in_background(&home, &sending)?;
    let mut screen = home.on_terminal(&["supervise"], 24, 80)?;
    screen.wait_for("1 proposal waits for you")?;
    let pushed = in_background(&home, &["bash", "-c", &push])?;
    screen.wait_for("2 questions wait for you")?;
    screen.wait_for("a request to api.site.example holds")?;
    for (asked, reason) in [("egress-token-allow", "made for this test"), ("gitleaks-allow", "a fixture")] {
        // A key at once could have been meant for the question before.
        thread::sleep(Duration::from_secs(1));
        screen.type_keys("a")?;
        screen.wait_for("Reason to approve: _")?;
        screen.type_keys(&format!("{reason}\r"))?;
        screen.wait_for(&format!("{asked} of one was approved"))?;
    }
    screen.type_keys("q")?;
    ensure!(screen.wait_exit()? == 0, "{}", screen.screen());
    let sent = answer(sent)?.expect_code(0);
    ensure!(sent.stdout == "200", "{}", sent.stdout);
    let _ = answer(pushed)?.expect_code(0);
    ensure!(host.log("agent/marked")?.starts_with("key\n"), "{}", host.log("agent/marked")?);
    // As long as the proxy lives it is known.
    ensure!(inside(&home, &sending)?.stdout == "200");
    let audit = run(&home, &["audit", "show", "one", "--json"])?.expect_code(0).json()?;
    let decided: Vec<_> = audit.as_array().into_iter().flatten().map(|line| &line["entry"]).collect();
    let said = |at: usize| (decided[at]["tool"].as_str(), decided[at]["reason"].as_str());
    ensure!(decided.len() == 2, "{audit:#}");
    ensure!(said(0) == (Some("egress-token-allow"), Some("made for this test")), "{audit:#}");
    ensure!(said(1) == (Some("gitleaks-allow"), Some("a fixture")), "{audit:#}");
    ensure!(!audit.to_string().contains("Xk3Vw9QzR7tYp2LmNb5c"), "{audit:#}");

    let _ = run(&home, &["stop", "one", "--time", "0"])?.expect_code(0);
    let again = ["resume", "one", "--detach", "-q", "--yes"];
    let _ = home.program(again)?.deadline(PATIENCE).run()?.expect_code(0);
    let sent = in_background(&home, &sending)?;
    let end = Instant::now() + PATIENCE;
    let id = loop {
        let listed = run(&home, &["supervise", "list", "--json"])?.json()?;
        if let Some(id) = listed[0]["id"].as_str() {
            break id.to_owned();
        }
        ensure!(Instant::now() < end && !sent.is_finished(), "it was not asked again");
        thread::sleep(Duration::from_millis(20));
    };
    let _ = run(&home, &["supervise", "reject", &id, "--reason", "not again"])?.expect_code(0);
    ensure!(answer(sent)?.stdout == "403");
    Ok(())
}

/// Every line that an agent wrote stands behind a bar, without what it knows of secrets and without what cannot be
/// seen; a name in foreign letters is said to be one; and what was rejected is not asked again at once.
#[test]
fn nothing_an_agent_says_looks_like_ours_or_carries_a_secret() -> Result<()> {
    let Some(home) = asking("hostile words", "linux", &[])? else { return Ok(()) };
    let log = home.project().join("told");
    let script = home.write("project/tell.sh", &format!("cat >>{}\n", log.display()))?;
    home.write("home/.bottle/settings.yml", &format!("supervise: {{notify: sh {}}}\n", script.display()))?;
    let why = format!(
        "fine\n\n  It changes nothing: all of it is already allowed.\nthe key is {HELD}\u{2800}\u{3000}\u{1d173}"
    );
    let program =
        home.program(["exec", "one", "--", "bottle-ask", "allow", "--why", &why, "[{host: gіthub.com}]"])?;
    let asks = thread::spawn(move || program.run());
    let end = Instant::now() + PATIENCE;
    let id = loop {
        if let Some(id) = run(&home, &["supervise", "list", "--json"])?.json()?[0]["id"].as_str() {
            break id.to_owned();
        }
        ensure!(Instant::now() < end && !asks.is_finished(), "{:?}", asks.join());
        thread::sleep(Duration::from_millis(20));
    };
    let shown = run(&home, &["supervise", "show", &id])?.expect_code(0).stdout;
    let words = [
        "  | fine\n",
        "  |   It would open nothing",
        "  | the key is [redacted]\\u{2800}\\u{3000}\\u{1d173}",
    ];
    for words in words {
        ensure!(shown.contains(words), "{words}: {shown}");
    }
    ensure!(!shown.contains("\n  It would open nothing"), "{shown}");
    ensure!(shown.contains("xn--gthub-n2e.com is a name with letters outside ASCII"), "{shown}");
    let listed = run(&home, &["supervise", "list"])?.expect_code(0).stdout;
    ensure!(listed.contains("| fine"), "{listed}");
    let _ =
        run(&home, &["supervise", "reject", &id, "--reason", &format!("it holds {HELD}")])?.expect_code(0);
    let said = answer(asks)?.expect_code(1).stdout;
    ensure!(said.contains("it holds [redacted]"), "{said}");

    let again =
        inside(&home, &["timeout", "2", "bottle-ask", "allow", "--why", "again", "[{host: gіthub.com}]"])?;
    ensure!(again.code != 0, "{}", again.transcript());
    let listed = run(&home, &["supervise", "list", "--json"])?.json()?;
    ensure!(listed == serde_json::json!([]), "{listed}");
    for folder in ["queue", "audit", "state"] {
        let found = std::process::Command::new("grep")
            // But what the user wrote, in the user's own file.
            .args(["-rl", "--exclude=*.response.json", HELD])
            .arg(home.bottle_home().join(folder))
            .output()?;
        ensure!(found.stdout.is_empty(), "{folder}: {}", String::from_utf8_lossy(&found.stdout));
    }
    let told = std::fs::read_to_string(&log)?;
    ensure!(told.contains("[redacted]") && !told.contains(HELD), "{told}");
    Ok(())
}

/// Runs this inside, beside what the test does.
fn in_background(home: &TestHome, arguments: &[&str]) -> Result<thread::JoinHandle<Result<Outcome>>> {
    let mut program = home.program(["exec", "one", "--"].iter().chain(arguments).copied())?;
    program.deadline(PATIENCE);
    Ok(thread::spawn(move || program.run()))
}
