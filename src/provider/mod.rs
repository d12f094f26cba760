//! What each kind of agent needs: from the bottle it works in, and from the machine it comes from.
//!
//! ```text
//!   claude, codex, pi, command   one kind of agent each, described: [`Provider`]; pure
//!   program    where its program is on this machine, with what it needs beside it
//!     closure    the least that has to be seen for a program to run ([`bounds`] say what never is)
//!     python, node, shebang   what the closure knows of installations
//!     search     PATH as the person has it, version managers' shims looked through
//! ```
//! Nothing here runs a program of the host: what is needed is read off files, or it is not known.

mod bounds;
mod claude;
mod closure;
mod codex;
mod command;
mod node;
mod pi;
pub mod program;
mod python;
mod search;
mod shebang;

use crate::manifest::provider::Template;
use crate::resolve;

/// One kind of agent, described. Every backend starts, feeds and resumes it by this alone.
///
/// Pure: no file, no clock, no secret. Paths of the home are relative to it.
pub trait Provider: Sync {
    /// Program and arguments.
    ///
    /// # Errors
    /// [`ArgvError`].
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError>;

    /// Where the agent looks for skills: a folder of the home with one folder for each.
    fn skills(&self) -> &'static str;

    /// Where it keeps its conversations: files or folders of the home, none when that is not known.
    ///
    /// Copied out at every end of a bottle. Copied back before a start with [`Run::resumed`], they are
    /// all that the agent needs to go on where it was.
    fn transcript(&self) -> &'static [&'static str];
}

/// The provider of a template.
#[must_use]
pub fn of(template: Template) -> &'static dyn Provider {
    match template {
        Template::Claude => &claude::Claude,
        Template::Codex => &codex::Codex,
        Template::Pi => &pi::Pi,
        Template::Command => &command::Command,
    }
}

/// One start of an agent.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// `agent_provider` of the resolved manifest.
    pub provider: &'a resolve::Provider,
    /// The manifest's body; it lies in [`bottle_contract::names::PROMPT_FILE`] too.
    pub prompt: &'a str,
    /// `-p`; it lies in [`bottle_contract::names::TASK_FILE`] too.
    pub task: Option<&'a str>,
    /// What came after `--`.
    pub arguments: &'a [String],
    /// Whether it has a terminal. Without one it does its task, or what comes on its standard input.
    pub terminal: bool,
    /// Whether it goes on with the conversation of an earlier run. Only where there is one: an agent
    /// that finds none ends with an error.
    pub resumed: bool,
}

impl Run<'_> {
    /// Whether there is a prompt to give to the agent.
    fn has_prompt(&self) -> bool {
        !self.prompt.trim().is_empty()
    }

    /// What the manifest and the person add to the agent's own arguments, in this order.
    fn added(&self) -> impl Iterator<Item = String> {
        self.provider.settings.startup_args.value.iter().chain(self.arguments).cloned()
    }
}

/// The longest single argument that the kernel takes, its end included.
const ARGUMENT_MAX: usize = 128 << 10;

/// The task as an argument of its own.
fn task_argument(task: &str) -> Result<String, ArgvError> {
    if task.len() < ARGUMENT_MAX { Ok(task.to_owned()) } else { Err(ArgvError::TaskTooLong) }
}

/// Why there is no argv.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// `command` is empty.
    #[error("the agent has no command")]
    Empty,
    /// `command` wants a task and none was given.
    #[error("the agent's command uses {0}, and there is no task")]
    NoTask(&'static str),
    /// No argument can be that long.
    #[error("the task is longer than an argument may be ({} KiB)", ARGUMENT_MAX >> 10)]
    TaskTooLong,
}

impl ArgvError {
    /// What the person does next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Empty => "give the agent's argv with `agent_provider.command`",
            Self::NoTask(_) => "give the task with `-p TEXT`",
            Self::TaskTooLong => "put the task into a file of the workspace, and tell the agent to read it",
        }
    }
}
