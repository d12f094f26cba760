//! Tests `bottle exec` with a time limit, with merged outputs, and with a result as JSON, in a real shell.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use serde_json::{Value, json};

use crate::asking::running_bottle;
use crate::home::{run, snapshot, transcripts};

/// Runs a script with `bottle exec` and these flags.
fn result(home: &TestHome, flags: &[&str], script: &str, code: i32) -> Result<Value> {
    let arguments = [&["exec", "one", "--json"], flags, &["--", "sh", "-c", script]].concat();
    run(home, &arguments)?.expect_code(code).json()
}

#[test]
fn a_result_has_the_exit_code_the_duration_and_both_ends_of_the_output() -> Result<()> {
    let Some(home) = running_bottle("exec with a result", "linux", &[])? else { return Ok(()) };
    let simple = result(&home, &[], "echo out; echo err >&2; exit 7", 7)?;
    let text = |text: &str| json!({"text": text, "bytes": text.len(), "omitted": 0});
    ensure!(simple["stdout"] == text("out\n") && simple["stderr"] == text("err\n"), "{simple}");
    ensure!(simple["exit"] == 7 && simple["code"] == 7 && simple["signal"].is_null(), "{simple}");
    ensure!(simple["timed_out"] == false && simple["interrupted"] == false, "{simple}");
    let killed = result(&home, &[], "kill -9 $$", 137)?;
    ensure!(killed["exit"] == 137 && killed["code"].is_null() && killed["signal"] == 9, "{killed}");
    let merged = result(&home, &["--merge"], "echo one; echo two >&2; echo three", 0)?;
    ensure!(merged["stdout"] == text("one\ntwo\nthree\n") && merged["stderr"].is_null(), "{merged}");
    let slow = result(&home, &[], "sleep 0.3", 0)?;
    ensure!(slow["duration_ms"].as_u64().is_some_and(|took| took >= 300), "{slow}");
    // The output is a gigabyte without a line break. The result contains the beginning and the end of the output.
    let long = "printf begin; head -c 1G /dev/zero; printf end";
    let long = result(&home, &["--max-output", "16"], long, 0)?["stdout"].take();
    let shown = "begin\0\0\0\n[1073741816 bytes omitted]\n\0\0\0\0\0end";
    ensure!(long == json!({"text": shown, "bytes": 1_073_741_832_u64, "omitted": 1_073_741_816}), "{long}");
    let bytes = result(&home, &[], "printf 'a\\377b'", 0)?;
    ensure!(bytes["stdout"]["text"] == "a\u{fffd}b" && bytes["stdout"]["bytes"] == 3, "{bytes}");
    let input = home.program(["exec", "one", "--json", "-i", "--", "wc", "-c"])?.input("12345").run()?;
    ensure!(input.json()?["stdout"]["text"] == "5\n", "{}", input.transcript());
    Ok(())
}

#[test]
fn a_time_limit_ends_the_whole_group() -> Result<()> {
    let Some(home) = running_bottle("exec with a time limit", "linux", &[])? else { return Ok(()) };
    let ended = result(&home, &["--timeout", "1"], "echo before; sleep 900 & sleep 900; echo after", 124)?;
    ensure!(ended["exit"] == 124 && ended["timed_out"] == true && ended["signal"] == 15, "{ended}");
    ensure!(ended["stdout"]["text"] == "before\n", "{ended}");
    // Processes that ignore SIGTERM are killed.
    let stubborn = "trap '' TERM; (trap '' TERM; sleep 900) & sleep 900; sleep 900";
    let stubborn = result(&home, &["--timeout", "500ms"], stubborn, 124)?;
    ensure!(stubborn["timed_out"] == true && stubborn["signal"] == 9, "{stubborn}");
    let took = stubborn["duration_ms"].as_u64().context("a duration")?;
    ensure!(took >= 3500, "it had three seconds: {took}");
    let left = result(&home, &[], "ps -eo args | grep -c '[s]leep 900'", 1)?;
    ensure!(left["stdout"]["text"] == "0\n", "{left}");
    // A command that handles SIGTERM can still print and choose its exit code.
    let polite = "trap 'echo bye; exit 3' TERM; sleep 900 & wait";
    let polite = result(&home, &["--timeout", "1s"], polite, 124)?;
    ensure!(polite["code"] == 3 && polite["stdout"]["text"] == "bye\n", "{polite}");
    let plain = run(&home, &["exec", "one", "--timeout", "1", "--", "sh", "-c", "echo shown; sleep 900"])?;
    ensure!(plain.code == 124 && plain.stdout == "shown\n", "{}", plain.transcript());
    ensure!(plain.stderr.contains("its time limit of 1s passed"), "{}", plain.transcript());
    Ok(())
}

#[test]
fn a_command_ends_with_the_client() -> Result<()> {
    let Some(home) = running_bottle("exec and its client", "linux", &[])? else { return Ok(()) };
    let mut client = home.program(["exec", "one", "--", "sleep", "901"])?.command().spawn()?;
    let runs = || {
        Ok::<_, anyhow::Error>(
            result(&home, &[], "ps -eo args | grep -c '[s]leep 901'; true", 0)?["stdout"]["text"] == "1\n",
        )
    };
    let within = |what: &str, wanted: bool| {
        let end = Instant::now() + Duration::from_secs(40);
        while runs()? != wanted {
            ensure!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    within("it starts", true)?;
    client.kill()?;
    client.wait()?;
    within("it ends", false)
}

#[test]
fn refuses_flags_that_have_no_effect() -> Result<()> {
    let home = crate::home::home()?;
    snapshot!(transcripts(
        &home,
        &[
            &["exec", "one", "--timeout", "soon", "--", "true"],
            &["exec", "one", "--timeout", "0", "--", "true"],
            &["exec", "one", "--max-output", "1000000000", "--", "true"],
            &["exec", "one", "--merge", "-t", "--", "true"],
            &["exec", "one", "--timeout", "1", "--", "true"],
        ],
    )?);
    Ok(())
}
