//! Loads `$BOTTLE_HOME/settings.yml`, the user's settings for all bottles.
//!
//! If the file is missing, the defaults apply. Unknown keys are refused. Known keys that would have no effect are
//! refused too, because a user who writes such a key expects an effect.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use bottle_command_policy::Approval;
use bottle_protocol::session::bundle::{Limits, ModelRules};
use bottle_protocol::session::process::PROCESSES_DEFAULT;
use bottle_text::terminal::Pass;
use bottle_text::yaml;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Host;
use super::budget::{Declared, OnSpent};
use super::command_settings::{self, CommandSettings};
use super::detach_keys::DetachKeys;
use super::docker_settings::DockerSettings;
use super::environment_settings::EnvironmentSettings;
use super::settings_file::parse;

/// The user's settings, with defaults applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `backend`: the backend to use if it is not set by a flag, by `BOTTLE_BACKEND` or by the bottle
    /// manifest.
    pub backend: Option<String>,
    /// `detach_keys`: the key sequence with which the user detaches from a session. `None` if detaching with keys is
    /// disabled.
    pub detach_keys: Option<DetachKeys>,
    /// `terminal.pass`: the terminal features that an agent's output may use in addition to text and colours.
    pub terminal_pass: Pass,
    /// `terminal.tint`: whether a session tints the terminal's background with the colour of the bottle's name.
    pub terminal_tint: bool,
    /// `home_allow`: paths of this machine, absolute or in the user's home, that every bottle on the backend
    /// `linux` may read.
    pub home_allow: Vec<PathBuf>,
    /// `home_allow_sockets`: whether the paths of `home_allow` may contain sockets and pipes, which the agent can then
    /// use.
    pub home_allow_sockets: bool,
    /// `logs.keep`: the maximum size of each bottle's proxy log in bytes.
    pub log_keep: u64,
    /// `processes.keep`: the number of processes that each bottle keeps: those that run, and the last ones that ended.
    pub processes_keep: usize,
    /// `egress.body_limit` and `egress.spool_quota`.
    pub limits: Limits,
    /// `metering`: the rules for requests to models.
    pub metering: ModelRules,
    /// `supervise.token_timeout`, `supervise.git_timeout` and `supervise.call_wait`: how long proposals wait for an
    /// answer.
    pub waits: Waits,
    /// `supervise.notify`: a program and its arguments, which `bottle` runs for each new proposal and when a bottle
    /// is locked.
    pub notify: Option<Vec<String>>,
    /// `keep_days`: how many days usage records are kept.
    pub keep_days: u32,
    /// `keep_size`: the maximum total size, in bytes, of the logs and records of bottles that have ended.
    pub keep_size: u64,
    /// `import.known_keys`: the public keys of exporters that the user knows, with a name that the user chose for each
    /// exporter. `bottle import` shows the names.
    pub known_keys: BTreeMap<String, String>,
    /// `docker`: how bottles use a container engine.
    pub docker: DockerSettings,
    /// `commands`: the policy for commands that programs run in bottles.
    pub commands: CommandSettings,
    /// `environments`: how `bottle env` makes the bottles of tasks.
    pub environments: EnvironmentSettings,
    /// `budget`: the limits on the tokens that all bottles of this home use together.
    pub budget: Vec<Declared>,
    /// `cutoff`: what happens when the tokens of a budget are used up.
    pub cutoff: OnSpent,
    /// `pause_timeout`: how long a bottle with a spent budget waits for the user, in seconds. If it is 0, the bottle
    /// does not wait.
    pub pause_seconds: u64,
}

/// The default of `logs.keep`, in bytes.
pub(super) const LOG_KEEP: u64 = 64 << 20;

/// How long proposals wait for the user's answer, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// `supervise.token_timeout`: how long a request with a finding waits before it is denied.
    pub token_seconds: u64,
    /// `supervise.git_timeout`: how long a push with a finding waits before it is refused.
    pub git_seconds: u64,
    /// `supervise.call_wait`: how long an agent's tool call waits before it returns without a decision.
    pub call_seconds: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self { token_seconds: 300, git_seconds: 300, call_seconds: 45 }
    }
}

/// The default of `keep_days`: for how many days usage records are kept.
pub(super) const KEEP_DAYS: u32 = 90;

/// The default of `keep_size`, in bytes.
pub(super) const KEEP_SIZE: u64 = 4 << 30;

impl Default for Settings {
    fn default() -> Self {
        Self {
            backend: None,
            detach_keys: DetachKeys::parse(DetachKeys::DEFAULT).ok(),
            terminal_pass: Pass::default(),
            terminal_tint: false,
            home_allow: Vec::new(),
            home_allow_sockets: false,
            log_keep: LOG_KEEP,
            processes_keep: PROCESSES_DEFAULT,
            limits: Limits::default(),
            metering: ModelRules::default(),
            waits: Waits::default(),
            notify: None,
            keep_days: KEEP_DAYS,
            keep_size: KEEP_SIZE,
            known_keys: BTreeMap::new(),
            docker: DockerSettings::default(),
            commands: CommandSettings::default(),
            environments: EnvironmentSettings::default(),
            budget: Vec::new(),
            cutoff: OnSpent::default(),
            pause_seconds: PAUSE_SECONDS,
        }
    }
}

/// The default of `pause_timeout`, in seconds: Claude Code and pi wait ten minutes for a response.
pub(super) const PAUSE_SECONDS: u64 = 10 * 60;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file exists but cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The path of `settings.yml`.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The file is not valid.
    #[error("{}:{problem}", path.display())]
    Wrong {
        /// The path of `settings.yml`.
        path: PathBuf,
        /// The position and the problem.
        problem: String,
        /// What the user can do next.
        hint: Option<String>,
    },
}

impl SettingsError {
    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Unreadable { source, .. } => Some(super::disk::hint(source)),
            Self::Wrong { hint, .. } => hint.as_deref(),
        }
    }
}

impl Settings {
    /// Returns the time that lies `keep_days` before now. Older records may be removed.
    ///
    /// # Errors
    /// Returns an error if this time cannot be represented.
    pub fn keep_since(&self) -> Result<Timestamp, jiff::Error> {
        Timestamp::now().saturating_sub(SignedDuration::from_hours(24 * i64::from(self.keep_days)))
    }

    /// Loads the settings from this user's `$BOTTLE_HOME`.
    ///
    /// # Errors
    /// Returns [`SettingsError`] with file, line and column. The error for an unknown key suggests the closest known
    /// key.
    pub fn load(host: &Host) -> Result<Self, SettingsError> {
        let path = host.home.join("settings.yml");
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(SettingsError::Unreadable { path, source }),
        };
        let mut settings =
            parse(&text).map_err(|(problem, hint)| SettingsError::Wrong { path, problem, hint })?;
        for allowed in &mut settings.home_allow {
            if let Ok(below) = allowed.strip_prefix("~") {
                *allowed = host.user_home.join(below);
            }
        }
        Ok(settings)
    }
}

/// Adds approvals of commands to the text of `settings.yml`. The rest of the text stays unchanged. Returns `None` if
/// the entries cannot be inserted as lines; the user must then add them by hand.
#[must_use]
pub fn with_approvals(text: &str, approvals: &[Approval]) -> Option<String> {
    let before = parse(text).ok()?;
    let (at, more) = yaml::insert_items(text, "commands", "allow", |indent, newline| {
        let item = |approval: &Approval| {
            format!(
                "{:indent$}- {}{newline}",
                "",
                command_settings::entry(approval.rule.id(), &approval.prefix)
            )
        };
        approvals.iter().map(item).collect()
    })?;
    let line_break = if text[..at].is_empty() || text[..at].ends_with('\n') { "" } else { "\n" };
    let new = format!("{}{line_break}{more}{}", &text[..at], &text[at..]);
    let after = parse(&new).ok()?;
    let expected = [before.commands.approvals(), approvals.to_vec()].concat();
    let rest = |text| yaml::without_list(text, "commands", "allow");
    (after.commands.approvals() == expected && rest(&new) == rest(text)).then_some(new)
}

fn read(path: &std::path::Path) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than the limit is read, so that the parser can refuse a file that is too long.
    File::open(path)?.take(yaml::MAX_DOCUMENT as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bottle_command_policy::{Mode, Rule};

    use super::*;
    use crate::budget::{Limit, Scope, Window};
    use crate::command_settings::Allowed;
    use crate::docker_settings::DockerTransport;
    use crate::environment_settings::Choices;

    #[test]
    fn approvals_are_added_and_the_rest_stays() {
        let approval = |word: &str| Approval {
            rule: Rule::named("command").expect("a rule"),
            prefix: vec![word.to_owned(), "a \"b\"".to_owned()],
        };
        let line = "- {rule: command, prefix: [\"make\", \"a \\\"b\\\"\"]}";
        for (before, after) in [
            ("", format!("commands:\n  allow:\n    {line}\n")),
            ("keep_days: 3", format!("keep_days: 3\ncommands:\n  allow:\n    {line}\n")),
            (
                "commands:\n  mode: teen # mine\n\nkeep_days: 3\n",
                format!("commands:\n  mode: teen # mine\n  allow:\n    {line}\n\nkeep_days: 3\n"),
            ),
            (
                "commands:\n    allow:\n    # tests\n    - {rule: command, prefix: [x]}\n    mode: teen\nbudget: {llm.example: 5}\n",
                format!(
                    "commands:\n    allow:\n    # tests\n    - {{rule: command, prefix: [x]}}\n    {line}\n    mode: teen\nbudget: {{llm.example: 5}}\n"
                ),
            ),
        ] {
            assert_eq!(
                with_approvals(before, &[approval("make")]).as_deref(),
                Some(after.as_str()),
                "{before}"
            );
        }
        for before in [
            "commands: {mode: teen}\n",
            "commands:\n  allow: []\n",
            "commands: [",
            "commands:\n  allow: [{rule: command, prefix: [x]}]\n",
        ] {
            assert_eq!(with_approvals(before, &[approval("make")]), None, "{before}");
        }
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        for text in ["", "\n\n", "# only words\n"] {
            assert_eq!(parse(text), Ok(Settings::default()), "{text:?}");
        }
        assert_eq!(Settings::default().detach_keys.expect("keys").bytes(), [0x1d, b'd']);
    }

    #[test]
    fn parses_every_key() {
        let settings = parse(
            "backend: linux\ndetach_keys: ctrl-p,ctrl-q\nterminal:\n  pass: [title, notify]\n  tint: true\n\
             logs: {keep: 8MiB}\nprocesses: {keep: 200}\negress: {body_limit: 32MiB}\nmetering: {repeats: 9, exact: true, unmetered: [a.example/x]}\nkeep_days: 7\nkeep_size: 2MiB\nhome_allow: [~/x]\n\
             supervise: {token_timeout: 90s, git_timeout: 1h, call_wait: 20s, notify: \"curl -d @- 'a b'\"}\n\
             docker: {transport: socket, subnets: 10.9.0.0/20, runtime: runsc}\n\
             commands: {mode: Teen, allow: [{rule: command, prefix: [cargo, test]}]}\n\
             budget: {claude: 5, ceiling: {codex: {day: 7}}}\ncutoff: freeze\npause_timeout: 90s\n\
             import: {known_keys: {alice: 'ed25519:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a'}}\n\
             environments: {agent: nap, idle: 90s, tasks: {'a-*': {bottles: [dev], backend: linux, cwd: /x}}}\nhome_allow_sockets: true\n",
        );
        assert_eq!(
            settings,
            Ok(Settings {
                backend: Some("linux".to_owned()),
                detach_keys: DetachKeys::parse("ctrl-p,ctrl-q").ok(),
                terminal_pass: Pass { title: true, notify: true, ..Pass::default() },
                terminal_tint: true,
                home_allow: vec!["~/x".into()],
                home_allow_sockets: true,
                log_keep: 8 << 20,
                processes_keep: 200,
                limits: Limits { body: 32 << 20, ..Limits::default() },
                metering: ModelRules {
                    default_output: None,
                    repeats: Some(9),
                    exact: true,
                    unmetered: vec!["a.example/x".parse().expect("an endpoint")],
                },
                waits: Waits { token_seconds: 90, git_seconds: 3600, call_seconds: 20 },
                notify: Some(["curl", "-d", "@-", "a b"].map(str::to_owned).to_vec()),
                keep_days: 7,
                keep_size: 2 << 20,
                known_keys: [("alice".to_owned(), format!("ed25519:{}", "0a".repeat(32)))].into(),
                docker: DockerSettings {
                    transport: Some(DockerTransport::Socket),
                    subnets: "10.9.0.0/20".parse().expect("a network"),
                    runtime: Some("runsc".to_owned()),
                },
                commands: CommandSettings {
                    mode: Mode::Teenager,
                    warning: None,
                    allow: vec![Allowed {
                        approval: Approval {
                            rule: Rule::Command,
                            prefix: ["cargo", "test"].map(str::to_owned).to_vec(),
                        },
                        origin: "settings.yml:15".to_owned(),
                    }],
                },
                environments: EnvironmentSettings {
                    idle: Some(Duration::from_secs(90)),
                    all: Choices { agent: Some("nap".parse().expect("name")), ..Choices::default() },
                    tasks: [(
                        "a-*".to_owned(),
                        Choices {
                            agent: None,
                            bottles: Some(vec!["dev".parse().expect("name")]),
                            backend: Some("linux".to_owned()),
                            cwd: Some("/x".into()),
                        },
                    )]
                    .into(),
                },
                budget: [("host", "claude", Window::Total, 5), ("ceiling", "codex", Window::Day, 7)]
                    .map(|(scope, key, window, tokens)| Declared {
                        scope: Scope::parse(scope).expect("scope"),
                        limit: Limit { key: key.to_owned(), window, tokens },
                        origin: "settings.yml:16".to_owned(),
                    })
                    .to_vec(),
                cutoff: OnSpent::Freeze,
                pause_seconds: 90,
            })
        );
        let older = parse("shutdown: kill\npause_timeout: 0\ngate: {repeats: 3}\n").expect("settings");
        assert_eq!((older.cutoff, older.pause_seconds), (OnSpent::Kill, 0));
        assert_eq!(older.metering.repeats, Some(3));
        assert_eq!(parse("environments: {idle: 0}\n").expect("settings").environments.idle, None);
        assert_eq!(parse("detach_keys: none\n").expect("settings").detach_keys, None);
    }

    #[test]
    fn reports_invalid_settings_with_position_and_hint() {
        let (problem, hint) = parse("backend: linux\ndetach-keys: none\n").expect_err("an error");
        assert!(problem.starts_with("2:1: unknown key `detach-keys`"), "{problem}");
        assert!(hint.expect("a hint").starts_with("did you mean `detach_keys`? accepted here: `backend`, "));
        let (problem, _) = parse("supervise: {notify: []}\n").expect_err("an error");
        assert!(problem.starts_with("1:21: `supervise.notify` names no program"), "{problem}");
        let (problem, _) = parse("supervise: {call_wait: 1m}\n").expect_err("an error");
        assert!(problem.ends_with("`supervise.call_wait` must be from 1s to 55s"), "{problem}");
        let listed = parse("supervise:\n  notify: [ntfy, 'a b']\n").expect("settings").notify;
        assert_eq!(listed, Some(vec!["ntfy".to_owned(), "a b".to_owned()]));
        let (problem, _) = parse("supervise:\n  token_timeout: soon\n").expect_err("an error");
        assert!(problem.starts_with("2:18: `supervise.token_timeout` is not a duration"), "{problem}");
        let (problem, hint) = parse("supervise: {token-timeout: 5m}\n").expect_err("an error");
        assert!(hint.expect("a hint").starts_with("did you mean `token_timeout`?"), "{problem}");
        assert_eq!(parse("supervise: {git_timeout: 45s}\n").expect("settings").waits.git_seconds, 45);
        let (problem, _) = parse("detach_keys: ctrl-é\n").expect_err("an error");
        assert!(problem.contains("is not a key"), "{problem}");
        for text in [
            "backend: [a]\n",
            "backend: a\nbackend: b\n",
            "terminal: {pass: [sound]}\n",
            "- a\n",
            "home_allow: [x/y]\n",
            "logs: {keep: 8}\n",
            "keep_days: 0\n",
            "import: {known_keys: {alice: ed25519:0a}}\n",
            "keep_days: -1\n",
            "cutoff: stop\n",
            "metering: {default_output: 0}\n",
            "metering: {default_output: 10000001}\n",
            "metering: {repeats: 0}\n",
            "metering: {repeats: -1}\n",
            "metering: {exact: sometimes}\n",
            "metering: {exactly: true}\n",
            "metering: {unmetered: [a.example]}\n",
            "pause_timeout: 25h\n",
            "pause_timeout: 0s\n",
            "pause_timeout: 5\n",
            "pause_timeout: [1m]\n",
            "keep_days: long\n",
            "logs: {keep: 8k}\n",
            "keep_size: 8k\n",
            "supervise: {token_timeout: soon}\n",
            "supervise: {token_timeout: 0}\n",
            "supervise: {token_timeout: -5s}\n",
            "supervise: {git_timeout: 25h}\n",
            "supervise: {git_timeout: 99999999999999999999h}\n",
            "supervise: {git_timeout: 5 m}\n",
            "supervise: {notify: ''}\n",
            "supervise: {notify: \"it's\"}\n",
            "supervise: {notify: {a: b}}\n",
            "supervise: {notify: 3}\n",
            "supervise: {notify: [3]}\n",
            "supervise: {notify: [[a]]}\n",
            "supervise: {call_wait: 0s}\n",
            "supervise: {call_wait: 56s}\n",
            "supervise: 300\n",
            "docker: {transport: window}\n",
            "docker: {subnets: 10.9.0.0/28}\n",
            "docker: {subnets: 10.9.0.1/16}\n",
            "docker: {subnets: 'fd00::/8'}\n",
            "docker: {runtime: ''}\n",
            "docker: {runtime: 'a b'}\n",
            "docker: {socket: x}\n",
            "commands: {mode: teenagr}\n",
            "commands: {allow: [{rule: delete-root, prefix: [rm]}]}\n",
            "commands: {allow: [{rule: cargo, prefix: [cargo]}]}\n",
            "commands: {allow: [{rule: command, prefix: []}]}\n",
            "commands: {allow: [{rule: command}]}\n",
            "environments: {idle: soon}\n",
            "environments: {idle: 25h}\n",
            "environments: {cwd: src}\n",
            "environments: {agent: 'No Name'}\n",
            "environments: {tasks: {a: {cwd: ~/src}}}\n",
            "environments: {tasks: {a: {image: x}}}\n",
            "budget: 5\n",
            "budget: {claude: {run: 5}}\n",
            "budget: {claude: 0}\n",
            "budget: {ceiling: 5}\n",
            "budget: {ceiling: {cluade: 5}}\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_automatic_runtime_is_the_default() {
        assert_eq!(parse("docker: {runtime: auto}\n"), Ok(Settings::default()));
    }

    #[test]
    fn reads_a_key_by_its_old_name() {
        let settings = parse("docker: {door: socket}\n").expect("settings");
        assert_eq!(settings.docker.transport, Some(DockerTransport::Socket));
        let (problem, _) = parse("docker: {door: socket, transport: socket}\n").expect_err("an error");
        assert_eq!(problem, "1:9: `docker`: the key `transport` appears twice");
        let (problem, hint) = parse("docker: {socket: x}\n").expect_err("an error");
        assert_eq!(problem, "1:10: unknown key `socket` in `docker`");
        assert_eq!(hint.as_deref(), Some("accepted here: `transport`, `subnets` and `runtime`"));
    }
}
