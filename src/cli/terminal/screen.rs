//! Full-screen mode: an alternate screen and single keys. Restores the previous content.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::Duration;

use crossterm::event::{Event, KeyEvent, KeyEventKind, poll, read};
use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};

use super::raw::{self, Restore};

/// Enters the alternate screen and hides the cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";

/// Switches on bracketed paste, so that pasted text does not act as keys.
const PASTES: &[u8] = b"\x1b[?2004h";

/// The smallest usable screen: columns and rows.
const MIN_SIZE: (u16, u16) = (40, 10);

/// The user's terminal in full-screen mode, until dropped or [`super::restore`].
pub(crate) struct FullScreen {
    // Dropped first: afterwards the backend shows the cursor.
    _restore: Restore,
    terminal: Terminal<CrosstermBackend<File>>,
}

impl FullScreen {
    /// Enters full-screen mode. Returns none when the terminal is too small, reports no size, or knows no escape
    /// sequences; the caller then uses lines.
    ///
    /// # Errors
    /// When there is no terminal; nothing has changed then.
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
        // Drops input typed before the screen was visible.
        tcsetattr(&tty, OptionalActions::Flush, &raw)?;
        tty.write_all(ENTER)?;
        let terminal = Terminal::new(CrosstermBackend::new(tty))?;
        Ok(Some(Self { _restore: restore, terminal }))
    }

    /// Switches on bracketed paste: pasted text arrives as [`Typed::Pasted`], if the terminal supports it.
    ///
    /// # Errors
    /// When the terminal hung up.
    pub(crate) fn report_pastes(&mut self) -> io::Result<()> {
        raw::track_output(PASTES);
        self.terminal.backend_mut().write_all(PASTES)
    }

    /// Columns and rows.
    ///
    /// # Errors
    /// When the terminal hung up.
    pub(crate) fn size(&self) -> io::Result<(u16, u16)> {
        self.terminal.size().map(|size| (size.width, size.height))
    }

    /// Draws a frame; unchanged cells are not sent again.
    ///
    /// # Errors
    /// When the terminal hung up or was restored.
    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !raw::is_taken() {
            return Err(io::Error::other("the terminal was restored"));
        }
        self.terminal.draw(render).map(drop)
    }

    /// Waits for input, up to `patience`.
    ///
    /// # Errors
    /// When the terminal hung up.
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
    /// Bracketed paste.
    Pasted(String),
    /// The terminal has a new size.
    Resized,
}
