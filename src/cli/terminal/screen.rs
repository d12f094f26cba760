//! The whole terminal for a moment: a screen of its own and keys one by one. What was shown before comes back.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::Duration;

use crossterm::event::{Event, KeyEvent, KeyEventKind, poll, read};
use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};

use super::raw;

/// The alternate screen, without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";

/// Has the terminal say where a pasted text begins and ends, so that its letters are no keys.
const PASTES: &[u8] = b"\x1b[?2004h";

/// The least that a list can be shown on.
const LEAST: (u16, u16) = (40, 10);

/// The user's terminal, taken over until this is dropped, or [`super::restore`] is called.
pub(crate) struct FullScreen {
    terminal: Terminal<CrosstermBackend<File>>,
}

impl FullScreen {
    /// Takes the process's terminal over. None when it cannot show a screen: it is too small, lies about its
    /// size, or knows no sequences; lines have to do then.
    ///
    /// # Errors
    /// When there is no terminal; nothing has changed then.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let mut tty = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
        let size = tcgetwinsize(&tty)?;
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if dumb || size.ws_col < LEAST.0 || size.ws_row < LEAST.1 {
            return Ok(None);
        }
        let before = tcgetattr(&tty)?;
        let mut raw = before.clone();
        raw.make_raw();
        raw::remember(&tty, &before, false)?;
        raw::note_output(ENTER);
        // What was typed before the question was to be seen is no answer to it.
        tcsetattr(&tty, OptionalActions::Flush, &raw)?;
        tty.write_all(ENTER)?;
        let terminal = Terminal::new(CrosstermBackend::new(tty)).inspect_err(|_| raw::restore())?;
        Ok(Some(Self { terminal }))
    }

    /// From now on a pasted text comes as [`Typed::Pasted`], as far as the terminal knows how.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn report_pastes(&mut self) -> io::Result<()> {
        raw::note_output(PASTES);
        self.terminal.backend_mut().write_all(PASTES)
    }

    /// Columns and rows.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn size(&self) -> io::Result<(u16, u16)> {
        self.terminal.size().map(|size| (size.width, size.height))
    }

    /// Shows what `render` draws; what did not change is not sent again.
    ///
    /// # Errors
    /// When the terminal is gone, or was given back meanwhile.
    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !raw::is_taken() {
            return Err(io::Error::other("the terminal was given back"));
        }
        self.terminal.draw(render).map(drop)
    }

    /// Waits for a key; none when it is only to be drawn again, at another size.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn key(&self) -> io::Result<Option<KeyEvent>> {
        Ok(match read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => Some(key),
            _ => None,
        })
    }

    /// Waits this long, or until something is typed.
    ///
    /// # Errors
    /// When the terminal is gone.
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

/// What came of waiting for the user.
#[derive(Debug)]
pub(crate) enum Typed {
    Key(KeyEvent),
    /// See [`FullScreen::report_pastes`].
    Pasted(String),
    /// The terminal has another size.
    Resized,
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        raw::restore();
    }
}
