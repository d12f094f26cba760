//! Converts failures of connections and requests to errors of commands. Some of these errors have an exit code of their
//! own.

use std::fmt::Display;

use bottle_channel::Channel;
use bottle_host::files::FileError;
use bottle_keeper::protocol::{KeeperEvent, KeeperRequest, Notice};
use bottle_lib::connect;
pub(crate) use bottle_lib::connect::{connect, connect_or_open_files, open_guest, receive_failed};
use bottle_protocol::session::guest::{Failure, FailureKind};

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;

/// Prints a note if a snapshot pauses the bottle, because the next request to the guest then has to wait.
pub(crate) async fn report_delay(channel: &Channel, output: &Output) {
    // Some keepers refuse the request: those of an older version, and those that opened kept files.
    let Ok(mut stream) = channel.open(&KeeperRequest::FindDelay).await else { return };
    if let Ok(KeeperEvent::Notice(Notice::Warning(text))) = stream.receive().await {
        output.note(text);
    }
}

/// Returns the failure of [`connect::keeper_lost`] as a [`CliError`].
pub(crate) fn keeper_lost(error: impl Display) -> CliError {
    connect::keeper_lost(error).into()
}

/// Returns the failure of [`connect::unexpected_answer`] as a [`CliError`].
pub(crate) fn unexpected_answer() -> CliError {
    connect::unexpected_answer().into()
}

/// Returns the error for a request that the guest could not carry out. The exit code of the error is 125, 126 or 127.
/// The commands `start`, `attach` and `exec` return the exit code of a program, and use these three codes for errors of
/// `bottle` itself.
pub(crate) fn guest_failure(failure: Failure) -> CliError {
    let code = match failure.kind {
        FailureKind::NotFound => exit::NOT_FOUND,
        FailureKind::NotExecutable => exit::CANNOT_RUN,
        FailureKind::BadPath | FailureKind::BadState | FailureKind::Other => exit::BOTTLE_FAILED,
    };
    CliError::from(connect::guest_failure(failure)).exit(code)
}

/// Returns the failure of [`connect::unlistable`] as a [`CliError`].
pub(crate) fn unlistable(error: FileError) -> CliError {
    connect::unlistable(error).into()
}
