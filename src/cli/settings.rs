//! `bottle settings`: shows every setting with its value, and whether the user set it.

use serde::Serialize;

use super::error::CliError;
use super::exit;
use super::layout::Table;
use super::output::{Output, inert};
use crate::host::{Host, Settings};

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
        if output.json {
            output.print_json(&rows)?;
            return Ok(exit::DONE);
        }
        let styles = output.styles();
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let value = inert(&row.value);
                let value = if row.changed { styles.bold(&value) } else { value };
                vec![row.key.to_owned(), value, row.means.to_owned()]
            })
            .collect();
        output.print_table(&Table { heading: &["SETTING", "VALUE", "MEANS"], name: 0, rows: &cells })?;
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

/// Key, meaning, and how to format the value.
const SETTINGS: &[(&str, &str, Value)] = &[
    ("backend", "what isolates a bottle, where nothing else says", |s| {
        s.backend.clone().unwrap_or_else(|| "the first that can run it".to_owned())
    }),
    ("detach_keys", "leave a session running", |s| {
        s.detach_keys.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
    }),
    ("docker.transport", "how a bottle reaches its proxy on an engine", |s| {
        s.docker.transport.word().to_owned()
    }),
    ("docker.subnets", "where bottles' networks on an engine come from", |s| s.docker.subnets.to_string()),
    ("docker.runtime", "what runs the containers", |s| {
        s.docker.runtime.clone().unwrap_or_else(|| "the engine's own".to_owned())
    }),
    ("egress.body_limit", "longest request let through", |s| {
        indicatif::HumanBytes(s.limits.body).to_string()
    }),
    ("egress.spool_quota", "bytes of long requests that wait on disk, encrypted", |s| {
        indicatif::HumanBytes(s.limits.spool).to_string()
    }),
    ("home_allow", "paths of your home that a bottle may see, read-only", |s| {
        listed(s.home_allow.iter().map(|path| path.display().to_string()))
    }),
    ("keep_days", "days for which what models cost stays on record", |s| s.keep_days.to_string()),
    ("logs.keep", "bytes of the proxy's log that are kept of each bottle", |s| {
        indicatif::HumanBytes(s.log_keep).to_string()
    }),
    ("supervise.call_wait", "how long an agent's call waits for you", |s| clock(s.waits.call_seconds)),
    ("supervise.git_timeout", "how long a push waits", |s| clock(s.waits.git_seconds)),
    ("supervise.notify", "a command for each new question", |s| {
        let line = s.notify.as_ref().and_then(|words| shlex::try_join(words.iter().map(String::as_str)).ok());
        line.unwrap_or_else(|| "none".to_owned())
    }),
    ("supervise.token_timeout", "how long a request waits", |s| clock(s.waits.token_seconds)),
    ("terminal.pass", "what an agent may do to your terminal beyond text", |s| {
        let pass = s.terminal_pass;
        let named = [
            (pass.clipboard, "clipboard"),
            (pass.notify, "notify"),
            (pass.title, "title"),
            (pass.images, "images"),
        ];
        listed(named.into_iter().filter(|(on, _)| *on).map(|(_, name)| name.to_owned()))
    }),
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
