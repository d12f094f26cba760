//! Tests the agents in containers, in the images that `bottle` builds: a task, the same conversation resumed
//! twice, and a user at a terminal. At the end, the engine has only the resources of kept bottles.

use anyhow::{Context, Result};
use bottle_test_support::engine::docker;
use bottle_test_support::fake_llm::{FakeLlm, Options, Script};
use bottle_test_support::home::TestHome;
use serde_json::json;

use super::scene::{Place, Scene, Template, engine};
use super::terminal::{self, Typed};
use super::{claude, codex, pi};

/// An agent: its template, the host of its model API, the directory of its skills, and the header of its key.
struct Agent {
    template: Template<'static>,
    host: &'static str,
    skills: &'static str,
    header: &'static str,
}

const CLAUDE: Agent = Agent {
    template: claude::API_KEY,
    host: "api.anthropic.com",
    skills: ".claude/skills",
    header: "x-api-key",
};
const CODEX: Agent = Agent {
    template: codex::API_KEY,
    host: "api.openai.com",
    skills: ".codex/skills",
    header: "authorization",
};
const PI: Agent = Agent {
    template: pi::TEMPLATE,
    host: "api.anthropic.com",
    skills: ".pi/agent/skills",
    header: "x-api-key",
};

/// Returns the resources of a kept bottle on the engine: its container, the volume of the proxy's sockets, which the
/// container needs to start again, and the volume with the state of its sidecars.
fn kept_resources(scene: &Scene, slug: &str) -> Vec<String> {
    let name = |part: &str| format!("bottle-{}-{part}-{slug}", scene.home_hash());
    let volumes = ["proxy", "state"].map(|part| format!("volume {}", name(part)));
    std::iter::once(format!("container {}", name("agent"))).chain(volumes).collect()
}

/// Runs a task that leaves changes in the workspace. Then continues the conversation in the kept
/// container, and once more in a new container that gets the conversation from the host.
fn does_a_task_and_resumes(test: &str, agent: &Agent) -> Result<()> {
    let Some(place) = engine(test)? else { return Ok(()) };
    let Agent { template, host, skills, header } = agent;
    let scene = Scene::of_template(&place, template)?;
    let outcome = scene.start_headless(template.name)?;
    assert!(outcome.stdout.contains("The scripted task is done."), "{}", outcome.stdout);
    assert!(!outcome.stderr.contains("the proxy denied"), "{}", outcome.stderr);
    scene.assert_played(0, host, true);
    scene.assert_prompted(skills);
    scene.assert_sent(header);
    let kept = format!("bottle-{}-agent-task", scene.home_hash());
    assert_eq!(scene.on_the_engine(), kept_resources(&scene, "task"), "{}", outcome.stderr);

    let again = scene.go_on("Now the second task.")?;
    assert!(again.stdout.contains("The scripted task is done."), "{}", again.stdout);
    assert_eq!(scene.on_the_engine(), kept_resources(&scene, "task"), "{}", again.stderr);

    assert!(docker(&["rm", "--force", "--volumes", &kept]).is_some());
    let anew = scene.go_on("And the third.")?;
    assert!(anew.stderr.contains("built anew"), "{}", anew.stderr);
    // The workspace of the new container is empty, so only the conversation is kept. The conversation is on the host.
    assert_eq!(scene.on_the_engine(), [] as [String; 0], "{}", anew.stderr);
    let listed = scene.bottle(&["list"])?.stdout;
    assert!(listed.contains("kept (conversation)"), "{listed}");
    scene.assert_sent(header);
    scene.assert_key_not_on_disk();
    Ok(())
}

/// Starts the agent at a terminal, gives it a task, and exits it.
fn works_on_a_terminal(test: &str, agent: &Agent, typed: &Typed<'_>) -> Result<()> {
    let Some(place) = engine(test)? else { return Ok(()) };
    let scene = Scene::of_template(&place, &agent.template)?;
    terminal::converse(&scene, agent.template.name, typed)?;
    scene.assert_played(0, agent.host, true);
    scene.assert_key_not_on_disk();
    let left = scene.on_the_engine();
    let listed = scene.bottle(&["list"])?.stdout;
    if typed.choice == "keep" {
        assert_eq!(left, kept_resources(&scene, "on-a-terminal"));
        assert!(listed.contains("on-a-terminal") && listed.contains("kept"), "{listed}");
    } else {
        assert_eq!((left, listed.as_str()), (Vec::new(), ""));
        assert!(!scene.home.bottle_home().join("state/on-a-terminal").exists());
    }
    Ok(())
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_claude_on_docker_does_a_task_and_resumes() -> Result<()> {
    does_a_task_and_resumes("claude on docker", &CLAUDE)
}

#[test]
#[ignore = "builds an image of 570 MB once"]
fn real_codex_on_docker_does_a_task_and_resumes() -> Result<()> {
    does_a_task_and_resumes("codex on docker", &CODEX)
}

#[test]
#[ignore = "builds an image of 600 MB once"]
fn real_pi_on_docker_does_a_task_and_resumes() -> Result<()> {
    does_a_task_and_resumes("pi on docker", &PI)
}

#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_claude_on_docker_works_on_a_terminal_and_its_work_is_discarded() -> Result<()> {
    let ready = &["bottle on-a-terminal", "bypass permissions on"];
    let typed = Typed { ready, end: "/exit", choice: "discard" };
    works_on_a_terminal("claude on a terminal on docker", &CLAUDE, &typed)
}

#[test]
#[ignore = "builds an image of 570 MB once"]
fn real_codex_on_docker_works_on_a_terminal_and_its_work_is_kept() -> Result<()> {
    let ready = &["YOLO mode", "Ask Codex to do anything"];
    let typed = Typed { ready, end: "/exit", choice: "keep" };
    works_on_a_terminal("codex on a terminal on docker", &CODEX, &typed)
}

/// Runs the command of the README that starts an agent in containers, exactly as it is written in the README.
#[test]
#[ignore = "builds an image of 650 MB once"]
fn real_claude_on_docker_starts_with_the_command_in_the_readme() -> Result<()> {
    let readme = include_str!("../../README.md");
    let line =
        readme.lines().find(|line| line.contains("--backend docker")).context("README has no such line")?;
    let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
    let arguments = words.strip_prefix(&["bottle"]).context("it is no command of ours")?;
    assert_eq!(arguments[..2], ["start", CLAUDE.template.name], "{line}");
    let Some(place) = engine("README's line on docker")? else { return Ok(()) };
    let scene = Scene::of_template(&place, &CLAUDE.template)?;
    let typed = Typed { ready: &["bypass permissions on"], end: "/exit", choice: "" };
    terminal::look_in(&scene, arguments, &typed)?;
    assert_eq!(scene.on_the_engine(), [] as [String; 0]);
    assert_eq!(scene.bottle(&["list"])?.stdout, "");
    scene.assert_key_not_on_disk();
    Ok(())
}

/// Tests the template `command`: any command, with an API key, in an image without an agent.
#[test]
fn a_command_uses_the_model_and_leaves_nothing() -> Result<()> {
    let Some(Place::Docker(machine)) = engine("a command on docker")? else { return Ok(()) };
    let llm = FakeLlm::start(Options { script: Script::new(&[]), address: machine, ..Options::default() })?;
    let mut home = TestHome::new()?;
    let ca = home.outside("llm-ca.pem");
    llm.write_ca(&ca)?;
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "Say it."}]}).to_string();
    let url = "https://openrouter.ai/api/v1/chat/completions";
    let route = json!({
        "host": "openrouter.ai",
        "connect_to": llm.address().to_string(),
        "auth": {"scheme": "Bearer", "token_ref": "LLM_KEY"},
    });
    let bottle = json!({
        "backend": "docker",
        "agent_provider": {
            "template": "command",
            "command": ["curl", "-sS", url, "-H", "content-type: application/json", "-d", body],
        },
        "egress": {"ca_bundle": ca.display().to_string(), "routes": [route]},
    });
    home.agent("ask", "---\nbottle: ask\n---\n")?;
    home.bottle("ask", &format!("---\n{bottle}\n---\n"))?;
    home.env("LLM_KEY", llm.key());
    let outcome = home.program(["start", "ask", "--yes", "--label", "ask"])?.run()?.expect_code(0);
    assert!(outcome.stdout.contains("The scripted task is done."), "{}", outcome.transcript());
    assert!(llm.seen().iter().all(|seen| seen.key_accepted));
    let left = bottle_test_support::engine::left_of(&bottle_host::home_hash(&home.bottle_home()));
    assert_eq!(left, [] as [String; 0]);
    assert_eq!(home.program(["list"])?.run()?.stdout, "");
    Ok(())
}
