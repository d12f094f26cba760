//! The script of the fake model: commands, one per turn, then a closing sentence.

/// The commands of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Shell commands, run one after the other through the agent's own shell tool. One that begins with `mcp:` is a
    /// call of another tool instead: `mcp:NAME ARGUMENTS`, the arguments as JSON, in which `$REFUSAL` stands for the
    /// last refusal's id in the conversation.
    pub commands: Vec<String>,
    /// The model's text after the last command.
    pub closing: String,
}

/// What the model does in answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn<'a> {
    /// Calls the shell tool with this command.
    Run(&'a str),
    /// Calls the tool whose name ends so, with these arguments.
    Call(&'a str, &'a str),
    /// Says this and ends.
    Say(&'a str),
}

/// The command by which mini-swe-agent ends; its prompt contains these words.
const SUBMIT: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

impl Default for Script {
    /// Two commands that leave a trace in the working directory, then the end: three calls.
    fn default() -> Self {
        Self::new(&["printf 'made by the agent\\n' > proof.txt", "wc -l proof.txt && cat proof.txt"])
    }
}

impl Script {
    /// These commands, and then the end.
    #[must_use]
    pub fn new(commands: &[&str]) -> Self {
        Self {
            commands: commands.iter().map(|command| (*command).to_owned()).collect(),
            closing: "The scripted task is done.".to_owned(),
        }
    }

    /// The turn after `results` tool results. If the prompt names mini's final command, the last turn runs it instead
    /// of a text.
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

    /// Whether a prompt asks to end by command.
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
