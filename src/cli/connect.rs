//! The failures of connections and requests as errors of commands, some with an exit code of their own.

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

/// Notes if a snapshot pauses the bottle, because the next request for the guest then waits.
pub(crate) async fn report_delay(channel: &Channel, output: &Output) {
    // A keeper of an older version, or one that opened kept files, refuses the request.
    let Ok(mut stream) = channel.open(&KeeperRequest::FindDelay).await else { return };
    if let Ok(KeeperEvent::Notice(Notice::Warning(text))) = stream.receive().await {
        output.note(text);
    }
}

/// See [`connect::keeper_lost`].
pub(crate) fn keeper_lost(error: impl Display) -> CliError {
    connect::keeper_lost(error).into()
}

/// See [`connect::unexpected_answer`].
pub(crate) fn unexpected_answer() -> CliError {
    connect::unexpected_answer().into()
}

/// The error for a request that the guest could not carry out. The error has the exit code 125, 126 or 127.
/// `start`, `attach` and `exec`, which pass on the exit code of a program, use these codes for errors of
/// bottle.
pub(crate) fn guest_failure(failure: Failure) -> CliError {
    let code = match failure.kind {
        FailureKind::NotFound => exit::NOT_FOUND,
        FailureKind::NotExecutable => exit::CANNOT_RUN,
        FailureKind::BadPath | FailureKind::BadState | FailureKind::Other => exit::BOTTLE_FAILED,
    };
    CliError::from(connect::guest_failure(failure)).exit(code)
}

/// See [`connect::unlistable`].
pub(crate) fn unlistable(error: FileError) -> CliError {
    connect::unlistable(error).into()
}
