//! The script of the fake model: one command for each turn, and a closing sentence.

/// The commands that the agent is made to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Shell commands, which the agent runs one after the other with its shell tool. A command that begins with `mcp:`
    /// calls another tool instead: `mcp:NAME ARGUMENTS`. The arguments are JSON, in which `$REFUSAL` is replaced by the
    /// id of the last denial in the conversation.
    pub commands: Vec<String>,
    /// The text that the model sends after the last command.
    pub closing: String,
}

/// What the model does in response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn<'a> {
    /// The model calls the shell tool with this command.
    Run(&'a str),
    /// The model calls the tool whose name ends in the first text, with the arguments in the second text.
    Call(&'a str, &'a str),
    /// The model sends this text, and the conversation ends.
    Say(&'a str),
}

/// The command with which mini-swe-agent ends. The prompt of mini-swe-agent contains this command.
const SUBMIT: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

impl Default for Script {
    /// Returns a script of two commands that write and read a file in the working directory, and a closing sentence.
    /// The script needs three calls of the model.
    fn default() -> Self {
        Self::new(&["printf 'made by the agent\\n' > proof.txt", "wc -l proof.txt && cat proof.txt"])
    }
}

impl Script {
    /// Creates a script of these commands and a closing sentence.
    #[must_use]
    pub fn new(commands: &[&str]) -> Self {
        Self {
            commands: commands.iter().map(|command| (*command).to_owned()).collect(),
            closing: "The scripted task is done.".to_owned(),
        }
    }

    /// Returns the turn after `results` tool results. If the prompt contains the command with which
    /// mini-swe-agent ends, the last turn runs this command instead of sending a text.
    pub(super) fn turn(&self, results: usize, ends_by_command: bool) -> Turn<'_> {
        match self.commands.get(results) {
            Some(command) => match command.strip_prefix("mcp:").and_then(|call| call.split_once(' ')) {
                Some((name, arguments)) => Turn::Call(name, arguments),
                None => Turn::Run(command),
            },
            None if ends_by_command => Turn::Run(SUBMIT),
            None => Turn::Say(&self.closing),
        }
    }

    /// Whether the prompt asks the agent to end with [`SUBMIT`].
    pub(super) fn ends_by_command(prompt: &str) -> bool {
        prompt.contains(SUBMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_the_turn_from_the_history_alone() {
        let script = Script::new(&["one", "two", "mcp:ask {}"]);
        let closing = script.closing.as_str();
        for (results, by_command, turn) in [
            (0, false, Turn::Run("one")),
            (1, true, Turn::Run("two")),
            (2, true, Turn::Call("ask", "{}")),
            (3, false, Turn::Say(closing)),
            (3, true, Turn::Run(SUBMIT)),
            (9, false, Turn::Say(closing)),
        ] {
            assert_eq!(script.turn(results, by_command), turn, "{results} {by_command}");
        }
    }
}
