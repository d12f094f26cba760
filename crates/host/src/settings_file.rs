//! Parses the text of `settings.yml`, and checks the form and the bounds of each value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bottle_protocol::endpoints::BadEndpoint;
use bottle_protocol::session::bundle::{Limits, ModelRules};
use bottle_protocol::session::process::{PROCESSES_DEFAULT, PROCESSES_MAX};
use bottle_text::terminal::Pass;
use bottle_text::yaml::{self, Position, Spanned, YamlError};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::budget::{self, BadBudget, Declared, Limit, OnSpent, Scope};
use super::byte_size::ByteSize;
use super::detach_keys::DetachKeys;
use super::environment_settings::{self, EnvironmentSettings};
use super::pause::Pause;
use super::settings::{KEEP_DAYS, KEEP_SIZE, LOG_KEEP, PAUSE_SECONDS, Settings, Waits};
use super::{command_settings, docker_settings};

/// The minimum of `keep_size`, in bytes.
const KEEP_SIZE_MIN: u64 = 1 << 20;

/// The minimum of `logs.keep`, in bytes. With smaller log files, the latest entries would be lost.
const LOG_KEEP_MIN: u64 = 1 << 20;

/// The minimum of `egress.body_limit` and `egress.spool_quota`, in bytes. The proxy always buffers up to this size of a
/// body in memory.
const LIMIT_MIN: u64 = 1 << 20;

/// The maximum of `supervise.token_timeout` and `supervise.git_timeout`, in seconds. A waiting request occupies one of
/// a small number of slots, and the client that sent the request times out much earlier.
const WAIT_MAX: u64 = 24 * 60 * 60;

/// The maximum of `supervise.call_wait`, in seconds. It is less than a minute, because clients time out after a minute.
const CALL_WAIT_MAX: u64 = 55;

/// The largest `metering.default_output`, in tokens: more than any model's longest response.
const DEFAULT_OUTPUT_MAX: u64 = 10_000_000;

/// The settings, as written in the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Written {
    backend: Option<String>,
    detach_keys: Option<Spanned<String>>,
    terminal: Terminal,
    logs: Logs,
    processes: Processes,
    docker: docker_settings::Written,
    commands: command_settings::Written,
    environments: environment_settings::Written,
    supervise: Supervise,
    egress: Egress,
    #[serde(alias = "gate")]
    metering: Metering,
    keep_days: Option<Spanned<u32>>,
    keep_size: Option<Spanned<String>>,
    home_allow: Vec<Spanned<PathBuf>>,
    home_allow_sockets: bool,
    import: Import,
    budget: Option<Spanned<budget::Written>>,
    #[serde(alias = "shutdown")]
    cutoff: Option<Spanned<String>>,
    pause_timeout: Option<Spanned<Pause>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Import {
    known_keys: BTreeMap<String, Spanned<String>>,
}

/// Checks the form of the public keys in `import.known_keys`.
fn known_keys(keys: BTreeMap<String, Spanned<String>>) -> Result<BTreeMap<String, String>, Problem> {
    let is_key = |key: &str| {
        let digits = key.strip_prefix("ed25519:").unwrap_or_default();
        digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    };
    keys.into_iter()
        .map(|(name, key)| match is_key(&key.value) {
            true => Ok((name, key.value)),
            false => {
                let hint = "`bottle export --sign` prints the key: `ed25519:` and 64 hexadecimal digits";
                Err((
                    at(&key, &format!("`import.known_keys.{name}` is not a public key")),
                    Some(hint.to_owned()),
                ))
            }
        })
        .collect()
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Terminal {
    pass: Vec<Passing>,
    tint: bool,
}

/// One entry of `terminal.pass`.
#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Passing {
    Clipboard,
    Notify,
    Title,
    Images,
}

impl Terminal {
    fn pass(&self) -> Pass {
        Pass {
            clipboard: self.pass.contains(&Passing::Clipboard),
            notify: self.pass.contains(&Passing::Notify),
            title: self.pass.contains(&Passing::Title),
            images: self.pass.contains(&Passing::Images),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Logs {
    keep: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Processes {
    keep: Option<Spanned<usize>>,
}

impl Processes {
    /// Returns the number of processes that a bottle keeps.
    fn keep(&self) -> Result<usize, Problem> {
        match &self.keep {
            None => Ok(PROCESSES_DEFAULT),
            Some(keep) if (1..=PROCESSES_MAX).contains(&keep.value) => Ok(keep.value),
            Some(keep) => {
                Err((at(keep, &format!("`processes.keep` must be from 1 to {PROCESSES_MAX}")), None))
            }
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Egress {
    body_limit: Option<Spanned<String>>,
    spool_quota: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Metering {
    default_output: Option<Spanned<u64>>,
    repeats: Option<Spanned<u32>>,
    exact: bool,
    unmetered: Vec<Spanned<String>>,
}

impl Metering {
    fn rules(self) -> Result<ModelRules, Problem> {
        let output = self.default_output.map(|tokens| match tokens.value {
            1..=DEFAULT_OUTPUT_MAX => Ok(tokens.value),
            _ => {
                let why = format!("`metering.default_output` must be from 1 to {DEFAULT_OUTPUT_MAX} tokens");
                Err((at(&tokens, &why), None))
            }
        });
        let repeats = self.repeats.map(|times| match times.value {
            0 => Err((at(&times, "`metering.repeats` must be at least 1"), None)),
            value => Ok(value),
        });
        let unmetered = self.unmetered.iter().map(|endpoint| {
            let bad =
                |why: BadEndpoint| (at(endpoint, &format!("an entry of `metering.unmetered` {why}")), None);
            endpoint.value.parse().map_err(bad)
        });
        Ok(ModelRules {
            default_output: output.transpose()?,
            repeats: repeats.transpose()?,
            exact: self.exact,
            unmetered: unmetered.collect::<Result<_, Problem>>()?,
        })
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Supervise {
    token_timeout: Option<Spanned<String>>,
    git_timeout: Option<Spanned<String>>,
    call_wait: Option<Spanned<String>>,
    notify: Option<Spanned<CommandLine>>,
}

/// A program and its arguments, written as a list or as one line. A line is split into words as a shell splits it, but
/// without expansion.
struct CommandLine(Result<Vec<String>, &'static str>);

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LineOrList;
        impl<'de> Visitor<'de> for LineOrList {
            type Value = CommandLine;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a command: a line, or a list of words")
            }

            fn visit_str<E: serde::de::Error>(self, line: &str) -> Result<CommandLine, E> {
                Ok(CommandLine::new(shlex::split(line).ok_or("has an unclosed quote")))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<CommandLine, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(|words| CommandLine::new(Ok(words)))
            }
        }
        deserializer.deserialize_any(LineOrList)
    }
}

impl CommandLine {
    fn new(words: Result<Vec<String>, &'static str>) -> Self {
        Self(words.and_then(|words| match words.first() {
            Some(program) if !program.is_empty() && words.iter().all(|word| !word.contains('\0')) => {
                Ok(words)
            }
            _ => Err("names no program"),
        }))
    }
}

/// A problem with its position, and a hint.
pub(super) type Problem = (String, Option<String>);

/// Parses the text of the file. Values that the text does not set get their defaults.
///
/// # Errors
/// Returns the problem with its line and column, and a hint.
pub(super) fn parse(text: &str) -> Result<Settings, Problem> {
    let mut root = yaml::parse(text).map_err(problem)?;
    for (_, docker) in root.entries_mut().into_iter().flatten().filter(|(key, _)| key.text() == "docker") {
        docker_settings::rename_old_keys(docker);
    }
    let written: Written = yaml::decode(&root).map_err(problem)?;
    let supervise = written.supervise;
    let notify = supervise.notify.map(notify).transpose()?;
    let keep_days = match written.keep_days {
        Some(days) if days.value == 0 => {
            return Err((at(&days, "`keep_days` must be at least 1"), None));
        }
        days => days.map_or(KEEP_DAYS, |days| days.value),
    };
    let detach_keys = match written.detach_keys {
        None => Settings::default().detach_keys,
        Some(keys) if keys.value == "none" => None,
        Some(keys) => {
            let parsed = DetachKeys::parse(&keys.value);
            Some(parsed.map_err(|why| (at(&keys, &format!("`detach_keys`: {why}")), None))?)
        }
    };
    let bytes = |text: Option<Spanned<String>>, key, least, default| {
        text.map_or(Ok(default), |text| byte_size(&text, key, least))
    };
    let log_keep = bytes(written.logs.keep, "logs.keep", LOG_KEEP_MIN, LOG_KEEP)?;
    let keep_size = bytes(written.keep_size, "keep_size", KEEP_SIZE_MIN, KEEP_SIZE)?;
    let default = Limits::default();
    let limits = Limits {
        body: bytes(written.egress.body_limit, "egress.body_limit", LIMIT_MIN, default.body)?,
        spool: bytes(written.egress.spool_quota, "egress.spool_quota", LIMIT_MIN, default.spool)?,
    };
    let metering = written.metering.rules()?;
    let wait = |text: Option<Spanned<String>>, key, most, default| {
        text.map_or(Ok(default), |text| seconds(&text, key, most))
    };
    let default = Waits::default();
    let waits = Waits {
        token_seconds: wait(
            supervise.token_timeout,
            "supervise.token_timeout",
            WAIT_MAX,
            default.token_seconds,
        )?,
        git_seconds: wait(supervise.git_timeout, "supervise.git_timeout", WAIT_MAX, default.git_seconds)?,
        call_seconds: wait(supervise.call_wait, "supervise.call_wait", CALL_WAIT_MAX, default.call_seconds)?,
    };
    let budget = written.budget.map(home_budget).transpose()?.unwrap_or_default();
    let cutoff = written.cutoff.map(|text| {
        OnSpent::parse(&text.value).map_err(|why| (at(&text, &format!("`cutoff`: {why}")), None))
    });
    let pause_seconds = match written.pause_timeout {
        None => PAUSE_SECONDS,
        Some(Spanned { value: Pause(text), at }) if text != "0" => {
            seconds(&Spanned::new(text, at), "pause_timeout", WAIT_MAX)?
        }
        Some(_) => 0,
    };
    let home_allow = written.home_allow.into_iter().map(home_path).collect::<Result<_, Problem>>()?;
    let terminal_pass = written.terminal.pass();
    let docker = written.docker.settle().map_err(|(place, why)| (at(&place, why), None))?;
    Ok(Settings {
        backend: written.backend,
        detach_keys,
        terminal_pass,
        terminal_tint: written.terminal.tint,
        home_allow,
        home_allow_sockets: written.home_allow_sockets,
        log_keep,
        processes_keep: written.processes.keep()?,
        limits,
        metering,
        waits,
        notify,
        keep_days,
        keep_size,
        known_keys: known_keys(written.import.known_keys)?,
        docker,
        commands: written.commands.settle()?,
        environments: environments(written.environments)?,
        budget,
        cutoff: cutoff.transpose()?.unwrap_or_default(),
        pause_seconds,
    })
}

fn environments(mut written: environment_settings::Written) -> Result<EnvironmentSettings, Problem> {
    let idle = match written.idle.take() {
        None => EnvironmentSettings::default().idle,
        Some(Spanned { value: Pause(text), at }) if text != "0" => {
            Some(Duration::from_secs(seconds(&Spanned::new(text, at), "environments.idle", WAIT_MAX)?))
        }
        Some(_) => None,
    };
    written.settle(idle)
}

fn home_budget(written: Spanned<budget::Written>) -> Result<Vec<Declared>, Problem> {
    let problem = |bad: BadBudget| (format!("{}: {}", bad.at, bad.message), bad.hint);
    let (limits, ceiling) = budget::of_settings(written).map_err(problem)?;
    let declared = |scope: Scope| {
        move |limit: Spanned<Limit>| Declared {
            scope: scope.clone(),
            limit: limit.value,
            origin: format!("settings.yml:{}", limit.at.line),
        }
    };
    let limits = limits.into_iter().map(declared(Scope::Host));
    Ok(limits.chain(ceiling.into_iter().map(declared(Scope::Ceiling))).collect())
}

fn home_path(path: Spanned<PathBuf>) -> Result<PathBuf, Problem> {
    if path.value.is_absolute() || path.value.starts_with("~") {
        return Ok(path.value);
    }
    let problem = at(&path, &format!("`home_allow`: {} is not an absolute path", path.value.display()));
    Err((problem, Some("begin it with `/` or `~/`".to_owned())))
}

fn byte_size(text: &Spanned<String>, key: &str, least: u64) -> Result<u64, Problem> {
    let problem = |why: String| (at(text, &format!("`{key}` {why}, as in `64MiB`")), None);
    match text.value.parse::<ByteSize>() {
        Ok(ByteSize(bytes)) if bytes >= least => Ok(bytes),
        Ok(_) => Err(problem(format!("must be at least {}", ByteSize(least)))),
        Err(error) => Err(problem(error.to_string())),
    }
}

fn notify(words: Spanned<CommandLine>) -> Result<Vec<String>, Problem> {
    let problem = |why| (at(&words, &format!("`supervise.notify` {why}")), None);
    words.value.0.clone().map_err(problem)
}

/// Parses a number followed by `s`, `m` or `h`.
fn seconds(text: &Spanned<String>, key: &str, most: u64) -> Result<u64, Problem> {
    let problem = |why: String| (at(text, &format!("`{key}` {why}, as in `90s`, `5m` or `1h`")), None);
    let digits = text.value.trim_end_matches(|character: char| !character.is_ascii_digit());
    let unit = match &text.value[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        _ => return Err(problem(format!("is not a duration: {:?}", text.value))),
    };
    let number =
        digits.parse::<u64>().map_err(|_| problem(format!("is not a duration: {:?}", text.value)))?;
    match number.checked_mul(unit) {
        Some(seconds) if (1..=most).contains(&seconds) => Ok(seconds),
        _ if most == WAIT_MAX => Err(problem("must be from 1s to 24h".to_owned())),
        _ => Err((at(text, &format!("`{key}` must be from 1s to {most}s")), None)),
    }
}

/// Formats `line:column: problem`.
fn at<T>(place: &Spanned<T>, problem: &str) -> String {
    format!("{}: {problem}", place.at)
}

fn problem(error: YamlError) -> Problem {
    let at = error.at.unwrap_or(Position::START);
    (format!("{at}: {}", error.message("the file")), error.hint())
}
