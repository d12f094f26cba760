//! The user's terminal: taken over for a session, asked for answers, and always given back.
//!
//! ```text
//! raw      raw mode and the window's title; undone by drop, panic and signals alike
//! modes    what the agent switched on in the terminal and may have left on
//! killed   what a command that was killed left on, put right by the next one
//! detach   the keys that leave a session running
//! input    standard input as a stream of chunks
//! ask      questions on /dev/tty: y/N, and secrets without echo
//! screen   the whole terminal for a moment, as pickers need it
//! ```
//! Nothing here knows what is being run.

mod ask;
mod detach;
mod input;
mod killed;
mod modes;
mod raw;
mod screen;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use bottle_contract::session::guest::Size;

pub(crate) use ask::{Decision, TerminalUser, interactive};
pub(crate) use detach::Detach;
pub(crate) use input::chunks;
pub(crate) use killed::put_right;
pub(crate) use modes::Modes;
pub(crate) use raw::{RawTerminal, restore, restore_on_panic, title_sequence};
pub(crate) use screen::{FullScreen, Typed};

/// A size that lies, or none at all, becomes what a terminal has always been.
const FALLBACK: Size = Size { columns: 80, rows: 24 };

/// Whether a session can be had on standard input and output.
pub(crate) fn is_here() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The size of the terminal that shows standard output.
pub(crate) fn size() -> Size {
    size_of(&io::stdout())
}

/// The size of this terminal, as far as it can be believed.
pub(crate) fn size_of(terminal: &impl AsFd) -> Size {
    match rustix::termios::tcgetwinsize(terminal) {
        Ok(found) if found.ws_col > 0 && found.ws_row > 0 => {
            Size { columns: found.ws_col, rows: found.ws_row }
        }
        _ => FALLBACK,
    }
}
