//! A tool call: its request to the library, and the part of the call that the command policy checks.

use std::time::Duration;

use bottle_protocol::session::files::FileRequest;

use super::requests::{BottleRequest, Request};

/// The default time limit of a call.
const LIMIT: Duration = Duration::from_secs(120);

/// A request of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    /// The request that the library carries out.
    pub(super) request: Request,
    /// The input of the program that runs, or the content of a file.
    pub(super) input: Option<String>,
    /// The part of the call that the command policy checks.
    pub(super) checked: Checked,
    /// The time limit of the call, in seconds. `None` selects the default time limit.
    pub(super) seconds: Option<u64>,
}

/// The part of a call that the command policy checks before the call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Checked {
    /// No part of the call is checked.
    #[default]
    Nothing,
    /// The program that the call runs.
    Command,
    /// The input, because the program that receives it may be a shell.
    Input,
    /// The files that the call changes. If the list is empty, the call may change any file.
    Change(Vec<String>),
}

impl Call {
    /// Creates a call with a request to the library.
    pub(super) fn request(request: Request) -> Self {
        Self { request, input: None, checked: Checked::Nothing, seconds: None }
    }

    /// Creates a call with a request to the bottle.
    pub(super) fn bottle(request: BottleRequest) -> Self {
        Self::request(Request::Bottle(request))
    }

    /// Creates a call with a request about the files of the bottle.
    pub(super) fn files(request: FileRequest) -> Self {
        Self::bottle(BottleRequest::Files(request))
    }

    /// Sets the files that the call changes.
    pub(super) fn changes(self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { checked: Checked::Change(paths.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets the part of the call that the command policy checks.
    pub(super) fn checked(self, checked: Checked) -> Self {
        Self { checked, ..self }
    }

    pub(super) fn input(self, input: Option<&str>) -> Self {
        Self { input: input.map(str::to_owned), ..self }
    }

    pub(super) fn seconds(self, seconds: u64) -> Self {
        Self { seconds: Some(seconds), ..self }
    }

    /// Returns the time limit, after which the call fails.
    pub(super) fn limit(&self) -> Duration {
        self.seconds.map_or(LIMIT, Duration::from_secs)
    }

    /// Returns the words of the program that the call runs.
    pub(super) fn argv(&self) -> &[String] {
        self.request.program().map_or(&[], |program| &program.argv)
    }

    /// Returns the script that runs in addition to the program.
    pub(super) fn script_mut(&mut self) -> Option<&mut String> {
        match &mut self.request {
            Request::Bottle(request) => request.script_mut(),
            _ => None,
        }
    }

    /// Sets default variables of the program that the call runs. Variables that the call sets take precedence.
    pub(super) fn set_defaults(&mut self, variables: &[(&str, &str)]) {
        let Some(program) = self.request.program_mut() else { return };
        for (name, value) in variables {
            program.env.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
        }
    }
}
