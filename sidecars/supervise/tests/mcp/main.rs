//! Tests the daemon as a separate process. The test acts as the daemon's parent process and as an agent's MCP client.
//!
//! The client sends hand-written JSON-RPC messages over HTTP, without the SDK. If the first argument of this program is
//! `__supervise`, the program runs the daemon. Otherwise, the program runs the tests.

mod keeper_tools;
mod python_client;
mod scene;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_protocol::queue::{Answer, Status, Tool};
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};

use scene::{PATIENCE, Scene};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("__supervise") {
        return bottle_supervise::run();
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    vec![
        trial("lists_the_same_tools_in_every_protocol_revision", lists_tools),
        trial("returns_the_users_answer_to_the_agent", answered),
        slow_trial("serves_the_official_python_client", python_client::serves),
        trial("sends_progress_notifications_on_request", progress),
        trial("waits_for_the_configured_time", waiting),
        trial("explains_an_invalid_call_without_a_question", invalid),
        trial("has_no_tools_of_the_keeper_by_default", keeper_tools::off),
        trial("passes_calls_to_the_keeper", keeper_tools::passed),
        trial("cancels_a_call_that_no_client_wants", keeper_tools::cancelled),
        trial("refuses_other_requests", bounds),
        trial("drops_its_privileges", hardened),
    ]
}

fn trial<F: Future<Output = Result<()>> + 'static>(name: &str, test: fn() -> F) -> Trial {
    within(3 * PATIENCE, name, test)
}

/// Defines a test with a longer time limit, because the test may first download a package.
fn slow_trial<F: Future<Output = Result<()>> + 'static>(name: &str, test: fn() -> F) -> Trial {
    within(30 * PATIENCE, name, test)
}

fn within<F: Future<Output = Result<()>> + 'static>(longest: Duration, name: &str, test: fn() -> F) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let outcome = runtime.block_on(async { tokio::time::timeout(longest, test()).await });
        outcome.context("the test took too long").and_then(|done| done).map_err(|e| format!("{e:?}").into())
    })
}

/// Returns protocol revisions of MCP clients, with the metadata that a client of each revision sends in every request.
fn revisions() -> [(&'static str, Value); 3] {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    });
    [("2025-06-18", Value::Null), ("2025-11-25", Value::Null), ("2026-07-28", meta)]
}

async fn lists_tools() -> Result<()> {
    let scene = Scene::start(|_| Answer::Expired).await?;
    for (revision, meta) in revisions() {
        if meta.is_null() {
            let hello = json!({"protocolVersion": revision, "capabilities": {},
                               "clientInfo": {"name": "test", "version": "1"}});
            let result = scene.call(revision, "initialize", hello)?.result()?;
            ensure!(result["protocolVersion"] == revision, "{result}");
            ensure!(result["instructions"].as_str().is_some_and(|text| text.contains("403")), "{result}");
        } else {
            let result = scene.call(revision, "server/discover", json!({"_meta": meta}))?.result()?;
            ensure!(result.to_string().contains("bottle-supervise"), "{result}");
        }
        let mut parameters = json!({});
        if !meta.is_null() {
            parameters["_meta"] = meta.clone();
        }
        let result = scene.call(revision, "tools/list", parameters.clone())?.result()?;
        let names: Vec<&str> = result["tools"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|tool| tool["name"].as_str())
            .collect();
        ensure!(
            names == ["list-egress-routes", "egress-allow", "egress-block", "check-proposal"],
            "{revision}: {names:?}"
        );
        parameters["name"] = "list-egress-routes".into();
        parameters["arguments"] = json!({});
        let routes = &scene.call(revision, "tools/call", parameters)?.result()?["structuredContent"];
        ensure!(routes["revision"] == 1 && routes["routes"][0]["host"] == "open.example", "{routes}");
        // The response must contain neither the names of secrets nor addresses in the user's network.
        ensure!(
            !routes.to_string().contains("slot") && !routes.to_string().contains("203.0.113.9"),
            "{routes}"
        );
    }
    Ok(())
}

async fn answered() -> Result<()> {
    let scene = Scene::start(|question| {
        let host = question.proposed_file.split_whitespace().last().unwrap_or_default().to_owned();
        let (status, file) = match host.as_str() {
            "yes.example" => (Status::Approved, None),
            "other.example" => (Status::Modified, Some("routes:\n- host: another.example\n".to_owned())),
            "late.example" => return Answer::Expired,
            "full.example" => return Answer::Refused("16 proposals are pending already".to_owned()),
            _ => (Status::Rejected, None),
        };
        Scene::decided(question, status, Some("because"), file)
    })
    .await?;
    for (host, status, tool) in [
        ("yes.example", "approved", "egress-allow"),
        ("other.example", "modified", "egress-block"),
        ("no.example", "rejected", "egress-allow"),
        ("late.example", "expired", "egress-allow"),
        ("full.example", "refused", "egress-allow"),
    ] {
        let mut arguments = json!({"routes": [{"host": host}], "justification": "to see"});
        if tool == "egress-block" {
            arguments["refusal_id"] = "ddec6bbf7190".into();
        }
        let result = scene.tool(tool, arguments)?.result()?["structuredContent"].clone();
        ensure!(result["status"] == status, "{host}: {result}");
        if let "approved" | "modified" | "rejected" = status {
            ensure!(result["notes"] == "because", "{result}");
            // A later check of the proposal returns the same result.
            let again = scene.tool("check-proposal", json!({"id": result["id"]}))?.result()?;
            ensure!(again["structuredContent"]["status"] == status, "{again}");
        }
        ensure!((status == "modified") == result["routes"].is_string(), "{result}");
    }
    let asked = scene.asked();
    ensure!(asked.len() == 5, "{asked:?}");
    ensure!(asked[0].proposed_file == "routes:\n- host: yes.example\n", "{:?}", asked[0].proposed_file);
    ensure!(asked[0].revision == Some(1) && asked[0].tool == Tool::EgressAllow);
    ensure!(asked[1].justification == "to see\n(after the refusal ddec6bbf7190)");
    // If a proposed route is already active, the user is not asked.
    scene.routes(2, "routes:\n- host: no.example\n").await?;
    let result =
        scene.tool("egress-allow", json!({"routes": [{"host": "no.example"}], "justification": "x"}))?;
    let result = result.result()?["structuredContent"].clone();
    ensure!(result["status"] == "approved" && result["revision"] == 2, "{result}");
    ensure!(scene.asked().len() == 5);
    Ok(())
}

async fn progress() -> Result<()> {
    let scene = Scene::start_with_patience(45, Duration::from_millis(300), |question| {
        Scene::decided(question, Status::Approved, None, None)
    })
    .await?;
    let parameters = json!({
        "name": "egress-allow",
        "arguments": {"routes": "- host: yes.example\n", "justification": "x"},
        "_meta": {"progressToken": "t-1"},
    });
    let begun = Instant::now();
    let answer = scene.call("2025-11-25", "tools/call", parameters)?;
    ensure!(answer.head.contains("text/event-stream"), "{}", answer.head);
    let messages = answer.messages()?;
    let first = messages.first().context("messages")?;
    ensure!(
        first["method"] == "notifications/progress" && first["params"]["progressToken"] == "t-1",
        "{first}"
    );
    let last = messages.last().context("messages")?;
    ensure!(last["result"]["structuredContent"]["status"] == "approved", "{last}");
    ensure!(begun.elapsed() >= Duration::from_millis(300), "it waited for the user");
    Ok(())
}

/// A call waits for the configured time and then returns `pending`. A later check of the proposal waits again.
async fn waiting() -> Result<()> {
    let scene = Scene::start_with_patience(1, Duration::from_secs(6), |question| {
        Scene::decided(question, Status::Approved, None, None)
    })
    .await?;
    let begun = Instant::now();
    let result =
        scene.tool("egress-allow", json!({"routes": [{"host": "yes.example"}], "justification": "x"}))?;
    let result = result.result()?["structuredContent"].clone();
    ensure!(result["status"] == "pending", "{result}");
    let took = begun.elapsed();
    ensure!((Duration::from_secs(1)..Duration::from_secs(6)).contains(&took), "{took:?}");
    loop {
        let result = scene.tool("check-proposal", json!({"id": result["id"]}))?;
        let result = result.result()?["structuredContent"].clone();
        if result["status"] == "approved" {
            return Ok(());
        }
        ensure!(result["status"] == "pending" && begun.elapsed() < PATIENCE, "{result}");
    }
}

async fn invalid() -> Result<()> {
    let scene = Scene::start(|_| Answer::Expired).await?;
    let why = "x";
    let answer = scene.tool("egress-deny", json!({}))?.json()?;
    ensure!(answer["error"]["code"] == -32602, "{answer}");
    ensure!(
        answer["error"]["message"].as_str().is_some_and(|text| text.contains("unknown tool")),
        "{answer}"
    );
    for (tool, arguments, words) in [
        ("list-egress-routes", json!({"x": 1}), "unknown field `x`"),
        ("egress-allow", json!({"justification": why}), "missing field `routes`"),
        ("egress-allow", json!({"routes": [{"host": "a.example"}], "justification": 7}), "invalid type"),
        (
            "egress-allow",
            json!({"routes": [{"host": "a.example"}], "justification": why, "revision": "2"}),
            "invalid type",
        ),
        (
            "egress-block",
            json!({"routes": [{"host": "a.example"}], "justification": why, "refusal_id": "a b"}),
            "`refusal_id`",
        ),
        ("check-proposal", json!({"id": "../x"}), "`id`"),
        (
            "egress-allow",
            json!({"routes": [{"host": "a.example", "auth": {"scheme": "Bearer", "token_ref": "S"}}], "justification": why}),
            "auth",
        ),
        (
            "egress-allow",
            json!({"routes": [{"host": "a.example", "private": true}], "justification": why}),
            "take out `private`",
        ),
        ("egress-allow", json!({"routes": [{"host": "http://a/"}], "justification": why}), "host"),
        ("egress-allow", json!({"routes": "- host: [", "justification": why}), "routes"),
        ("egress-allow", json!({"routes": [{"host": "key.example"}], "justification": why}), "credential"),
        ("egress-allow", json!({"routes": [{"host": "supervise"}], "justification": why}), "supervise"),
        ("check-proposal", json!({"id": "00000000-0000-4000-8000-000000000000"}), "unknown proposal"),
    ] {
        let answer = scene.tool(tool, arguments.clone())?.json()?;
        ensure!(answer["result"]["isError"] == true, "{tool} {arguments}: {answer}");
        ensure!(answer["result"]["content"][0]["type"] == "text", "{tool} {arguments}: {answer}");
        let message = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        ensure!(message.contains(words), "{tool} {arguments}: {message}");
    }
    ensure!(scene.asked().is_empty(), "{:?}", scene.asked());
    Ok(())
}

async fn bounds() -> Result<()> {
    let scene = Scene::start(|_| Answer::Expired).await?;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).to_string();
    for (what, path, host, extra, body, status) in [
        ("a valid request", "/mcp", "supervise:9100", "", list.clone(), 200),
        ("without a port", "/mcp", "supervise", "", list.clone(), 200),
        ("another path", "/", "supervise:9100", "", list.clone(), 404),
        ("another host", "/mcp", "evil.example", "", list.clone(), 403),
        ("a web page", "/mcp", "supervise:9100", "Origin: http://evil.example\r\n", list.clone(), 403),
        ("too long", "/mcp", "supervise:9100", "", format!("{list}{}", " ".repeat(1 << 20)), 413),
    ] {
        let answer = scene.post(path, host, extra, &body)?;
        ensure!(answer.status()? == status, "{what}: {}", answer.head);
    }
    for body in ["", "{", "[]", "null", "{\"jsonrpc\":\"2.0\"}", "\u{0}\u{1b}[2J"] {
        let status = scene.post("/mcp", "supervise:9100", "", body)?.status()?;
        ensure!((400..500).contains(&status), "{body:?}: {status}");
    }
    // The daemon still serves requests.
    ensure!(scene.post("/mcp", "supervise:9100", "", &list)?.status()? == 200);
    Ok(())
}

async fn hardened() -> Result<()> {
    let scene = Scene::start(|_| Answer::Expired).await?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", scene.process()))?;
    for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        ensure!(status.contains(line), "{line} is not in\n{status}");
    }
    Ok(())
}
