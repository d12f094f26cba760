//! Kills every process of a bottle at many moments. Afterwards `bottle cleanup` must find all remaining processes and
//! files.
//!
//! The tests look for processes with this home's label, files in its runtime directory, directories in its state, and
//! objects on an engine. Processes are killed at each step of the fake backend, at arbitrary moments of the linux
//! backend if it is usable, and at every call to a container engine.
//!
//! - `usage`: the usage of each model response is counted exactly once
//! - `budgets`: a budget of several bottles holds, and each response is counted once, while their processes are killed
//! - `approving`: an approved route is active and has its entry in the audit log, or its question is still pending
//! - `snapshots`: after a killed commit or resume, the earlier snapshot or files are still usable
//! - `docker`, `relay`: kills at every call to a container engine, selected by a relay before the engine's socket
//! - `faults`: every fault in every state of a bottle on a private engine
//! - `left`: finds the processes and files that a home's bottles left behind

mod approving;
mod budgets;
mod docker;
mod faults;
mod ledger;
mod left;
mod relay;
mod snapshots;
mod usage;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bottle_policy::names::{EGRESS_PORTS, LISTENER_PORTS, SUPERVISE_PORTS};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use left::{Found, Left, all_with, process_with};

/// The steps of a launch at which the fake backend can fail, in order.
const STEPS: [&str; 7] =
    ["check", "prepare", "make_network", "start_bundle", "start_guest", "connect_bundle", "connect_guest"];

/// Time limit for a kill to take effect.
const SOON: Duration = Duration::from_secs(30);

const FAKE: &str = "---\nbackend: fake\nagent_provider: {template: command, command: [sleep, '60']}\n---\n";
const ASKING: &str = "---\nbackend: fake\nagent_provider: {template: command, command: [read-line]}\n---\n";
const LINUX: &str = "---\nbackend: linux\nagent_provider: {template: command, command: [sleep, '60']}\n---\n";

fn home() -> TestHome {
    let mut home = TestHome::new().expect("a home");
    home.agent("sleeper", "Sleep.\n").expect("agent");
    for (name, text) in [("fake", FAKE), ("asking", ASKING), ("linux", LINUX)] {
        home.bottle(name, text).expect("bottle");
    }
    home
}

fn start_arguments<'a>(bottle: &'a str, label: &'a str) -> Vec<&'a str> {
    vec!["start", "sleeper", "--bottle", bottle, "--label", label, "--yes"]
}

/// Starts a client. Its standard input stays open until the child is dropped.
fn start(home: &TestHome, bottle: &str, label: &str) -> Child {
    let mut command: Command = home.program(start_arguments(bottle, label)).expect("program").command();
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("start bottle")
}

/// Starts a client of the bottle `one` and waits for the agent's first output. From this moment, the record says that
/// the bottle runs, and the client receives the report on how the bottle ends.
fn attached(home: &TestHome) -> Child {
    let mut command: Command = home.program(start_arguments("asking", "one")).expect("program").command();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn().expect("start bottle");
    let mut heard = [0; 2];
    client.stdout.as_mut().expect("its output").read_exact(&mut heard).expect("the agent is heard");
    assert_eq!(&heard, b"? ");
    client
}

fn status(home: &TestHome, label: &str) -> Option<String> {
    listed(home, label)?["status"].as_str().map(str::to_owned)
}

/// The bottle's record, if it has one. Unlike [`status`], reading it causes no work in the bottle's keeper.
fn record(home: &TestHome, slug: &str) -> Option<serde_json::Value> {
    let record = std::fs::read(home.bottle_home().join("state").join(slug).join("metadata.json")).ok()?;
    serde_json::from_slice(&record).ok()
}

/// Whether the bottle's record says that one of its sidecars ended.
fn has_ended_service(home: &TestHome, label: &str) -> bool {
    let services = listed(home, label).and_then(|bottle| bottle["services"].as_array().cloned());
    services.unwrap_or_default().iter().any(|service| service["up"] == false)
}

fn listed(home: &TestHome, label: &str) -> Option<serde_json::Value> {
    let listed = home.program(["list", "active", "--json"]).expect("program").run().expect("list");
    let bottles = listed.expect_code(0).json().expect("JSON");
    bottles.as_array()?.iter().find(|bottle| bottle["slug"] == label).cloned()
}

fn wait_until(what: &str, mut seen: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !seen() {
        assert!(Instant::now() < end, "not seen in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn clean_up(home: &TestHome) -> Outcome {
    let cleaned = home.program(["cleanup", "--yes"]).expect("program").run().expect("cleanup");
    cleaned.expect_code(0)
}

/// Runs cleanups until nothing is left. A keeper that started after its client was killed ends soon. A keeper that was
/// killed holds its lock until the kernel has closed its files, and cleanup must not touch the bottle before that.
fn cleanup_leaves_nothing(home: &TestHome, when: &str) {
    let end = Instant::now() + SOON;
    loop {
        let cleaned = clean_up(home);
        let left = Left::of(home);
        if left == Left::default() {
            return;
        }
        let said = format!("{}{}", cleaned.stdout, cleaned.stderr);
        assert!(Instant::now() < end, "left {when}: {left:#?}\nthe last cleanup said: {said}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Asserts that nothing is left. A keeper sends its last message shortly before it exits, so the function waits for the
/// exit.
fn nothing_left(home: &TestHome, when: &str) {
    let end = Instant::now() + SOON;
    while Left::of(home) != Left::default() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(Left::of(home), Left::default(), "{when}");
}

/// Kills the keeper of a bottle that runs. Kills its watcher too, which would start a new keeper.
fn kill_keeper(home: &TestHome, slug: &str) {
    wait_until("the bottle has no keeper", || {
        let mut found = false;
        for role in ["__watcher", "__keeper"] {
            for process in all_with(home, role).iter().filter(|process| process.is_of(slug)) {
                process.kill();
                found = true;
            }
        }
        !found && matches!(status(home, slug).as_deref(), Some("unkept" | "orphaned"))
    });
}

fn said(client: Child) -> (i32, String) {
    let ended = client.wait_with_output().expect("the client's end");
    (ended.status.code().unwrap_or(-1), String::from_utf8_lossy(&ended.stderr).into_owned())
}

#[test]
fn a_failed_step_undoes_the_launch() {
    for step in STEPS {
        let mut home = home();
        home.env("BOTTLE_FAKE_FAIL", step).without_cleanup();
        let failed = home.program(start_arguments("fake", "one")).expect("program").run().expect("start");
        assert!(failed.code != 0 && failed.stderr.contains("error:"), "{step}: {}", failed.stderr);
        nothing_left(&home, &format!("after a failure at {step}: {}", failed.stderr));
    }
}

#[test]
fn a_keeper_killed_at_any_step_leaves_nothing_that_cleanup_misses() {
    for step in STEPS {
        let mut home = home();
        home.without_cleanup();
        let mut struck = home.program(start_arguments("fake", "one")).expect("program");
        let struck = struck.env("BOTTLE_FAKE_FAIL", format!("{step}:kill")).run().expect("start");
        assert!(struck.code != 0, "{step}: {}", struck.stderr);
        cleanup_leaves_nothing(&home, &format!("after a kill at {step}"));
        clean_up(&home);
    }
}

/// Nothing adopts a detached bottle whose watcher was killed too. Its keeper's socket has no owner then.
#[test]
fn one_cleanup_is_enough_after_all_processes_were_killed() {
    let mut home = home();
    home.without_cleanup();
    let started =
        home.program(["start", "sleeper", "--bottle", "fake", "--yes", "--detach", "--label", "one"]);
    let _ = started.expect("program").run().expect("start").expect_code(0);
    kill_keeper(&home, "one");
    let roles = ["__bundle", "__egress", "__supervise", "__guest"];
    let of_roles = || roles.iter().flat_map(|role| all_with(&home, role)).collect::<Vec<_>>();
    of_roles().iter().for_each(Found::kill);
    wait_until("the processes are gone", || of_roles().is_empty());
    let cleaned = clean_up(&home);
    assert_eq!(Left::of(&home), Left::default(), "{}{}", cleaned.stdout, cleaned.stderr);
}

#[test]
fn a_failed_removal_is_reported_and_repeated_by_the_next_cleanup() {
    let mut home = home();
    home.without_cleanup();
    let mut failing =
        home.program(["start", "sleeper", "--bottle", "fake", "--yes", "--detach", "--label", "one"]);
    let failing = failing.as_mut().expect("program").env("BOTTLE_FAKE_FAIL", "remove");
    let _ = failing.run().expect("start").expect_code(0);
    let mut stop = home.program(["stop", "one", "--time", "0"]).expect("program");
    let stopped = stop.env("BOTTLE_FAKE_FAIL", "remove").run().expect("stop");
    assert!(stopped.stderr.contains("bottle cleanup"), "{}", stopped.stderr);
    cleanup_leaves_nothing(&home, "");
}

/// Kills one process of an attached bottle and returns its client's exit code and output.
fn kill_one(home: &TestHome, role: &str) -> (i32, String) {
    let client = attached(home);
    process_with(home, role).expect("the process").kill();
    said(client)
}

#[test]
fn a_killed_keeper_is_reported_and_its_orphan_cleaned_up() {
    let mut home = home();
    home.without_cleanup();
    let (code, stderr) = kill_one(&home, "__keeper");
    assert!(code != 0 && stderr.contains("keeper died"), "{code}: {stderr}");
    wait_until("it is an orphan", || status(&home, "one").as_deref() == Some("orphaned"));
    cleanup_leaves_nothing(&home, "");
}

#[test]
fn processes_with_secrets_leave_no_core_file() {
    let home = home();
    let client = start(&home, "fake", "one");
    wait_until("the bottle runs", || status(&home, "one").as_deref() == Some("running"));
    for role in ["__keeper", "__bundle", "__egress"] {
        let process = process_with(&home, role).expect("the process");
        assert!(process.says("limits", "Max core file size 0 0"), "{role}");
        assert!(process.says("status", "NoNewPrivs: 1"), "{role}");
    }
    let stopped = home.program(["stop", "one", "--time", "0"]).expect("program").run().expect("stop");
    let _ = stopped.expect_code(0);
    let _ = said(client);
}

#[test]
fn a_killed_guest_ends_its_bottle_and_is_reported() {
    let mut home = home();
    home.without_cleanup();
    let (code, stderr) = kill_one(&home, "__guest");
    assert!(code != 0 && stderr.contains("died"), "{code}: {stderr}");
    wait_until("the keeper is gone", || process_with(&home, "__keeper").is_none());
    cleanup_leaves_nothing(&home, "");
}

#[test]
fn a_killed_bundle_closes_the_proxy_and_the_bottle_continues() {
    let home = home();
    let parts: [(&str, &[u16]); 3] =
        [("__egress", &EGRESS_PORTS), ("__supervise", &SUPERVISE_PORTS), ("__bundle", &LISTENER_PORTS)];
    for (role, ports) in parts {
        let client = attached(&home);
        process_with(&home, role).expect("the process").kill();
        let sockets = home.runtime();
        wait_until("its part of the proxy is closed", || !answers_anywhere(&sockets, ports));
        wait_until("the keeper reported it", || has_ended_service(&home, "one"));
        assert_eq!(status(&home, "one").as_deref(), Some("running"), "{role}");
        let stopped = home.program(["stop", "one", "--time", "0"]).expect("program").run().expect("stop");
        let _ = stopped.expect_code(0);
        let (_, stderr) = said(client);
        assert!(stderr.contains("ended") && stderr.contains("blocked"), "{role}: {stderr}");
    }
}

/// Starts a detached bottle with work, and kills its keeper and its bundle.
fn without_keeper_and_bundle(bottle: &str) -> TestHome {
    let home = home();
    let run =
        |arguments: &[&str]| home.program(arguments.iter().copied()).expect("program").run().expect("run");
    let start = [&start_arguments(bottle, "one")[..], &["--detach", "-q"]].concat();
    let _ = run(&start).expect_code(0);
    home.write("project/note", "work\n").expect("a file");
    let _ = run(&["cp", "note", "one:note"]).expect_code(0);
    kill_keeper(&home, "one");
    process_with(&home, "__bundle").expect("the process").kill();
    wait_until("its bundle is gone", || process_with(&home, "__bundle").is_none());
    home
}

/// A new keeper adopts a bottle whose bundle ended: it continues without traffic, and its work is kept.
#[test]
fn a_bottle_without_keeper_and_bundle_is_adopted_and_stopped() {
    let test = "a_bottle_without_keeper_and_bundle_is_adopted_and_stopped";
    for bottle in ["fake", "linux"] {
        if bottle == "linux" && !home().runs(test, bottle).expect("doctor") {
            continue;
        }
        let home = without_keeper_and_bundle(bottle);
        let run = |arguments: &[&str]| {
            home.program(arguments.iter().copied()).expect("program").run().expect("run")
        };
        let cleaned = clean_up(&home);
        assert!(cleaned.stderr.contains("the next command adopts it"), "{bottle}: {}", cleaned.stderr);
        assert_eq!(run(&["exec", "one", "--", "cat", "note"]).expect_code(0).stdout, "work\n", "{bottle}");
        wait_until("the keeper recorded it", || has_ended_service(&home, "one"));
        let stopped = run(&["stop", "one", "--time", "0"]).expect_code(0);
        assert!(stopped.stderr.contains("`bottle resume one` starts it again"), "{}", stopped.stderr);
        assert_eq!(run(&["exec", "one", "--", "cat", "note"]).expect_code(0).stdout, "work\n", "{bottle}");
    }
}

/// Whether a proxy's socket below `directory`, for one of `ports`, accepts a connection.
fn answers_anywhere(directory: &Path, ports: &[u16]) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.filter_map(Result::ok).map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            return answers_anywhere(&path, ports);
        }
        let port = path.file_name().and_then(|name| name.to_str()?.parse::<u16>().ok());
        port.is_some_and(|port| ports.contains(&port))
            && std::os::unix::net::UnixStream::connect(&path).is_ok()
    })
}

#[test]
fn a_killed_client_ends_an_attached_bottle_and_not_a_detached_one() {
    let mut home = home();
    home.without_cleanup();
    let mut client = start(&home, "fake", "one");
    wait_until("the bottle runs", || status(&home, "one").as_deref() == Some("running"));
    client.kill().expect("kill the client");
    client.wait().expect("the client's end");
    // No client saw how the bottle ended, so its output is kept for `bottle logs`. None of its processes runs.
    wait_until("the bottle ends", || process_with(&home, "__keeper").is_none());
    cleanup_leaves_nothing(&home, "");

    let detached =
        home.program(["start", "sleeper", "--bottle", "fake", "--yes", "--detach", "--label", "two"]);
    let _ = detached.expect("program").run().expect("start").expect_code(0);
    assert_eq!(status(&home, "two").as_deref(), Some("running"));
    kill_keeper(&home, "two");
    // The lock may be held for a moment by a cleanup that inspects the bottle, or by the killed keeper.
    let lock = std::fs::File::open(home.bottle_home().join("state/two/lock")).expect("its lock");
    lock.lock().expect("taken");
    let letting_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(lock);
    });
    let adopted = home.program(["exec", "two", "--", "echo", "still here"]).expect("program");
    let adopted = adopted.run().expect("exec").expect_code(0);
    assert_eq!(adopted.stdout, "still here\n");
    letting_go.join().expect("let go");
    let _ =
        home.program(["stop", "two", "--time", "0"]).expect("program").run().expect("stop").expect_code(0);
    cleanup_leaves_nothing(&home, "");
}

/// The keeper's pid and start time in the bottle's record.
fn recorded_keeper(home: &TestHome, slug: &str) -> String {
    let record = record(home, slug).expect("a record");
    record["keeper"].as_str().expect("a keeper").to_owned()
}

#[test]
fn a_detached_bottle_gets_a_new_keeper_without_any_command() {
    let test = "a_detached_bottle_gets_a_new_keeper_without_any_command";
    for bottle in ["fake", "linux"] {
        if bottle == "linux" && !home().runs(test, bottle).expect("doctor") {
            continue;
        }
        let mut home = home();
        home.without_cleanup();
        let start = [&start_arguments(bottle, "one")[..], &["--detach", "-q"]].concat();
        let _ = home.program(start).expect("program").run().expect("start").expect_code(0);
        for killed in ["__keeper", "__watcher", "__keeper"] {
            wait_until("it has a watcher", || process_with(&home, "__watcher").is_some());
            let keeper = recorded_keeper(&home, "one");
            process_with(&home, killed).expect("the process").kill();
            if killed == "__keeper" {
                wait_until("another keeper is recorded", || recorded_keeper(&home, "one") != keeper);
                wait_until("it is kept", || status(&home, "one").as_deref() == Some("running"));
            } else {
                wait_until("it is gone", || process_with(&home, killed).is_none());
            }
            assert_eq!(all_with(&home, "__keeper").len(), 1, "{bottle}: after {killed}");
        }
        let stopped = home.program(["stop", "one", "--time", "0"]).expect("program").run().expect("stop");
        let _ = stopped.expect_code(0);
        cleanup_leaves_nothing(&home, bottle);
    }
}

#[test]
fn a_keeper_killed_at_random_moments_of_a_launch() {
    let mut home = home();
    home.without_cleanup();
    if !home.runs("a_keeper_killed_at_random_moments_of_a_launch", "linux").expect("doctor") {
        return;
    }
    // The delays cover the time from before the claim to after the agent's start, in steps unrelated to those of the
    // launch.
    for round in 0..25u64 {
        let mut client = start(&home, "linux", "one");
        std::thread::sleep(Duration::from_micros(round * 7_300));
        if let Some(keeper) = process_with(&home, "__keeper") {
            keeper.kill();
        }
        client.kill().expect("kill the client");
        client.wait().expect("the client's end");
        cleanup_leaves_nothing(&home, &format!("round {round}"));
    }
}
