//! A home with one agent, the fake model behind the proxy, and the assertions for every run.

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

/// How long a bottle may take to get somewhere.
const PATIENCE: Duration = Duration::from_secs(60);

/// Leaves a computed trace, so that finding it in the conversation means a shell really ran.
const WRITE: &str = "printf 'sum %d\\n' $((6 * 7)) > proof.txt";
/// Reads it back, and prints directory and user. An agent with the proxy variables and a file `hold` in its
/// workspace waits here until the file is removed.
const READ: &str = "while [ -e hold ] && [ -n \"$HTTPS_PROXY\" ]; do sleep 0.05; done; \
                    cat proof.txt; echo dir $(pwd) user $(id -u) proxy ${HTTPS_PROXY:-none}.";
/// Counts the occurrences of the real key in the bottle. The expression does not match itself.
const SEARCH: &str = "echo leaks $( (env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; \
                      find /run /home /tmp /etc /dev/shm /workspace -type f -size -4M -exec cat {} +) \
                      2>/dev/null | tr '\\0' '\\n' | grep -ac 'sk-rea[l]-')";

/// Prints tokens whole, and has none whole in itself.
const TOKENS: &str = "printf 'one %s%s two %s%s three\\n' glpat- Xk3Vw9QzR7tYp2LmNb5c AKIA Q5T3X7YZ4WUJ2K6M";
/// What it prints that may leave nowhere.
const PRINTED: [&str; 2] = ["glpat-Xk3Vw9QzR7tYp2LmNb5c", "AKIAQ5T3X7YZ4WUJ2K6M"];
/// The conversation goes on.
const AFTER: &str = "echo sum $((6 * 7))";

/// Variables with the proxy's address.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// One test's world.
pub(crate) struct Scene {
    pub(crate) home: TestHome,
    pub(crate) llm: FakeLlm,
    /// Where its bottles run.
    pub(crate) backend: &'static str,
}

/// Where a template's agent runs.
pub(crate) enum Place {
    /// On this machine, which has the agent.
    Linux(Agent),
    /// In containers, with the agent in their image; the model listens where they reach it.
    Docker(IpAddr),
}

/// The engine; if there is none, reports the skip.
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

/// The agent; if it or the backend is not available, reports the skip.
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
    /// A home with agent and bottle `name`, the bottle's frontmatter being `command` and `env` plus one
    /// route to the model at `host`, whose credential goes the way `auth` says.
    pub(crate) fn new(agent: &Agent, name: &str, setting: &Setting<'_>) -> Result<Self> {
        let llm =
            FakeLlm::start(Options { script: Script::new(&[WRITE, READ, SEARCH]), ..Options::default() })?;
        let mut home = TestHome::new()?;
        let ca = home.outside("llm-ca.pem");
        llm.write_ca(&ca)?;
        home.agent(name, &format!("---\nbottle: {name}\n---\nDo what the task says.\n"))?;
        home.bottle(name, &setting.manifest(&llm, &ca))?;
        home.env("PATH", search_path(agent)).env("LLM_KEY", llm.key());
        Ok(Self { home, llm, backend: "linux" })
    }

    /// A home with the agent and the bottle of a template, its own route taken to the model, a prompt and a
    /// skill.
    pub(crate) fn of_template(place: &Place, template: &Template<'_>) -> Result<Self> {
        Self::playing(place, template, &[WRITE, READ, SEARCH])
    }

    /// The same, with a task whose commands print token-like text.
    pub(crate) fn of_tokens(place: &Place, template: &Template<'_>) -> Result<Self> {
        Self::playing(place, template, &[TOKENS, AFTER])
    }

    /// The same, with a task of these commands.
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

    /// More frontmatter for the bottle `name`.
    pub(crate) fn add_to_bottle(&mut self, name: &str, text: &str) -> Result<()> {
        let path = self.home.bottle_home().join("bottles").join(format!("{name}.md"));
        let before = fs::read_to_string(path)?;
        let body = before.strip_suffix("---\n").context("frontmatter without text behind it")?;
        self.home.bottle(name, &format!("{body}{text}---\n"))?;
        Ok(())
    }

    /// Starts the agent of that name with a task, as the bottle `task`, and waits for its end.
    pub(crate) fn start_headless(&self, name: &str) -> Result<Outcome> {
        let start = ["start", name, "--backend", self.backend, "--yes", "--label", "task"];
        let mut program = self.program(&start)?;
        program.arguments(["-p", TASK]);
        if self.backend == "docker" {
            program.deadline(BUILT_WITHIN);
        }
        Ok(program.run()?.expect_code(0))
    }

    /// Goes on with the bottle `task` by one more task. Both stand in what the model sees.
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

    /// What this home has on the engine.
    pub(crate) fn on_the_engine(&self) -> Vec<String> {
        engine::left_of(&self.home_hash())
    }

    /// What its containers are called by.
    pub(crate) fn home_hash(&self) -> String {
        bottle::host::home_hash(&self.home.bottle_home())
    }

    /// The prompt, the skill and the task reached the model.
    #[track_caller]
    pub(crate) fn assert_prompted(&self, skills: &str) {
        let calls = self.llm.seen();
        let first = calls.iter().find(|call| call.step == Some(0)).map_or("", |call| call.body.as_str());
        for words in [PROMPT, "MARK-OF-THE-SKILL", TASK] {
            assert!(first.contains(words), "{words:?} of {skills} is not in {first}");
        }
    }

    /// The bottle's name has one record of usage for every call that the model answered, with the model's own
    /// numbers, in the order of the calls.
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
        // Two calls under way at once may end in either order.
        counted.sort();
        answered.sort();
        assert_eq!(counted, answered, "{text}");
    }

    /// Every credential that arrived stood in this header alone.
    #[track_caller]
    pub(crate) fn assert_sent(&self, header: &str) {
        for call in self.llm.seen() {
            let with_key = call.headers.iter().filter(|(_, value)| value.contains(self.llm.key()));
            let names: Vec<&str> = with_key.map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, [header], "{} {}", call.method, call.path);
        }
    }

    /// A bottle command of this home, expected to succeed.
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

    fn wait(&self, what: &str, reached: impl Fn() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !reached()? {
            let seen: Vec<String> =
                self.llm.seen().iter().map(|s| format!("{} {}", s.path, s.status)).collect();
            ensure!(Instant::now() < end, "waited too long for {what}; the model saw {seen:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// What holds after a run of the whole script that was the model's calls from `first` on, by an agent
    /// that had the proxy variables or had not.
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

    /// The conversation went on to its end, and what its commands printed came without the tokens.
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

    /// The key is in no file that this home's bottles left.
    #[track_caller]
    pub(crate) fn assert_key_not_on_disk(&self) {
        let mut found = Vec::new();
        search(self.home.root(), self.llm.key().as_bytes(), &mut found);
        assert_eq!(found, [] as [String; 0], "the real key is on disk");
    }
}

/// Where the agent is, and what everybody has.
fn search_path(agent: &Agent) -> String {
    let folders = agent.path.iter().map(|folder| folder.display().to_string());
    let path: Vec<String> = folders.chain(["/usr/local/bin:/usr/bin:/bin".to_owned()]).collect();
    path.join(":")
}

/// The task of a headless agent.
const TASK: &str = "Do the scripted task.";
/// How long an agent may take whose image is built first.
const BUILT_WITHIN: Duration = Duration::from_secs(15 * 60);
/// The body of a template's agent, and its skill.
const PROMPT: &str = "MARK-OF-THE-PROMPT: do what the task says.";
const SKILL: &str = "---\nname: deploy\ndescription: MARK-OF-THE-SKILL, how to deploy\n---\nDo it.\n";

/// A bottle of a template.
#[derive(Clone, Copy)]
pub(crate) struct Template<'a> {
    /// The template, the agent and the bottle.
    pub(crate) name: &'a str,
    /// What the real key begins with.
    pub(crate) key: &'a str,
    /// Where the key comes from: a line of `agent_provider`.
    pub(crate) login: &'a str,
    /// `settings.startup_args`.
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

/// The agent's part of a bottle's manifest.
pub(crate) struct Setting<'a> {
    /// The agent's argv.
    pub(crate) command: &'a [&'a str],
    /// Variables inside.
    pub(crate) env: &'a [(&'a str, &'a str)],
    /// The model's host.
    pub(crate) host: &'a str,
    /// The one path it needs.
    pub(crate) path: &'a str,
    /// `auth` without its `token_ref`.
    pub(crate) auth: &'a str,
    /// Whether the proxy variables stay set.
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
        let Self { host, path, auth, .. } = self;
        let command = Value::from(self.command);
        let port = llm.address().port();
        let ca = Value::from(ca.display().to_string());
        format!(
            "---\nenv:\n{env}agent_provider:\n  template: command\n  command: {command}\negress:\n  \
             ca_bundle: {ca}\n  routes:\n    - host: {host}\n      connect_to: \"127.0.0.1:{port}\"\n      \
             auth: {{{auth}, token_ref: LLM_KEY}}\n      matches:\n        \
             - {{methods: [POST], paths: [{{type: exact, value: {path}}}]}}\n---\n"
        )
    }
}

/// `env -u` with every proxy variable, in front of a command.
pub(crate) fn without_proxies<'a>(command: &[&'a str]) -> Vec<&'a str> {
    let unset = PROXY_VARIABLES.iter().flat_map(|name| ["-u", *name]);
    ["env"].into_iter().chain(unset).chain(command.iter().copied()).collect()
}

fn search(folder: &Path, key: &[u8], found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
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
