//! The signals a session listens to.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::error::{CliError, Kind};
use crate::cli::exit;

/// Every signal that means something to a session, caught from here to the process's end.
pub(crate) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    resize: Signal,
}

/// One that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caught {
    /// The terminal is gone: SIGHUP.
    Hangup,
    /// SIGINT, SIGTERM or SIGQUIT, by number.
    End(u8),
    /// The terminal's size changed.
    Resize,
}

impl Caught {
    /// Its number, for the exit code.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Hangup => 1,
            Self::End(number) => number,
            Self::Resize => 28,
        }
    }
}

impl Signals {
    /// Starts catching them: from now on none of them ends the process by itself.
    ///
    /// # Errors
    /// When the process may not catch signals.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            resize: signal(SignalKind::window_change())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Caught {
        tokio::select! {
            _ = self.hangup.recv() => Caught::Hangup,
            _ = self.interrupt.recv() => Caught::End(2),
            _ = self.quit.recv() => Caught::End(3),
            _ = self.terminate.recv() => Caught::End(15),
            _ = self.resize.recv() => Caught::Resize,
        }
    }

    /// The next one that asks for the end.
    pub(crate) async fn end(&mut self) -> u8 {
        loop {
            match self.next().await {
                Caught::Resize => {}
                caught => return caught.number(),
            }
        }
    }
}

/// A signal ended it.
pub(crate) fn interrupted(number: u8) -> CliError {
    let code = if number == 2 { exit::INTERRUPTED } else { 128u8.saturating_add(number) };
    CliError::new(Kind::Interrupted, format!("interrupted by signal {number}")).exit(code)
}
