//! Describes each kind of agent: its command, files, provider route and login.
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

use bottle_policy::credential::Scheme;
use bottle_policy::names::{SUPERVISE_HOST, SUPERVISE_PORT};
use bottle_policy::route::Route;
use serde::{Deserialize, Serialize};

pub use config::{ProviderConfig, ProviderSettings};

use crate::agent_provider::Template;
use crate::origin::Origin;

/// A kind of agent. The rest of the program starts, configures and resumes agents only through this trait.
///
/// Implementations do not read files, the clock or secrets. Paths are relative to the agent's home.
pub trait Provider: Sync {
    /// Returns the agent's program and arguments.
    ///
    /// # Errors
    /// Returns [`ArgvError`] if the command line cannot be built.
    fn argv(&self, run: &Run<'_>) -> Result<Vec<String>, ArgvError>;

    /// Returns environment variables. Variables of the manifest override the returned variables.
    fn env(&self, run: &Run<'_>) -> BTreeMap<String, String>;

    /// Returns files to create in the agent's home before the agent starts: its settings, and the answers to questions
    /// that the agent asks at its first start.
    fn files(&self, run: &Run<'_>) -> Vec<HomeFile>;

    /// Returns the directory in which the agent searches for skills. Each skill is a directory in it.
    fn skills(&self) -> &'static str;

    /// Returns the files or directories that contain the agent's conversations; an empty list if they are unknown.
    ///
    /// When the bottle ends, these files are copied out of the bottle. If the files are copied back before a start with
    /// [`Run::resumed`], the agent can continue its last conversation without other files.
    fn transcript(&self) -> &'static [&'static str];

    /// Returns the route to the agent's model API: the host, and the requests that the agent needs. With a
    /// [`Login`], the route's `auth` contains the login's last form and a description of the [`LoginSource`].
    ///
    /// # Errors
    /// Returns [`UnsupportedSetting`] if the provider does not support a setting.
    fn route(&self, provider: &ProviderConfig) -> Result<Option<Route>, UnsupportedSetting>;

    /// Returns the agent's login at the model API.
    fn login(&self, provider: &ProviderConfig) -> Option<Login>;
}

/// Returns the provider for a template.
#[must_use]
pub fn for_template(template: Template) -> &'static dyn Provider {
    match template {
        Template::Claude => &claude::Claude,
        Template::Codex => &codex::Codex,
        Template::Pi => &pi::Pi,
        Template::Command => &command::Command,
    }
}

/// Returns the URL of the supervise sidecar's MCP server, which an agent uses to make proposals.
pub fn supervise_url() -> String {
    format!("http://{SUPERVISE_HOST}:{SUPERVISE_PORT}/mcp")
}

/// The parameters of one start of an agent.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// `agent_provider` of the resolved manifest.
    pub provider: &'a ProviderConfig,
    /// The bottle's label or slug.
    pub name: &'a str,
    /// The colour in which the bottle's name is shown.
    pub color: Option<&'a str>,
    /// The body of the agent manifest. The file [`bottle_policy::names::PROMPT_FILE`] also contains the prompt.
    pub prompt: &'a str,
    /// The task given with `-p`. The file [`bottle_policy::names::TASK_FILE`] also contains the task.
    pub task: Option<&'a str>,
    /// The arguments after `--`.
    pub arguments: &'a [String],
    /// Whether the agent has a terminal. Without a terminal, the agent carries out its task, or reads the
    /// task from standard input.
    pub terminal: bool,
    /// Whether the agent can make proposals at [`supervise_url`].
    pub supervise: bool,
    /// Whether the agent resumes the conversation of an earlier run. If there is no such conversation, the
    /// agent fails.
    pub resumed: bool,
}

impl Run<'_> {
    /// Whether the prompt contains more than whitespace.
    fn has_prompt(&self) -> bool {
        !self.prompt.trim().is_empty()
    }

    /// Returns the arguments from the manifest, and then the arguments from the user.
    fn extra_arguments(&self) -> impl Iterator<Item = String> {
        self.provider.settings.startup_args.value.iter().chain(self.arguments).cloned()
    }
}

/// A file in the agent's home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeFile {
    /// The path, relative to the agent's home.
    pub path: &'static str,
    /// The text of the file.
    pub content: String,
}

impl HomeFile {
    fn json(path: &'static str, value: &serde_json::Value) -> Self {
        Self { path, content: format!("{value:#}\n") }
    }
}

/// An agent's login. The credential stays outside the bottle, and the agent gets a placeholder instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The source of the credential.
    pub source: LoginSource,
    /// The forms in which the proxy can insert the credential. The prefix of the credential selects the form. The list
    /// is not empty.
    pub forms: Vec<LoginForm>,
}

/// The source of a login's credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginSource {
    /// The key `auth_token`.
    Token(crate::secret_ref::SecretRef),
    /// The user is asked for the credential with this text, because the manifest names no source.
    Prompt(&'static str),
    /// The user's codex login on this machine.
    CodexHost,
}

/// A form of credential: how the proxy inserts it into requests, and the placeholders that the agent gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginForm {
    /// The prefix of credentials with this form. If several forms match, the first one applies.
    pub prefix: String,
    /// The authentication scheme of the header's value.
    pub scheme: Scheme,
    /// The header that contains the credential.
    pub header: String,
    /// Environment variables that contain the placeholders.
    pub env: BTreeMap<String, String>,
}

/// A setting that the provider does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedSetting {
    /// Where the value of the setting comes from.
    pub origin: Origin,
    /// The problem, including the name of the key.
    pub message: String,
    /// What the user can do next.
    pub hint: String,
}

/// The kernel's limit for the length of one argument, in bytes, including the terminating NUL. A longer task is an
/// error.
const ARGUMENT_MAX: usize = 128 << 10;

/// Checks that the task is short enough for one argument.
fn task_argument(task: &str) -> Result<String, ArgvError> {
    if task.len() < ARGUMENT_MAX { Ok(task.to_owned()) } else { Err(ArgvError::TaskTooLong) }
}

/// Why the command line of an agent cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// `command` is empty.
    #[error("the agent has no command")]
    Empty,
    /// `command` contains `{task}` or `{task_file}`, but there is no task.
    #[error("the agent's command uses {0}, and there is no task")]
    NoTask(&'static str),
    /// The task exceeds the kernel's limit for one argument.
    #[error("the task is longer than an argument may be ({} KiB)", ARGUMENT_MAX >> 10)]
    TaskTooLong,
}

impl ArgvError {
    /// Returns what the user can do next.
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
