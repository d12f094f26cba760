//! The test fixture of all agents: a home with one agent, the fake model behind the proxy, and the assertions
//! for every run.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bottle_test_support::agents::{Agent, Missing};
use bottle_test_support::fake_llm::{FakeLlm, Options, Script, Seen};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::{Outcome, Program};
use bottle_test_support::{engine, skip};
use serde_json::Value;

/// The time limit for each step of a bottle.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes a computed text, so that the text in the conversation proves that a real shell ran.
const WRITE: &str = "printf 'sum %d\\n' $((6 * 7)) > proof.txt";
/// Reads the file back, and prints the directory and the user. If the agent has the proxy variables and there
/// is a file `hold` in its workspace, the command waits until the file is removed.
const READ: &str = "while [ -e hold ] && [ -n \"$HTTPS_PROXY\" ]; do sleep 0.05; done; \
                    cat proof.txt; echo dir $(pwd) user $(id -u) proxy ${HTTPS_PROXY:-none}.";
/// Counts the occurrences of the real key in the bottle. The search expression does not match itself.
const SEARCH: &str = "echo leaks $( (env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; \
                      find /run /home /tmp /etc /dev/shm /workspace -type f -size -4M -exec cat {} +) \
                      2>/dev/null | tr '\\0' '\\n' | grep -ac 'sk-rea[l]-')";

/// Prints complete tokens. The tokens are split in this command, so that the proxy does not redact the request that
/// contains the command.
const TOKENS: &str = "printf 'one %s%s two %s%s three\\n' glpat- Xk3Vw9QzR7tYp2LmNb5c AKIA Q5T3X7YZ4WUJ2K6M";
/// The tokens that [`TOKENS`] prints and that the proxy must redact.
const PRINTED: [&str; 2] = ["glpat-Xk3Vw9QzR7tYp2LmNb5c", "AKIAQ5T3X7YZ4WUJ2K6M"];
/// A command that shows that the conversation continues after the redaction.
const AFTER: &str = "echo sum $((6 * 7))";

/// The variables that contain the proxy's address.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// The state of one test.
pub(crate) struct Scene {
    pub(crate) home: TestHome,
    pub(crate) llm: FakeLlm,
    /// The name of the backend on which the bottles run.
    pub(crate) backend: &'static str,
}

/// Where the agent of a template runs.
pub(crate) enum Place {
    /// On the Linux backend, with the agent that is installed on this machine.
    Linux(Agent),
    /// In containers, with the agent in an image. The fake model listens on this address, which containers
    /// can reach.
    Docker(IpAddr),
}

/// Returns [`Place::Docker`]. If no engine is available, reports that the test is skipped and returns `None`.
pub(crate) fn engine(test: &str) -> Result<Option<Place>> {
    if let Err(missing) = engine::here() {
        skip::aloud(test, &missing);
        return Ok(None);
    }
    if !TestHome::new()?.runs(test, "docker")? {
        return Ok(None);
    }
    let machine = engine::machine().context("the engine has no network of its own")?;
    Ok(Some(Place::Docker(machine)))
}

/// Returns the agent. If the agent or the Linux backend is not available, reports that the test is skipped and returns
/// `None`.
pub(crate) fn agent(test: &str, agent: Result<Agent, Missing>) -> Result<Option<Agent>> {
    let agent = match agent {
        Ok(agent) => agent,
        Err(missing) => {
            skip::aloud(test, &missing);
            return Ok(None);
        }
    };
    Ok(TestHome::new()?.runs(test, "linux")?.then_some(agent))
}

impl Scene {
    /// Creates a home with an agent and a bottle that are both called `name`. The bottle has the command and
    /// the variables in `setting`, and one route to the model.
    pub(crate) fn new(agent: &Agent, name: &str, setting: &Setting<'_>) -> Result<Self> {
        Self::of_commands(agent, name, setting, &[WRITE, READ, SEARCH])
    }

    /// Like [`Self::new`], with a task that runs `commands`.
    pub(crate) fn of_commands(
        agent: &Agent,
        name: &str,
        setting: &Setting<'_>,
        commands: &[&str],
    ) -> Result<Self> {
        let mut scene = Self::of_script(Ipv4Addr::LOCALHOST.into(), "linux", name, setting, commands)?;
        scene.home.env("PATH", search_path(agent));
        Ok(scene)
    }

    /// Like [`Self::new`], on a backend whose bottles reach the fake model at `address`. The agent is in the image of
    /// the setting.
    pub(crate) fn of_setting(
        address: IpAddr,
        backend: &'static str,
        name: &str,
        setting: &Setting<'_>,
    ) -> Result<Self> {
        Self::of_script(address, backend, name, setting, &[WRITE, READ, SEARCH])
    }

    fn of_script(
        address: IpAddr,
        backend: &'static str,
        name: &str,
        setting: &Setting<'_>,
        commands: &[&str],
    ) -> Result<Self> {
        let llm = FakeLlm::start(Options {
            script: Script::new(commands),
            hosts: vec![setting.host.to_owned()],
            websockets: true,
            address,
            ..Options::default()
        })?;
        let mut home = TestHome::new()?;
        let ca = home.outside("llm-ca.pem");
        llm.write_ca(&ca)?;
        home.agent(name, &format!("---\nbottle: {name}\n---\nDo what the task says.\n"))?;
        home.bottle(name, &setting.manifest(&llm, &ca))?;
        home.env("LLM_KEY", llm.key());
        Ok(Self { home, llm, backend })
    }

    /// Creates a home with the agent and the bottle of a template, a prompt and a skill. The template's route connects
    /// to the fake model. The task writes a file, reads it back, and searches for the key.
    pub(crate) fn of_template(place: &Place, template: &Template<'_>) -> Result<Self> {
        Self::playing(place, template, &[WRITE, READ, SEARCH])
    }

    /// Like [`Self::of_template`], with a task whose commands print tokens.
    pub(crate) fn of_tokens(place: &Place, template: &Template<'_>) -> Result<Self> {
        Self::playing(place, template, &[TOKENS, AFTER])
    }

    /// Like [`Self::of_template`], with a task that runs `commands`.
    pub(crate) fn playing(place: &Place, template: &Template<'_>, commands: &[&str]) -> Result<Self> {
        let key = format!("{}sk-real-{:032x}", template.key, rand::random::<u128>());
        let script = Script::new(commands);
        let address = match place {
            Place::Linux(_) => Ipv4Addr::LOCALHOST.into(),
            Place::Docker(machine) => *machine,
        };
        let llm = FakeLlm::start(Options { key, script, address, ..Options::default() })?;
        let mut home = TestHome::new()?;
        let ca = home.outside("llm-ca.pem");
        llm.write_ca(&ca)?;
        let name = template.name;
        home.agent(name, &format!("---\nbottle: {name}\nskills: [deploy]\n---\n{PROMPT}\n"))?;
        home.write("home/.bottle/skills/deploy/SKILL.md", SKILL)?;
        home.bottle(name, &template.manifest(&llm, &ca))?;
        home.env("LLM_KEY", llm.key());
        let backend = match place {
            Place::Linux(agent) => {
                home.env("PATH", search_path(agent));
                "linux"
            }
            Place::Docker(_) => "docker",
        };
        Ok(Self { home, llm, backend })
    }

    /// Adds lines to the frontmatter of the bottle `name`.
    pub(crate) fn add_to_bottle(&mut self, name: &str, text: &str) -> Result<()> {
        let path = self.home.bottle_home().join("bottles").join(format!("{name}.md"));
        let before = fs::read_to_string(path)?;
        let body = before.strip_suffix("---\n").context("frontmatter without text behind it")?;
        self.home.bottle(name, &format!("{body}{text}---\n"))?;
        Ok(())
    }

    /// Starts the agent `name` with a task in a bottle with the label `task`, and waits until it exits.
    pub(crate) fn start_headless(&self, name: &str) -> Result<Outcome> {
        Ok(self.try_headless(name)?.expect_code(0))
    }

    /// Like [`Self::start_headless`], with any exit code.
    pub(crate) fn try_headless(&self, name: &str) -> Result<Outcome> {
        let start = ["start", name, "--backend", self.backend, "--yes", "--label", "task"];
        let mut program = self.program(&start)?;
        program.arguments(["-p", TASK]);
        if self.backend == "docker" {
            program.deadline(BUILT_WITHIN);
        }
        program.run()
    }

    /// Resumes the bottle `task` with another task. Checks that the model sees both tasks.
    pub(crate) fn go_on(&self, task: &str) -> Result<Outcome> {
        let before = self.llm.seen().len();
        let outcome = self.bottle(&["resume", "task", "--yes", "-p", task])?;
        let calls = self.llm.seen();
        let has_both_tasks = |call: &Seen| call.body.contains(TASK) && call.body.contains(task);
        ensure!(
            calls[before..].iter().any(has_both_tasks),
            "the conversation did not go on:\n{}",
            outcome.transcript()
        );
        Ok(outcome)
    }

    /// Lists the resources of this home on the engine.
    pub(crate) fn on_the_engine(&self) -> Vec<String> {
        engine::left_of(&self.home_hash())
    }

    /// Returns the hash of the home, which the names of its containers contain.
    pub(crate) fn home_hash(&self) -> String {
        bottle_host::home_hash(&self.home.bottle_home())
    }

    /// Checks that the prompt, the skill and the task reached the model.
    #[track_caller]
    pub(crate) fn assert_prompted(&self, skills: &str) {
        let calls = self.llm.seen();
        let first = calls.iter().find(|call| call.step == Some(0)).map_or("", |call| call.body.as_str());
        for words in [PROMPT, "MARK-OF-THE-SKILL", TASK] {
            assert!(first.contains(words), "{words:?} of {skills} is not in {first}");
        }
    }

    /// Checks that the usage file of the bottle has one record for every call that the model answered, with
    /// the usage that the model reported.
    #[track_caller]
    pub(crate) fn assert_counted(&self, slug: &str, host: &str) {
        let path = self.home.bottle_home().join("usage").join(format!("{slug}.jsonl"));
        let text = fs::read_to_string(&path).unwrap_or_default();
        let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let mut ids: Vec<&str> = records.iter().filter_map(|record| record["id"].as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), records.len(), "{text}");
        let mut counted: Vec<_> = records
            .iter()
            .map(|record| {
                assert_eq!(
                    (record["host"].as_str(), record["interrupted"].as_bool()),
                    (Some(host), Some(false))
                );
                (record["model"].to_string(), record["input"].as_u64(), record["output"].as_u64())
            })
            .collect();
        let mut answered: Vec<_> = self
            .llm
            .usage()
            .into_iter()
            .map(|used| (Value::from(used.model).to_string(), Some(used.input), Some(used.output)))
            .collect();
        // Two concurrent calls may end in either order.
        counted.sort();
        answered.sort();
        assert_eq!(counted, answered, "{text}");
    }

    /// Checks that every request contains the real key in this header and in no other header.
    #[track_caller]
    pub(crate) fn assert_sent(&self, header: &str) {
        for call in self.llm.seen() {
            let with_key = call.headers.iter().filter(|(_, value)| value.contains(self.llm.key()));
            let names: Vec<&str> = with_key.map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, [header], "{} {}", call.method, call.path);
        }
    }

    /// Runs a `bottle` command in this home, which must succeed.
    pub(crate) fn bottle(&self, arguments: &[&str]) -> Result<Outcome> {
        Ok(self.program(arguments)?.run()?.expect_code(0))
    }

    fn program(&self, arguments: &[&str]) -> Result<Program> {
        self.home.program(arguments.iter().copied())
    }

    /// Waits until the model has answered `count` calls.
    pub(crate) fn wait_for_calls(&self, count: usize) -> Result<()> {
        self.wait(&format!("{count} calls of the model"), || Ok(self.llm.steps_served().len() >= count))
    }

    /// Waits until no bottle runs any more.
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        self.wait("the bottle's end", || {
            let active = self.bottle(&["list", "active", "--json"])?.json()?;
            Ok(active.as_array().is_some_and(Vec::is_empty)
                || active.as_array().into_iter().flatten().all(|bottle| bottle["status"] != "running"))
        })
    }

    /// Waits until `reached` returns true.
    pub(crate) fn wait(&self, what: &str, reached: impl Fn() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !reached()? {
            let seen: Vec<String> =
                self.llm.seen().iter().map(|s| format!("{} {}", s.path, s.status)).collect();
            ensure!(Instant::now() < end, "waited too long for {what}; the model saw {seen:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Checks the effects of a run of the complete script. `first` is the index of the run's first call of the model,
    /// and `proxied` says whether the agent had the proxy variables.
    #[track_caller]
    pub(crate) fn assert_played(&self, first: usize, host: &str, proxied: bool) {
        let calls: Vec<Seen> =
            self.llm.seen().into_iter().filter(|seen| seen.step.is_some()).skip(first).collect();
        let steps: Vec<Option<usize>> = calls.iter().map(|call| call.step).collect();
        assert_eq!(steps, [0, 1, 2, 3].map(Some), "the script's calls");
        for call in &calls {
            assert_eq!((call.host.as_str(), call.status), (host, 200), "{}", call.path);
            assert!(!call.body.contains(self.llm.key()), "the agent knew the key: {}", call.body);
            let sent = |name: &str| call.headers.iter().any(|(known, _)| known == name);
            assert!(!sent("cookie") && !sent("proxy-authorization"), "{:?}", call.headers);
        }
        let conversation = &calls[3].body;
        let proxy = if proxied { "proxy http://egress:9099." } else { "proxy none." };
        for effect in ["sum 42", "dir /workspace user 1000", proxy, "leaks 0"] {
            assert!(conversation.contains(effect), "{effect:?} is not in {conversation}");
        }
    }

    /// Checks that the conversation reached its end, and that the model never received the tokens.
    #[track_caller]
    pub(crate) fn assert_redacted(&self) {
        let calls: Vec<Seen> = self.llm.seen().into_iter().filter(|seen| seen.step.is_some()).collect();
        let steps: Vec<Option<usize>> = calls.iter().map(|call| call.step).collect();
        assert_eq!(steps, [0, 1, 2].map(Some), "the script's calls");
        for call in &calls {
            assert_eq!(call.status, 200, "{}", call.path);
            let arrived = PRINTED.iter().find(|token| call.body.contains(**token));
            assert_eq!(arrived, None, "it reached the model: {}", call.body);
        }
        for text in ["one [redacted] two [redacted] three", "sum 42"] {
            assert!(calls[2].body.contains(text), "{text:?} is not in {}", calls[2].body);
        }
    }

    /// Checks that no file in this home contains the key.
    #[track_caller]
    pub(crate) fn assert_key_not_on_disk(&self) {
        let mut found = Vec::new();
        search(self.home.root(), self.llm.key().as_bytes(), &mut found);
        assert_eq!(found, [] as [String; 0], "the real key is on disk");
    }
}

/// Returns the search path: the agent's directories, and the directories of the system.
fn search_path(agent: &Agent) -> String {
    let directories = agent.path.iter().map(|directory| directory.display().to_string());
    let path: Vec<String> = directories.chain(["/usr/local/bin:/usr/bin:/bin".to_owned()]).collect();
    path.join(":")
}

/// The task of a headless agent.
const TASK: &str = "Do the scripted task.";
/// The time limit for a run that may have to build the agent's image first.
const BUILT_WITHIN: Duration = Duration::from_secs(15 * 60);
/// The prompt and the skill of a template's agent.
const PROMPT: &str = "MARK-OF-THE-PROMPT: do what the task says.";
const SKILL: &str = "---\nname: deploy\ndescription: MARK-OF-THE-SKILL, how to deploy\n---\nDo it.\n";

/// A bottle from a template.
#[derive(Clone, Copy)]
pub(crate) struct Template<'a> {
    /// The name of the template, the agent and the bottle.
    pub(crate) name: &'a str,
    /// The prefix of the real key.
    pub(crate) key: &'a str,
    /// The line of `agent_provider` that says where the key comes from.
    pub(crate) login: &'a str,
    /// The value of `settings.startup_args`.
    pub(crate) arguments: &'a [&'a str],
}

impl Template<'_> {
    fn manifest(&self, llm: &FakeLlm, ca: &Path) -> String {
        let Self { name, login, .. } = self;
        let address = llm.address();
        let arguments = Value::from(self.arguments);
        let ca = Value::from(ca.display().to_string());
        format!(
            "---\nagent_provider:\n  template: {name}\n  {login}\n  route: {{connect_to: \"{address}\"}}\n  \
             settings: {{startup_args: {arguments}}}\negress:\n  ca_bundle: {ca}\n---\n"
        )
    }
}

/// The parts of a bottle's manifest that depend on the agent.
pub(crate) struct Setting<'a> {
    /// The command line of the agent.
    pub(crate) command: &'a [&'a str],
    /// The image that contains the agent. If absent, the agent is a program of this machine.
    pub(crate) image: Option<&'a str>,
    /// The environment variables in the bottle.
    pub(crate) env: &'a [(&'a str, &'a str)],
    /// The host of the model API.
    pub(crate) host: &'a str,
    /// The only method that the route allows.
    pub(crate) method: &'a str,
    /// The only path of the model API that the route allows.
    pub(crate) path: &'a str,
    /// The `auth` entry of the route, without `token_ref`.
    pub(crate) auth: &'a str,
    /// Whether the agent runs with the proxy variables.
    pub(crate) proxied: bool,
}

impl Setting<'_> {
    fn manifest(&self, llm: &FakeLlm, ca: &Path) -> String {
        let cleared = PROXY_VARIABLES.iter().filter(|_| !self.proxied).map(|name| (*name, ""));
        let env: String = self
            .env
            .iter()
            .copied()
            .chain(cleared)
            .map(|(name, value)| format!("  {name}: {}\n", Value::from(value)))
            .collect();
        let Self { host, method, path, auth, .. } = self;
        let command = Value::from(self.command);
        let image = self.image.map(|image| format!("  image: {image}\n")).unwrap_or_default();
        let address = llm.address();
        let ca = Value::from(ca.display().to_string());
        format!(
            "---\nenv:\n{env}agent_provider:\n  template: command\n  command: {command}\n{image}egress:\n  \
             ca_bundle: {ca}\n  routes:\n    - host: {host}\n      connect_to: \"{address}\"\n      \
             auth: {{{auth}, token_ref: LLM_KEY}}\n      matches:\n        \
             - {{methods: [{method}], paths: [{{type: exact, value: {path}}}]}}\n---\n"
        )
    }
}

/// Prefixes a command with `env -u` for every proxy variable.
pub(crate) fn without_proxies<'a>(command: &[&'a str]) -> Vec<&'a str> {
    let unset = PROXY_VARIABLES.iter().flat_map(|name| ["-u", *name]);
    ["env"].into_iter().chain(unset).chain(command.iter().copied()).collect()
}

fn search(directory: &Path, key: &[u8], found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            search(&entry.path(), key, found);
        } else if kind.is_file()
            && fs::read(entry.path()).is_ok_and(|bytes| bytes.windows(key.len()).any(|window| window == key))
        {
            found.push(entry.path().display().to_string());
        }
    }
}
