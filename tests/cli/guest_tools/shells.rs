//! Tests shells in a terminal that stay open between calls.

use anyhow::Result;
use serde_json::json;

use super::table::{line, run_all, tool};
use crate::asking::running_bottle;

#[test]
fn shells_stay_open_between_calls() -> Result<()> {
    let Some(home) = running_bottle("the table of shells", "linux", &[])? else { return Ok(()) };
    run_all(
        &home,
        &[
            line("a shell is opened with a name", "process start one --tty --name main --json -- sh -i", 0)
                .has(json!({"handle": "p1", "pid": "> 0"})),
            line("a name that is in use is refused", "process start one --tty --name main -- sh -i", 1)
                .says("a process named main runs already: p1"),
            line("a written line runs", "process write one main 'x=kept; cd /tmp; echo ready-$((1+1))'", 0),
            line("its output is found", "process wait one main --until ready-2 --json", 0)
                .has(json!({"line": "*ready-2*"})),
            line(
                "a text without its line break does not run",
                "process write one main --no-newline 'echo spl'",
                0,
            ),
            line("a later text completes it", "process write one main 'it-$((1+1))'", 0),
            line("the line ran once it was complete", "process wait one main --until '^split-2' --json", 0)
                .has(json!({"line": "*split-2*"})),
            tool(
                "a program takes the foreground",
                "process_write",
                json!({"bottle": "one", "process": "main", "text": "sh -c 'echo runs-$((1+2)); exec sleep 903'"}),
            ),
            tool("and runs", "process_wait", json!({"bottle": "one", "process": "main", "until": "runs-3"}))
                .has(json!({"line": "*runs-3*"})),
            line("a signal has a name in any case", "process signal one main sigInt", 0),
            line("the shell goes on, with its state", "process write one main 'echo $x-$PWD-$((2+2))'", 0),
            line("the signal ended the program alone", "process wait one main --until kept-/tmp-4 --json", 0)
                .has(json!({"line": "*kept-/tmp-4*"})),
            line("the program is gone", "exec one -- sh -c 'ps -eo args | grep -c \"[s]leep 903\"; true'", 0)
                .prints("0\n"),
            line("an unknown signal is refused with the names", "process signal one main NOPE", 2)
                .says("HUP, INT, QUIT, TERM, KILL"),
            line("as is one beyond the last number", "process signal one main 64", 2)
                .says("HUP, INT, QUIT, TERM, KILL"),
            tool(
                "a tool names them too",
                "process_signal",
                json!({"bottle": "one", "process": "main", "signal": "NOPE"}),
            )
            .refused("HUP, INT, QUIT, TERM, KILL"),
            line("a shell ends by its own command", "process write one main 'exit 4'", 0),
            line("its code is known", "process wait one main --json", 4)
                .has(json!({"state": "exited", "code": 4, "signal": null})),
            line("nothing can be written to it any more", "process write one p1 'echo late'", 1)
                .says("p1 has ended"),
            line("its output can be read after its end", "process log one p1 --tail 3 --json", 0)
                .has(json!({"text": "*kept-/tmp-4*", "state": "exited", "code": 4})),
            line("an end of what has ended is no error", "process kill one p1 --json", 0)
                .has(json!({"state": "exited", "code": 4})),
            line(
                "its name is free, and its handle is not",
                "process start one --tty --name main --json -- sh -i",
                0,
            )
            .has(json!({"handle": "p2"})),
            line(
                "jobs run in the background",
                "process write one main 'sleep 904 & sleep 905 & echo bg-$((1+1))'",
                0,
            ),
            line("two of them", "process wait one main --until bg-2", 0),
            line("an end reaches the shell", "process kill one main --time 1 --json", 0)
                .has(json!({"state": "killed"})),
            line("and its jobs", "exec one -- sh -c 'ps -eo args | grep -c \"[s]leep 90[45]\"; true'", 0)
                .prints("0\n"),
            line(
                "a terminal has a type and a size",
                "process start one --tty --name size -- sh -c 'echo $TERM; stty size; exec sleep 900'",
                0,
            ),
            line("the size of a terminal without a client", "process wait one size --until '30 120'", 0),
            line("and a type that programs know", "process log one size --json", 0)
                .has(json!({"text": "*xterm*"})),
            line(
                "a secret is replaced in what is read",
                "process start one --name says -- sh -c 'echo key: $HELD; exec sleep 900'",
                0,
            ),
            line("as a whole", "process log one says --wait 30 --json", 0)
                .has(json!({"text": "key: [REDACTED]\n", "from": 0, "next": 27, "lost": 0})),
            line("also if a part ends inside it", "process log one says --max-output 10 --json", 0)
                .has(json!({"text": "key: [REDACTED]", "next": 10})),
            line("the next part has none of it", "process log one says --from 10 --json", 0)
                .has(json!({"text": "\n", "from": 10, "next": 27, "lost": 0})),
            line("a position behind the end is the end", "process log one says --from 9000 --json", 0)
                .has(json!({"text": "", "next": 27, "lost": 0})),
        ],
    )
}
