//! A session: connects the user's terminal or pipes to an agent or a command in the bottle.
//!
//! ```text
//! stdin  ─► detach keys? ─► data ──►  stream  ──► data ─► filter ─► stdout, stderr
//! SIGWINCH ─► resize ─────────────►  (through      exited, failed ─► [`Outcome`]
//! SIGINT, SIGTERM ─► signal ──────►   the keeper)
//! ```
//! - `pump`: copies in all directions until one of them ends the session
//! - `signals`: the signals of a session
//! - `notices`: the keeper's notices during a session, and how the bottle ended
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

pub(crate) use notices::{TitleNotices, Watch};
pub(crate) use pump::run;
pub(crate) use signals::{HANGUP, Signals, interrupted};

use super::terminal::Detach;

/// How the user's side of a session behaves.
pub(crate) enum Style {
    /// A raw terminal; every key goes to the program, except the detach keys.
    Terminal {
        /// Finds the detach keys.
        detach: Detach,
        /// The window's title during the session.
        title: Option<String>,
        /// The cursor's colour during the session, as a label's colour is named.
        color: Option<String>,
        /// Forwards no input; Ctrl-C detaches.
        watch_only: bool,
    },
    /// The standard streams.
    Pipes {
        /// Whether standard input is forwarded.
        stdin: bool,
        /// Whether the first Ctrl-C goes to the program; otherwise it ends the session.
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
    /// A signal interrupted the client: its number.
    Interrupted(u8),
    /// The other side reset the stream, with a message.
    Reset(String),
    /// Standard output or error failed.
    OutputClosed(io::Error),
}

/// A session to run.
pub(crate) struct Session {
    /// The stream, opened with `attach` or `exec`.
    pub(crate) stream: Stream,
    /// How this side behaves.
    pub(crate) style: Style,
    /// Which terminal features beyond drawing the program may use.
    pub(crate) pass: Pass,
    /// What the title shows behind the name; the bell rings for a new question.
    pub(crate) title_notices: Option<watch::Receiver<TitleNotices>>,
}
