//! Kills processes at arbitrary moments of an approval. No question may be lost, no route may be active without its
//! entry in the audit log, and the log's hash chain must be valid.
//!
//! The test acts as the agent and sends requests through the bottle's proxy.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bottle_policy::names::{EGRESS_PORT, SUPERVISE_PORTS};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use serde_json::{Value, json};

use super::left::process_with;
use super::{cleanup_leaves_nothing, home, wait_until};

/// The number of rounds. The delay grows with each round, from before the answer is written to after it is sent.
const ROUNDS: u64 = 14;
const STEP: Duration = Duration::from_micros(4_700);

fn run(home: &TestHome, arguments: &[&str]) -> Outcome {
    home.program(arguments.iter().copied()).expect("program").run().expect("run")
}

/// A home in which the detached bottle `one` runs.
fn detached() -> TestHome {
    let mut home = home();
    home.without_cleanup();
    let start = ["start", "sleeper", "--bottle", "fake", "--yes", "--detach", "--label", "one"];
    let _ = run(&home, &start).expect_code(0);
    home
}

/// The path of the proxy's socket for this port.
fn socket(home: &TestHome, port: u16) -> PathBuf {
    fn find(directory: &Path, name: &str) -> Option<PathBuf> {
        let entries = std::fs::read_dir(directory).ok()?.filter_map(Result::ok).map(|entry| entry.path());
        entries.into_iter().find_map(|path| {
            if path.is_dir() { find(&path, name) } else { path.ends_with(name).then_some(path) }
        })
    }
    find(&home.runtime(), &port.to_string()).expect("the proxy's socket")
}

/// Asks for a host without waiting for the answer. The caller keeps the connection open.
fn ask(home: &TestHome, host: &str) -> UnixStream {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "egress-allow", "arguments": {"routes": [{"host": host}], "justification": "to see"}}});
    let body = call.to_string();
    let mut socket = UnixStream::connect(socket(home, SUPERVISE_PORTS[0])).expect("the MCP server");
    write!(
        socket,
        "POST /mcp HTTP/1.1\r\nHost: supervise:9100\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("asked");
    socket
}

/// The ids of the pending questions.
fn waiting(home: &TestHome) -> Vec<String> {
    let listed = run(home, &["supervise", "list", "--json"]).expect_code(0).json().expect("JSON");
    let waits = |question: &&Value| question["stale"] == false;
    let all = listed.as_array().into_iter().flatten().filter(waits);
    all.filter_map(|question| question["id"].as_str().map(str::to_owned)).collect()
}

/// The proxy's active revision, and the hosts in its routes.
fn live(home: &TestHome) -> (u64, Vec<String>) {
    let mut socket = UnixStream::connect(socket(home, EGRESS_PORT)).expect("the proxy");
    write!(
        socket,
        "GET http://_egress.local/allowlist HTTP/1.1\r\nHost: _egress.local\r\nConnection: close\r\n\r\n"
    )
    .expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("answered");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let body: Value =
        serde_json::from_str(&body[body.find('{').expect("JSON")..=body.rfind('}').expect("JSON")])
            .expect("JSON");
    let hosts = body["routes"].as_array().into_iter().flatten().filter_map(|route| route["host"].as_str());
    (body["revision"].as_u64().expect("a revision"), hosts.map(str::to_owned).collect())
}

/// Asserts that the audit log's chain is valid and that the log contains the approval of `revision`.
fn audited(home: &TestHome, revision: u64, when: &str) {
    let verified = run(home, &["audit", "verify"]);
    assert_eq!(verified.code, 0, "{when}: {}{}", verified.stdout, verified.stderr);
    let lines = run(home, &["audit", "show", "one", "--json"]).expect_code(0).json().expect("JSON");
    let meant = |line: &Value| line["entry"]["what"] == "intent" && line["entry"]["revision"] == revision;
    let meant = lines.as_array().into_iter().flatten().any(meant);
    assert!(meant || revision == 1, "{when}: {revision} is live and nobody meant it: {lines:#}");
}

/// Runs an approval of `id` and kills the process in `role` after a delay. Without `role`, kills the approving command.
fn approve_and_kill(home: &TestHome, id: &str, role: Option<&str>, after: Duration) {
    let mut command = home.program(["supervise", "approve", id]).expect("program").command();
    let mut approving = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("spawned");
    std::thread::sleep(after);
    match role {
        Some(role) => process_with(home, role).expect("the process").kill(),
        None => approving.kill().expect("killed"),
    }
    approving.wait().expect("its end");
}

/// Approves `id` until the approval takes effect or the question is no longer pending.
fn approved_in_the_end(home: &TestHome, id: &str, when: &str) {
    wait_until(&format!("{id} is answered {when}"), || {
        // The `exec` command causes a new keeper to adopt the bottle.
        let _ = run(home, &["exec", "one", "--", "true"]).expect_code(0);
        let approved = run(home, &["supervise", "approve", id]);
        approved.code == 0 || !waiting(home).iter().any(|waits| waits == id)
    });
}

fn killed_at_unchosen_moments(role: Option<&str>) {
    let home = detached();
    for round in 0..ROUNDS {
        let (host, when) = (format!("h{round}.example"), format!("round {round} of {role:?}"));
        let _asking = ask(&home, &host);
        wait_until(&format!("{host} is asked for"), || waiting(&home).len() == 1);
        let id = waiting(&home).remove(0);
        approve_and_kill(&home, &id, role, STEP * u32::try_from(round).expect("few"));
        approved_in_the_end(&home, &id, &when);
        wait_until(&format!("{host} is live {when}"), || live(&home).1.contains(&host));
        audited(&home, live(&home).0, &when);
    }
    let (_, hosts) = live(&home);
    assert_eq!(hosts.len(), usize::try_from(ROUNDS).expect("few"), "{hosts:?}");
    let _ = run(&home, &["stop", "one", "--time", "0"]).expect_code(0);
    cleanup_leaves_nothing(&home, "");
}

#[test]
fn a_keeper_killed_during_an_approval_loses_nothing() {
    killed_at_unchosen_moments(Some("__keeper"));
}

#[test]
fn the_answering_client_may_be_killed() {
    killed_at_unchosen_moments(None);
}

#[test]
fn a_sidecar_killed_during_an_approval_leaves_a_correct_audit_log() {
    for role in ["__egress", "__supervise", "__bundle"] {
        for round in [0, 1, 4] {
            let when = format!("round {round} of {role}");
            let home = detached();
            let _asking = ask(&home, "a.example");
            wait_until("it is asked for", || waiting(&home).len() == 1);
            let id = waiting(&home).remove(0);
            approve_and_kill(&home, &id, Some(role), STEP * round);
            let verified = run(&home, &["audit", "verify"]);
            assert_eq!(verified.code, 0, "{when}: {}{}", verified.stdout, verified.stderr);
            if role == "__supervise" {
                // The proxy still runs after the supervise sidecar was killed.
                approved_in_the_end_or_stale(&home, &id);
                audited(&home, live(&home).0, &when);
            }
            let _ = run(&home, &["stop", "one", "--time", "0"]).expect_code(0);
            cleanup_leaves_nothing(&home, &when);
        }
    }
}

/// After the supervise sidecar ended, the question becomes stale, unless it was answered before.
fn approved_in_the_end_or_stale(home: &TestHome, id: &str) {
    wait_until("it is answered or stale", || !waiting(home).iter().any(|waits| waits == id));
}
