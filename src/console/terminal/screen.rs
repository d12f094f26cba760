//! Full-screen mode: shows an alternate screen and reads single keys. Restores the previous content of the
//! terminal.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::Duration;

use crossterm::event::{Event, KeyEvent, KeyEventKind, poll, read};
use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};

use super::raw::{self, Restore};

/// The sequences that enter the alternate screen and hide the cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";

/// The sequence that switches on bracketed paste, so that pasted text is not handled as keys.
const PASTES: &[u8] = b"\x1b[?2004h";

/// The minimum size of the screen: columns and rows. On a smaller terminal, lines are printed instead.
const MIN_SIZE: (u16, u16) = (40, 10);

/// The user's terminal in full-screen mode, until the value is dropped or [`super::restore`] is called.
pub(crate) struct FullScreen {
    // This field must be dropped before `terminal`, because the backend of `terminal` shows the cursor when it is
    // dropped.
    _restore: Restore,
    terminal: Terminal<CrosstermBackend<File>>,
}

impl FullScreen {
    /// Enters full-screen mode. Returns `None` if the terminal is too small, reports no size, or does not support
    /// escape sequences. The caller then prints lines instead.
    ///
    /// # Errors
    /// Returns an error if there is no terminal. The terminal is unchanged in this case.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let mut tty = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
        let size = tcgetwinsize(&tty)?;
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if dumb || size.ws_col < MIN_SIZE.0 || size.ws_row < MIN_SIZE.1 {
            return Ok(None);
        }
        let before = tcgetattr(&tty)?;
        let mut raw = before.clone();
        raw.make_raw();
        let restore = raw::save(&tty, &before, false)?;
        raw::track_output(ENTER);
        // Drops input that was typed before the screen was visible.
        tcsetattr(&tty, OptionalActions::Flush, &raw)?;
        tty.write_all(ENTER)?;
        let terminal = Terminal::new(CrosstermBackend::new(tty))?;
        Ok(Some(Self { _restore: restore, terminal }))
    }

    /// Switches on bracketed paste. If the terminal supports it, pasted text arrives as [`Typed::Pasted`].
    ///
    /// # Errors
    /// Returns an error if the terminal hung up.
    pub(crate) fn report_pastes(&mut self) -> io::Result<()> {
        raw::track_output(PASTES);
        self.terminal.backend_mut().write_all(PASTES)
    }

    /// Returns the number of columns and rows.
    ///
    /// # Errors
    /// Returns an error if the terminal hung up.
    pub(crate) fn size(&self) -> io::Result<(u16, u16)> {
        self.terminal.size().map(|size| (size.width, size.height))
    }

    /// Draws a frame. Only cells that changed are sent to the terminal.
    ///
    /// # Errors
    /// Returns an error if the terminal hung up or was restored.
    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !raw::is_taken() {
            return Err(io::Error::other("the terminal was restored"));
        }
        self.terminal.draw(render).map(drop)
    }

    /// Waits for input, for at most `patience`.
    ///
    /// # Errors
    /// Returns an error if the terminal hung up.
    pub(crate) fn typed_within(&self, patience: Duration) -> io::Result<Option<Typed>> {
        if !poll(patience)? {
            return Ok(None);
        }
        Ok(match read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => Some(Typed::Key(key)),
            Event::Paste(text) => Some(Typed::Pasted(text)),
            Event::Resize(..) => Some(Typed::Resized),
            _ => None,
        })
    }
}

/// An input event.
#[derive(Debug)]
pub(crate) enum Typed {
    Key(KeyEvent),
    /// Text that was pasted with bracketed paste.
    Pasted(String),
    /// The size of the terminal has changed.
    Resized,
}
