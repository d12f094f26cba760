//! Raw mode of the terminal. A session enters raw mode, and every exit restores the terminal.
//!
//! The saved state is a global value, because panics and signals do not drop a local value. The first call of
//! [`restore`] restores the terminal; later calls do nothing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use super::Modes;
use super::after_kill::Mark;
use crate::console::style::label_color;

/// The terminal's state before a session.
struct Saved {
    terminal: File,
    termios: Termios,
    modes: Modes,
    /// The number of titles that were pushed on the terminal's title stack.
    titles: u8,
    color: bool,
    tint: bool,
    /// The mark file that tells the next command that the terminal is taken over.
    mark: Option<Mark>,
}

/// The sequence that pushes the window's title onto the terminal's title stack.
const PUSH_TITLE: &[u8] = b"\x1b[22;0t";
/// The sequence that pops the window's title from the terminal's title stack.
const POP_TITLE: &[u8] = b"\x1b[23;0t";

/// The sequence that sets the background to the terminal's own colour.
pub(super) const RESET_BACKGROUND: &[u8] = b"\x1b]111\x07";

/// The brightness of a colour's dark shade, in percent of the brightness of the colour.
const SHADE: u32 = 18;

static SAVED: Mutex<Option<Saved>> = Mutex::new(None);

/// Restores the terminal when dropped, unless [`restore`] has already restored it.
#[derive(Debug)]
pub(super) struct Restore(());

impl Drop for Restore {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal in raw mode. Dropping the value, or calling [`restore`], restores the terminal.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    _restore: Restore,
}

impl RawTerminal {
    /// Takes over the terminal on standard input. Sets the window's title and the cursor's colour, if given. If `tint`
    /// is set, sets the background to a dark shade of `color`.
    ///
    /// # Errors
    /// Returns an error if standard input is not a terminal. The terminal is unchanged in this case.
    pub(crate) fn enter(title: Option<&str>, color: Option<&str>, tint: bool) -> io::Result<Self> {
        let terminal = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let termios = tcgetattr(&terminal)?;
        let mut raw = termios.clone();
        raw.make_raw();
        let restore = save(&terminal, &termios, title.is_some())?;
        // Keeps input that was typed ahead, because it is meant for the program.
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        let mut words = Vec::new();
        if let Some(title) = title {
            words.extend_from_slice(PUSH_TITLE);
            words.extend(title_sequence(title));
        }
        if let Some((_, color)) = color.and_then(label_color) {
            if let Some(saved) = lock().as_mut() {
                saved.color = true;
            }
            words.extend(format!("\x1b]12;{color}\x07").into_bytes());
            if let Some(shade) = dark_shade(color).filter(|_| tint) {
                if let Some(saved) = lock().as_mut() {
                    saved.tint = true;
                    saved.mark.iter().for_each(Mark::note_tint);
                }
                words.extend(format!("\x1b]11;{shade}\x07").into_bytes());
            }
        }
        io::stdout().write_all(&words)?;
        io::stdout().flush()?;
        Ok(Self { _restore: restore })
    }

    /// Returns the sequence that pushes the title. The title is popped when the terminal is restored, or by
    /// [`RawTerminal::pop_title`].
    pub(crate) fn push_title(&self) -> &'static [u8] {
        if let Some(saved) = lock().as_mut() {
            saved.titles = saved.titles.saturating_add(1);
        }
        PUSH_TITLE
    }

    /// Returns the sequence that pops the pushed title.
    pub(crate) fn pop_title(&self) -> &'static [u8] {
        if let Some(saved) = lock().as_mut() {
            saved.titles = saved.titles.saturating_sub(1);
        }
        POP_TITLE
    }

    /// Tracks the terminal modes that this chunk of the agent's output switches on.
    pub(crate) fn track_output(&self, output: &[u8]) {
        track_output(output);
    }
}

/// Returns the sequence that sets the window's title: `OSC 0`.
pub(crate) fn title_sequence(title: &str) -> Vec<u8> {
    let plain: String = title.chars().filter(|c| !c.is_control()).take(80).collect();
    format!("\x1b]0;{plain}\x07").into_bytes()
}

/// Returns the dark shade of a colour `#rrggbb`, in the same notation.
fn dark_shade(color: &str) -> Option<String> {
    let channels = u32::from_str_radix(color.strip_prefix('#')?, 16).ok()?;
    let [red, green, blue] = [16, 8, 0].map(|at| (channels >> at & 0xff) * SHADE / 100);
    Some(format!("#{red:02x}{green:02x}{blue:02x}"))
}

/// Whether the terminal can change its background, and restore it. GNU screen and the Linux console cannot do this, but
/// tmux can.
pub(crate) fn supports_tint(variable: impl Fn(&str) -> Option<String>) -> bool {
    let term = variable("TERM").unwrap_or_default();
    let in_tmux = || variable("TMUX").is_some_and(|tmux| !tmux.is_empty());
    match term.split(['-', '.']).next().unwrap_or_default() {
        "" | "dumb" | "linux" => false,
        "screen" => in_tmux(),
        _ => true,
    }
}

/// Restores the terminal, if it is taken over. May be called from any thread, and several times.
pub(crate) fn restore() {
    // Does not block, because a panic while the lock is held would cause a deadlock.
    let saved = match SAVED.try_lock() {
        Ok(mut saved) => saved.take(),
        Err(std::sync::TryLockError::Poisoned(saved)) => saved.into_inner().take(),
        Err(std::sync::TryLockError::WouldBlock) => None,
    };
    let Some(mut saved) = saved else { return };
    let mut sequences = saved.modes.undo();
    for _ in 0..saved.titles {
        sequences.extend_from_slice(POP_TITLE);
    }
    if saved.color {
        sequences.extend_from_slice(b"\x1b]112\x07");
    }
    if saved.tint {
        sequences.extend_from_slice(RESET_BACKGROUND);
    }
    // After a hang-up both calls fail, and there is nothing to restore.
    let _ = saved.terminal.write_all(&sequences);
    let _ = tcsetattr(&saved.terminal, OptionalActions::Now, &saved.termios);
    drop(saved.mark);
}

/// Whether a session has taken over the terminal.
pub(super) fn is_taken() -> bool {
    lock().is_some()
}

/// Installs a panic hook that restores the terminal before the panic message is printed.
pub(crate) fn restore_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        print(panic);
    }));
}

/// Saves the terminal's state for [`restore`]. Call this function before any change of the terminal.
///
/// # Errors
/// Returns an error if the process cannot open another file descriptor.
pub(super) fn save(terminal: &File, now: &Termios, title: bool) -> io::Result<Restore> {
    let terminal = terminal.try_clone()?;
    let mark = Mark::set(&terminal);
    let modes = Modes::default();
    let titles = u8::from(title);
    *lock() = Some(Saved { terminal, termios: now.clone(), modes, titles, color: false, tint: false, mark });
    Ok(Restore(()))
}

/// Tracks the terminal modes that this chunk of output switches on, so that [`restore`] can undo them.
pub(super) fn track_output(output: &[u8]) {
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

    /// The environment variable that makes the test `panics_on_its_terminal` take over its terminal and then panic.
    const VICTIM: &str = "BOTTLE_TEST_PANICS_ON_TERMINAL";

    #[test]
    fn tints_only_terminals_that_restore_their_background() {
        for (term, tmux, wanted) in [
            ("xterm-256color", None, true),
            ("xterm-kitty", None, true),
            ("tmux-256color", Some("/tmp/tmux,1,0"), true),
            ("screen-256color", Some("/tmp/tmux,1,0"), true),
            ("screen-256color", None, false),
            ("screen.xterm-256color", None, false),
            ("linux", None, false),
            ("linux-16color", None, false),
            ("dumb", None, false),
            ("", None, false),
        ] {
            let variable = |name: &str| if name == "TERM" { Some(term) } else { tmux }.map(str::to_owned);
            assert_eq!(supports_tint(variable), wanted, "{term} {tmux:?}");
        }
        for (color, shade) in [("#5faf5f", Some("#111f11")), ("#ffffff", Some("#2d2d2d")), ("green", None)] {
            assert_eq!(dark_shade(color).as_deref(), shade);
        }
    }

    #[test]
    #[ignore = "started by the test below, on a terminal of its own"]
    fn panics_on_its_terminal() {
        let Ok(thread) = std::env::var(VICTIM) else { return };
        restore_on_panic();
        let raw = RawTerminal::enter(Some("a title"), Some("green"), true).expect("a terminal");
        let screen = b"\x1b[?1049h\x1b[?25l\x1b[?1003h\x1b[?2004hdrawn";
        raw.track_output(screen);
        io::stdout().write_all(screen).expect("shown");
        io::stdout().flush().expect("shown");
        if thread == "another" {
            let other = std::thread::spawn(|| panic!("on purpose"));
            other.join().expect_err("it panicked");
        }
        panic!("on purpose");
    }

    #[test]
    fn a_panic_restores_the_terminal_before_it_prints() {
        for thread in ["its own", "another"] {
            let mut victim = Command::new(std::env::current_exe().expect("this program"));
            victim.env(VICTIM, thread).env("RUST_BACKTRACE", "0").args([
                "--ignored",
                "--exact",
                "--nocapture",
            ]);
            victim.arg("console::terminal::raw::tests::panics_on_its_terminal");
            let mut pty = Pty::spawn(victim, 24, 80).expect("a terminal");
            assert_ne!(pty.wait_exit().expect("an end"), 0, "{thread}");
            let screen = pty.last_screen().expect("the end of the output");
            assert!(screen.contains("on purpose"), "{thread}: {screen}");
            assert!(!screen.contains("drawn"), "{thread}: {screen}");
            assert_eq!(pty.left_on(), [""; 0], "{thread}");
            assert!(pty.is_cooked().expect("a terminal"), "{thread}");
            let raw = String::from_utf8_lossy(&pty.raw()).into_owned();
            for (on, off) in [
                ("\x1b[22;0t", "\x1b[23;0t"),
                ("\x1b]12;#5faf5f\x07", "\x1b]112\x07"),
                ("\x1b]11;#111f11\x07", "\x1b]111\x07"),
            ] {
                assert!(raw.find(on).is_some() && raw.find(on) < raw.find(off), "{thread}: {raw:?}");
            }
            assert!(raw.find("\x1b]112") < raw.find("on purpose"), "{thread}: {raw:?}");
        }
    }
}
