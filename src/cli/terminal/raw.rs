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
use super::killed::Mark;

/// What the terminal was like before the session.
struct Saved {
    terminal: File,
    termios: Termios,
    modes: Modes,
    /// Titles on the terminal's own stack that are to come back.
    titles: u8,
    color: bool,
    /// Says to the next command that the terminal is not given back yet.
    mark: Option<Mark>,
}

/// Keeps the window's title on the terminal's own stack, and brings it back.
const PUSH_TITLE: &[u8] = b"\x1b[22;0t";
const POP_TITLE: &[u8] = b"\x1b[23;0t";

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
            words.extend_from_slice(PUSH_TITLE);
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

    /// What keeps the title of now on the terminal's own stack; it comes back at the end, or by
    /// [`RawTerminal::pop_title`].
    pub(crate) fn push_title(&self) -> &'static [u8] {
        if let Some(saved) = lock().as_mut() {
            saved.titles = saved.titles.saturating_add(1);
        }
        PUSH_TITLE
    }

    /// What brings the title back that was kept last.
    pub(crate) fn pop_title(&self) -> &'static [u8] {
        if let Some(saved) = lock().as_mut() {
            saved.titles = saved.titles.saturating_sub(1);
        }
        POP_TITLE
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
    for _ in 0..saved.titles {
        last_words.extend_from_slice(POP_TITLE);
    }
    if saved.color {
        last_words.extend_from_slice(b"\x1b]112\x07");
    }
    // A terminal that hung up takes neither, and has nothing to be put right.
    let _ = saved.terminal.write_all(&last_words);
    let _ = tcsetattr(&saved.terminal, OptionalActions::Now, &saved.termios);
    drop(saved.mark);
}

/// Whether the terminal is taken, and nobody gave it back yet.
pub(super) fn is_taken() -> bool {
    lock().is_some()
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
    let mark = Mark::set(&terminal);
    let modes = Modes::default();
    let titles = u8::from(title);
    *lock() = Some(Saved { terminal, termios: now.clone(), modes, titles, color: false, mark });
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use bottle_test_support::pty::Pty;

    use super::*;

    /// Set for the test below, which is then a program that has taken its terminal over and panics.
    const VICTIM: &str = "BOTTLE_TEST_PANICS_ON_TERMINAL";

    #[test]
    #[ignore = "run by the test below, on a terminal of its own"]
    fn panics_on_its_terminal() {
        let Ok(thread) = std::env::var(VICTIM) else { return };
        restore_on_panic();
        let raw = RawTerminal::enter(Some("a title"), Some("green")).expect("a terminal");
        let screen = b"\x1b[?1049h\x1b[?25l\x1b[?1003h\x1b[?2004hdrawn";
        raw.note_output(screen);
        io::stdout().write_all(screen).expect("shown");
        io::stdout().flush().expect("shown");
        if thread == "another" {
            let other = std::thread::spawn(|| panic!("on purpose"));
            other.join().expect_err("it panicked");
        }
        panic!("on purpose");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_says_why() {
        for thread in ["its own", "another"] {
            let mut victim = Command::new(std::env::current_exe().expect("this program"));
            victim.env(VICTIM, thread).env("RUST_BACKTRACE", "0").args([
                "--ignored",
                "--exact",
                "--nocapture",
            ]);
            victim.arg("cli::terminal::raw::tests::panics_on_its_terminal");
            let mut pty = Pty::spawn(victim, 24, 80).expect("a terminal");
            assert_ne!(pty.wait_exit().expect("an end"), 0, "{thread}");
            let screen = pty.last_screen().expect("the end of the output");
            assert!(screen.contains("on purpose"), "{thread}: {screen}");
            assert!(!screen.contains("drawn"), "{thread}: {screen}");
            assert_eq!(pty.left_on(), [""; 0], "{thread}");
            assert!(pty.is_cooked().expect("a terminal"), "{thread}");
            let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
            for (on, off) in [("\x1b[22;0t", "\x1b[23;0t"), ("\x1b]12;#5faf5f\x07", "\x1b]112\x07")] {
                assert!(raw.find(on).is_some() && raw.find(on) < raw.find(off), "{thread}: {raw:?}");
            }
            assert!(raw.find("\x1b]112") < raw.find("on purpose"), "{thread}: {raw:?}");
        }
    }
}
