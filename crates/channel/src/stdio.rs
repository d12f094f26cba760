//! Uses the standard streams of a process as a byte stream for channels.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stdin, dup2_stdout, stdin, stdout};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::Rejoinable;

/// The lowest number for the new descriptors of the two streams. The numbers below belong to the standard streams.
const PAST_STANDARD: i32 = 3;

/// A process's standard input and output, moved to other descriptors.
#[derive(Debug)]
pub struct Stdio {
    input: OwnedFd,
    output: OwnedFd,
}

impl Stdio {
    /// Moves standard input and standard output to new descriptors, and opens `/dev/null` in their place. Child
    /// processes then do not inherit the two streams, and other output of this process cannot end up between frames.
    /// Call this function before any other code runs.
    ///
    /// # Errors
    /// If one of the streams is closed, or `/dev/null` does not exist.
    pub fn take() -> io::Result<Self> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let input = fcntl_dupfd_cloexec(stdin(), PAST_STANDARD)?;
        let output = fcntl_dupfd_cloexec(stdout(), PAST_STANDARD)?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        Ok(Self { input, output })
    }

    /// Registers both streams with the current runtime.
    ///
    /// # Errors
    /// If the streams are not pipes. A container engine provides pipes if there is no terminal.
    pub fn on_runtime(self) -> io::Result<Rejoinable<Receiver, Sender>> {
        Ok(Rejoinable::new(Receiver::from_owned_fd(self.input)?, Sender::from_owned_fd(self.output)?))
    }
}
