//! Tests agents that reach the limit of a budget: they are paused and continue after a top-up, they stop by themselves
//! when the user refuses more tokens, and a frozen bottle continues later.

use std::hash::RandomState;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_meter::{Limits, MeteredRequest};
use bottle_protocol::usage::Api;
use bottle_test_support::agents;
use serde_json::Value;

use super::scene::{Place, Scene, Template, agent, engine};
use super::{claude, codex, pi};

/// The time limit for an agent, which includes building its image.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// The commands of a task with four calls of the model. Each response reports a quarter of a token for each byte of the
/// request.
const COMMANDS: [&str; 3] = ["echo one > one.txt", "echo two > two.txt", "cat one.txt two.txt"];

#[test]
fn pi_is_paused_and_goes_on() -> Result<()> {
    let Some(pi) = agent("pi has a budget", agents::pi())? else { return Ok(()) };
    goes_on(&Place::Linux(pi), &pi::TEMPLATE)
}

#[test]
fn pi_stops_when_the_user_refuses() -> Result<()> {
    let Some(pi) = agent("pi is refused", agents::pi())? else { return Ok(()) };
    stops(&Place::Linux(pi), &pi::TEMPLATE)
}

#[test]
fn pi_is_frozen_and_goes_on_later() -> Result<()> {
    let Some(pi) = agent("pi is frozen", agents::pi())? else { return Ok(()) };
    freezes(&Place::Linux(pi), &pi::TEMPLATE)
}

#[test]
fn pi_is_killed_and_nothing_is_left() -> Result<()> {
    let Some(pi) = agent("pi is killed", agents::pi())? else { return Ok(()) };
    is_killed(&Place::Linux(pi), &pi::TEMPLATE)
}

#[test]
fn pi_waits_for_the_next_minute() -> Result<()> {
    let Some(pi) = agent("pi has a limit for each minute", agents::pi())? else { return Ok(()) };
    let place = Place::Linux(pi);
    // The tokens are enough for either of the first two calls, but not for both.
    let tokens = budget_of_one_call(&place, &pi::TEMPLATE)? + 500;
    let scene = Scene::playing(&place, &pi::TEMPLATE, &COMMANDS)?;
    let budget = format!("budget: {{pi: {{minute: {tokens}}}}}\n");
    scene.home.write("home/.bottle/settings.yml", &budget)?;
    let start = ["start", "pi", "--backend", "linux", "--yes", "--label", "task", "-p", "Write a file."];
    let mut pty = scene.home.on_terminal(&start, 40, 200)?;
    pty.wait_for("task: requests to models wait up to a minute: the budget of host for pi in each minute")?;
    ensure!(scene.llm.steps_served() == [0], "{:?}", scene.llm.steps_served());
    pty.type_keys("\x03")?;
    ensure!(pty.wait_exit()? == 130, "{}", pty.screen());
    Ok(())
}

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_is_paused_and_goes_on() -> Result<()> {
    let Some(claude) = agent("claude has a budget", agents::claude())? else { return Ok(()) };
    goes_on(&Place::Linux(claude), &claude::API_KEY)
}

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_stops_when_the_user_refuses() -> Result<()> {
    let Some(claude) = agent("claude is refused", agents::claude())? else { return Ok(()) };
    stops(&Place::Linux(claude), &claude::API_KEY)
}

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_is_frozen_and_goes_on_later() -> Result<()> {
    let Some(claude) = agent("claude is frozen", agents::claude())? else { return Ok(()) };
    freezes(&Place::Linux(claude), &claude::API_KEY)
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_codex_is_paused_and_goes_on() -> Result<()> {
    let Some(codex) = agent("codex has a budget", agents::codex())? else { return Ok(()) };
    goes_on(&Place::Linux(codex), &codex::API_KEY)
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_codex_stops_when_the_user_refuses() -> Result<()> {
    let Some(codex) = agent("codex is refused", agents::codex())? else { return Ok(()) };
    stops(&Place::Linux(codex), &codex::API_KEY)
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_codex_over_a_websocket_is_paused_and_goes_on() -> Result<()> {
    let Some(codex) = agent("codex over a websocket has a budget", agents::codex())? else { return Ok(()) };
    let scene = codex::over_a_websocket(&codex)?;
    limit(&scene, codex::OWN_HOST, "pause", 5)?;
    resumes(&scene, "codex")
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_claude_on_docker_is_paused_and_goes_on() -> Result<()> {
    let Some(place) = engine("claude has a budget on docker")? else { return Ok(()) };
    goes_on(&place, &claude::API_KEY)
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_codex_on_docker_is_paused_and_goes_on() -> Result<()> {
    let Some(place) = engine("codex has a budget on docker")? else { return Ok(()) };
    goes_on(&place, &codex::API_KEY)
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_pi_on_docker_stops_when_the_user_refuses() -> Result<()> {
    let Some(place) = engine("pi is refused on docker")? else { return Ok(()) };
    stops(&place, &pi::TEMPLATE)
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_claude_on_docker_is_frozen_and_goes_on_later() -> Result<()> {
    let Some(place) = engine("claude is frozen on docker")? else { return Ok(()) };
    freezes(&place, &claude::API_KEY)
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_codex_on_docker_is_killed_and_nothing_is_left() -> Result<()> {
    let Some(place) = engine("codex is killed on docker")? else { return Ok(()) };
    is_killed(&place, &codex::API_KEY)
}

/// The maximum difference between the prompts of two runs, in tokens. The prompts differ because they contain names of
/// temporary directories and other random texts. Each call uses many more tokens.
const DIFFERENCE: u64 = 100;

/// Returns a budget that suffices for the first call of the task, but not for the second call. The budget is the sum of
/// the tokens that the proxy reserves for the first call, as a run without a budget shows, and the tokens that other
/// calls used.
fn budget_of_one_call(place: &Place, template: &Template<'_>) -> Result<u64> {
    let scene = Scene::playing(place, template, &COMMANDS)?;
    scene.start_headless(template.name)?;
    let calls = scene.llm.seen();
    let first = calls.iter().find(|call| call.step == Some(0)).context("the first call")?;
    let path = first.path.split('?').next().unwrap_or_default();
    let api = Api::from_request("POST", path).context("its API")?;
    let request = MeteredRequest::read(api, first.body.as_bytes(), &RandomState::new(), false)?;
    let limits = Limits::of(request.model.as_deref());
    let output = request.output.unwrap_or(limits.output);
    let prompt = match request.reference {
        Some(_) => request.prompt().max(limits.window.saturating_sub(output)),
        None => request.prompt(),
    };
    let others = calls.iter().filter(|call| call.step.is_none()).filter_map(|call| call.used.as_ref());
    let others: u64 = others.map(|used| used.input + used.output).sum();
    Ok(prompt + output + others + DIFFERENCE)
}

/// Tests that the agent is paused, the user raises the budget, and the agent continues.
fn goes_on(place: &Place, template: &Template<'_>) -> Result<()> {
    resumes(&scene(place, template, "pause", 5)?, template.name)
}

/// Like [`goes_on`], with the agent `name` of `scene`. The budget suffices for no call.
fn resumes(scene: &Scene, name: &str) -> Result<()> {
    let outcome = std::thread::scope(|scope| {
        let starting = scope.spawn(|| scene.try_headless(name));
        let raised = raise(scene, || starting.is_finished());
        let outcome = starting.join().map_err(|_| anyhow::anyhow!("the agent's thread ended"))??;
        raised.map(|()| outcome)
    })?;
    let outcome = outcome.expect_code(0);
    ensure!(outcome.stdout.contains("The scripted task is done."), "{}", outcome.transcript());
    let steps: Vec<usize> = scene.llm.seen().iter().filter_map(|call| call.step).collect();
    ensure!(steps == [0, 1, 2, 3], "each turn reached the model once: {steps:?}");
    let audit = scene.bottle(&["audit", "show", "task"])?.stdout;
    ensure!(audit.contains("pause of the budget host"), "{audit}");
    let _ = scene.bottle(&["audit", "verify"])?;
    let budget = &scene.bottle(&["budget", "--json"])?.json()?[0];
    let counted: u64 = scene.llm.usage().iter().map(|used| used.input + used.output).sum();
    ensure!(
        budget["spent"] == counted && budget["reserved"] == 0,
        "{budget}, and the model counted {counted}"
    );
    Ok(())
}

/// Waits until the agent is paused, and approves the proposal.
fn raise(scene: &Scene, ended: impl Fn() -> bool) -> Result<()> {
    let question = wait_for_question(scene, ended)?;
    scene.wait("the pause", || Ok(!bottle_of(scene)?["paused"].is_null()))?;
    let id = question["id"].as_str().context("its id")?;
    let asked = question["justification"].as_str().unwrap_or_default();
    ensure!(asked.contains("has 5 of 5 tokens left"), "{asked}");
    ensure!(scene.llm.steps_served().is_empty(), "no byte of the request left");
    // The approval adds the tokens that the request needs. They are not enough for the whole task.
    scene.bottle(&["supervise", "approve", id])?;
    scene.bottle(&["budget", "add", "host", "1000000"])?;
    scene.wait("the end of the pause", || Ok(ended_or_running(&bottle_of(scene)?)))
}

fn ended_or_running(bottle: &Value) -> bool {
    bottle.is_null() || bottle["paused"].is_null()
}

/// Tests that the user refuses more tokens, and the agent ends and prints the message of the denial.
fn stops(place: &Place, template: &Template<'_>) -> Result<()> {
    let scene = scene(place, template, "pause", 5)?;
    let (outcome, refused_at) = std::thread::scope(|scope| {
        let starting = scope.spawn(|| scene.try_headless(template.name));
        let question = wait_for_question(&scene, || starting.is_finished())?;
        let id = question["id"].as_str().context("its id")?.to_owned();
        scene.bottle(&["supervise", "reject", &id, "--reason", "no more"])?;
        let refused_at = Instant::now();
        let outcome = starting.join().map_err(|_| anyhow::anyhow!("the agent's thread ended"))??;
        anyhow::Ok((outcome, refused_at))
    })?;
    let took = refused_at.elapsed();
    ensure!(scene.llm.steps_served().is_empty(), "nothing reached the model");
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    ensure!(said.contains("The budget for"), "{}", outcome.transcript());
    // Agents retry some failures for minutes, but must not retry this denial.
    ensure!(took < Duration::from_secs(60), "the agent ended only after {took:?}");
    Ok(())
}

/// Tests that the bottle is killed at the first call of the model.
fn is_killed(place: &Place, template: &Template<'_>) -> Result<()> {
    let mut scene = scene(place, template, "cutoff", 5)?;
    // The `cutoff` of the manifest takes precedence over the `cutoff` of the settings.
    scene.add_to_bottle(template.name, "cutoff: kill\n")?;
    let outcome = scene.try_headless(template.name)?;
    ensure!(outcome.stderr.contains("task ends (kill): the budget of host"), "{}", outcome.transcript());
    let left = scene.bottle(&["list", "--json"])?.stdout;
    ensure!(!left.contains("\"task\""), "{left}");
    ensure!(!scene.home.bottle_home().join("state/task").exists(), "its directory is left");
    Ok(())
}

/// Tests that the bottle is frozen at the second call of the model, and continues after the budget is raised.
fn freezes(place: &Place, template: &Template<'_>) -> Result<()> {
    let name = template.name;
    let scene = scene(place, template, "freeze", budget_of_one_call(place, template)?)?;
    let outcome = scene.try_headless(name)?;
    ensure!(outcome.stderr.contains("task was frozen"), "{}", outcome.transcript());
    let served = scene.llm.steps_served().len();
    ensure!(served == 1, "only the first call fits into the budget: {}", outcome.transcript());
    scene.bottle(&["budget", "add", "host", "1000000"])?;
    let resumed = scene.bottle(&["resume", "task", "--yes", "-p", "Go on."])?;
    ensure!(resumed.stdout.contains("The scripted task is done."), "{}", resumed.transcript());
    Ok(())
}

fn wait_for_question(scene: &Scene, ended: impl Fn() -> bool) -> Result<Value> {
    let end = Instant::now() + PATIENCE;
    loop {
        let pending = scene.bottle(&["supervise", "list", "--json"])?.json()?;
        if let Some(question) = pending.as_array().and_then(|all| all.first()) {
            ensure!(question["tool"] == "budget-add", "{question}");
            return Ok(question.clone());
        }
        ensure!(!ended() && Instant::now() < end, "there is no question");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn bottle_of(scene: &Scene) -> Result<Value> {
    let active = scene.bottle(&["list", "active", "--json"])?.json()?;
    Ok(active.as_array().and_then(|all| all.first()).cloned().unwrap_or_default())
}

fn scene(place: &Place, template: &Template<'_>, policy: &str, tokens: u64) -> Result<Scene> {
    let scene = Scene::playing(place, template, &COMMANDS)?;
    limit(&scene, template.name, policy, tokens)?;
    Ok(scene)
}

/// Sets a budget for a provider or host.
fn limit(scene: &Scene, key: &str, policy: &str, tokens: u64) -> Result<()> {
    // With a notification command, `bottle` can ask the user of a headless agent.
    let settings =
        format!("budget: {{{key}: {tokens}}}\ncutoff: {policy}\nsupervise: {{notify: ['true']}}\n");
    scene.home.write("home/.bottle/settings.yml", &settings)?;
    Ok(())
}
