//! `bottle settings`: shows every setting with its value, and whether the user set it.

use bottle_host::docker_settings::{self, DockerTransport};
use bottle_host::{Host, Settings};
use serde::Serialize;

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, inert};

/// Show every setting and its value
///
/// Settings are in `$BOTTLE_HOME/settings.yml`, which is optional.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {}

/// One setting.
#[derive(Serialize)]
struct Row {
    key: &'static str,
    value: String,
    /// Whether the value differs from the default.
    changed: bool,
    means: &'static str,
}

impl Show {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let rows = rows(&Settings::load(host)?);
        output.print_list(&rows, &["SETTING", "VALUE", "MEANS"], 0, |row| {
            let value = inert(&row.value);
            let value = if row.changed { output.styles().bold(&value) } else { value };
            vec![row.key.to_owned(), value, row.means.to_owned()]
        })?;
        output.note(format!("change them in {}", host.home.join("settings.yml").display()));
        Ok(exit::DONE)
    }
}

fn rows(settings: &Settings) -> Vec<Row> {
    let defaults = Settings::default();
    SETTINGS
        .iter()
        .map(|(key, means, value)| {
            let now = value(settings);
            Row { key, changed: now != value(&defaults), value: now, means }
        })
        .collect()
}

type Value = fn(&Settings) -> String;

/// The settings. Each entry has a key, its meaning, and a function that formats the value.
const SETTINGS: &[(&str, &str, Value)] = &[
    ("backend", "default isolation backend", |s| {
        s.backend.clone().unwrap_or_else(|| "the first usable one".to_owned())
    }),
    ("budget", "tokens that all bottles may use", |s| listed(s.budget.iter().map(ToString::to_string))),
    ("commands.allow", "commands that are approved for good", |s| {
        listed(s.commands.allow.iter().map(|allowed| {
            let words = allowed.approval.prefix.iter().map(String::as_str);
            format!("{}: {}", allowed.approval.rule, shlex::try_join(words).unwrap_or_default())
        }))
    }),
    ("commands.mode", "what other programs may run in bottles", |s| s.commands.mode.to_string()),
    ("detach_keys", "keys that detach from a session", |s| {
        s.detach_keys.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
    }),
    ("cutoff", "what happens when a budget is spent", |s| s.cutoff.to_string()),
    ("environments", "how `bottle env` makes the bottles of tasks", |s| {
        let agent = s.environments.all.agent.as_ref().map(|agent| format!("agent {agent}"));
        let tasks = s.environments.tasks.keys().map(|task| format!("own choices for {task}"));
        listed(agent.into_iter().chain(tasks))
    }),
    ("environments.idle", "when a bottle of a task is stopped", |s| {
        s.environments.idle.map_or_else(|| "never".to_owned(), |idle| format!("{}s", idle.as_secs()))
    }),
    ("docker.transport", "how containers reach their proxy", |s| {
        s.docker.transport.unwrap_or(DockerTransport::Socket).word().to_owned()
    }),
    ("docker.subnets", "address pool of the containers' networks", |s| s.docker.subnets.to_string()),
    ("docker.runtime", "container runtime", |s| {
        s.docker.runtime.clone().unwrap_or_else(|| docker_settings::AUTO.to_owned())
    }),
    ("egress.body_limit", "longest request body", |s| indicatif::HumanBytes(s.limits.body).to_string()),
    ("egress.spool_quota", "disk space for buffered request bodies, encrypted", |s| {
        indicatif::HumanBytes(s.limits.spool).to_string()
    }),
    ("home_allow", "files and directories that bottles may read", |s| {
        listed(s.home_allow.iter().map(|path| path.display().to_string()))
    }),
    ("home_allow_sockets", "whether these may contain sockets and pipes, which agents can use", |s| {
        s.home_allow_sockets.to_string()
    }),
    ("import.known_keys", "exporters whose names `bottle import` shows", |s| {
        listed(s.known_keys.keys().cloned())
    }),
    ("keep_days", "days to keep usage records, and other records until `bottle prune`", |s| {
        s.keep_days.to_string()
    }),
    ("keep_size", "size of all logs and records of ended bottles", |s| {
        indicatif::HumanBytes(s.keep_size).to_string()
    }),
    ("logs.keep", "size of the access log kept per bottle", |s| {
        indicatif::HumanBytes(s.log_keep).to_string()
    }),
    ("metering.default_output", "tokens reserved for a response without a limit", |s| {
        let most = || "as many as the model can write".to_owned();
        s.metering.default_output.map_or_else(most, |tokens| indicatif::HumanCount(tokens).to_string())
    }),
    ("metering.exact", "ask the provider for the tokens of a prompt", |s| s.metering.exact.to_string()),
    ("metering.repeats", "how often the same request to a model may be sent in a row", |s| {
        s.metering.repeats.map_or_else(|| "no limit".to_owned(), |times| times.to_string())
    }),
    ("metering.unmetered", "endpoints that pass uncounted where a budget limits their host", |s| {
        listed(s.metering.unmetered.iter().map(ToString::to_string))
    }),
    ("pause_timeout", "how long a bottle with a spent budget waits for you", |s| match s.pause_seconds {
        0 => "0".to_owned(),
        seconds => clock(seconds),
    }),
    ("processes.keep", "processes that run or are remembered per bottle", |s| s.processes_keep.to_string()),
    ("supervise.call_wait", "how long an agent's call waits for your answer", |s| {
        clock(s.waits.call_seconds)
    }),
    ("supervise.git_timeout", "how long a push waits for your answer", |s| clock(s.waits.git_seconds)),
    ("supervise.notify", "command to run for each new proposal", |s| {
        let line = s.notify.as_ref().and_then(|words| shlex::try_join(words.iter().map(String::as_str)).ok());
        line.unwrap_or_else(|| "none".to_owned())
    }),
    ("supervise.token_timeout", "how long a request waits for your answer", |s| clock(s.waits.token_seconds)),
    ("terminal.pass", "terminal features that agents may use", |s| {
        let pass = s.terminal_pass;
        let named = [
            (pass.clipboard, "clipboard"),
            (pass.notify, "notify"),
            (pass.title, "title"),
            (pass.images, "images"),
        ];
        listed(named.into_iter().filter(|(on, _)| *on).map(|(_, name)| name.to_owned()))
    }),
    ("terminal.tint", "whether the name's colour tints the background", |s| s.terminal_tint.to_string()),
];

fn clock(seconds: u64) -> String {
    match (seconds % 3600, seconds % 60) {
        (0, _) => format!("{}h", seconds / 3600),
        (_, 0) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

fn listed(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
