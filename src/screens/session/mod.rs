//! A session: connects the user's terminal or pipes to an agent or a command in the bottle.
//!
//! ```text
//! stdin  ─► detach keys? ─► data ──►  stream  ──► data ─► filter ─► stdout, stderr
//! SIGWINCH ─► resize ─────────────►  (through      exited, failed ─► [`Outcome`]
//! SIGINT, SIGTERM ─► signal ──────►   the keeper)
//! ```
//! - `pump`: copies data until one of the copying directions ends the session, or until the time limit passes
//! - `capture`: a command whose output is kept for a result
//! - `notices`: the keeper's notices during a session, and how the bottle ended
//!
//! `attach`, `start` and `exec` use different values of [`Style`], and react differently to the [`Outcome`].

mod capture;
mod notices;
mod pump;

use std::io;

use bottle_channel::Stream;
use bottle_lib::exec::Ended;
use bottle_protocol::session::guest::{Exit, Failure};
use bottle_text::terminal::Pass;
use tokio::sync::watch;

pub(crate) use capture::capture;
pub(crate) use notices::{TitleNotices, Watch};
pub(crate) use pump::run;

use crate::console::terminal::Detach;

/// How the session uses the user's terminal or pipes.
#[derive(Clone)]
pub(crate) enum Style {
    /// The terminal is in raw mode. Every key is sent to the program, except the detach keys.
    Terminal {
        /// Recognizes the detach keys.
        detach: Detach,
        /// The title of the terminal's window during the session.
        title: Option<String>,
        /// The cursor's colour during the session, as the name of a label's colour.
        color: Option<String>,
        /// Whether `color` also tints the background, on a terminal that supports it.
        tint: bool,
        /// Whether no input is forwarded, and Ctrl-C detaches.
        watch_only: bool,
    },
    /// Standard input, output and error are used as plain streams.
    Pipes {
        /// Whether standard input is forwarded.
        stdin: bool,
        /// Whether the first Ctrl-C is sent to the program. Otherwise the first Ctrl-C ends the session.
        pass_signals: bool,
    },
}

/// How a session ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The program exited.
    Exited(Exit),
    /// The guest could not carry out the request.
    Failed(Failure),
    /// The user pressed the detach keys.
    Detached,
    /// The user pressed the keys that show proposals.
    Proposals,
    /// The number of a signal that interrupted this client.
    Interrupted(u8),
    /// The keeper or the guest reset the stream, with this message.
    Reset(String),
    /// Writing to standard output or standard error failed.
    OutputClosed(io::Error),
}

impl From<Ended<Self>> for Outcome {
    fn from(ended: Ended<Self>) -> Self {
        match ended {
            Ended::Exited(exit) => Self::Exited(exit),
            Ended::Failed(failure) => Self::Failed(failure),
            Ended::Lost(why) => Self::Reset(why),
            Ended::Interrupted(outcome) => outcome,
        }
    }
}

/// A session to run.
pub(crate) struct Session {
    /// The stream to the guest, opened with an `attach` or `exec` request.
    pub(crate) stream: Stream,
    /// How the session uses the user's terminal or pipes.
    pub(crate) style: Style,
    /// The terminal features beyond drawing that the program may use.
    pub(crate) pass: Pass,
    /// The notices that the window's title shows after the bottle's name. The bell rings for each new proposal.
    pub(crate) title_notices: Option<watch::Receiver<TitleNotices>>,
}
