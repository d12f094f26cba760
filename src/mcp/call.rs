//! A tool call: its request to the library, and what the command policy checks before the call.

use std::time::Duration;

use bottle_protocol::session::files::FileRequest;

use super::requests::{BottleRequest, Request};

/// The usual time limit of a call.
const LIMIT: Duration = Duration::from_secs(120);

/// A request of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    /// The request that the library carries out.
    pub(super) request: Request,
    /// The input of the program that runs, or the content of a file.
    pub(super) input: Option<String>,
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
    /// The input, because the program that receives it may be a shell.
    Input,
    /// The files that the call changes. If the list is empty, the call may change any file.
    Change(Vec<String>),
}

impl Call {
    /// A request of the library.
    pub(super) fn request(request: Request) -> Self {
        Self { request, input: None, checked: Checked::Nothing, seconds: None }
    }

    /// A request to the bottle.
    pub(super) fn bottle(request: BottleRequest) -> Self {
        Self::request(Request::Bottle(request))
    }

    /// A request about the files of the bottle.
    pub(super) fn files(request: FileRequest) -> Self {
        Self::bottle(BottleRequest::Files(request))
    }

    /// Sets the files that the call changes.
    pub(super) fn changes(self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { checked: Checked::Change(paths.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets what the command policy checks.
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
        self.request.program().map_or(&[], |program| &program.argv)
    }

    /// The script that runs beside the program.
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
