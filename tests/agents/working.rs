//! Tests that the work of each agent comes out of a bottle by `diff`, `apply` and `pull`, from each kind of repository:
//! while the agent runs and after its end. Each agent works headless in some repositories and on a terminal in the
//! others. It commits its work in every second repository.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::agents;
use bottle_test_support::pty::Pty;
use bottle_test_support::repository_kinds::{Case, KINDS, each, work};

use super::scene::{Place, Scene, agent};
use super::terminal::{ENTER, enter};
use super::{claude, codex, mini, pi};

/// The number of agents that work at the same time.
const THREADS: usize = 2;

/// The time limit for the agent to be ready, and for each of its steps.
const PATIENCE: Duration = Duration::from_secs(90);

/// The task of an agent.
const TASK: &str = "Do the scripted task.";

/// A file that is not work, because the repository ignores it. The file exists while the agent waits for the test.
const READY: &str = "built/ready";

/// How an agent is used on a terminal.
struct OnTerminal {
    /// The text that the screen shows when the agent waits for a task.
    ready: &'static str,
    /// The keys that send the task.
    submit: &'static str,
    /// The input that ends the agent after its task. Empty for an agent that ends by itself.
    end: &'static str,
}

/// Works in each kind of repository. `scene` makes a scene whose model runs these commands: one for headless agents,
/// and one for a terminal. `first` makes each agent start with another variant of the test.
fn works(
    name: &str,
    first: usize,
    scene: impl Fn(bool, &[&str]) -> Result<Scene>,
    used: &OnTerminal,
) -> Result<()> {
    for commits in [true, false] {
        for terminal in [true, false] {
            let begin = format!("{}; touch {READY}", work("two", commits));
            let wait = format!("while [ -e {READY} ]; do sleep 0.1; done");
            let scene = scene(terminal, &[&begin, &wait, &work("three", commits)])?;
            let is_here = |number: &usize| {
                let number = number + first;
                number.is_multiple_of(2) == commits && (number / 2).is_multiple_of(2) == terminal
            };
            let kinds: Vec<usize> = (0..KINDS.len()).filter(is_here).collect();
            each(kinds.len(), THREADS, |number| {
                let case = Case::new(&scene.home, &KINDS[kinds[number]], commits)?;
                let cell = format!("{name} in {}{}", case.slug, if terminal { " on a terminal" } else { "" });
                let done = match terminal {
                    true => on_a_terminal(&scene, &case, name, used),
                    false => headless(&case, name),
                };
                done.context(cell)
            })?;
        }
    }
    Ok(())
}

fn headless(case: &Case<'_>, name: &str) -> Result<()> {
    let slug = case.slug.as_str();
    let confirms = case.confirms();
    let mut start = vec!["start", name, "--cwd", "--detach", "--yes", "--label", slug, "-q", "-p", TASK];
    start.extend(confirms.as_deref());
    let _ = case.bottle(&start)?;
    comes_out_while_it_runs(case)?;
    wait("the agent's end", || Ok(!is_running(case)?))?;
    case.comes_out(&["two", "three"])
}

fn on_a_terminal(scene: &Scene, case: &Case<'_>, name: &str, used: &OnTerminal) -> Result<()> {
    let mut program = scene.home.program(["start", name, "--cwd", "--yes", "--label", &case.slug])?;
    program.arguments(case.confirms());
    program.directory(&case.directory);
    let mut pty = Pty::spawn(program.command(), 40, 100)?;
    pty.patience(PATIENCE);
    pty.wait_for(used.ready)?;
    enter(&mut pty, TASK, used.submit)?;
    comes_out_while_it_runs(case).with_context(|| pty.screen())?;
    if !used.end.is_empty() {
        pty.wait_for("The scripted task is done.")?;
        enter(&mut pty, used.end, ENTER)?;
    }
    pty.wait_for("[keep/pull/discard]")?;
    enter(&mut pty, "keep", ENTER)?;
    let code = pty.wait_exit()?;
    ensure!(code == 0, "it ended with {code}:\n{}", pty.screen());
    case.comes_out(&["two", "three"])
}

/// Takes the first part of the agent's work out of the bottle, and then lets the agent continue.
fn comes_out_while_it_runs(case: &Case<'_>) -> Result<()> {
    let slug = case.slug.as_str();
    let test = format!("test -e {READY} && echo ready || true");
    wait("the agent's first work", || {
        let asked = case.bottle(&["exec", slug, "--", "/bin/sh", "-c", &test]);
        // The bottle may still be starting.
        Ok(asked.is_ok_and(|asked| asked.stdout == "ready\n"))
    })?;
    case.comes_out(&["two"])?;
    case.bottle(&["exec", slug, "--", "rm", READY]).map(drop)
}

fn is_running(case: &Case<'_>) -> Result<bool> {
    let listed = case.bottle(&["list", "active", "--json"])?.json()?;
    let mut bottles = listed.as_array().into_iter().flatten();
    Ok(bottles.any(|bottle| bottle["slug"] == case.slug.as_str() && bottle["status"] == "running"))
}

fn wait(what: &str, reached: impl Fn() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !reached()? {
        ensure!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_work_of_claude_comes_out_of_every_kind_of_repository() -> Result<()> {
    let Some(installed) = agent("work of claude", agents::claude())? else { return Ok(()) };
    let scene =
        |_, commands: &[&str]| Scene::playing(&Place::Linux(installed.clone()), &claude::API_KEY, commands);
    let used = OnTerminal { ready: "bypass permissions on", submit: ENTER, end: "/exit" };
    works("claude", 0, scene, &used)
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_work_of_codex_comes_out_of_every_kind_of_repository() -> Result<()> {
    let Some(installed) = agent("work of codex", agents::codex())? else { return Ok(()) };
    let scene =
        |_, commands: &[&str]| Scene::playing(&Place::Linux(installed.clone()), &codex::API_KEY, commands);
    let used = OnTerminal { ready: "Ask Codex to do anything", submit: ENTER, end: "/exit" };
    works("codex", 1, scene, &used)
}

#[test]
fn work_of_pi_comes_out_of_every_kind_of_repository() -> Result<()> {
    let Some(installed) = agent("work of pi", agents::pi())? else { return Ok(()) };
    let scene =
        |_, commands: &[&str]| Scene::playing(&Place::Linux(installed.clone()), &pi::TEMPLATE, commands);
    works("pi", 2, scene, &OnTerminal { ready: "pi v", submit: ENTER, end: "\x04" })
}

#[test]
fn work_of_mini_comes_out_of_every_kind_of_repository() -> Result<()> {
    let Some(installed) = agent("work of mini", agents::mini())? else { return Ok(()) };
    let scene = |terminal, commands: &[&str]| {
        let setting = if terminal { mini::on_a_terminal() } else { mini::setting() };
        Scene::of_commands(&installed, "mini", &setting, commands)
    };
    works("mini", 3, scene, &OnTerminal { ready: "What do you want to do", submit: "\x1b\r", end: "" })
}
