//! Groups the commands by task, for the help. Suggests a command for an unknown word.

use std::fmt::Write as _;
use std::io::IsTerminal;

use bottle_text::suggest::suggest;
use clap::Command;
use clap::builder::styling::{Style, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::console::error::CliError;
use crate::console::layout::hanging;
use crate::console::{output, terminal};

/// The tasks, and the commands for each task. The help prints the tasks in this order.
const GROUPS: &[(&str, &[&str])] = &[
    ("Every day", &["start", "list", "attach", "supervise", "stop"]),
    ("Get the work", &["diff", "apply", "pull", "cp", "fs"]),
    ("Work beside the agent", &["exec", "shell", "process", "ps", "service", "env", "logs"]),
    ("Keep and continue", &["resume", "commit", "snapshots", "fork", "export", "import"]),
    (
        "Decide what a bottle may reach",
        &["allow", "deny", "secrets", "learn", "policy", "rules", "audit", "probe"],
    ),
    ("Tokens and budgets", &["usage", "budget", "dashboard"]),
    ("Clean up", &["discard", "cleanup", "prune"]),
    ("Set up", &["init", "edit", "info", "settings", "doctor", "mcp", "completions", "man", "help"]),
];

/// The heading of commands that are in no group.
const OTHERS: &str = "More";

/// The words that other programs use for a task, and the suggestion of a `bottle` command for this task.
const MEANINGS: &[(&[&str], &str)] = &[
    (
        &["run", "new", "create", "up", "launch", "open", "begin"],
        "`bottle start` starts an agent in a new bottle",
    ),
    (&["ls", "status", "top", "active", "bottles"], "`bottle list` shows all bottles"),
    (&["agents"], "`bottle list agents` shows what you can start"),
    (
        &["sh", "bash", "zsh", "ssh", "enter", "console", "terminal"],
        "`bottle shell` opens a shell in a bottle",
    ),
    (&["kill", "end", "down", "halt", "terminate", "quit"], "`bottle stop` ends a bottle"),
    (
        &["rm", "remove", "delete", "destroy"],
        "`bottle discard` deletes a bottle that has ended, and `bottle stop` ends a running one",
    ),
    (&["gc", "clean", "clear"], "`bottle cleanup` removes what bottles left behind"),
    (&["connect", "join", "return", "watch"], "`bottle attach` connects the terminal to a running agent"),
    (&["continue", "restart", "restore", "unpause"], "`bottle resume` starts a kept bottle again"),
    (&["save", "checkpoint", "freeze"], "`bottle commit` saves a snapshot of a bottle"),
    (&["copy", "scp", "upload", "download"], "`bottle cp` copies files into or out of a bottle"),
    (&["fetch", "merge"], "`bottle pull` fetches a bottle's commits into your repository"),
    (&["changes", "changed", "compare"], "`bottle diff` shows what changed in a bottle's workspace"),
    (&["clone", "duplicate", "branch"], "`bottle fork` makes new bottles from the files of one"),
    (
        &["approve", "reject", "answer", "ask", "questions", "proposals", "pending", "queue", "requests"],
        "`bottle supervise` shows and answers the questions of bottles",
    ),
    (&["log", "output", "tail"], "`bottle logs` shows what an agent printed"),
    (&["network", "denied", "blocked", "egress"], "`bottle logs SLUG --egress` shows the proxy's decisions"),
    (&["inspect", "show", "describe", "explain"], "`bottle info AGENT` shows an agent and its bottles"),
    (
        &["config", "configure", "set"],
        "`bottle settings` shows every setting, and `bottle edit` changes a manifest",
    ),
    (&["cost", "costs", "tokens", "spent", "stats"], "`bottle usage` shows how many tokens the models used"),
    (&["check", "diagnose", "verify"], "`bottle doctor` checks each backend on this machine"),
    (&["ui", "tui", "web"], "`bottle dashboard` shows all bottles on one screen"),
    (&["images", "snapshot", "saves"], "`bottle snapshots` lists all snapshots"),
    (&["docs", "manual", "topics"], "`bottle help` lists commands and topics"),
    (&["version"], "`bottle --version` prints the version"),
];

/// Groups the help of the command line by task.
pub(super) fn grouped(command: Command) -> Command {
    let groups = groups(&command, width());
    let heading = heading();
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{heading}Options:{heading:#}\n\
         {{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// The width to which clap wraps its help.
fn width() -> usize {
    if std::io::stdout().is_terminal() {
        usize::from(terminal::size().columns).min(MAX_WIDTH)
    } else {
        MAX_WIDTH
    }
}

/// The maximum width of the help, which is also the `max_term_width` of the command line.
pub(super) const MAX_WIDTH: usize = 100;

fn heading() -> Style {
    *Styles::styled().get_header()
}

/// Formats all visible commands with the first line of their help.
fn groups(command: &Command, columns: usize) -> String {
    let shown = |name: &str| command.get_subcommands().find(|it| it.get_name() == name && !it.is_hide_set());
    let mut text = String::new();
    for (title, names) in GROUPS {
        add_group(&mut text, title, names.iter().filter_map(|name| shown(name)), columns);
    }
    let ungrouped = command.get_subcommands().filter(|it| !it.is_hide_set() && !is_grouped(it.get_name()));
    add_group(&mut text, OTHERS, ungrouped, columns);
    text
}

fn is_grouped(name: &str) -> bool {
    GROUPS.iter().any(|(_, names)| names.contains(&name))
}

fn add_group<'a>(
    text: &mut String,
    title: &str,
    commands: impl Iterator<Item = &'a Command>,
    columns: usize,
) {
    /// The width of the longest command name, including indentation and gap.
    const NAMES: usize = 15;
    let (heading, literal) = (heading(), *Styles::styled().get_literal());
    let mut commands = commands.peekable();
    if commands.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "{heading}{title}:{heading:#}");
    for command in commands {
        let name = command.get_name();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let gap = NAMES.saturating_sub(name.len() + 2);
        let about = hanging(&about, NAMES, NAMES, Some(columns));
        let _ = writeln!(text, "  {literal}{name}{literal:#}{:gap$}{about}", "");
    }
    text.push('\n');
}

/// Returns a suggestion for a word that is not a command. Suggests by the meaning of the word first, and otherwise by
/// its spelling.
pub(super) fn suggestion(word: &str) -> Option<String> {
    let lower = word.to_lowercase();
    if let Some((_, meant)) = MEANINGS.iter().find(|(words, _)| words.contains(&lower.as_str())) {
        return Some((*meant).to_owned());
    }
    let names: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    suggest(word, names).map(|near| format!("did you mean `bottle {near}`?"))
}

/// Returns the error for an unknown command. Returns `None` for any other error, and for an unknown subcommand of a
/// command.
pub(super) fn unknown_command(error: &clap::Error, arguments: &[std::ffi::OsString]) -> Option<CliError> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let first = arguments.iter().skip(1).find(|argument| !argument.as_encoded_bytes().starts_with(b"-"))?;
    if error.kind() != ErrorKind::InvalidSubcommand || first != word.as_str() {
        return None;
    }
    let shown = output::one_line(word);
    let hint = suggestion(word).unwrap_or_else(|| "`bottle help` lists commands and topics".to_owned());
    Some(CliError::usage(format!("no command is named `{shown}`")).about(shown).hint(hint))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::args::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped = HashSet::new();
        for name in GROUPS.iter().flat_map(|(_, names)| names.iter()) {
            assert!(grouped.insert(*name), "{name} is in two groups");
            assert!(Cli::command().find_subcommand(name).is_some(), "there is no command {name}");
        }
        for command in Cli::command().get_subcommands().filter(|it| !it.is_hide_set()) {
            assert!(grouped.contains(command.get_name()), "{} is in no group", command.get_name());
        }
    }

    #[test]
    fn every_meaning_names_a_command_and_hides_none() {
        let command = Cli::command();
        for (words, meant) in MEANINGS {
            for word in *words {
                assert!(command.find_subcommand(word).is_none(), "{word} is a command");
            }
            for line in meant.split('`').skip(1).step_by(2) {
                let mut typed = line.split(' ').skip(1);
                let name = typed.next().expect("a command");
                assert!(name.starts_with("--") || command.find_subcommand(name).is_some(), "{line}");
            }
        }
    }

    #[test]
    fn suggests_by_meaning_before_spelling() {
        for (word, hint) in [
            ("run", Some("`bottle start` starts an agent in a new bottle")),
            (
                "RM",
                Some(
                    "`bottle discard` deletes a bottle that has ended, and `bottle stop` ends a running one",
                ),
            ),
            ("sh", Some("`bottle shell` opens a shell in a bottle")),
            ("kill", Some("`bottle stop` ends a bottle")),
            ("strat", Some("did you mean `bottle start`?")),
            ("supervize", Some("did you mean `bottle supervise`?")),
            ("nothing-like-it", None),
        ] {
            assert_eq!(suggestion(word).as_deref(), hint, "{word}");
        }
    }
}
