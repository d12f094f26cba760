//! Tests the tools that the keeper executes. The tests list the tools, call the tools, and cancel a call.

use std::io::Write;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use bottle_channel::{Channel, ChannelError, Stream};
use bottle_protocol::queue::Answer;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_protocol::session::tools::{ToolAnswer, ToolRequest};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::scene::{PATIENCE, Scene};

/// Receives the next call in the role of a keeper.
async fn taken(keeper: &Channel) -> Result<(Stream, ToolRequest)> {
    let mut stream = keeper.open(&BundleRequest::ToolCall).await?;
    match tokio::time::timeout(PATIENCE, stream.receive()).await?? {
        BundleEvent::ToolCalled(request) => Ok((stream, request)),
        other => anyhow::bail!("{other:?}"),
    }
}

/// Answers the next call with `answer` in the role of a keeper. Returns the request of the call.
fn answers(scene: &Scene, answer: Option<ToolAnswer>) -> JoinHandle<Result<ToolRequest>> {
    let keeper = scene.channel().clone();
    tokio::spawn(async move {
        let (stream, request) = taken(&keeper).await?;
        // If `answer` is `None`, the keeper closes the stream without an answer.
        if let Some(answer) = answer {
            stream.message(&answer).await?;
            stream.end().await?;
        }
        Ok(request)
    })
}

pub(crate) async fn off() -> Result<()> {
    let scene = Scene::start(|_| Answer::Expired).await?;
    let mut stream = scene.channel().open(&BundleRequest::ToolCall).await?;
    let refused: Result<BundleEvent, ChannelError> = stream.receive().await;
    ensure!(refused.is_err(), "{refused:?}");
    let answer = scene.tool("bottle_start", json!({"agent": "x"}))?.json()?;
    ensure!(answer["error"]["message"].to_string().contains("unknown tool"), "{answer}");
    Ok(())
}

pub(crate) async fn passed() -> Result<()> {
    let scene = Scene::start_with_keeper_tools().await?;
    let tool = json!({"name": "bottle_list", "description": "Lists.", "inputSchema": {"type": "object"}});
    let listed = answers(&scene, Some(ToolAnswer::Tools { tools: vec![tool, json!("no tool")] }));
    let list = scene.call("2025-11-25", "tools/list", json!({}))?.result()?;
    let names: Vec<&str> =
        list["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str()).collect();
    ensure!(
        names == ["list-egress-routes", "egress-allow", "egress-block", "check-proposal", "bottle_list"],
        "{names:?}"
    );
    ensure!(listed.await?? == ToolRequest::List);
    // The list of tools does not change while the bottle runs, so the daemon requests it only once from the keeper.
    let again = scene.call("2025-11-25", "tools/list", json!({}))?.result()?;
    ensure!(again == list, "{again}");

    let document = json!({"items": [{"slug": "one"}]});
    let mistake = ToolAnswer::mistake("no such bottle");
    for (answer, expected) in [
        (Some(ToolAnswer::Document { document: document.clone() }), "\"isError\":false"),
        (Some(ToolAnswer::Text { text: "a diff".to_owned() }), "a diff"),
        (Some(mistake), "no such bottle"),
        // In these cases, the keeper sends an answer of the wrong kind, or disconnects after it has received the call.
        (Some(ToolAnswer::Tools { tools: Vec::new() }), "another answer than a result"),
        (None, "the connection to bottle was lost"),
    ] {
        let asked = answers(&scene, answer);
        let result = scene.tool("bottle_list", json!({"a": [1, null, "\u{1b}"]}))?.result()?;
        ensure!(result.to_string().contains(expected), "{expected}: {result}");
        let arguments = json!({"a": [1, null, "\u{1b}"]}).as_object().cloned().context("arguments")?;
        ensure!(asked.await?? == ToolRequest::Call { tool: "bottle_list".to_owned(), arguments });
    }
    // Calls of the daemon's own tools do not reach the keeper.
    let routes = scene.tool("list-egress-routes", json!({}))?.result()?;
    ensure!(routes["structuredContent"]["revision"] == 1, "{routes}");
    Ok(())
}

pub(crate) async fn cancelled() -> Result<()> {
    let scene = Scene::start_with_keeper_tools().await?;
    let parameters = json!({"name": "terminal", "arguments": {}});
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": parameters}).to_string();
    let mut client = UnixStream::connect(scene.socket())?;
    write!(
        client,
        "POST /mcp HTTP/1.1\r\nHost: supervise:9100\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let (mut stream, request) = taken(scene.channel()).await?;
    ensure!(matches!(request, ToolRequest::Call { ref tool, .. } if tool == "terminal"), "{request:?}");
    drop(client);
    let end: Result<Value, ChannelError> = tokio::time::timeout(PATIENCE, stream.receive()).await?;
    ensure!(end.is_err(), "{end:?}");
    Ok(())
}
