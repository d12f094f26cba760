//! Tests `bottle process`, `bottle ps` and `bottle shell`: processes that keep running without a client, in real
//! shells.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::asking::running_bottle;
use crate::home::{home, keeper, run, snapshot, transcripts};

/// Starts a script as a process, and returns its handle.
fn start(home: &TestHome, flags: &[&str], script: &str) -> Result<String> {
    let arguments = [&["process", "start", "one"], flags, &["--", "sh", "-c", script]].concat();
    Ok(run(home, &arguments)?.expect_code(0).stdout.trim().to_owned())
}

/// Runs a command of `bottle process` on the bottle `one`, with its result as JSON.
fn json(home: &TestHome, command: &str, arguments: &[&str], code: i32) -> Result<Value> {
    let arguments = [&["process", command, "one"], arguments, &["--json"]].concat();
    run(home, &arguments)?.expect_code(code).json()
}

fn ps(home: &TestHome) -> Result<Vec<Value>> {
    let listed = run(home, &["ps", "one", "--json"])?.expect_code(0).json()?;
    Ok(listed.as_array().context("a list")?.clone())
}

#[test]
fn a_server_is_started_fed_watched_and_ended() -> Result<()> {
    let Some(home) = running_bottle("processes", "linux", &[])? else { return Ok(()) };
    let echo = "echo ready; while read line; do echo got $line; done; exit 6";
    let handle = start(&home, &["--name", "server", "--env", "A=b"], echo)?;
    ensure!(handle == "p1", "{handle}");
    let first = json(&home, "log", &["server", "--wait", "30"], 0)?;
    ensure!(first["text"] == "ready\n" && first["next"] == 6 && first["state"] == "running", "{first}");
    let _ = run(&home, &["process", "write", "one", "server", "hello there"])?.expect_code(0);
    let next = json(&home, "log", &["p1", "--from", "6", "--wait", "30s"], 0)?;
    ensure!(next["text"] == "got hello there\n" && next["from"] == 6 && next["lost"] == 0, "{next}");
    let from_pipe = home.program(["process", "write", "one", "p1", "--eof"])?.input("one\ntwo\n").run()?;
    ensure!(from_pipe.code == 0, "{}", from_pipe.transcript());
    let ended = json(&home, "wait", &["p1"], 6)?;
    ensure!(ended["state"] == "exited" && ended["code"] == 6, "{ended}");
    let all = run(&home, &["process", "log", "one", "p1", "--follow"])?.expect_code(0).stdout;
    ensure!(all == "ready\ngot hello there\ngot one\ngot two\n", "{all}");
    let tail = run(&home, &["process", "log", "one", "p1", "--tail", "1"])?.expect_code(0).stdout;
    ensure!(tail == "got two\n", "{tail}");
    let late = run(&home, &["process", "write", "one", "p1", "late"])?.expect_code(1);
    ensure!(late.stderr.contains("p1 has ended"), "{}", late.stderr);
    // The name of the ended process is free, and its handle is not used again.
    ensure!(start(&home, &["--name", "server"], "trap '' TERM; sleep 900; sleep 900")? == "p2");
    let waited = json(&home, "wait", &["server", "--timeout", "1"], 124)?;
    ensure!(waited["state"] == "running", "{waited}");
    let killed = json(&home, "kill", &["server", "--time", "1"], 0)?;
    ensure!(killed["state"] == "killed" && killed["signal"] == 9, "{killed}");
    let listed = ps(&home)?;
    let states: Vec<_> = listed.iter().map(|p| (p["handle"].as_str(), p["state"].as_str())).collect();
    let expected = [(None, Some("running")), (Some("p1"), Some("exited")), (Some("p2"), Some("killed"))];
    ensure!(states == expected, "{listed:?}");
    ensure!(listed[0]["memory_bytes"].as_u64() > Some(0) && listed[2]["processes"] == 0, "{listed:?}");
    let table = run(&home, &["ps", "one"])?.expect_code(0).stdout;
    ensure!(table.lines().count() == 3 && table.contains("p1\tserver\texited 6\t"), "{table}");
    let _ = run(&home, &["process", "signal", "one", "p9", "TERM"])?.expect_code(1);
    Ok(())
}

#[test]
fn a_client_waits_for_a_line_of_the_output() -> Result<()> {
    let Some(home) = running_bottle("lines of processes", "linux", &[])? else { return Ok(()) };
    start(
        &home,
        &["--name", "server"],
        "sleep 0.3; echo booting; echo ready on 80; sleep 0.2; echo bye; exit 3",
    )?;
    let until = |pattern, from| json(&home, "wait", &["server", "--until", pattern, "--from", from], 0);
    let found = until(r"^ready on \d+$", "0")?;
    ensure!(found["line"] == "ready on 80" && found["next"] == 20, "{found}");
    ensure!(until("bye", "20")?["next"] == 24);
    // Earlier output is searched too, but not output before the position `--from`.
    ensure!(until("boot", "0")?["line"] == "booting");
    let ended =
        run(&home, &["process", "wait", "one", "server", "--until", "boot", "--from", "20"])?.expect_code(1);
    ensure!(ended.stderr.contains("server ended, and no line of its output matches"), "{}", ended.stderr);
    start(&home, &["--name", "silent"], "exec sleep 900")?;
    let late = json(&home, "wait", &["silent", "--until", "x", "--timeout", "1"], 124)?;
    ensure!(late["state"] == "running", "{late}");
    let _ = run(&home, &["process", "wait", "one", "silent", "--until", "("])?.expect_code(2);
    Ok(())
}

#[test]
fn the_first_or_all_of_several_processes_are_waited_for() -> Result<()> {
    let Some(home) = running_bottle("several processes", "linux", &[])? else { return Ok(()) };
    start(&home, &["--name", "good"], "read x; exit 0")?;
    start(&home, &["--name", "bad"], "read x; exit 7")?;
    let waiting = home.program(["process", "wait", "one", "good", "bad", "--json"])?;
    let waiting = std::thread::spawn(move || waiting.run());
    let _ = run(&home, &["process", "write", "one", "bad", ""])?.expect_code(0);
    let first = waiting.join().ok().context("a result")??.expect_code(7).json()?;
    ensure!(first["process"] == "bad" && first["state"] == "exited" && first["code"] == 7, "{first}");
    let none = json(&home, "wait", &["good", "good", "--timeout", "1"], 124)?;
    ensure!(none["process"].is_null() && none["state"] == "running", "{none}");
    let _ = run(&home, &["process", "write", "one", "good", ""])?.expect_code(0);
    let all = run(&home, &["process", "wait", "one", "good", "bad", "--all"])?.expect_code(7).stdout;
    ensure!(all == "good\texited 0\nbad\texited 7\n", "{all}");
    // Of the processes that ended before, the first end counts.
    let earlier = json(&home, "wait", &["good", "p2"], 7)?;
    ensure!(earlier["process"] == "p2", "{earlier}");
    Ok(())
}

#[test]
fn a_log_has_exactly_the_bytes_of_the_process() -> Result<()> {
    let Some(home) = running_bottle("bytes of a log", "linux", &[])? else { return Ok(()) };
    // One line of 360,000 bytes without a final line break.
    let script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); printf 'aé€😀aé€😀aé€😀aé€😀aé€😀aé€😀aé€😀aé€😀aé€😀aé€😀aé€😀aé€😀'; done";
    start(&home, &["--name", "long"], script)?;
    let _ = json(&home, "wait", &["long"], 0)?;
    let expected = "aé€😀".repeat(36_000);
    let log = run(&home, &["process", "log", "one", "long"])?.expect_code(0).stdout;
    ensure!(log == expected, "{} bytes", log.len());
    let (mut text, mut next) = (String::new(), 0);
    while next < 360_000 {
        let part = json(&home, "log", &["long", "--from", &next.to_string()], 0)?;
        text += part["text"].as_str().context("text")?;
        next = part["next"].as_u64().context("a position")?;
    }
    ensure!(text == expected, "{} bytes", text.len());
    // Escape sequences and invalid bytes are not changed. The beginning of a character waits for its rest.
    start(&home, &["--name", "odd"], r"printf 'a\033[1mb\r\n \377\n\303'; read x; printf '\251\303'")?;
    let odd = home.program(["process", "log", "one", "odd", "--wait", "30"])?.command().output()?.stdout;
    ensure!(odd == b"a\x1b[1mb\r\n \xff\n", "{odd:?}");
    let running = json(&home, "log", &["odd"], 0)?;
    ensure!(running["text"] == "a\u{1b}[1mb\r\n \u{fffd}\n" && running["end"] == 11, "{running}");
    let _ = run(&home, &["process", "write", "one", "odd", ""])?.expect_code(0);
    let _ = json(&home, "wait", &["odd"], 0)?;
    let rest = json(&home, "log", &["odd", "--from", "11"], 0)?;
    ensure!(rest["text"] == "é\u{fffd}" && rest["next"] == rest["end"], "{rest}");
    let saved = |name: &str| json(&home, "log", &[name, "--from", "11"], 0);
    let _ = run(&home, &["stop", "one", "-q"])?.expect_code(0);
    ensure!(saved("odd")?["text"] == "é\u{fffd}");
    let log = run(&home, &["process", "log", "one", "long"])?.expect_code(0).stdout;
    ensure!(log == expected, "{} bytes were saved", log.len());
    Ok(())
}

#[test]
fn a_process_survives_its_keeper() -> Result<()> {
    let Some(home) = running_bottle("processes without their keeper", "linux", &[])? else { return Ok(()) };
    let counts = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo $i; sleep 0.01; done; read x";
    start(&home, &[], counts)?;
    kill_process(keeper(&home)?, Signal::KILL)?;
    // The next command adopts the bottle. The parts of the output that are read add up to the complete output.
    let (mut text, mut next) = (String::new(), 0_u64);
    let end = Instant::now() + Duration::from_secs(60);
    while !text.ends_with("\n200\n") {
        let from = next.to_string();
        let part = json(&home, "log", &["p1", "--from", &from, "--wait", "10", "--max-output", "100"], 0)?;
        text += part["text"].as_str().context("text")?;
        next = part["next"].as_u64().context("a position")?;
        ensure!(part["lost"] == 0 && Instant::now() < end, "{part}");
    }
    let expected: String = (1..=200).map(|number| format!("{number}\n")).collect();
    ensure!(text == expected, "{text}");
    Ok(())
}

#[test]
fn a_shell_stays_open_between_clients() -> Result<()> {
    let Some(home) = running_bottle("shells", "linux", &[])? else { return Ok(()) };
    let mut pty = home.on_terminal(&["shell", "one"], 24, 80)?;
    pty.wait_until("a prompt", |screen| screen.contains("$ "))?;
    pty.type_keys("x=kept; cd /tmp; echo first-$((1+1))\r")?;
    pty.wait_for("first-2")?;
    pty.type_keys("\x1dd")?;
    ensure!(pty.wait_exit()? == 0, "{}", pty.screen());
    ensure!(pty.screen().contains("`bottle shell one shell` returns to it"), "{}", pty.screen());
    ensure!(pty.left_on().is_empty() && pty.is_cooked()?, "{:?}", pty.left_on());
    // The shell is in the list, accepts input from a client without a terminal, and shows its screen to the next
    // client.
    let listed = ps(&home)?;
    ensure!(listed[1]["name"] == "shell" && listed[1]["terminal"] == true, "{listed:?}");
    let _ = run(&home, &["process", "write", "one", "shell", "echo $x-$PWD-$((3+3))"])?.expect_code(0);
    let mut again = home.on_terminal(&["shell", "one"], 30, 100)?;
    again.wait_for("kept-/tmp-6")?;
    again.type_keys("stty size\r")?;
    again.wait_for("30 100")?;
    // Another name starts another shell, and a lost connection does not end this shell.
    let mut other = home.on_terminal(&["shell", "one", "other"], 24, 80)?;
    other.wait_until("a prompt", |screen| screen.contains("$ "))?;
    other.hang_up()?;
    ensure!(other.wait_exit()? == 129);
    let listed = ps(&home)?;
    ensure!(listed.len() == 3 && listed[2]["state"] == "running", "{listed:?}");
    again.type_keys("exit 5\r")?;
    ensure!(again.wait_exit()? == 5, "{}", again.screen());
    let piped = run(&home, &["shell", "one"])?.expect_code(2);
    ensure!(piped.stderr.contains("a shell needs a terminal"), "{}", piped.stderr);
    Ok(())
}

#[test]
fn a_log_keeps_its_streams_apart() -> Result<()> {
    let Some(home) = running_bottle("streams of processes", "linux", &[])? else { return Ok(()) };
    let script = "echo one; sleep 0.3; echo bad >&2; sleep 0.3; echo two";
    let _ = run(&home, &["service", "start", "one", "web", "--", "sh", "-c", script])?.expect_code(0);
    let _ = run(&home, &["process", "wait", "one", "web"])?.expect_code(0);
    let log = |flags: &[&str]| -> Result<String> {
        Ok(run(&home, &[&["service", "logs", "one", "web"], flags].concat())?.expect_code(0).stdout)
    };
    let check = || -> Result<()> {
        ensure!(log(&[])? == "one\nbad\ntwo\n");
        ensure!(log(&["--stdout"])? == "one\ntwo\n" && log(&["--stderr"])? == "bad\n");
        let all = json(&home, "log", &["web"], 0)?;
        let streams = serde_json::json!([
            {"stream": "stdout", "bytes": 4}, {"stream": "stderr", "bytes": 4}, {"stream": "stdout", "bytes": 4}
        ]);
        ensure!(all["streams"] == streams && all["next"] == 12, "{all}");
        let one = json(&home, "log", &["web", "--stderr"], 0)?;
        ensure!(one["text"] == "bad\n" && one["next"] == 12, "{one}");
        Ok(())
    };
    check()?;
    // The saved log says it too.
    let _ = run(&home, &["stop", "one", "-q"])?.expect_code(0);
    check()
}

#[test]
fn a_client_without_a_terminal_sets_the_size_of_one() -> Result<()> {
    let Some(home) = running_bottle("sizes of terminals", "linux", &[])? else { return Ok(()) };
    let script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done";
    let process = start(&home, &["-t", "--size", "100x40"], script)?;
    let _ = json(&home, "wait", &[&process, "--until", "^40 100", "--timeout", "30"], 0)?;
    let _ = run(&home, &["process", "resize", "one", &process, "61x17"])?.expect_code(0);
    let _ = json(&home, "wait", &[&process, "--until", "^17 61", "--timeout", "30"], 0)?;
    Ok(())
}

#[test]
fn explains_what_cannot_be_done() -> Result<()> {
    let home = home()?;
    let _ = run(&home, &["start", "nap", "--detach", "--label", "one", "-q"])?.expect_code(0);
    snapshot!(transcripts(
        &home,
        &[
            &["process", "log", "one", "p1"],
            &["process", "start", "one", "--name", "nap", "--", "sleep", "600"],
            &["process", "start", "one", "--name", "nap", "--", "sleep", "600"],
            &["process", "start", "one", "--name", "p7", "--", "true"],
            &["process", "start", "one", "--name", "a/b", "--", "true"],
            &["process", "start", "one", "--", "no-such-program"],
            &["process", "signal", "one", "nap", "NOPE"],
            &["process", "log", "one", "nap", "--follow", "--json"],
            &["process", "log", "one", "other"],
            &["process", "kill", "one", "nap"],
            &["process", "kill", "one", "nap", "-q"],
            &["ps", "two"],
        ],
    )?);
    Ok(())
}

#[test]
fn the_output_can_be_read_after_the_bottle_ended() -> Result<()> {
    let Some(home) = running_bottle("saved output of processes", "linux", &[])? else { return Ok(()) };
    let says = "echo key: $HELD; touch work; echo working; read x; echo bye; exit 3";
    start(&home, &["--name", "server"], says)?;
    let until = |name: &str, pattern: &str| json(&home, "wait", &[name, "--until", pattern], 0);
    until("server", "working")?;
    let _ = run(&home, &["process", "write", "one", "server", ""])?.expect_code(0);
    let _ = json(&home, "wait", &["server"], 3)?;
    let long = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); echo line $i; done";
    start(&home, &["--name", "long"], long)?;
    let _ = json(&home, "wait", &["long"], 0)?;
    // Another keeper continues the logs of the killed keeper.
    kill_process(keeper(&home)?, Signal::KILL)?;
    start(&home, &[], "printf unfinished; exec sleep 900")?;
    let part = json(&home, "log", &["p3", "--wait", "30"], 0)?;
    ensure!(part["text"] == "unfinished", "{part}");
    let before = json(&home, "log", &["long", "--tail", "1"], 0)?;
    let _ = run(&home, &["stop", "one", "-q"])?.expect_code(0);
    let logs = home.bottle_home().join("state/one/logs/processes");
    let log = |name: &str| std::fs::read_to_string(logs.join(name)).context(name.to_owned());
    let server = log("p1.log")?;
    ensure!(server == "key: [REDACTED]\nworking\nbye\n", "{server}");
    ensure!(log("p3.log")? == "unfinished");
    let cut = log("p2.log")?;
    let first = cut.lines().next().context("a line")?;
    ensure!(first.starts_with("[bottle: the first ") && first.ends_with(" bytes are not kept]"), "{first}");
    ensure!(cut.len() < 2 << 20 && cut.ends_with("line 299999\nline 300000\n"), "{}", cut.len());
    let listed = ps(&home)?;
    ensure!(listed[1]["cpu_seconds"].as_f64() > Some(0.0), "the processor time is kept: {listed:?}");
    let ends: Vec<_> =
        listed.iter().map(|p| (p["handle"].as_str(), p["code"].as_u64(), p["signal"].as_u64())).collect();
    let expected = [(Some("p1"), Some(3), None), (Some("p2"), Some(0), None), (Some("p3"), None, Some(9))];
    ensure!(ends == expected, "{listed:?}");
    let read = json(&home, "log", &["server"], 0)?;
    ensure!(read["text"] == server.as_str() && read["code"] == 3 && read["lost"] == 0, "{read}");
    // A client that read before the end of the bottle continues at its position.
    let next = before["next"].to_string();
    let after = json(&home, "log", &["long", "--from", &next], 0)?;
    ensure!(after["text"] == "" && after["next"] == before["next"], "{before} {after}");
    let tail =
        run(&home, &["process", "log", "one", "long", "--follow", "--tail", "1"])?.expect_code(0).stdout;
    ensure!(tail == "line 300000\n", "{tail}");
    let lost = json(&home, "log", &["long", "--max-output", "20"], 0)?;
    ensure!(lost["lost"] == lost["from"] && lost["lost"].as_u64() > Some(1 << 20), "{lost}");
    let unknown = run(&home, &["process", "log", "one", "p9"])?.expect_code(1);
    ensure!(unknown.stderr.contains("no output of a process p9 was saved"), "{}", unknown.stderr);
    // The next launch has its own handles.
    let _ = run(&home, &["resume", "one", "--detach", "-q"])?.expect_code(0);
    ensure!(ps(&home)?.len() == 1 && !logs.exists());
    let _ = run(&home, &["stop", "one", "-q"])?.expect_code(0);
    let _ = run(&home, &["discard", "one", "--yes", "-q"])?.expect_code(0);
    ensure!(!logs.exists());
    Ok(())
}
