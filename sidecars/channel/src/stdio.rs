//! A process's standard streams as its channel.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stdin, dup2_stdout, stdin, stdout};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::Rejoinable;

/// The lowest number the streams may get: past the three standard ones.
const PAST_STANDARD: i32 = 3;

/// Standard input and output, moved to where nothing else finds them.
#[derive(Debug)]
pub struct Stdio {
    input: OwnedFd,
    output: OwnedFd,
}

impl Stdio {
    /// Takes both streams and puts `/dev/null` in their place: no program started later inherits them, and
    /// nothing this process prints ends up between frames. Call it before anything else runs here.
    ///
    /// # Errors
    /// When a stream is closed, or there is no `/dev/null`.
    pub fn take() -> io::Result<Self> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let input = fcntl_dupfd_cloexec(stdin(), PAST_STANDARD)?;
        let output = fcntl_dupfd_cloexec(stdout(), PAST_STANDARD)?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        Ok(Self { input, output })
    }

    /// Both on the current runtime.
    ///
    /// # Errors
    /// When they are no pipes, which an engine's streams without a terminal are.
    pub fn on_runtime(self) -> io::Result<Rejoinable<Receiver, Sender>> {
        Ok(Rejoinable::new(Receiver::from_owned_fd(self.input)?, Sender::from_owned_fd(self.output)?))
    }
}
