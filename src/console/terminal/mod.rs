//! The user's terminal. Sessions take over the terminal, and questions are asked on it. The terminal is restored in all
//! cases.
//!
//! ```text
//! raw      raw mode and window title, restored on drop, panic and signals
//! modes    the modes that an agent switched on and may have left on
//! after_kill  restores a terminal after a killed command
//! detach   the keys that detach, and those that show proposals
//! input    standard input as a stream of chunks
//! ask      questions on /dev/tty: y/N, and secrets without echo
//! screen   the full screen, for pickers and `supervise`
//! ```
//! This module is independent of the program that uses the terminal.

mod after_kill;
mod ask;
mod detach;
mod input;
mod modes;
mod raw;
mod screen;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use bottle_protocol::session::guest::Size;

pub(crate) use after_kill::restore_after_kill;
pub(crate) use ask::{Decision, TerminalUser, interactive};
pub(crate) use detach::{ClientKey, Detach};
pub(crate) use input::chunks;
pub(crate) use modes::Modes;
pub(crate) use raw::{RawTerminal, restore, restore_on_panic, supports_tint, title_sequence};
pub(crate) use screen::{FullScreen, Typed};

/// The size to use if a terminal reports no size, or a size of zero.
const FALLBACK: Size = Size { columns: 80, rows: 24 };

/// Whether standard input and output are terminals.
pub(crate) fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Returns the size of the terminal on standard output.
pub(crate) fn size() -> Size {
    size_of(&io::stdout())
}

/// Returns the size of this terminal, or [`FALLBACK`].
pub(crate) fn size_of(terminal: &impl AsFd) -> Size {
    match rustix::termios::tcgetwinsize(terminal) {
        Ok(found) if found.ws_col > 0 && found.ws_row > 0 => {
            Size { columns: found.ws_col, rows: found.ws_row }
        }
        _ => FALLBACK,
    }
}
