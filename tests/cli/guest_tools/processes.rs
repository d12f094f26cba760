//! Tests processes that keep running between calls.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bottle_test_support::skip;
use serde_json::json;

use super::table::{line, run_all, tool};
use crate::asking::running_bottle;
use crate::home::{keeper, run};

#[test]
fn processes_go_on_between_calls() -> Result<()> {
    let test = "the table of processes";
    let Some(home) = running_bottle(test, "linux", &[])? else { return Ok(()) };
    run_all(
        &home,
        &[
            line("a size is two numbers", "process start one -t --size 120 -- true", 2)
                .says("a size is COLUMNSxROWS"),
            line("without a process, none is named", "process log one p1", 1)
                .says("the bottle has no process p1: none was started"),
            line("a process has a handle", "process start one --json -- sleep 901", 0)
                .has(json!({"handle": "p1", "pid": "> 0"})),
            line("a program that does not exist is no process", "process start one -- no-such-program", 1)
                .says("no-such-program"),
            line("its handle is not used again", "process start one --json -- sh -c 'echo out; echo err >&2'", 0)
                .has(json!({"handle": "p3"})),
            line("an unknown handle names what there is", "process log one p9", 1)
                .says("the bottle has no process p9: it has p1, p3"),
            line("as does an unknown name", "process kill one web", 1)
                .says("the bottle has no process web: it has p1, p3"),
            line("a wait without a limit ends with the process", "process wait one p3 --json", 0)
                .has(json!({"state": "exited", "code": 0, "signal": null})),
            line("both outputs are one log, in their order", "process log one p3 --json", 0)
                .has(json!({"text": "out\nerr\n", "next": 8, "state": "exited"})),
            line("the limit of a wait is no error of the process", "process wait one p1 --timeout 1 --json", 124)
                .has(json!({"state": "running", "code": null, "signal": null})),
            tool(
                "nor of a tool",
                "process_wait",
                json!({"bottle": "one", "process": "p1", "timeout": 1}),
            )
            .has(json!({"state": "running"})),
            line("several processes: the first end counts", "process wait one p1 p3 --json", 0)
                .has(json!({"process": "p3", "state": "exited", "code": 0})),
            line("is named in the text", "process wait one p1 p3", 0).prints("p3\texited 0\n"),
            line("all of them: the limit passes", "process wait one p1 p3 --all --timeout 1 --json", 124)
                .has(json!([{"process": "p1", "state": "running"}, {"process": "p3", "state": "exited"}])),
            line("an unknown process is refused", "process wait one p3 p9", 125)
                .says("the bottle has no process p9"),
            line("`--until` takes one process", "process wait one p1 p3 --until x", 2)
                .says("`--until` waits for a line of one process"),
            tool(
                "a tool waits for several processes",
                "process_wait",
                json!({"bottle": "one", "process": ["p1", "p3"]}),
            )
            .has(json!({"process": "p3", "state": "exited", "code": 0})),
            tool(
                "or for all of them",
                "process_wait",
                json!({"bottle": "one", "process": ["p3", "p1"], "all": true, "timeout": 1}),
            )
            .has(json!({"items": [{"process": "p3", "code": 0}, {"process": "p1", "state": "running"}]})),
            line("a process without output has an empty log", "process log one p1 --json", 0)
                .has(json!({"text": "", "from": 0, "next": 0, "lost": 0, "state": "running"})),
            line("a stopped process", "process signal one p1 STOP", 0),
            line("still runs", "process wait one p1 --timeout 1 --json", 124).has(json!({"state": "running"})),
            line("a continued process", "process signal one p1 sigcont", 0),
            line("runs too", "process wait one p1 --timeout 1 --json", 124).has(json!({"state": "running"})),
            line("a signal that ends it", "process signal one p1 15", 0),
            line("is how it ended", "process wait one p1 --json", 143)
                .has(json!({"state": "killed", "code": null, "signal": 15})),
            line("a signal to what has ended is refused", "process signal one p1 TERM", 1).says("p1 has ended"),
            line("an end of what has ended returns how", "process kill one p1 --json", 0)
                .has(json!({"state": "killed", "signal": 15})),
            line(
                "a process that ignores SIGTERM",
                "process start one --name deaf -- sh -c 'trap \"\" TERM; echo up; while :; do sleep 0.1; done'",
                0,
            ),
            line("is ready for it", "process wait one deaf --until up", 0),
            line("gets it", "process signal one deaf TERM", 0),
            line("and is not killed by it", "process wait one deaf --timeout 1 --json", 124)
                .has(json!({"state": "running", "signal": null})),
            line("but in the end", "process kill one deaf --time 1 --json", 0)
                .has(json!({"state": "killed", "signal": 9})),
            line("its log stays", "process log one deaf --json", 0)
                .has(json!({"text": "up\n", "state": "killed", "signal": 9})),
            line(
                "a program that reads",
                "process start one --name reader --env A=b -- sh -c 'echo $A; cat; exit 5'",
                0,
            ),
            line("gets a text with a line break", "process write one reader 'one two'", 0),
            line("gets a text as it is", "process write one reader --no-newline three", 0),
            line("gets standard input, and its end", "process write one reader --eof", 0).input("\nfour\n"),
            line("ends by the end of its input", "process wait one reader --json", 5).has(json!({"code": 5})),
            line("read all of it", "process log one reader --json", 0)
                .has(json!({"text": "b\none two\nthree\nfour\n"})),
            line("no lines are no output", "process log one reader --tail 0 --json", 0)
                .has(json!({"text": "", "from": 21, "next": 21})),
            line("the last lines", "process log one reader --tail 2 --json", 0)
                .has(json!({"text": "three\nfour\n", "from": 10, "next": 21, "lost": 0})),
            line("more lines than there are", "process log one reader --tail 99 --json", 0)
                .has(json!({"text": "b\none two\nthree\nfour\n", "from": 0})),
            line("a part of the output", "process log one reader --from 2 --max-output 7 --json", 0)
                .has(json!({"text": "one two", "from": 2, "next": 9})),
            line("nothing can be written to what has ended", "process write one reader late", 1)
                .says("reader has ended"),
            line("a process uses the processor", "process start one --name busy -- sh -c 'while :; do :; done'", 0),
            line("for a while", "process wait one busy --timeout 2", 124),
            line("the list has the agent and each process, with its use", "ps one --json", 0).has(json!([
                {"handle": null, "state": "running", "memory_bytes": "> 0", "processes": 1},
                {"handle": "p1", "state": "killed", "signal": 15, "processes": 0},
                {"handle": "p3", "state": "exited", "code": 0},
                {"handle": "p4", "name": "deaf", "state": "killed", "signal": 9, "processes": 0},
                {"handle": "p5", "name": "reader", "state": "exited", "code": 5},
                {"handle": "p6", "name": "busy", "state": "running", "cpu_seconds": "> 0.1", "memory_bytes": "> 0"},
            ])),
            line("an end", "process kill one busy -q", 0),
        ],
    )?;
    let descriptors = format!("/proc/{}/fd", keeper(&home)?.as_raw_nonzero());
    let open = || Ok::<_, std::io::Error>(std::fs::read_dir(&descriptors)?.count());
    let before = match open() {
        Ok(before) => before,
        Err(error) => {
            skip::aloud(test, &format_args!("cannot read {descriptors}: {error}"));
            return Ok(());
        }
    };
    for _ in 0..40 {
        let started = run(&home, &["process", "start", "one", "-q", "--", "echo", "x"])?.expect_code(0);
        let _ = run(&home, &["process", "wait", "one", started.stdout.trim()])?.expect_code(0);
    }
    let end = Instant::now() + Duration::from_secs(30);
    while open()? > before {
        ensure!(Instant::now() < end, "the keeper has {} open files, and had {before}", open()?);
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
