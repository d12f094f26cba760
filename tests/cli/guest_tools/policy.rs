//! Tests the command policy for clients, if no user answers questions.

use anyhow::Result;
use serde_json::json;

use super::table::{line, run_all, tool};
use crate::asking::running_bottle;

#[test]
fn what_must_be_approved_does_not_run_without_an_answer() -> Result<()> {
    let Some(home) = running_bottle("the table of the command policy", "linux", &[])? else { return Ok(()) };
    let settings = "commands:\n  mode: teenager\n  allow:\n  - {rule: command, prefix: [mkdir]}\n  \
                    - {rule: command, prefix: [sleep]}\nsupervise: {call_wait: 1s}\n";
    home.write("home/.bottle/settings.yml", settings)?;
    let terminal = |command: &str| json!({"bottle": "one", "command": command});
    run_all(
        &home,
        &[
            tool(
                "a command that only reads runs",
                "terminal",
                terminal("ls -la | head -1 >/dev/null && pwd"),
            )
            .has(json!({"code": 0, "stdout": {"text": "/workspace\n"}})),
            tool("another one does not", "terminal", terminal("touch made"))
                .refused("was not approved in time"),
            tool("an approved one runs", "terminal", terminal("mkdir approved")).has(json!({"code": 0})),
            tool("but not beside one that is not", "terminal", terminal("mkdir more && touch made"))
                .refused("was not approved in time"),
            tool("nor with a redirection", "terminal", terminal("mkdir more > made"))
                .refused("was not approved in time"),
            tool("the floor asks nothing", "terminal", terminal("rm -rf /"))
                .refused("is denied (delete-root)"),
            tool("in any case of letters", "terminal", terminal("RM -Rf /"))
                .refused("is denied (delete-root)"),
            tool("behind a wrapper", "terminal", terminal("nohup env A=b sh -c 'rm -rf ~'"))
                .refused("is denied (delete-root)"),
            tool("and with quotes inside its words", "terminal", terminal("r''m -r\"f\" \"/\""))
                .refused("is denied (delete-root)"),
            tool("a process is checked too", "process_start", terminal("touch made"))
                .refused("was not approved in time"),
            tool(
                "a call does not choose the mode",
                "terminal",
                json!({"bottle": "one", "command": "touch made", "mode": "let-it-go"}),
            )
            .refused("there is no argument \"mode\""),
            tool(
                "a service is checked too",
                "service_start",
                json!({"bottle": "one", "name": "web", "command": "touch made"}),
            )
            .refused("was not approved in time"),
            line("nothing was made", "exec one -- ls", 0).prints("approved\n"),
            line(
                "the check of a service is not one that is denied",
                "service start one bad --checked --check 'rm -rf /' -- sleep 900",
                1,
            )
            .says("is denied (delete-root)"),
            line(
                "nor one that must be approved",
                "service start one bad --checked --check 'touch made' -- sleep 900",
                1,
            )
            .says("must be approved"),
            line(
                "a check that only reads is one",
                "service start one good --checked --check 'test -d approved' --json -- sleep 900",
                0,
            )
            .has(json!({"state": "ready"})),
            tool(
                "the check of a tool is not one that is denied",
                "service_start",
                json!({"bottle": "one", "name": "bad", "command": ["sleep", "900"], "check": "rm -rf /"}),
            )
            .refused("is denied (delete-root)"),
            tool(
                "nor one that must be approved",
                "service_start",
                json!({"bottle": "one", "name": "bad", "command": ["sleep", "900"], "check": "touch made"}),
            )
            .refused("was not approved in time"),
            line("nothing was made either", "exec one -- ls", 0).prints("approved\n"),
            line("a mode that does not exist is an error", "rules check --mode teenagr ls", 2)
                .says("use baby-sitter, teenager or let-it-go"),
            line("a mode has any case and separator", "rules check --mode Baby_Sitter ls --json", 0)
                .has(json!({"verdict": "allow", "mode": "baby-sitter"})),
        ],
    )?;
    let file = |path: &str| json!({"bottle": "one", "path": path, "content": "x"});
    run_all(
        &home,
        &[
            tool("a teenager changes files", "file_write", file("written")).has(json!({})),
            tool("but no credentials", "file_write", file(".netrc")).refused("is denied (credentials)"),
        ],
    )?;
    let settings = "commands:\n  mode: baby-sitter\n  allow:\n  - {rule: change-file, prefix: [file_write, approved.txt]}\n\
                    supervise: {call_wait: 1s}\n";
    home.write("home/.bottle/settings.yml", settings)?;
    run_all(
        &home,
        &[
            tool("a baby-sitter asks for the change of a file", "file_write", file("written"))
                .refused("was not approved in time (change-file)"),
            tool("and for its deletion", "file_delete", json!({"bottle": "one", "path": "written"}))
                .refused("was not approved in time (change-file)"),
            tool(
                "and for a patch",
                "file_patch",
                json!({"bottle": "one", "patch": "--- a/written\n+++ b/written\n@@ -1 +1 @@\n-x\n+y\n"}),
            )
            .refused("was not approved in time (change-file)"),
            tool("an approved change is made", "file_write", file("approved.txt")).has(json!({})),
            tool("and files are read", "file_read", json!({"bottle": "one", "path": "written"}))
                .has(json!({"text": "x"})),
        ],
    )?;
    home.write("home/.bottle/settings.yml", "commands: {mode: teenagr}\n")?;
    run_all(
        &home,
        &[
            line("a mistyped mode of the settings runs nothing", "exec one --checked -- ls", 125)
                .says("teenagr"),
            tool("also for a tool", "terminal", terminal("ls")).refused("teenagr"),
        ],
    )
}
