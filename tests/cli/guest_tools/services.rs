//! Tests services: their readiness, their ends and their logs.

use anyhow::Result;
use serde_json::json;

use super::table::{line, run_all, tool};
use crate::asking::running_bottle;

#[test]
fn services_are_started_checked_and_stopped() -> Result<()> {
    let Some(home) = running_bottle("the table of services", "linux", &[])? else { return Ok(()) };
    let bottle = |name: &str| json!({"bottle": "one", "name": name});
    run_all(
        &home,
        &[
            line("without services, the list is empty", "service list one --json", 0).has(json!([])),
            line(
                "without a check, a service is ready at once",
                "service start one web --json -- sh -c 'echo a; echo b >&2; exec sleep 900'",
                0,
            )
            .has(json!({"name": "web", "state": "ready", "handle": "p1", "restarts": 0, "why": null})),
            line("a service that runs is not started", "service start one web -- sleep 900", 1)
                .says("the service web runs already"),
            line("nor again", "service start one web", 1).says("the service web runs already"),
            line("a service that was never started is named", "service start one absent", 1)
                .says("the bottle has no service absent: it has web"),
            line("both outputs are its log", "service logs one web --wait 30 --json", 0)
                .has(json!({"text": "*a\n*", "state": "running"})),
            line("of which there are all lines", "process wait one web --until b", 0),
            line("by default", "service logs one web --json", 0).has(json!({"text": "a\nb\n", "next": 4})),
            line("or the last", "service logs one web --tail 1 --json", 0).has(json!({"text": "b\n"})),
            line("or none", "service logs one web --tail 0 --json", 0).has(json!({"text": ""})),
            tool("also for a tool", "service_logs", json!({"bottle": "one", "name": "web", "tail": 0}))
                .has(json!({"text": "", "next": 4})),
            line("a stop ends it", "service stop one web --json", 0)
                .has(json!({"state": "stopped", "signal": 15, "code": null})),
            line("a second stop changes nothing", "service stop one web --json", 0)
                .has(json!({"state": "stopped", "signal": 15, "handle": "p1"})),
            line("a stopped one starts again, as another process", "service start one web --json", 0)
                .has(json!({"state": "ready", "handle": "p2", "signal": null})),
            line("whose log begins anew", "process wait one web --until b", 0),
            line("with its own output", "service logs one web --json", 0).has(json!({"text": "a\nb\n", "next": 4})),
            tool("a tool stops it", "service_stop", bottle("web")).has(json!({"state": "stopped"})),
            line(
                "a service that ends before it is ready fails at once, with its code",
                "service start one early --file never --start-period 50s --json -- sh -c 'echo no disk; exit 3'",
                1,
            )
            .has(json!({"state": "failed", "code": 3, "ready_at": null}))
            .has(json!({"why": "it exited with code 3 before it was ready"})),
            line("its output stays", "service logs one early --json", 0)
                .has(json!({"text": "no disk\n", "code": 3})),
            line(
                "so does one whose child lives on",
                "service start one parent --file never --start-period 50s --json -- \
                 sh -c 'sleep 906 >/dev/null 2>&1 & exit 4'",
                1,
            )
            .has(json!({"state": "failed", "code": 4})),
            line(
                "a service that is not ready in time fails",
                "service start one slow --file never --start-period 1s --json -- sleep 907",
                1,
            )
            .has(json!({"state": "failed", "signal": 15, "why": "*it was not ready after 1s*"})),
            line("and does not run on", "exec one -- sh -c 'ps -eo args | grep -c \"[s]leep 907\"; true'", 0)
                .prints("0\n"),
            line(
                "a program that does not exist fails",
                "service start one gone --json -- no-such-program",
                1,
            )
            .has(json!({"state": "failed", "handle": null, "why": "*no-such-program*"})),
            line(
                "a service that ends after it was ready",
                "service start one once --check true --json -- sh -c 'echo bye; sleep 1; exit 5'",
                0,
            )
            .has(json!({"state": "ready"})),
            line("ends", "process wait one once", 5),
            line("after a moment", "exec one -- sleep 1", 0),
            line("and is not started again by default", "service stop one once --json", 0)
                .has(json!({"state": "exited", "code": 5, "restarts": 0})),
            line(
                "a file of the workspace makes a service ready",
                "service start one file --file there --interval 50ms --json -- \
                 sh -c 'sleep 0.3; touch there; exec sleep 900'",
                0,
            )
            .has(json!({"state": "ready", "ready_at": "*T*"})),
            line(
                "a script makes a service ready",
                "service start one script --check 'test -e there' --json -- sleep 900",
                0,
            )
            .has(json!({"state": "ready"})),
            line(
                "a port makes a service ready",
                "service start one port --tcp 127.0.0.1:8131 --json -- python3 -m http.server --bind 127.0.0.1 8131",
                0,
            )
            .has(json!({"state": "ready"})),
            line(
                "a page makes a service ready",
                "service start one page --http http://127.0.0.1:8131/ --json -- sleep 900",
                0,
            )
            .has(json!({"state": "ready"})),
            line(
                "a page that does not exist is the reason",
                "service start one no-page --http http://127.0.0.1:8131/absent --start-period 1s --json -- sleep 900",
                1,
            )
            .has(json!({"state": "failed", "why": "*status 404*"})),
            line("an address without a port starts nothing", "service start one bad --tcp localhost -- sleep 900", 2)
                .says("\"localhost\""),
            line("nor does one of another machine", "service start one bad --tcp 192.0.2.1:80 -- sleep 900", 2)
                .says("192.0.2.1"),
            line("nor another scheme", "service start one bad --http ftp://localhost/ -- sleep 900", 2)
                .says("ftp://localhost/"),
            line("nor a bad name", "service start one 'a b' -- sleep 900", 2).says("invalid value 'a b'"),
            line("nor a handle as a name", "service start one p7 -- sleep 900", 1)
                .says("p7 cannot be the name of a service"),
            line("so there is none", "service stop one bad", 1).says("the bottle has no service bad: it has "),
            line("a service that is killed", "process signal one script KILL", 0),
            line("is dead after a moment", "exec one -- sleep 1", 0),
            line("and no zombie counts as alive", "service stop one script --json", 0)
                .has(json!({"state": "exited", "signal": 9, "why": "*signal 9*"})),
        ],
    )
}
