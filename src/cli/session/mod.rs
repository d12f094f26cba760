//! A session: the user's terminal or pipes on one side, an agent or a command in the bottle on the other.
//!
//! ```text
//! stdin  ─► detach keys? ─► data ──►  stream  ──► data ─► filter ─► stdout, stderr
//! SIGWINCH ─► resize ─────────────►  (through      exited, failed ─► [`Outcome`]
//! SIGINT, SIGTERM ─► signal ──────►   the keeper)
//! ```
//! - `pump`: the three directions, at once, until one of them ends the session
//! - `signals`: what a signal means in which kind of session
//! - `notices`: what the keeper tells meanwhile, and how the bottle ended
//!
//! `attach`, `start` and `exec` differ only in [`Style`] and in what they do with the [`Outcome`].

mod notices;
mod pump;
mod signals;

use std::io;

use bottle_channel::Stream;
use bottle_contract::session::guest::{Exit, Failure};
use bottle_contract::terminal::Pass;

use tokio::sync::watch;

pub(crate) use notices::{Aside, Watch};
pub(crate) use pump::run;
pub(crate) use signals::{Signals, interrupted};

use super::terminal::Detach;

/// How the user's side of a session behaves.
pub(crate) enum Style {
    /// A raw terminal; every key goes to the program, except the detach keys.
    Terminal {
        /// The keys that leave.
        detach: Detach,
        /// The window's title meanwhile.
        title: Option<String>,
        /// The colour of the cursor meanwhile, as a label's colour is called.
        color: Option<String>,
        /// Nothing typed goes on; Ctrl-C leaves.
        watch_only: bool,
    },
    /// Standard streams as they are.
    Pipes {
        /// Whether standard input goes on.
        stdin: bool,
        /// Whether a first Ctrl-C goes to the program; otherwise it leaves.
        pass_signals: bool,
    },
}

/// What ended a session.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The program, with this.
    Exited(Exit),
    /// The guest could not do what was asked.
    Failed(Failure),
    /// The user, by the detach keys.
    Left,
    /// The user or a signal wants out: the signal's number.
    Interrupted(u8),
    /// The other side gave the stream up, with a sentence of its own.
    Reset(String),
    /// Standard output or error cannot be written any more.
    OutputClosed(io::Error),
}

/// One session about to be run.
pub(crate) struct Session {
    /// The stream, opened with `attach` or `exec`.
    pub(crate) stream: Stream,
    /// See [`Style`].
    pub(crate) style: Style,
    /// What of the program's output may do more to a terminal than draw.
    pub(crate) pass: Pass,
    /// What the title says beside the name, as it changes; the bell rings for a question.
    pub(crate) aside: Option<watch::Receiver<Aside>>,
}
