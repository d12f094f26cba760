//! Any terminal program: `command` + startup arguments + what was given after `--`, placeholders replaced.

use std::collections::BTreeMap;

use bottle_contract::names::{PROMPT_FILE, TASK_FILE};
use bottle_contract::route::Route;

use super::config::ProviderConfig;
use super::{ArgvError, HomeFile, Login, Provider, Run, Unfit};

/// See the module.
pub(super) struct Command;

impl Provider for Command {
    /// Going on with an earlier conversation is not known of any program: it starts anew.
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError> {
        let command = run.provider.command.as_ref().map(|command| command.value.as_slice());
        argv(command.unwrap_or_default(), run.added(), run.task)
    }

    fn env(&self, _: &Run<'_>) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn files(&self, _: &Run<'_>) -> Vec<HomeFile> {
        Vec::new()
    }

    /// Where most agents look.
    fn skills(&self) -> &'static str {
        ".claude/skills"
    }

    fn transcript(&self) -> &'static [&'static str] {
        &[]
    }

    /// What it reaches stands in the manifest, host by host.
    fn route(&self, _: &ProviderConfig) -> Result<Option<Route>, Unfit> {
        Ok(None)
    }

    fn login(&self, _: &ProviderConfig) -> Option<Login> {
        None
    }
}

/// Replaces `{prompt_file}`, `{task_file}` and `{task}` in `command`, and only there: what a user or a
/// setting adds is taken as it is. A task is never split and never becomes an argument by itself.
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

/// One pass, so that braces inside a task are not looked at again.
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
    fn placeholders_are_replaced_in_the_command_only() {
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
    fn a_command_that_wants_a_task_says_so() {
        assert_eq!(
            argv(&words(&["agent", "{task}"]), [].into_iter(), None),
            Err(ArgvError::NoTask("{task}"))
        );
        assert_eq!(argv(&[], words(&["x"]).into_iter(), None), Err(ArgvError::Empty));
    }
}
