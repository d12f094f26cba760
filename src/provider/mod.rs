//! Describes each kind of agent: its command, files, route and login.
//!
//! ```text
//!   claude, codex, pi, command   one kind of agent each ([`Provider`]); pure
//!     api        routes and credential forms of the model APIs
//!     endpoint   the user's URL of a model API
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

/// One kind of agent. Backends start, configure and resume it by this trait alone.
///
/// Implementations are pure: no file, no clock, no secret. Paths are relative to the agent's home.
pub trait Provider: Sync {
    /// Program and arguments.
    ///
    /// # Errors
    /// [`ArgvError`].
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError>;

    /// Environment variables; those of the manifest override them.
    fn env(&self, run: &Run<'_>) -> BTreeMap<String, String>;

    /// Files in the home before it starts: its settings, and the answers to its first-run questions.
    fn files(&self, run: &Run<'_>) -> Vec<HomeFile>;

    /// The folder in which the agent searches for skills, with one folder for each.
    fn skills(&self) -> &'static str;

    /// The files or folders of its conversations; none when they are unknown.
    ///
    /// They are copied out when the bottle ends. Copied back before a start with [`Run::resumed`], they are all that
    /// the agent needs to continue.
    fn transcript(&self) -> &'static [&'static str];

    /// The host of its model API and the requests that it needs. With a [`Login`], the route's `auth` has the last
    /// form and a description of the [`LoginSource`].
    ///
    /// # Errors
    /// [`UnsupportedSetting`].
    fn route(&self, provider: &ProviderConfig) -> Result<Option<Route>, UnsupportedSetting>;

    /// Its login at that host.
    fn login(&self, provider: &ProviderConfig) -> Option<Login>;
}

/// The provider of a template.
#[must_use]
pub fn for_template(template: Template) -> &'static dyn Provider {
    match template {
        Template::Claude => &claude::Claude,
        Template::Codex => &codex::Codex,
        Template::Pi => &pi::Pi,
        Template::Command => &command::Command,
    }
}

/// The URL of the supervise sidecar's MCP server, with which an agent makes proposals.
pub(crate) fn supervise_url() -> String {
    format!("http://{SUPERVISE_HOST}:{SUPERVISE_PORT}/mcp")
}

/// One start of an agent.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// `agent_provider` of the resolved manifest.
    pub provider: &'a ProviderConfig,
    /// The bottle's label or slug.
    pub name: &'a str,
    /// The colour of that name.
    pub color: Option<&'a str>,
    /// The manifest's body, also in [`bottle_contract::names::PROMPT_FILE`].
    pub prompt: &'a str,
    /// `-p`, also in [`bottle_contract::names::TASK_FILE`].
    pub task: Option<&'a str>,
    /// The arguments after `--`.
    pub arguments: &'a [String],
    /// Whether it has a terminal. Without one it does its task, or reads it from standard input.
    pub terminal: bool,
    /// Whether it can make proposals, at [`supervise_url`].
    pub supervise: bool,
    /// Whether it resumes the conversation of an earlier run. There must be one: otherwise the agent fails.
    pub resumed: bool,
}

impl Run<'_> {
    /// Whether the prompt is not blank.
    fn has_prompt(&self) -> bool {
        !self.prompt.trim().is_empty()
    }

    /// The arguments from the manifest, then those from the user.
    fn extra_arguments(&self) -> impl Iterator<Item = String> {
        self.provider.settings.startup_args.value.iter().chain(self.arguments).cloned()
    }
}

/// A file in the agent's home.
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

/// An agent's login: the credential stays outside the bottle, and the agent gets a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The source of the credential.
    pub source: LoginSource,
    /// How the proxy inserts it, by its prefix. Never empty.
    pub forms: Vec<LoginForm>,
}

/// The source of a login's credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginSource {
    /// `auth_token`.
    Token(crate::manifest::secret_ref::SecretRef),
    /// The user is prompted with this text, because the manifest has no source.
    Prompt(&'static str),
    /// Codex's login on this machine.
    CodexHost,
}

/// A credential form: how the proxy inserts it, and the agent's placeholders for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginForm {
    /// The prefix of credentials of this form; the first form that matches applies.
    pub prefix: String,
    /// The scheme of the header's value.
    pub scheme: Scheme,
    /// The header.
    pub header: String,
    /// Environment variables with placeholders.
    pub env: BTreeMap<String, String>,
}

/// A setting that the provider does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedSetting {
    /// The value's origin.
    pub origin: Origin,
    /// The problem, with the key.
    pub message: String,
    /// The next step.
    pub hint: String,
}

/// The kernel's limit for one argument, in bytes with the terminating NUL.
const ARGUMENT_MAX: usize = 128 << 10;

/// Checks that the task fits into one argument.
fn task_argument(task: &str) -> Result<String, ArgvError> {
    if task.len() < ARGUMENT_MAX { Ok(task.to_owned()) } else { Err(ArgvError::TaskTooLong) }
}

/// Why an argv cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// `command` is empty.
    #[error("the agent has no command")]
    Empty,
    /// `command` uses a task and there is none.
    #[error("the agent's command uses {0}, and there is no task")]
    NoTask(&'static str),
    /// The task exceeds the kernel's limit for one argument.
    #[error("the task is longer than an argument may be ({} KiB)", ARGUMENT_MAX >> 10)]
    TaskTooLong,
}

impl ArgvError {
    /// The user's next step.
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
    fn refuses_a_task_above_the_kernels_argument_limit() {
        let longest = "x".repeat(ARGUMENT_MAX - 1);
        assert_eq!(task_argument(&longest).map(|task| task.len()), Ok(longest.len()));
        let error = task_argument(&format!("{longest}x")).expect_err("too long");
        assert_eq!(error.to_string(), "the task is longer than an argument may be (128 KiB)");
    }
}
