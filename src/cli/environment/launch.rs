//! Starts or resumes the bottle of a task, as `bottle start` and `bottle resume` do.

use std::path::Path;
use std::process::{Command, Stdio};

use bottle_contract::names::Slug;
use bottle_host::Host;
use bottle_host::environment_settings::Choices;
use bottle_instance::environments::Environments;
use bottle_instance::{State, Store};
use indicatif::BinaryBytes;
use rustix::fs::statvfs;
use serde_json::Value;

use super::unusable;
use crate::cli::error::CliError;
use crate::cli::output::{Output, inert};

/// The free space below which a start warns, in bytes. On a small disk, a tenth of it.
const LOW_SPACE: u64 = 5 << 30;

/// The maximum length of the messages of a start in bytes.
const MESSAGES_MAX: usize = 64 << 10;

/// Makes sure that the bottle of a task runs. One process does that at a time, and the others then find it running.
///
/// # Errors
/// Returns the error of the start, or an error if no agent is chosen.
pub(super) fn ensure(
    host: &Host,
    environments: &Environments,
    slug: &Slug,
    choices: &Choices,
    output: &Output,
) -> Result<(), CliError> {
    let store = Store::of(host);
    if let Some(State::Alive(_)) = store.state(slug) {
        return Ok(());
    }
    let failed = |error| unusable(&error);
    let _make = environments.make(slug).map_err(failed)?;
    let arguments = match store.state(slug) {
        Some(State::Alive(_)) => return Ok(()),
        Some(State::Preserved(_)) => vec!["resume".to_owned(), slug.to_string()],
        _ => start(slug, choices)?,
    };
    warn_of_low_space(&host.home, output);
    let _slot = environments.start_slot().map_err(failed)?;
    output.note(format!("starting {slug}"));
    let cwd = choices.cwd.as_deref().unwrap_or(&host.cwd);
    run(host, &arguments, cwd, output).map_err(|error| error.about_if_unset(slug))
}

/// The words of `bottle start`.
fn start(slug: &Slug, choices: &Choices) -> Result<Vec<String>, CliError> {
    let agent = choices.agent.as_ref().ok_or_else(|| {
        CliError::usage(format!("cannot start {slug}: no agent is chosen"))
            .about("--agent")
            .hint("`--agent NAME`, or `environments: {agent: NAME}` in settings.yml; `bottle list agents` lists them")
    })?;
    let mut words = vec!["start".to_owned(), agent.to_string(), "--label".to_owned(), slug.to_string()];
    for bottle in choices.bottles.iter().flatten() {
        words.extend(["--bottle".to_owned(), bottle.to_string()]);
    }
    words.extend(choices.backend.iter().flat_map(|backend| ["--backend".to_owned(), backend.clone()]));
    words.extend(choices.cwd.iter().map(|_| "--cwd".to_owned()));
    Ok(words)
}

/// Runs a command of this program that starts a bottle in the background. Passes its warnings on.
fn run(host: &Host, words: &[String], cwd: &Path, output: &Output) -> Result<(), CliError> {
    let mut command = Command::new(&host.program);
    command.args(words).args(["--detach", "--yes", "--json"]).current_dir(cwd);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let done = command.output().map_err(|error| CliError::path("run bottle in", cwd, error))?;
    let messages = String::from_utf8_lossy(&done.stderr[..done.stderr.len().min(MESSAGES_MAX)]).into_owned();
    let messages = || messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for warning in messages().filter_map(|message| message["warning"]["message"].as_str().map(inert)) {
        output.warn(warning);
    }
    if done.status.success() {
        return Ok(());
    }
    let code = done.status.code().and_then(|code| u8::try_from(code).ok());
    let error = messages().find_map(|message| message.get("error").cloned()).unwrap_or_default();
    let text = |key: &str| error[key].as_str().map(str::to_owned);
    let message = text("message").unwrap_or_else(|| "the start failed without a message".to_owned());
    let failed = CliError::failed(message).hint_if(text("hint"));
    let failed = text("subject").into_iter().fold(failed, CliError::about);
    Err(code.into_iter().fold(failed, CliError::exit))
}

/// Warns if another bottle may fill the disk.
fn warn_of_low_space(home: &Path, output: &Output) {
    let Ok(disk) = statvfs(home) else { return };
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let (free, total) = (bytes(disk.f_bavail), bytes(disk.f_blocks));
    if is_low(free, total) {
        let free = BinaryBytes(free);
        output.warn(format!(
            "only {free} are free on the disk of {}; `bottle env ls` shows what can go",
            home.display()
        ));
    }
}

fn is_low(free: u64, total: u64) -> bool {
    free < LOW_SPACE.min(total / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_of_a_disk_that_is_almost_full() {
        for (free, total, low) in [
            (4 << 30, 1 << 40, true),
            (5 << 30, 1 << 40, false),
            (2 << 30, 10 << 30, false),
            (1 << 29, 10 << 30, true),
            (0, 0, false),
        ] {
            assert_eq!(is_low(free, total), low, "{free} of {total}");
        }
    }

    #[test]
    fn a_start_has_the_choices_of_the_task() {
        let slug: Slug = "env-a-1".parse().expect("slug");
        assert!(
            start(&slug, &Choices::default())
                .expect_err("no agent")
                .failure
                .message
                .contains("no agent is chosen")
        );
        let name = |name: &str| name.parse().expect("name");
        let choices = Choices {
            agent: Some(name("shell")),
            bottles: Some(vec![name("one"), name("two")]),
            backend: Some("linux".to_owned()),
            cwd: Some("/src".into()),
        };
        assert_eq!(
            start(&slug, &choices).expect("words").join(" "),
            "start shell --label env-a-1 --bottle one --bottle two --backend linux --cwd"
        );
    }
}
