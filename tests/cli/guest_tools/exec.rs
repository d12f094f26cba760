//! Tests commands that run to completion.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::table::{has, line, run_all, tool};
use crate::asking::running_bottle;
use crate::home::run;

#[test]
fn commands_run_to_their_end() -> Result<()> {
    let Some(home) = running_bottle("the table of exec", "linux", &[])? else { return Ok(()) };
    let no_end = json!({"timed_out": false, "interrupted": false});
    let code = |code: u8| json!({"exit": code, "code": code, "signal": null});
    run_all(
        &home,
        &[
            line("the code 124 of a command is no time limit", "exec one --json -- sh -c 'exit 124'", 124)
                .has(code(124))
                .has(no_end.clone()),
            line("the code 130 of a command is no interruption", "exec one --json -- sh -c 'exit 130'", 130)
                .has(code(130))
                .has(no_end.clone()),
            line("an end by SIGINT is a signal", "exec one --json -- sh -c 'kill -INT $$'", 130)
                .has(json!({"exit": 130, "code": null, "signal": 2}))
                .has(no_end.clone()),
            line("an end by SIGSEGV is a signal", "exec one --json -- sh -c 'kill -SEGV $$'", 139)
                .has(json!({"exit": 139, "code": null, "signal": 11})),
            line(
                "the end of a child is not that of the command",
                "exec one --json -- sh -c 'sh -c \"kill -9 \\$\\$\"; exit 3'",
                3,
            )
            .has(code(3)),
            line("a program that does not exist has code 127", "exec one -- no-such-program", 127)
                .says("no-such-program"),
            line("a file that is no program has code 126", "exec one -- /etc/passwd", 126)
                .says("/etc/passwd"),
            line("the input is empty unless it is forwarded", "exec one --json -- wc -c", 0)
                .input("12345")
                .has(json!({"stdout": {"text": "0\n"}})),
            line(
                "more than a pipe holds goes in and out",
                "exec one --json -i --max-output 1000000 -- cat",
                0,
            )
            .input("0123456789".repeat(40_000))
            .has(json!({"stdout": {"bytes": 400_000, "omitted": 0}})),
            line(
                "both outputs drain at once, and are cut with their totals",
                "exec one --json -- sh -c 'head -c 200000 /dev/zero; head -c 200000 /dev/zero >&2; \
                 head -c 200000 /dev/zero'",
                0,
            )
            .has(json!({"stdout": {"bytes": 400_000, "omitted": 350_000}}))
            .has(json!({"stderr": {"bytes": 200_000, "omitted": 150_000}})),
            line("an output is not trimmed", "exec one --json -- printf '\\n  a \\n\\n'", 0)
                .has(json!({"stdout": {"text": "\n  a \n\n", "bytes": 7}})),
            line("bytes that are no text are replaced", "exec one --json -- sh -c \"printf 'a\\\\377' >&2\"", 0)
                .has(json!({"stderr": {"text": "a\u{fffd}", "bytes": 2}})),
            line(
                "a time limit keeps both outputs, with their totals",
                "exec one --json --timeout 3 -- sh -c 'head -c 100000 /dev/zero; echo err >&2; exec sleep 900'",
                124,
            )
            .has(json!({"exit": 124, "signal": 15, "timed_out": true, "duration_ms": "> 2900"}))
            .has(json!({"stdout": {"bytes": 100_000, "omitted": 50_000}, "stderr": {"text": "err\n"}})),
            line(
                "a child in the background does not delay the end",
                "exec one --json -- sh -c 'sleep 900 & echo done'",
                0,
            )
            .has(json!({"stdout": {"text": "done\n"}})),
            line(
                "a command has a session of its own",
                "exec one -- sh -c 'test $(ps -o sid= -p $$) -eq $$ && echo own'",
                0,
            )
            .prints("own\n"),
            line("a command runs in the workspace", "exec one -- pwd", 0).prints("/workspace\n"),
            line("or in another directory", "exec one --workdir /tmp -- pwd", 0).prints("/tmp\n"),
            line("a directory that does not exist is named", "exec one --workdir /absent -- pwd", 125)
                .says("/absent"),
            line(
                "variables are laid over those of the bottle",
                "exec one --env 'A=b = c' --env HOME=/tmp -- sh -c 'echo \"$A-$HOME-$BOTTLE\"'",
                0,
            )
            .prints("b = c-/tmp-one\n"),
            line("a variable without a value must be set", "exec one --env NOT_SET_HERE -- true", 125)
                .says("NOT_SET_HERE"),
            line("a variable has a name", "exec one --env =x -- true", 125).says("the variable \"\" has no name"),
            tool(
                "a tool runs a script, and its code is a result",
                "terminal",
                json!({"bottle": "one", "command": "cd /tmp && pwd; exit 3"}),
            )
            .has(code(3))
            .has(json!({"stdout": {"text": "/tmp\n"}})),
            tool(
                "the words of a command are not read by a shell",
                "terminal",
                json!({"bottle": "one", "command": ["echo", "$HOME  *"]}),
            )
            .has(json!({"stdout": {"text": "$HOME  *\n"}})),
            tool(
                "a script without input reads nothing, and does not wait",
                "terminal",
                json!({"bottle": "one", "command": "cat; echo end"}),
            )
            .has(json!({"stdout": {"text": "end\n"}})),
            tool(
                "merged outputs keep their order",
                "terminal",
                json!({"bottle": "one", "command": "echo 1; echo 2 >&2; echo 3", "merge": true}),
            )
            .has(json!({"stdout": {"text": "1\n2\n3\n"}, "stderr": null})),
            tool(
                "a time limit of a tool keeps the output",
                "terminal",
                json!({"bottle": "one", "command": "echo so far; exec sleep 900", "timeout": 2}),
            )
            .has(json!({"exit": 124, "timed_out": true, "stdout": {"text": "so far\n"}})),
            tool(
                "a time limit of 0 is an error and no default",
                "terminal",
                json!({"bottle": "one", "command": "true", "timeout": 0}),
            )
            .refused("`timeout` must be a whole number from 1 to 600"),
            tool(
                "a directory and variables of a tool",
                "terminal",
                json!({"bottle": "one", "command": "echo $A-$PWD", "workdir": "/tmp", "env": {"A": "x"}}),
            )
            .has(json!({"stdout": {"text": "x-/tmp\n"}})),
            tool(
                "a tool shows no secret of the bottle",
                "terminal",
                json!({"bottle": "one", "command": "echo \"a $HELD b\"; echo $HELD >&2"}),
            )
            .has(json!({"stdout": {"text": "a [REDACTED] b\n"}, "stderr": {"text": "[REDACTED]\n"}})),
        ],
    )
}

/// The first signal is forwarded to the command, which can handle it. The second signal interrupts the call, even if
/// the command ignores signals.
#[test]
fn an_interrupted_command_keeps_its_output() -> Result<()> {
    let Some(home) = running_bottle("an interrupted exec", "linux", &[])? else { return Ok(()) };
    for (name, script, times, expected) in [
        ("default", "exec sleep 908", 1, json!({"interrupted": false, "signal": 2, "code": null})),
        (
            "deaf",
            "trap '' INT; sleep 908; exit 3",
            2,
            json!({"interrupted": true, "signal": null, "code": null}),
        ),
    ] {
        let script = format!("echo so far; touch {name}; {script}");
        let mut client = home.program(["exec", "one", "--json", "--", "sh", "-c", &script])?.command();
        let client = client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let begun = Instant::now();
        while run(&home, &["fs", "stat", "one", name])?.code != 0 {
            ensure!(begun.elapsed() < Duration::from_secs(40), "{name}: the command does not begin");
        }
        let pid = i32::try_from(client.id()).ok().and_then(Pid::from_raw).context("a process")?;
        for _ in 0..times {
            kill_process(pid, Signal::INT)?;
            // Without a pause, two signals would be delivered as one signal.
            std::thread::sleep(Duration::from_millis(300));
        }
        let output = client.wait_with_output()?;
        ensure!(output.status.code() == Some(130), "{name}: {output:?}");
        let result: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(has(&result, &expected), "{name}: {result}");
        ensure!(result["exit"] == 130 && result["stdout"]["text"] == "so far\n", "{name}: {result}");
    }
    let end = Instant::now() + Duration::from_secs(40);
    let left = ["exec", "one", "--", "sh", "-c", "ps -eo args | grep -c '[s]leep 908'; true"];
    while run(&home, &left)?.stdout != "0\n" {
        ensure!(Instant::now() < end, "a command goes on");
    }
    Ok(())
}
