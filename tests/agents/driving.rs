//! Tests that Claude Code, codex and mini-swe-agent on the host do a task in a bottle with nothing but the tools of
//! `bottle mcp`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bottle_test_support::agents::{self, Agent};
use bottle_test_support::fake_llm::{FakeLlm, Options, Script};
use bottle_test_support::home::TestHome;

use super::scene::agent;

/// The calls of MCP tools that the fake model makes the agent do.
const TASK: [&str; 6] = [
    "mcp:bottle_start {\"agent\": \"worker\", \"label\": \"task\"}",
    "mcp:file_write {\"bottle\": \"task\", \"path\": \"sum.sh\", \"content\": \"echo $((40 + 2))\\n\"}",
    "mcp:terminal {\"bottle\": \"task\", \"command\": \"sh sum.sh > result; hostname >> result\"}",
    "mcp:file_read {\"bottle\": \"task\", \"path\": \"result\"}",
    "mcp:terminal {\"bottle\": \"task\", \"command\": \"sudo id\"}",
    "mcp:bottle_list {}",
];

/// A home with an agent that sleeps in a bottle on the backend `linux`, and a fake model that sends the steps of a
/// task.
struct Scene {
    home: TestHome,
    llm: FakeLlm,
}

impl Scene {
    fn new() -> Result<Self> {
        Self::of_script(&TASK)
    }

    fn of_script(commands: &[&str]) -> Result<Self> {
        let mut home = TestHome::new()?;
        let llm = FakeLlm::start(Options { script: Script::new(commands), ..Options::default() })?;
        let command = "agent_provider: {template: command, command: [sleep, '600']}";
        home.bottle("worker", &format!("---\nbackend: linux\n{command}\n---\n"))?;
        home.agent("worker", "---\nbottle: worker\n---\n")?;
        llm.write_ca(&home.root().join("ca.pem"))?;
        Ok(Self { home, llm })
    }

    /// Returns a command that runs the agent with the environment of this home. The agent reaches only the fake model.
    fn agent(&self, agent: &Agent, arguments: &[&str]) -> Result<Command> {
        let bottle = self.home.program([""])?.command();
        let mut command = Command::new(&agent.program);
        command.args(arguments).env_clear();
        // The agent gets the environment of `bottle`, because the agent starts `bottle`.
        command.envs(bottle.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(directory) = bottle.get_current_dir() {
            command.current_dir(directory);
        }
        command.env("SSL_CERT_FILE", self.home.root().join("ca.pem"));
        command.env("NODE_EXTRA_CA_CERTS", self.home.root().join("ca.pem"));
        Ok(command)
    }

    fn bottle(&self) -> Result<String> {
        Ok(self.home.program([""])?.command().get_program().to_string_lossy().into_owned())
    }

    /// Runs the agent to its end, and checks what it did.
    fn plays(&self, mut agent: Command) -> Result<()> {
        let ended = agent.stdin(Stdio::null()).output()?;
        let said = format!(
            "{}\n{}\n{}",
            ended.status,
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
        let calls: Vec<_> = self.llm.seen().into_iter().filter(|call| call.step.is_some()).collect();
        ensure!(self.llm.steps_served().contains(&TASK.len()), "{:?}\n{said}", self.llm.steps_served());
        let conversation = &calls.last().context("a call of the model")?.body;
        for words in ["42\\\\ntask\\\\n", "no process of a bottle can get"] {
            ensure!(conversation.contains(words), "no {words}: {conversation}\n{said}");
        }
        let listed = self.home.program(["list", "active", "--json"])?.run()?.expect_code(0).json()?;
        ensure!(
            listed[0]["slug"] == "task"
                && listed[0]["parent"].as_str().is_some_and(|name| name.starts_with("stdio:")),
            "{listed}"
        );
        let result = self.home.program(["exec", "task", "--", "cat", "result"])?.run()?.expect_code(0);
        ensure!(result.stdout == "42\ntask\n", "{}", result.stdout);
        Ok(())
    }
}

#[test]
#[ignore = "fetches Claude Code once: 172 MB, 373 MB unpacked"]
fn real_claude_on_the_host_does_a_task_in_a_bottle() -> Result<()> {
    let Some(claude) = agent("claude drives a bottle", agents::claude())? else { return Ok(()) };
    let scene = Scene::new()?;
    let servers =
        serde_json::json!({"mcpServers": {"bottle": {"command": scene.bottle()?, "args": ["mcp"]}}});
    scene.home.write("project/mcp.json", &servers.to_string())?;
    let mut command = scene.agent(
        &claude,
        &[
            "-p",
            "Do the scripted task.",
            "--mcp-config",
            "mcp.json",
            "--strict-mcp-config",
            "--dangerously-skip-permissions",
        ],
    )?;
    command
        .env("ANTHROPIC_BASE_URL", format!("https://{}", scene.llm.address()))
        .env("ANTHROPIC_API_KEY", scene.llm.key())
        // As root, Claude Code needs this variable to skip its permission prompts.
        .env("IS_SANDBOX", "1")
        .env("ENABLE_TOOL_SEARCH", "false")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    scene.plays(command)
}

#[test]
#[ignore = "fetches codex once: 167 MB, 294 MB unpacked"]
fn real_codex_on_the_host_does_a_task_in_a_bottle() -> Result<()> {
    let Some(codex) = agent("codex drives a bottle", agents::codex())? else { return Ok(()) };
    let scene = Scene::new()?;
    let config = format!(
        "model_provider = \"fake\"\nmodel = \"fake\"\n\
         [model_providers.fake]\nname = \"fake\"\nbase_url = \"https://{}/v1\"\nenv_key = \"CODEX_API_KEY\"\n\
         wire_api = \"responses\"\n[mcp_servers.bottle]\ncommand = \"{}\"\nargs = [\"mcp\"]\n\
         env_vars = [\"BOTTLE_HOME\", \"XDG_RUNTIME_DIR\"]\n",
        scene.llm.address(),
        scene.bottle()?
    );
    scene.home.write("home/.codex/config.toml", &config)?;
    let mut command = scene.agent(
        &codex,
        &[
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "Do the scripted task.",
        ],
    )?;
    command.env("CODEX_API_KEY", scene.llm.key());
    scene.plays(command)
}

/// mini-swe-agent has no MCP client. `bottle_environment.py` is an MCP client, with which the agent runs its commands.
#[test]
fn mini_on_the_host_does_a_task_in_a_bottle() -> Result<()> {
    let Some(mini) = agent("mini drives a bottle", agents::mini())? else { return Ok(()) };
    let commands = ["echo $((40 + 2)) > result; hostname >> result", "cat result; exit 3", "sudo id"];
    let scene = Scene::of_script(&commands)?;
    scene.home.write("home/.bottle/settings.yml", "environments: {agent: worker}\n")?;
    scene.home.write("project/bottle_environment.py", include_str!("bottle_environment.py"))?;
    let mut command = scene.agent(
        &mini,
        &[
            "--environment-class",
            "bottle_environment.BottleEnvironment",
            "--model-class",
            "bottle_environment.LocalModel",
            "-m",
            "fake/model",
            "-y",
            "--exit-immediately",
            "-o",
            "run.json",
            "-t",
            "Do the scripted task.",
        ],
    )?;
    command
        .env("PYTHONPATH", scene.home.root().join("project"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("REQUESTS_CA_BUNDLE", scene.home.root().join("ca.pem"))
        .env("MODEL_URL", format!("https://{}/api/v1/chat/completions", scene.llm.address()))
        .env("OPENROUTER_API_KEY", scene.llm.key())
        .env("MSWEA_CONFIGURED", "true")
        .env("MSWEA_COST_TRACKING", "ignore_errors")
        .env("BOTTLE", scene.bottle()?)
        .env("BOTTLE_TASK", "sum-1");
    let ended = command.stdin(Stdio::null()).output()?;
    let said =
        format!("{}\n{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    ensure!(ended.status.success(), "{}\n{said}", ended.status);
    ensure!(scene.llm.steps_served() == [0, 1, 2, 3], "{:?}\n{said}", scene.llm.steps_served());
    let listed = scene.home.program(["env", "ls", "--json"])?.run()?.expect_code(0).json()?;
    let slug = listed[0]["slug"].as_str().context("a bottle")?;
    ensure!(listed[0]["task"] == "sum-1" && listed[0]["state"] == "running", "{listed}");
    let conversation = &scene.llm.seen().pop().context("a call of the model")?.body;
    for words in [&format!("42\\\\n{slug}"), "no process of a bottle can get"] {
        ensure!(conversation.contains(words), "no {words}: {conversation}\n{said}");
    }
    let result = scene.home.program(["exec", slug, "--", "cat", "result"])?.run()?.expect_code(0);
    ensure!(result.stdout == format!("42\n{slug}\n"), "{}", result.stdout);
    Ok(())
}
