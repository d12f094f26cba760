//! What carries out a call of a tool, and what the command policy checks before.

use std::fmt::Display;
use std::time::Duration;

use bottle_contract::session::files::FileRequest;

use super::requests::{BottleRequest, Request};

/// The usual time limit of a call.
const LIMIT: Duration = Duration::from_secs(120);

/// What carries out a call: a command of this program, or the library.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Call {
    /// The words of the command line, without the program and `--json`.
    pub(super) words: Vec<String>,
    /// The words after `--`.
    pub(super) rest: Vec<String>,
    /// Standard input.
    pub(super) input: Option<String>,
    /// A request of the library, instead of a command.
    pub(super) request: Option<Request>,
    /// What the command policy checks.
    pub(super) checked: Checked,
    /// The time limit in seconds, beyond which the call fails. `None` for the usual one.
    pub(super) seconds: Option<u64>,
}

/// What the command policy checks before a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Checked {
    /// Nothing.
    #[default]
    Nothing,
    /// The program that the call runs.
    Command,
    /// The input goes to a program that may be a shell.
    Input,
    /// The files that the call changes; any file if there is none.
    Change(Vec<String>),
}

impl Call {
    /// A call of this command of the program.
    pub(super) fn of(words: &[&str]) -> Self {
        Self { words: words.iter().map(|&word| word.to_owned()).collect(), ..Self::default() }
    }

    /// A request of the library.
    pub(super) fn request(request: Request) -> Self {
        Self { request: Some(request), ..Self::default() }
    }

    /// A request to the bottle.
    pub(super) fn bottle(request: BottleRequest) -> Self {
        Self::request(Request::Bottle(request))
    }

    /// A request about the files of the bottle.
    pub(super) fn files(request: FileRequest) -> Self {
        Self::bottle(BottleRequest::Files(request))
    }

    /// Adds a word.
    pub(super) fn word(mut self, word: impl Into<String>) -> Self {
        self.words.push(word.into());
        self
    }

    /// Adds a flag with a value, if there is a value.
    pub(super) fn value(self, flag: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.word(format!("{flag}={value}")),
            None => self,
        }
    }

    /// Adds a flag, if it is set.
    pub(super) fn flag(self, flag: &str, is_set: bool) -> Self {
        if is_set { self.word(flag) } else { self }
    }

    /// Sets the words after `--`, none of which is read as a flag.
    pub(super) fn then(mut self, rest: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.rest.extend(rest.into_iter().map(Into::into));
        self
    }

    /// Sets the files that the call changes.
    pub(super) fn changes(self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { checked: Checked::Change(paths.into_iter().map(Into::into).collect()), ..self }
    }

    /// Has the command policy check this.
    pub(super) fn checked(self, checked: Checked) -> Self {
        Self { checked, ..self }
    }

    pub(super) fn input(self, input: Option<&str>) -> Self {
        Self { input: input.map(str::to_owned), ..self }
    }

    pub(super) fn seconds(self, seconds: u64) -> Self {
        Self { seconds: Some(seconds), ..self }
    }

    /// The time limit, beyond which the call fails.
    pub(super) fn limit(&self) -> Duration {
        self.seconds.map_or(LIMIT, Duration::from_secs)
    }

    /// The words of the program that the call runs.
    pub(super) fn argv(&self) -> &[String] {
        self.request.as_ref().and_then(Request::program).map_or(&[], |program| &program.argv)
    }

    /// The script that runs beside the program.
    pub(super) fn script_mut(&mut self) -> Option<&mut String> {
        match &mut self.request {
            Some(Request::Bottle(request)) => request.script_mut(),
            _ => None,
        }
    }

    /// Sets variables of the program that the call runs. Those of the call take precedence.
    pub(super) fn set_defaults(&mut self, variables: &[(&str, &str)]) {
        let Some(program) = self.request.as_mut().and_then(Request::program_mut) else { return };
        for (name, value) in variables {
            program.env.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
        }
    }

    /// The command line without the program.
    pub(super) fn line(&self) -> Vec<String> {
        let mut line = self.words.clone();
        line.push("--json".to_owned());
        if !self.rest.is_empty() {
            line.push("--".to_owned());
            line.extend_from_slice(&self.rest);
        }
        line
    }
}
