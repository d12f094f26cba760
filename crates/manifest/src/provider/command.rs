//! The provider for any terminal program. Its command line is `command`, the startup arguments and the
//! arguments after `--`. In `command`, `{prompt_file}`, `{task_file}` and `{task}` are replaced.

use std::collections::BTreeMap;

use bottle_policy::names::{PROMPT_FILE, TASK_FILE};
use bottle_policy::route::Route;

use super::config::ProviderConfig;
use super::{ArgvError, HomeFile, Login, Provider, Run, UnsupportedSetting};

/// The provider for any terminal program.
pub(super) struct Command;

impl Provider for Command {
    /// Ignores [`Run::resumed`], because there is no common flag for resuming a conversation.
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let command = run.provider.command.as_ref().map(|command| command.value.as_slice());
        argv(command.unwrap_or_default(), run.extra_arguments(), run.task)
    }

    fn env(&self, _: &Run<'_>) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn files(&self, _: &Run<'_>) -> Vec<HomeFile> {
        Vec::new()
    }

    /// Most agents search this directory for skills.
    fn skills(&self) -> &'static str {
        ".claude/skills"
    }

    fn transcript(&self) -> &'static [&'static str] {
        &[]
    }

    /// There is no provider route, because the manifest lists the hosts of the program.
    fn route(&self, _: &ProviderConfig) -> Result<Option<Route>, UnsupportedSetting> {
        Ok(None)
    }

    fn login(&self, _: &ProviderConfig) -> Option<Login> {
        None
    }
}

/// Replaces `{prompt_file}`, `{task_file}` and `{task}` in `command`, but not in the added arguments. A task is not
/// split into words, and is passed only if `command` contains `{task}`.
fn argv(
    command: &[String],
    added: impl Iterator<Item = String>,
    task: Option<&str>,
) -> Result<Vec<String>, ArgvError> {
    if command.is_empty() {
        return Err(ArgvError::Empty);
    }
    let filled = command.iter().map(|argument| fill(argument, task));
    filled.chain(added.map(Ok)).collect()
}

/// Replaces `{prompt_file}`, `{task_file}` and `{task}` in one pass, so that braces in a task are not expanded.
fn fill(argument: &str, task: Option<&str>) -> Result<String, ArgvError> {
    let mut filled = String::with_capacity(argument.len());
    let mut rest = argument;
    while let Some(at) = rest.find('{') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{prompt_file}") {
            filled.push_str(PROMPT_FILE);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("{task_file}") {
            task.ok_or(ArgvError::NoTask("{task_file}"))?;
            filled.push_str(TASK_FILE);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("{task}") {
            filled.push_str(task.ok_or(ArgvError::NoTask("{task}"))?);
            rest = after;
        } else {
            filled.push('{');
            rest = &rest[1..];
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn replaces_placeholders_in_the_command_only() {
        let argv = argv(
            &words(&["agent", "-t", "{task}", "--prompt={prompt_file}", "{other}"]),
            words(&["--fast", "{task}"]).into_iter(),
            Some("say {prompt_file}"),
        );
        let expected = [
            "agent",
            "-t",
            "say {prompt_file}",
            "--prompt=/run/bottle/prompt.md",
            "{other}",
            "--fast",
            "{task}",
        ];
        assert_eq!(argv, Ok(words(&expected)));
    }

    #[test]
    fn refuses_a_command_without_its_task() {
        assert_eq!(
            argv(&words(&["agent", "{task}"]), [].into_iter(), None),
            Err(ArgvError::NoTask("{task}"))
        );
        assert_eq!(argv(&[], words(&["x"]).into_iter(), None), Err(ArgvError::Empty));
    }
}
