//! Tests `bottle mcp`: MCP clients that drive bottles, on standard input and output and over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::mcp_server::{McpServer, token};
use serde_json::{Value, json};

use crate::home::{home, run, snapshot, transcripts};
use crate::pull::{inside, with_a_copy};

/// Time limit for one answer.
const SOON: Duration = Duration::from_secs(60);

/// A client on the server's standard input and output.
pub(crate) struct Client {
    server: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    next: u64,
}

impl Client {
    pub(crate) fn start(home: &TestHome, arguments: &[&str]) -> Result<Self> {
        let mut command: Command = home.program([&["mcp"], arguments].concat())?.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn()?;
        let output = BufReader::new(server.stdout.take().context("its output")?);
        let (sender, lines) = sync_channel(64);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut client = Self { input: server.stdin.take(), server, lines, next: 0 };
        client.ask(
            "initialize",
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            }),
        )?;
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(client)
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        self.write(format!("{message}\n").as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.input.as_mut().context("open input")?.write_all(bytes)?)
    }

    /// Sends a request without waiting for its answer. Returns its id.
    fn begin(&mut self, method: &str, params: Value) -> Result<u64> {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        Ok(id)
    }

    /// Cancels the request with this id, or kills the server.
    fn give_up(&mut self, id: u64, is_killed: bool) -> Result<()> {
        if is_killed {
            return Ok(self.server.kill()?);
        }
        let params = json!({"requestId": id});
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
    }

    fn message(&self) -> Result<Value> {
        let line = self.lines.recv_timeout(SOON).context("a message of the server")?;
        serde_json::from_str(&line).with_context(|| line.clone())
    }

    fn answer(&self, id: u64) -> Result<Value> {
        loop {
            let message = self.message()?;
            if message["id"] == id {
                return Ok(message);
            }
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        let id = self.begin(method, params)?;
        self.answer(id)
    }

    /// Calls a tool. Returns its result.
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}))?;
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => bail!("{tool}: {answer}"),
        }
    }

    /// Calls a tool, which must succeed. Returns the tool's JSON document.
    pub(crate) fn done(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let result = self.call(tool, arguments)?;
        ensure!(result["isError"] != true, "{tool}: {result}");
        Ok(result["structuredContent"].clone())
    }

    /// Calls a tool, which must fail. Returns the sentence for the model.
    fn mistake(&mut self, tool: &str, arguments: Value) -> Result<String> {
        let result = self.call(tool, arguments)?;
        ensure!(result["isError"] == true, "{tool}: {result}");
        Ok(result["content"][0]["text"].as_str().context("a sentence")?.to_owned())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.server.wait();
    }
}

#[test]
fn lists_tools_with_their_effects_and_arguments() -> Result<()> {
    let home = home()?;
    let mut client = Client::start(&home, &[])?;
    let tools = client.ask("tools/list", json!({}))?["result"]["tools"].clone();
    let shown = tools.as_array().context("tools")?.iter().map(|tool| {
        let effect = match (&tool["annotations"]["readOnlyHint"], &tool["annotations"]["destructiveHint"]) {
            (Value::Bool(true), _) => "reads",
            (_, Value::Bool(false)) => "adds",
            _ => "changes",
        };
        let required = tool["inputSchema"]["required"].as_array().into_iter().flatten();
        let is_required: Vec<&str> = required.filter_map(Value::as_str).collect();
        let properties = tool["inputSchema"]["properties"].as_object().into_iter().flatten();
        let arguments = properties.map(|(name, _)| match is_required.contains(&name.as_str()) {
            true => name.clone(),
            false => format!("[{name}]"),
        });
        let arguments: Vec<String> = arguments.collect();
        format!("{:15} {effect:8} {}", tool["name"].as_str().unwrap_or_default(), arguments.join(" "))
    });
    snapshot!(shown.collect::<Vec<_>>().join("\n"));
    Ok(())
}

#[test]
fn a_client_drives_a_bottle_from_its_start_to_its_end() -> Result<()> {
    let home = home()?;
    let mut client = Client::start(&home, &[])?;
    let agents = client.done("agent_list", json!({}))?;
    ensure!(agents["items"].to_string().contains("\"nap\""), "{agents}");
    let started = client.done("bottle_start", json!({"agent": "nap", "label": "one"}))?;
    ensure!(started["slug"] == "one", "{started}");
    let bottle = json!("one");
    let echoed = client.done("terminal", json!({"bottle": bottle, "command": ["echo", "a  b"]}))?;
    ensure!(echoed["stdout"]["text"] == "a  b\n" && echoed["code"] == 0, "{echoed}");
    let copied = client.done("terminal", json!({"bottle": bottle, "command": ["cat"], "stdin": "typed"}))?;
    ensure!(copied["stdout"]["text"] == "typed", "{copied}");
    let failed = client.done("terminal", json!({"bottle": bottle, "command": ["exit", "7"]}))?;
    ensure!(failed["code"] == 7, "the exit code of a command is a result: {failed}");
    let late =
        client.done("terminal", json!({"bottle": bottle, "command": ["sleep", "60"], "timeout": 1}))?;
    ensure!(late["timed_out"] == true && late["exit"] == 124, "{late}");

    let written =
        client.done("file_write", json!({"bottle": bottle, "path": "-dash", "content": "one\ntwo\n"}))?;
    ensure!(written["created"] == true, "{written}");
    let replaced = json!({"bottle": bottle, "path": "-dash", "search": "two", "replace": "--three"});
    client.done("file_replace", replaced.clone())?;
    let again = client.mistake("file_replace", replaced)?;
    ensure!(again.contains("-dash") || again.contains("occurs"), "{again}");
    let read = client.done("file_read", json!({"bottle": bottle, "path": "-dash"}))?;
    ensure!(read["text"] == "one\n--three\n", "{read}");
    let second =
        client.done("file_read", json!({"bottle": bottle, "path": "-dash", "line": 2, "lines": 1}))?;
    ensure!(second["text"] == "--three\n" && second["line"] == 2, "{second}");
    let first = client.done("file_read", json!({"bottle": bottle, "path": "-dash", "lines": 1}))?;
    ensure!(first["text"] == "one\n" && first["next_line"] == 2, "{first}");
    let found = client.done("file_search", json!({"bottle": bottle, "pattern": "thr.e"}))?;
    ensure!(found.to_string().contains("-dash"), "{found}");
    let listed = client.done("file_list", json!({"bottle": bottle}))?;
    ensure!(listed["entries"][0]["path"] == "-dash", "{listed}");

    let process =
        client.done("process_start", json!({"bottle": bottle, "command": ["cat"], "name": "copier"}))?;
    let handle = process["handle"].clone();
    client
        .done("process_write", json!({"bottle": bottle, "process": handle, "text": "hello", "eof": true}))?;
    let ended = client.done("process_wait", json!({"bottle": bottle, "process": handle}))?;
    ensure!(ended["state"] == "exited" && ended["code"] == 0, "{ended}");
    let log = client.done("process_log", json!({"bottle": bottle, "process": handle}))?;
    ensure!(log["text"] == "hello\n", "{log}");

    let log = client.call("bottle_logs", json!({"bottle": bottle}))?;
    ensure!(log["content"][0]["text"] == "", "{log}");
    let decisions = client.call("bottle_logs", json!({"bottle": bottle, "egress": true}))?;
    ensure!(decisions["isError"] == false && decisions["content"][0]["text"] == "", "{decisions}");
    let resources = client.ask("resources/list", json!({}))?;
    ensure!(resources["result"]["resources"][0]["uri"] == "bottle://one/log", "{resources}");
    let file = client.ask("resources/read", json!({"uri": "bottle://one/files/-dash"}))?;
    ensure!(file["result"]["contents"][0]["text"] == "one\n--three\n", "{file}");
    let missing = client.ask("resources/read", json!({"uri": "bottle://one/files/none"}))?;
    ensure!(missing["error"]["message"].to_string().contains("none"), "{missing}");

    let committed = client.done("bottle_commit", json!({"bottle": bottle, "name": "first"}))?;
    ensure!(committed["slug"] == "one", "{committed}");
    let forked =
        client.done("bottle_fork", json!({"bottle": bottle, "snapshot": "first", "label": "two"}))?;
    ensure!(forked["slugs"] == json!(["two"]) || forked["slug"] == "two", "{forked}");
    let own = client.done("bottle_list", json!({}))?;
    let slugs: Vec<&str> =
        own["items"].as_array().into_iter().flatten().filter_map(|item| item["slug"].as_str()).collect();
    ensure!(slugs == ["one", "two"], "{own}");
    let stopped = client.done("bottle_stop", json!({"bottle": bottle, "time": 0}))?;
    ensure!(stopped["slug"] == "one" && stopped["kept"] == "snapshot", "{stopped}");
    let resumed = client.done("bottle_resume", json!({"bottle": bottle}))?;
    ensure!(resumed["slug"] == "one", "{resumed}");
    let read = client.done("file_read", json!({"bottle": bottle, "path": "-dash"}))?;
    ensure!(read["text"] == "one\n--three\n", "{read}");
    Ok(())
}

#[test]
fn a_client_uses_only_bottles_and_tools_of_its_scope() -> Result<()> {
    let home = home()?;
    for label in ["mine", "other"] {
        let _ = run(&home, &["start", "nap", "--detach", "--yes", "-q", "--label", label])?.expect_code(0);
    }
    let mut client = Client::start(&home, &[])?;
    let absent = client.mistake("terminal", json!({"bottle": "absent", "command": ["echo"]}))?;
    let hidden = client.mistake("terminal", json!({"bottle": "other", "command": ["echo"]}))?;
    ensure!(hidden == absent.replace("absent", "other"), "{hidden}\n{absent}");
    ensure!(client.done("bottle_list", json!({}))?["items"] == json!([]));
    let read = client.ask("resources/read", json!({"uri": "bottle://other/log"}))?;
    ensure!(read["error"]["message"].to_string().contains("you have no bottle"), "{read}");
    client.done("bottle_start", json!({"agent": "nap", "label": "started"}))?;
    client.done("terminal", json!({"bottle": "started", "command": ["echo"]}))?;
    drop(client);
    // The bottles that a client started belong to this client even after the server restarts.
    let mut client = Client::start(&home, &["--scope", "mi*", "--scope", "started"])?;
    for bottle in ["mine", "started"] {
        client.done("terminal", json!({"bottle": bottle, "command": ["echo"]}))?;
    }
    client.mistake("terminal", json!({"bottle": "other", "command": ["echo"]}))?;
    let mut client = Client::start(&home, &["--scope", "all"])?;
    client.done("terminal", json!({"bottle": "other", "command": ["echo"]}))?;
    Ok(())
}

#[test]
fn a_client_works_in_the_bottles_of_its_tasks() -> Result<()> {
    let home = home()?;
    home.write("home/.bottle/settings.yml", "environments: {agent: nap}\n")?;
    let _ = run(&home, &["env", "run", "theirs", "-q", "--", "true"])?.expect_code(0);
    let mut client = Client::start(&home, &[])?;
    ensure!(client.done("env_list", json!({}))?["items"] == json!([]));
    let echoed = client.done("env_run", json!({"task": "mine-1", "command": ["echo", "a  b"]}))?;
    ensure!(echoed["stdout"]["text"] == "a  b\n" && echoed["code"] == 0, "{echoed}");
    let failed = client.done("env_run", json!({"task": "mine-1", "command": ["exit", "7"]}))?;
    ensure!(failed["code"] == 7, "{failed}");
    let listed = client.done("env_list", json!({}))?["items"].clone();
    ensure!(listed.as_array().is_some_and(|all| all.len() == 1) && listed[0]["task"] == "mine-1", "{listed}");
    // The client started the bottle of the task, so the other tools work on this bottle.
    let slug = listed[0]["slug"].clone();
    client.done("process_list", json!({"bottle": slug}))?;
    let mut said = Vec::new();
    for (tool, arguments) in [
        ("env_run", json!({"task": "theirs", "command": "ls"})),
        ("env_remove", json!({"task": "theirs"})),
        ("env_remove", json!({"task": "absent"})),
        ("env_run", json!({"task": "mine-1", "command": "rm -rf /"})),
        ("env_run", json!({"task": "mine-1", "command": "ls", "agent": "other"})),
        ("env_run", json!({"task": "--all", "command": "ls"})),
    ] {
        said.push(format!("{tool} {arguments}\n  {}", client.mistake(tool, arguments.clone())?));
    }
    snapshot!(said.join("\n"));
    // A client that may use only the bottles `ci-*` cannot start a bottle.
    let mut narrow = Client::start(&home, &["--scope", "ci-*"])?;
    for (tool, arguments) in [
        ("env_run", json!({"task": "mine-1", "command": "ls"})),
        ("env_run", json!({"task": "new", "command": "ls"})),
        ("env_remove", json!({"task": "mine-1"})),
    ] {
        let mistake = narrow.mistake(tool, arguments)?;
        ensure!(mistake.starts_with("you have no task"), "{mistake}");
    }
    // If another client has started the bottle of the task, this bottle is not used.
    let mut race = home.program(["env", "run", "mine-1", "--own", "--json", "--", "true"])?;
    let refused = race.env("BOTTLE_PARENT", "other").run()?.expect_code(125);
    ensure!(refused.stderr.contains("another client started it"), "{}", refused.stderr);
    let removed = client.done("env_remove", json!({"task": "mine-1"}))?;
    ensure!(removed["items"][0]["task"] == "mine-1", "{removed}");
    ensure!(client.done("env_list", json!({}))?["items"] == json!([]));
    let kept = run(&home, &["env", "ls", "--json"])?.expect_code(0).json()?;
    ensure!(kept[0]["task"] == "theirs", "{kept}");
    Ok(())
}

#[test]
fn a_mistake_is_a_result_that_the_model_can_correct() -> Result<()> {
    let home = home()?;
    let mut client = Client::start(&home, &["--scope", "all"])?;
    client.done("bottle_start", json!({"agent": "nap", "label": "one"}))?;
    let mut said = Vec::new();
    for (tool, arguments) in [
        ("terminal", json!({"bottle": "one"})),
        ("terminal", json!({"bottle": "one", "command": "ls", "timeot": 5})),
        ("terminal", json!({"bottle": "one", "command": ["missing-program"]})),
        ("terminal", json!({"bottle": "one", "command": "sudo ls"})),
        ("process_start", json!({"bottle": "one", "command": "rm -rf /"})),
        ("process_log", json!({"bottle": "one", "process": "p99"})),
        ("process_signal", json!({"bottle": "one", "process": "p99", "signal": "--help"})),
        ("file_read", json!({"bottle": "one", "path": "../etc/passwd"})),
        ("file_read", json!({"bottle": "one", "path": "--help"})),
        ("file_patch", json!({"bottle": "one", "patch": "no patch"})),
        ("bottle_start", json!({"agent": "absent"})),
        ("bottle_start", json!({"agent": "--help"})),
        ("bottle_resume", json!({"bottle": "one"})),
    ] {
        let result = client.call(tool, arguments.clone())?;
        let text = match result["isError"] == true {
            true => result["content"][0]["text"].as_str().unwrap_or_default().to_owned(),
            false => format!("exit {}", result["structuredContent"]["exit"]),
        };
        said.push(format!("{tool} {arguments}\n  {text}"));
    }
    let unknown = client.ask("tools/call", json!({"name": "destroy", "arguments": {}}))?;
    said.push(format!("destroy\n  {}", unknown["error"]));
    snapshot!(home.scrub()?.apply(&said.join("\n")));
    Ok(())
}

/// The server runs the first steps of a start in its own process. The keeper runs the other steps.
#[test]
fn a_start_of_a_killed_or_cancelling_client_is_undone_at_every_step() -> Result<()> {
    for step in ["check", "prepare", "make_network", "start_bundle", "start_guest", "connect_guest"] {
        for is_killed in [true, false] {
            let mut home = home()?;
            home.env("BOTTLE_FAKE_FAIL", format!("{step}:hang"));
            let mut client = Client::start(&home, &["--scope", "all"])?;
            let start = json!({"name": "bottle_start", "arguments": {"agent": "nap", "label": "one"}});
            let id = client.begin("tools/call", start)?;
            let state = home.bottle_home().join("state/one");
            // The server runs the first steps, before the keeper creates the bottle's state.
            match step {
                "check" | "prepare" => std::thread::sleep(Duration::from_millis(300)),
                _ => wait_until(&format!("{step} begins"), || state.exists())?,
            }
            client.give_up(id, is_killed)?;
            wait_until(&format!("{step} is undone"), || !state.exists())?;
            ensure!(run(&home, &["list", "--json"])?.expect_code(0).stdout.trim() == "[]");
        }
    }
    Ok(())
}

/// The entries of a directory of the home.
fn entries(home: &TestHome, directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(home.bottle_home().join(directory)).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// The server runs the first steps of a fork in its own process. The keeper of the original bottle saves the snapshot,
/// and the keeper of the new bottle runs the last steps.
#[test]
fn a_fork_of_a_killed_or_cancelling_client_leaves_nothing_at_every_step() -> Result<()> {
    for (step, is_running) in [
        ("make_snapshot", true),
        ("snapshot_made", true),
        ("make_snapshot", false),
        ("snapshot_made", false),
        ("prepare", true),
        ("make_network", true),
        ("restoring", true),
        ("connect_guest", true),
    ] {
        for is_killed in [true, false] {
            let case = format!("{step}, running: {is_running}, killed: {is_killed}");
            let mut home = home()?;
            home.write("project/note", "remember\n")?;
            // A keeper completes a snapshot that it has begun, so the steps of a snapshot only wait. The other steps
            // never end.
            let saves = step.contains("snapshot");
            let fault = format!("{step}:{}", if saves { "wait" } else { "hang" });
            if saves && is_running {
                home.env("BOTTLE_FAKE_FAIL", &fault);
            }
            let _ =
                run(&home, &["start", "nap", "--detach", "--yes", "-q", "--label", "one"])?.expect_code(0);
            let _ = run(&home, &["cp", "note", "one:note", "-q"])?.expect_code(0);
            if !is_running {
                let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
            }
            home.env("BOTTLE_FAKE_FAIL", &fault);
            let mut client = Client::start(&home, &["--scope", "all"])?;
            let fork = json!({"name": "bottle_fork", "arguments": {"bottle": "one", "label": "two"}});
            let id = client.begin("tools/call", fork)?;
            let state = home.bottle_home().join("state/two");
            match step {
                "make_network" | "restoring" | "connect_guest" => {
                    wait_until(&format!("{case}: begins"), || state.exists())?;
                }
                _ => std::thread::sleep(Duration::from_millis(300)),
            }
            client.give_up(id, is_killed)?;
            if !is_killed {
                client.ask("ping", json!({}))?;
            }
            home.write("home/.bottle/fake-continue", "")?;
            if is_killed && is_running {
                // The keeper removes the snapshot of a killed process with the next commit, or at the bottle's end.
                let _ = run(&home, &["stop", "one", "--time", "0", "-q"])?.expect_code(0);
            }
            let mut left = String::new();
            let undone = wait_until(&case, || {
                if is_killed {
                    let _ = run(&home, &["cleanup", "--yes", "-q"]);
                }
                let snapshots = run(&home, &["snapshots", "--json"]).map(|outcome| outcome.stdout);
                left = format!("{snapshots:?} {:?} {:?}", entries(&home, "tmp"), entries(&home, "state"));
                snapshots.is_ok_and(|snapshots| snapshots.trim() == "[]")
                    && entries(&home, "tmp").is_empty()
                    && entries(&home, "state") == ["one"]
            });
            undone.with_context(|| left)?;
        }
    }
    Ok(())
}

/// The server reads and compares files in its own process, on threads.
#[test]
fn a_comparison_of_a_killed_or_cancelling_client_leaves_nothing() -> Result<()> {
    let Some(home) = with_a_copy("cancelled comparisons")? else { return Ok(()) };
    inside(&home, "echo two >code; git commit -qam more; echo three >code")?;
    let slow = "mkdir -p ~/.local/bin; printf '#!/bin/sh\\nexec sleep 600\\n' >~/.local/bin/git; chmod +x ~/.local/bin/git";
    let calls = [
        ("bottle_diff", json!({"bottle": "one"})),
        ("bottle_pull", json!({"bottle": "one"})),
        ("bottle_pull", json!({"bottle": "one", "uncommitted": true})),
        ("file_reset", json!({"bottle": "one", "dry_run": true})),
    ];
    for is_killed in [true, false] {
        for (tool, arguments) in &calls {
            // The bottle's git never answers, or the call is ended while it compares files.
            for delay in [None, Some(20), Some(150)] {
                let case = format!("{tool} {arguments} {delay:?}, killed: {is_killed}");
                if delay.is_none() {
                    inside(&home, slow)?;
                }
                let mut client = Client::start(&home, &["--scope", "all"])?;
                let id = client.begin("tools/call", json!({"name": tool, "arguments": arguments}))?;
                std::thread::sleep(Duration::from_millis(delay.unwrap_or(500)));
                client.give_up(id, is_killed)?;
                if !is_killed {
                    client.ask("ping", json!({}))?;
                }
                let undone = wait_until(&case, || {
                    if is_killed {
                        let _ = run(&home, &["cleanup", "--yes", "-q"]);
                    }
                    let processes = run(&home, &["process", "ls", "one", "--json"]);
                    let is_quiet = processes.is_ok_and(|outcome| !outcome.stdout.contains("upload-pack"));
                    entries(&home, "tmp").is_empty() && is_quiet
                });
                undone?;
                if delay.is_none() {
                    inside(&home, "rm ~/.local/bin/git")?;
                    ensure!(home.git(&["branch", "--list", "bottle/*"])?.is_empty(), "{case}");
                }
                // A branch is either unchanged or complete.
                home.git(&["fsck", "--strict"])?;
                if !home.git(&["branch", "--list", "bottle/*"])?.is_empty() {
                    ensure!(
                        ["two\n", "three\n"].contains(&home.git(&["show", "bottle/one:code"])?.as_str()),
                        "{case}"
                    );
                    home.git(&["branch", "-q", "-D", "bottle/one"])?;
                }
            }
        }
    }
    let mut client = Client::start(&home, &["--scope", "all"])?;
    let diff = client.done("bottle_diff", json!({"bottle": "one"}))?;
    ensure!(diff["slug"] == "one" && diff["diff"].to_string().contains("+three"), "{diff}");
    let pulled = client.done("bottle_pull", json!({"bottle": "one"}))?;
    ensure!(pulled["branch"] == "bottle/one" && pulled["uncommitted"] == 1, "{pulled}");
    let both =
        client.mistake("bottle_pull", json!({"bottle": "one", "branch": "main", "uncommitted": true}))?;
    ensure!(both.contains("at most one"), "{both}");
    let reset = client.done("file_reset", json!({"bottle": "one", "paths": ["code"]}))?;
    ensure!(reset["applied"] == true && reset["files"][0]["path"] == "code", "{reset}");
    let outside = client.mistake("file_reset", json!({"bottle": "one", "paths": ["../x"]}))?;
    ensure!(outside.contains("outside the workspace"), "{outside}");
    Ok(())
}

fn wait_until(what: &str, mut seen: impl FnMut() -> bool) -> Result<()> {
    let end = std::time::Instant::now() + SOON;
    while !seen() {
        ensure!(std::time::Instant::now() < end, "not seen in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn a_cancelled_call_ends_its_command_and_long_ones_report_progress() -> Result<()> {
    let home = home()?;
    let mut client = Client::start(&home, &["--scope", "all"])?;
    client.done("bottle_start", json!({"agent": "nap", "label": "one"}))?;
    let arguments = json!({"bottle": "one", "command": ["sleep", "300"], "timeout": 600});
    let params = json!({"name": "terminal", "arguments": arguments, "_meta": {"progressToken": "t"}});
    let id = client.begin("tools/call", params)?;
    let progress = client.message()?;
    ensure!(
        progress["method"] == "notifications/progress" && progress["params"]["progressToken"] == "t",
        "{progress}"
    );
    client.give_up(id, false)?;
    let end = std::time::Instant::now() + SOON;
    loop {
        let listed = client.done("process_list", json!({"bottle": "one"}))?;
        let agent = &listed["items"][0];
        if agent["processes"] == 1 && listed["items"].as_array().is_some_and(|all| all.len() == 1) {
            break;
        }
        ensure!(std::time::Instant::now() < end, "the command goes on: {listed}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn a_cancelled_call_starts_no_environment_and_uses_none() -> Result<()> {
    let mut home = home()?;
    home.write("home/.bottle/settings.yml", "environments: {agent: nap}\n")?;
    let begin = |client: &mut Client, command: &[&str]| -> Result<u64> {
        client
            .begin("tools/call", json!({"name": "env_run", "arguments": {"task": "one", "command": command}}))
    };
    let states = home.bottle_home().join("state");
    let bottles = || std::fs::read_dir(&states).map_or(0, Iterator::count);
    home.env("BOTTLE_FAKE_FAIL", "start_guest:hang");
    let mut client = Client::start(&home, &[])?;
    let id = begin(&mut client, &["true"])?;
    wait_until("the start begins", || bottles() > 0)?;
    client.give_up(id, false)?;
    wait_until("the start is undone", || bottles() == 0)?;
    drop(client);
    home.env("BOTTLE_FAKE_FAIL", "");
    let mut client = Client::start(&home, &[])?;
    client.done("env_run", json!({"task": "one", "command": ["true"]}))?;
    let id = begin(&mut client, &["sleep", "300"])?;
    let is_used = || {
        let listed = run(&home, &["env", "ls", "--json"]).and_then(|ran| ran.expect_code(0).json());
        listed.is_ok_and(|listed| listed[0]["in_use"] == true)
    };
    wait_until("the command begins", is_used)?;
    client.mistake("env_remove", json!({"task": "one"}))?;
    client.give_up(id, false)?;
    wait_until("the use ends", || !is_used())?;
    client.done("env_remove", json!({"task": "one"}))?;
    Ok(())
}

#[test]
fn hostile_lines_end_no_server_that_others_use() -> Result<()> {
    let home = home()?;
    let mut client = Client::start(&home, &[])?;
    let pieces = [
        "{",
        "}",
        "[",
        "]",
        "\"jsonrpc\":\"2.0\"",
        ",",
        "\"id\":",
        "1",
        "\"method\":",
        "\"tools/call\"",
        "\"params\":",
        "null",
        "\"\\ud800\"",
        "{\"name\":\"terminal\"}",
        "-1",
        "1e999",
        "\u{1b}[2J",
        "[[[[[[[[",
        "\"tools/list\"",
    ];
    for round in 0..10_000_u32 {
        let mut line = String::new();
        for _ in 0..rand::random_range(0..12) {
            line += pieces[rand::random_range(0..pieces.len())];
        }
        line.push('\n');
        client.write(line.as_bytes())?;
        if round % 1000 == 0 {
            client.ask("ping", json!({})).with_context(|| format!("round {round}, after {line:?}"))?;
        }
    }
    client.ask("ping", json!({}))?;
    Ok(())
}

/// Posts a message. Returns the status and the body.
fn post(server: &McpServer, headers: &str, message: &Value) -> Result<(u16, String)> {
    let mut socket = TcpStream::connect_timeout(&server.address.parse()?, SOON)?;
    socket.set_read_timeout(Some(SOON))?;
    let body = message.to_string();
    write!(
        socket,
        "POST /mcp HTTP/1.1\r\n{headers}content-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut response = String::new();
    socket.read_to_string(&mut response)?;
    let status = response.split(' ').nth(1).context("a status")?.parse()?;
    Ok((status, response))
}

fn host(server: &McpServer) -> String {
    format!("host: {}\r\n", server.address)
}

/// Calls a tool with a token. Returns the result, which is in an event.
fn call(server: &McpServer, token: &str, tool: &str, arguments: &Value) -> Result<Value> {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let (status, body) =
        post(server, &format!("{}authorization: Bearer {token}\r\n", host(server)), &message)?;
    ensure!(status == 200, "{body}");
    let document = body.lines().find_map(|line| {
        let text = line.strip_prefix("data: ").unwrap_or(line);
        serde_json::from_str::<Value>(text).ok().filter(|value| value["id"] == 1)
    });
    Ok(document.with_context(|| body.clone())?["result"].clone())
}

#[test]
fn a_token_opens_its_bottles_and_tools_over_http() -> Result<()> {
    let home = home()?;
    let ((full, all), (narrow, few)) = (token(&home, "full")?, token(&home, "narrow")?);
    let few = few.replace("[started]", "[ci-*]") + "  tools: ['file_*', terminal]\n  mode: teenager\n";
    home.write("project/tokens.yml", &format!("{all}{few}"))?;
    home.write("home/.bottle/settings.yml", "supervise: {call_wait: 1s}\n")?;
    let server = McpServer::start(&home)?;
    let started = call(&server, &full, "bottle_start", &json!({"agent": "nap", "label": "one"}))?;
    ensure!(started["structuredContent"]["slug"] == "one", "{started}");
    let _ = run(&home, &["start", "nap", "--detach", "--yes", "-q", "--label", "ci-1"])?.expect_code(0);
    let is_error = |result: &Value| result["isError"] == true;
    let echo = |bottle: &str| json!({"bottle": bottle, "command": ["echo", "x"]});
    ensure!(!is_error(&call(&server, &full, "terminal", &echo("one"))?));
    ensure!(is_error(&call(&server, &full, "terminal", &echo("ci-1"))?), "another client started it");
    ensure!(!is_error(&call(&server, &narrow, "terminal", &echo("ci-1"))?));
    ensure!(is_error(&call(&server, &narrow, "terminal", &echo("one"))?));
    ensure!(
        is_error(&call(&server, &narrow, "bottle_start", &json!({"agent": "nap"}))?),
        "the tool is not granted"
    );
    // The user can answer as long as a call waits.
    let asked = call(&server, &narrow, "terminal", &json!({"bottle": "ci-1", "command": "make"}))?;
    ensure!(is_error(&asked) && asked.to_string().contains("was not approved in time"), "{asked}");

    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let bearer = format!("authorization: Bearer {full}\r\n");
    for (headers, status) in [
        (format!("{}{bearer}", host(&server)), 200),
        (host(&server), 401),
        (format!("{}authorization: Bearer {}\r\n", host(&server), "0".repeat(64)), 401),
        (format!("{}authorization: Basic {full}\r\n", host(&server)), 401),
        (format!("{}{bearer}{bearer}", host(&server)), 401),
        (format!("host: evil.example\r\n{bearer}"), 403),
        (format!("{}{bearer}origin: http://evil.example\r\n", host(&server)), 403),
        (format!("{}{bearer}origin: null\r\n", host(&server)), 403),
    ] {
        let (found, body) = post(&server, &headers, &ping)?;
        ensure!(found == status, "{headers}: {body}");
    }
    Ok(())
}

#[test]
fn wrong_usage_is_refused() -> Result<()> {
    let home = home()?;
    home.write("project/bad.yml", "- {name: ci, sha256: abc}\n")?;
    home.write("home/.cursor/mcp.json", "// mine\n{}")?;
    let text = transcripts(
        &home,
        &[
            &["mcp", "--http"],
            &["mcp", "--http", "--token-file", "absent.yml"],
            &["mcp", "--http", "--token-file", "bad.yml"],
            &["mcp", "token", "a b"],
            &["mcp", "--scope", "{a"],
            &["mcp", "--port", "1"],
            &["mcp", "install", "claude", "--dry-run", "--scope", "all"],
            &["mcp", "install", "vscode", "--dry-run"],
            &["mcp", "install", "cursor"],
            &["mcp", "install", "emacs"],
        ],
    )?;
    let program = home.program([""])?.command().get_program().to_string_lossy().into_owned();
    snapshot!(text.replace(&program, "[PROGRAM]"));
    Ok(())
}

#[test]
fn a_bottle_ends_with_the_connection_that_owns_it() -> Result<()> {
    let home = home()?;
    let mut client = Client::start(&home, &[])?;
    client.done("bottle_start", json!({"agent": "nap", "label": "one", "owned": true}))?;
    client.done("bottle_start", json!({"agent": "nap", "label": "two"}))?;
    crate::owned::wait_until_running(&home, &["one", "two"])?;
    client.give_up(0, true)?;
    crate::owned::wait_until_running(&home, &["two"])
}
