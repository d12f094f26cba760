//! What each kind of agent needs of the bottle it works in.
//!
//! ```text
//!   claude, codex, pi, command   one kind of agent each, described: [`Provider`]; pure
//!     api        the hosts they talk to: routes and logins
//!     endpoint   an address a user gives for a model API
//! ```

mod api;
mod claude;
pub mod codex;
mod command;
mod config;
mod endpoint;
mod pi;

use std::collections::BTreeMap;

use bottle_contract::credential::Scheme;
use bottle_contract::names::{SUPERVISE_HOST, SUPERVISE_PORT};
use bottle_contract::route::Route;
use serde::{Deserialize, Serialize};

pub use config::{ProviderConfig, ProviderSettings};

use crate::manifest::origin::Origin;
use crate::manifest::provider::Template;

/// One kind of agent, described. Every backend starts, feeds and resumes it by this alone.
///
/// Pure: no file, no clock, no secret. Paths of the home are relative to it.
pub trait Provider: Sync {
    /// Program and arguments.
    ///
    /// # Errors
    /// [`ArgvError`].
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError>;

    /// Variables, under those of the manifest.
    fn env(&self, run: &Run<'_>) -> BTreeMap<String, String>;

    /// Files of the home that are there before it starts: its settings, and the answers to what it would
    /// ask a user on its first day.
    fn files(&self, run: &Run<'_>) -> Vec<HomeFile>;

    /// Where the agent looks for skills: a folder of the home with one folder for each.
    fn skills(&self) -> &'static str;

    /// Where it keeps its conversations: files or folders of the home, none when that is not known.
    ///
    /// Copied out at every end of a bottle. Copied back before a start with [`Run::resumed`], they are
    /// all that the agent needs to go on where it was.
    fn transcript(&self) -> &'static [&'static str];

    /// The host of its model API and the requests that it needs there. Where there is a [`Login`] its
    /// `auth` has the last form, and [`LoginSource`]'s words for a source.
    ///
    /// # Errors
    /// [`Unfit`].
    fn route(&self, provider: &ProviderConfig) -> Result<Option<Route>, Unfit>;

    /// How it is logged in at that host.
    fn login(&self, provider: &ProviderConfig) -> Option<Login>;
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

/// Where the MCP server is, by which an agent asks a user.
pub(crate) fn asks() -> String {
    format!("http://{SUPERVISE_HOST}:{SUPERVISE_PORT}/mcp")
}

/// One start of an agent.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// `agent_provider` of the resolved manifest.
    pub provider: &'a ProviderConfig,
    /// The bottle's name, as a user knows it.
    pub name: &'a str,
    /// The colour of that name.
    pub color: Option<&'a str>,
    /// The manifest's body; it lies in [`bottle_contract::names::PROMPT_FILE`] too.
    pub prompt: &'a str,
    /// `-p`; it lies in [`bottle_contract::names::TASK_FILE`] too.
    pub task: Option<&'a str>,
    /// What came after `--`.
    pub arguments: &'a [String],
    /// Whether it has a terminal. Without one it does its task, or what comes on its standard input.
    pub terminal: bool,
    /// Whether it can ask a user, by [`asks`].
    pub supervise: bool,
    /// Whether it goes on with the conversation of an earlier run. Only where there is one: an agent
    /// that finds none ends with an error.
    pub resumed: bool,
}

impl Run<'_> {
    /// Whether there is a prompt to give to the agent.
    fn has_prompt(&self) -> bool {
        !self.prompt.trim().is_empty()
    }

    /// What the manifest and the user add to the agent's own arguments, in this order.
    fn added(&self) -> impl Iterator<Item = String> {
        self.provider.settings.startup_args.value.iter().chain(self.arguments).cloned()
    }
}

/// A file of the home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeFile {
    /// Relative to the home.
    pub path: &'static str,
    /// The text.
    pub content: String,
}

impl HomeFile {
    fn json(path: &'static str, value: &serde_json::Value) -> Self {
        Self { path, content: format!("{value:#}\n") }
    }
}

/// How an agent is logged in: the credential stays outside and the agent gets something of its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// Where the credential comes from.
    pub source: LoginSource,
    /// How it is put in, by its beginning. Never empty.
    pub forms: Vec<LoginForm>,
}

/// Where a login's credential comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginSource {
    /// `auth_token`.
    Token(crate::manifest::secret_ref::SecretRef),
    /// Nothing is said, so a user is asked for this.
    Asked(&'static str),
    /// Codex's own login on this machine.
    CodexHost,
}

/// A kind of credential: how the proxy puts it in, and what the agent holds in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginForm {
    /// What a credential of this kind begins with; the first form that fits is taken.
    pub prefix: String,
    /// How it goes into the header.
    pub scheme: Scheme,
    /// The header.
    pub header: String,
    /// Variables with placeholders of its shape.
    pub env: BTreeMap<String, String>,
}

/// A manifest that its provider cannot work with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// The value it is about.
    pub origin: Origin,
    /// What is wrong, naming the key.
    pub message: String,
    /// The next step.
    pub hint: String,
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
    /// What the user does next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Empty => "give the agent's argv with `agent_provider.command`",
            Self::NoTask(_) => "give the task with `-p TEXT`",
            Self::TaskTooLong => "put the task into a file of the workspace, and tell the agent to read it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_no_argument_can_hold_is_refused_before_the_kernel_does() {
        let longest = "x".repeat(ARGUMENT_MAX - 1);
        assert_eq!(task_argument(&longest).map(|task| task.len()), Ok(longest.len()));
        let error = task_argument(&format!("{longest}x")).expect_err("too long");
        assert_eq!(error.to_string(), "the task is longer than an argument may be (128 KiB)");
    }
}
