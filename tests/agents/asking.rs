//! Tests that Claude Code and codex propose routes by themselves. The proxy denies a request, the agent calls
//! the MCP server's tools, a user answers, and the same request is allowed, all in one run of the agent.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::{agents, server};
use serde_json::Value;

use super::scene::{Place, Scene, Template, agent, engine};
use super::{claude, codex};

/// The time limit for the agent, which includes building its image.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

const FETCH: &str = "curl -s -o page -w 'status %{http_code}.' http://api.site.example/new; cat page";
const LIST: &str = "mcp:list-egress-routes {}";
const BLOCK: &str = "mcp:egress-block {\"routes\": [{\"host\": \"api.site.example\", \"matches\": [{\"methods\": [\"GET\"], \
                     \"paths\": [{\"type\": \"exact\", \"value\": \"/new\"}]}]}], \"justification\": \"the task needs it\", \
                     \"refusal_id\": \"$REFUSAL\"}";
const ALLOW: &str =
    "mcp:egress-allow {\"routes\": [{\"host\": \"other.example\"}], \"justification\": \"maybe later\"}";

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_makes_a_proposal() -> Result<()> {
    let Some(claude) = agent("claude asks", agents::claude())? else { return Ok(()) };
    asks(&Place::Linux(claude), &claude::API_KEY, Ipv4Addr::LOCALHOST.into())
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_claude_on_docker_makes_a_proposal() -> Result<()> {
    let Some(place) = engine("claude asks on docker")? else { return Ok(()) };
    let Place::Docker(machine) = place else { return Ok(()) };
    asks(&place, &claude::API_KEY, machine)
}

#[test]
#[ignore = "fetches codex once"]
fn real_codex_makes_a_proposal() -> Result<()> {
    let Some(codex) = agent("codex asks", agents::codex())? else { return Ok(()) };
    asks(&Place::Linux(codex), &codex::API_KEY, Ipv4Addr::LOCALHOST.into())
}

fn asks(place: &Place, template: &Template<'_>, address: IpAddr) -> Result<()> {
    let site = server::says_yes(address)?;
    let mut scene = Scene::playing(place, template, &[FETCH, LIST, BLOCK, FETCH, ALLOW, FETCH])?;
    scene.add_to_bottle(
        template.name,
        &format!(
            "  routes:\n  - host: '*.site.example'\n    ports: [80]\n    connect_to: \"{site}\"\n    \
             matches: [{{methods: [GET], paths: [{{type: exact, value: /open}}]}}]\n"
        ),
    )?;
    let outcome = std::thread::scope(|scope| {
        let starting = scope.spawn(|| scene.start_headless(template.name));
        let answered = answer(&scene, || starting.is_finished());
        let outcome = starting.join().map_err(|_| anyhow::anyhow!("the agent's thread ended"))??;
        answered.map(|()| outcome)
    });
    let calls: Vec<_> = scene.llm.seen().into_iter().filter(|call| call.step.is_some()).collect();
    let tools = calls.first().map(|call| declared(&call.body)).unwrap_or_default();
    let outcome = outcome.with_context(|| format!("the agent's tools: {tools:?}"))?;
    let conversation = &calls.last().context("a call of the model")?.body;
    let seen = |words: &str| conversation.contains(words);
    ensure!(seen("status 403.") && seen("status 200."), "{conversation}\n{}", outcome.transcript());
    let before = conversation.find("status 403.").zip(conversation.find("status 200."));
    ensure!(before.is_some_and(|(refused, passed)| refused < passed), "{conversation}");
    ensure!(seen("the routes are live; make your request"), "{conversation}");
    ensure!(seen("not that one"), "the reason of a no reaches the agent: {conversation}");
    let _ = scene.bottle(&["audit", "verify"])?;
    Ok(())
}

/// Approves the proposal that follows a denial, and rejects the other proposal.
fn answer(scene: &Scene, ended: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    let mut answered = 0;
    while answered < 2 {
        let pending = scene.bottle(&["supervise", "list", "--json"])?.json()?;
        if let Some(question) = pending.as_array().and_then(|all| all.first()) {
            let id = question["id"].as_str().context("its name")?;
            if question["tool"] == "egress-block" {
                let why = question["justification"].as_str().unwrap_or_default();
                ensure!(why.starts_with("the task needs it\n(after the refusal "), "{why}");
                scene.bottle(&["supervise", "approve", id])?;
            } else {
                scene.bottle(&["supervise", "reject", id, "--reason", "not that one"])?;
            }
            answered += 1;
        }
        ensure!(!ended() && Instant::now() < end, "only {answered} proposals");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Returns the names of the tools that the agent declared to the model.
fn declared(body: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let name = |tool: &Value| tool["name"].as_str().map_or_else(|| tool.to_string(), str::to_owned);
    body["tools"].as_array().into_iter().flatten().map(name).collect()
}
