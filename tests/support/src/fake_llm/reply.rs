//! The model's turn, independent of the format in which it is sent.

use serde_json::Value;

use super::conversation::Conversation;
use super::script::Turn;
use super::tool::ShellTool;

/// The model's turn, independent of the format in which it is sent.
pub(super) struct Reply<'a> {
    pub(super) model: &'a str,
    pub(super) input_tokens: usize,
    step: usize,
    turn: Turn<'a>,
    call: Option<Call>,
}

/// A call of one of the agent's tools.
pub(super) struct Call {
    pub(super) tool: ShellTool,
    pub(super) arguments: Value,
}

impl<'a> Reply<'a> {
    pub(super) fn new(conversation: &'a Conversation, turn: Turn<'a>) -> Self {
        let call = match (&turn, &conversation.tool) {
            (Turn::Run(command), Some(tool)) => {
                Some(Call { tool: tool.clone(), arguments: tool.arguments(command) })
            }
            (Turn::Call(name, arguments), Some(_)) => {
                let refusal = conversation.refusal.as_deref().unwrap_or_default();
                let arguments = serde_json::from_str(&arguments.replace("$REFUSAL", refusal));
                let tool = ShellTool::called(&conversation.tools, name);
                tool.zip(arguments.ok()).map(|(tool, arguments)| Call { tool, arguments })
            }
            _ => None,
        };
        Self {
            model: &conversation.model,
            input_tokens: conversation.input_tokens,
            step: conversation.results,
            turn,
            call,
        }
    }

    /// Returns an id that is the same for every request of the same step.
    pub(super) fn id(&self, prefix: &str) -> String {
        format!("{prefix}fake{:04}", self.step)
    }

    pub(super) fn call(&self) -> Option<&Call> {
        self.call.as_ref()
    }

    /// Returns the text of a turn without a tool call. If the request declares no shell tool, for example
    /// because it asks for a title, the command itself is the text.
    pub(super) fn text(&self) -> &str {
        match self.turn {
            Turn::Run(text) | Turn::Say(text) | Turn::Call(text, _) => text,
        }
    }
}
