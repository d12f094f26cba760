//! Names tools instead of commands in the sentences for a model.
//!
//! The library's errors are written for a user, and name commands of `bottle`. A model has no command line outside of the
//! bottle. It has the tools, and it can ask its user.

/// The first words of commands, and the tool that does the same.
const TOOLS: [(&str, &str); 26] = [
    ("commit", "bottle_commit"),
    ("diff", "bottle_diff"),
    ("discard", "bottle_discard"),
    ("env ls", "env_list"),
    ("env rm", "env_remove"),
    ("env run", "env_run"),
    ("exec", "terminal"),
    ("fork", "bottle_fork"),
    ("fs find", "file_find"),
    ("fs ls", "file_list"),
    ("fs read", "file_read"),
    ("fs reset", "file_reset"),
    ("list", "bottle_list"),
    ("logs", "bottle_logs"),
    ("process kill", "process_kill"),
    ("process log", "process_log"),
    ("process start", "process_start"),
    ("process wait", "process_wait"),
    ("ps", "process_list"),
    ("pull", "bottle_pull"),
    ("resume", "bottle_resume"),
    ("service list", "service_list"),
    ("service start", "service_start"),
    ("service stop", "service_stop"),
    ("start", "bottle_start"),
    ("stop", "bottle_stop"),
];

/// Replaces each command of `bottle` between backquotes by the tool that does the same. A command without such a tool
/// is named as one that the user runs.
pub(super) fn with_tools(sentence: &str) -> String {
    let mut words = String::with_capacity(sentence.len());
    // Every second part is between backquotes. A last part without its closing backquote is none.
    let parts: Vec<&str> = sentence.split('`').collect();
    for (number, part) in parts.iter().enumerate() {
        let is_code = number % 2 == 1 && number + 1 < parts.len();
        match part.strip_prefix("bottle ").filter(|_| is_code) {
            Some(command) => words.push_str(
                &tool(command)
                    .map_or_else(|| format!("`{part}` (a command for the user)"), |tool| format!("`{tool}`")),
            ),
            None if is_code => words.extend(["`", part, "`"]),
            None if number % 2 == 1 => words.extend(["`", part]),
            None => words.push_str(part),
        }
    }
    words
}

fn tool(command: &str) -> Option<&'static str> {
    let begins = |words: &str| {
        command.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    TOOLS.iter().find(|(words, _)| begins(words)).map(|(_, tool)| *tool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::tools;

    #[test]
    fn commands_become_tools_or_commands_of_the_user() {
        for (sentence, words) in [
            ("`bottle list` shows all bottles", "`bottle_list` shows all bottles"),
            ("see it with `bottle logs work --egress` or `ls`", "see it with `bottle_logs` or `ls`"),
            ("run `bottle doctor`", "run `bottle doctor` (a command for the user)"),
            ("`bottle listing`", "`bottle listing` (a command for the user)"),
            ("`bottle env ls` and `bottle env", "`env_list` and `bottle env"),
            ("no command", "no command"),
            ("a ``bottle list`` b", "a ``bottle list`` b"),
            ("", ""),
        ] {
            assert_eq!(with_tools(sentence), words);
        }
    }

    #[test]
    fn every_named_tool_exists() {
        for (command, tool) in TOOLS {
            assert!(tools::ALL.iter().any(|known| known.name == tool), "{command}: {tool}");
        }
    }
}
