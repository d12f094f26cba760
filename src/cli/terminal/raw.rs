//! Raw mode, entered for one session and left on every way out.
//!
//! What has to be undone lies in one place of the process, because a panic and a signal have no value to
//! drop. Whoever comes first undoes it; the others find nothing left to do.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use super::Modes;

/// What the terminal was like before the session.
struct Saved {
    terminal: File,
    termios: Termios,
    modes: Modes,
    title: bool,
    color: bool,
}

static SAVED: Mutex<Option<Saved>> = Mutex::new(None);

/// The terminal in raw mode; it is given back when this is dropped, or by [`restore`].
#[derive(Debug)]
pub(crate) struct RawTerminal(());

impl RawTerminal {
    /// Takes standard input's terminal over, names its window, where there is a name, and gives its cursor a
    /// label's colour.
    ///
    /// # Errors
    /// When standard input is no terminal; nothing has changed then.
    pub(crate) fn enter(title: Option<&str>, color: Option<&str>) -> io::Result<Self> {
        let terminal = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let termios = tcgetattr(&terminal)?;
        let mut raw = termios.clone();
        raw.make_raw();
        remember(&terminal, &termios, title.is_some())?;
        // What was typed ahead was meant for the program that comes: it is kept.
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        let mut words = Vec::new();
        if let Some(title) = title {
            // Saved on the terminal's own stack, so that the shell's title comes back.
            words.extend_from_slice(b"\x1b[22;0t");
            words.extend(title_sequence(title));
        }
        if let Some(color) = color.and_then(rgb) {
            if let Some(saved) = lock().as_mut() {
                saved.color = true;
            }
            words.extend(format!("\x1b]12;{color}\x07").into_bytes());
        }
        io::stdout().write_all(&words)?;
        io::stdout().flush()?;
        Ok(Self(()))
    }

    /// Remembers what this piece of the agent's output switches on, to be switched off at the end.
    pub(crate) fn note_output(&self, output: &[u8]) {
        note_output(output);
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// What names the terminal's window: `OSC 0`.
pub(crate) fn title_sequence(title: &str) -> Vec<u8> {
    let plain: String = title.chars().filter(|c| !c.is_control()).take(80).collect();
    format!("\x1b]0;{plain}\x07").into_bytes()
}

/// A label's colour as `OSC 12` takes it; none for a word that is no label's.
fn rgb(name: &str) -> Option<&'static str> {
    Some(match name {
        "red" => "#d75f5f",
        "green" => "#5faf5f",
        "yellow" => "#d7af5f",
        "blue" => "#5f87d7",
        "magenta" => "#af5faf",
        "cyan" => "#5fafaf",
        _ => return None,
    })
}

/// Gives the terminal back, if it is taken. Safe to call from anywhere, any number of times.
pub(crate) fn restore() {
    // Not waited for: a panic while the lock is held must not hang.
    let saved = match SAVED.try_lock() {
        Ok(mut saved) => saved.take(),
        Err(std::sync::TryLockError::Poisoned(saved)) => saved.into_inner().take(),
        Err(std::sync::TryLockError::WouldBlock) => None,
    };
    let Some(mut saved) = saved else { return };
    let mut last_words = saved.modes.undo();
    if saved.title {
        last_words.extend_from_slice(b"\x1b[23;0t");
    }
    if saved.color {
        last_words.extend_from_slice(b"\x1b]112\x07");
    }
    // A terminal that hung up takes neither, and has nothing to be put right.
    let _ = saved.terminal.write_all(&last_words);
    let _ = tcsetattr(&saved.terminal, OptionalActions::Now, &saved.termios);
}

/// Makes a panic give the terminal back before it prints.
pub(crate) fn restore_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        print(panic);
    }));
}

/// Remembers what the terminal is like now, for [`restore`]; called before it is changed.
///
/// # Errors
/// When there is no descriptor left.
pub(super) fn remember(terminal: &File, now: &Termios, title: bool) -> io::Result<()> {
    let terminal = terminal.try_clone()?;
    *lock() = Some(Saved { terminal, termios: now.clone(), modes: Modes::default(), title, color: false });
    Ok(())
}

/// Remembers what this piece of output switches on, for [`restore`].
pub(super) fn note_output(output: &[u8]) {
    if let Some(saved) = lock().as_mut() {
        saved.modes.note(output);
    }
}

fn lock() -> MutexGuard<'static, Option<Saved>> {
    SAVED.lock().unwrap_or_else(PoisonError::into_inner)
}
