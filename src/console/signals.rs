//! The signals that a session handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::console::error::{CliError, Kind};
use crate::console::exit;

/// SIGHUP: the terminal hung up.
pub(crate) const HANGUP: u8 = 1;

/// The signals that are caught. After this value is created, these signals no longer end the process by default.
pub(crate) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    resize: Signal,
}

/// A caught signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caught {
    /// SIGHUP, SIGINT, SIGTERM or SIGQUIT, with its number.
    End(u8),
    /// SIGWINCH: the terminal's size changed.
    Resize,
}

impl Signals {
    /// Starts catching the signals.
    ///
    /// # Errors
    /// Returns an error if the process cannot install signal handlers.
    pub(crate) fn catch() -> Result<Self, CliError> {
        let catch = |kind| signal(kind).map_err(|error| CliError::cannot("catch signals", error));
        Ok(Self {
            hangup: catch(SignalKind::hangup())?,
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            quit: catch(SignalKind::quit())?,
            resize: catch(SignalKind::window_change())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Caught {
        tokio::select! {
            _ = self.hangup.recv() => Caught::End(HANGUP),
            _ = self.interrupt.recv() => Caught::End(2),
            _ = self.quit.recv() => Caught::End(3),
            _ = self.terminate.recv() => Caught::End(15),
            _ = self.resize.recv() => Caught::Resize,
        }
    }

    /// Waits for the next of the signals that end a session.
    pub(crate) async fn end(&mut self) -> u8 {
        loop {
            if let Caught::End(number) = self.next().await {
                return number;
            }
        }
    }

    /// Runs `work`, and cancels it when a signal arrives.
    ///
    /// # Errors
    /// Returns the error of `work`, or an error if a signal interrupted `work`.
    pub(crate) async fn cancel<T, E>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CliError>
    where
        CliError: From<E>,
    {
        tokio::select! {
            done = work => done.map_err(CliError::from),
            number = self.end() => Err(interrupted(number)),
        }
    }
}

/// Returns the error for a command that a signal has ended.
pub(crate) fn interrupted(number: u8) -> CliError {
    let code = if number == 2 { exit::INTERRUPTED } else { 128u8.saturating_add(number) };
    CliError::new(Kind::Interrupted, format!("interrupted by signal {number}")).exit(code)
}
