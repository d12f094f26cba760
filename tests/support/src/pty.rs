//! Runs a program on a pseudo-terminal, and reads what the terminal's screen shows.

mod child;

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::program;

/// The default time limit of [`Pty::wait_for`] and [`Pty::wait_exit`].
const PATIENCE: Duration = Duration::from_secs(40);

/// A program that runs on a pseudo-terminal. Dropping the value kills the program and closes the terminal.
pub struct Pty {
    child: Child,
    /// The controlling side of the terminal; `None` after a hang-up.
    master: Option<File>,
    /// Closing this descriptor stops the reader thread, which also has the terminal open.
    closing: Option<OwnedFd>,
    screen: Arc<Shared>,
    patience: Duration,
    reader: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    parser: vt100::Parser,
    raw: Vec<u8>,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pty {
    /// Starts `command` as the leader of a session. The session's terminal has this size.
    ///
    /// # Errors
    /// Returns an error if there is no free terminal, or the program cannot be started.
    pub fn spawn(command: Command, rows: u16, columns: u16) -> Result<Self> {
        let (child, master) = child::spawn(command, size(rows, columns))?;
        let (rows, columns) = parsed(rows, columns);
        let state = State { parser: vt100::Parser::new(rows, columns, 0), raw: Vec::new(), ended: false };
        let screen = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let mut output = master.try_clone()?;
        let (closed, closing) = pipe_with(PipeFlags::CLOEXEC)?;
        let shared = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails with EIO when the last process has closed its side of the terminal.
            while is_open(&output, &closed) {
                // The lock is taken before the read, so that no output is missing from both the terminal and the
                // screen.
                let mut state = shared.lock();
                let Ok(length @ 1..) = output.read(&mut buffer) else { break };
                state.parser.process(&buffer[..length]);
                state.raw.extend_from_slice(&buffer[..length]);
                shared.changed.notify_all();
            }
            shared.lock().ended = true;
            shared.changed.notify_all();
        });
        let (master, closing) = (Some(master), Some(closing));
        Ok(Self { child, master, closing, screen, patience: PATIENCE, reader: Some(reader) })
    }

    /// Returns the text of the screen, without colours and trailing spaces.
    #[must_use]
    pub fn screen(&self) -> String {
        self.screen.lock().parser.screen().contents()
    }

    /// Returns every byte of the output, for sequences that have no visible effect on the screen.
    #[must_use]
    pub fn raw(&self) -> Vec<u8> {
        self.screen.lock().raw.clone()
    }

    /// Returns the row and column of the cursor, from 0.
    #[must_use]
    pub fn cursor(&self) -> (u16, u16) {
        self.screen.lock().parser.screen().cursor_position()
    }

    /// Whether the terminal is in cooked mode, with line editing and echo, as a shell expects.
    ///
    /// # Errors
    /// Returns an error if the terminal was closed.
    pub fn is_cooked(&self) -> Result<bool> {
        let modes = tcgetattr(self.master()?).context("terminal modes")?.local_modes;
        Ok(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG))
    }

    /// Returns terminal modes that a program has left on although a shell expects them to be off.
    #[must_use]
    pub fn left_on(&self) -> Vec<&'static str> {
        let state = self.screen.lock();
        let screen = state.parser.screen();
        [
            ("the alternate screen", screen.alternate_screen()),
            ("a hidden cursor", screen.hide_cursor()),
            ("bracketed paste", screen.bracketed_paste()),
            ("the mouse", screen.mouse_protocol_mode() != vt100::MouseProtocolMode::None),
            ("application cursor keys", screen.application_cursor()),
            ("the application keypad", screen.application_keypad()),
            ("bold letters", screen.bold()),
            ("a colour", screen.fgcolor() != vt100::Color::Default),
        ]
        .into_iter()
        .filter_map(|(what, on)| on.then_some(what))
        .collect()
    }

    /// Returns lines that were wrapped because the program wrote beyond the last column.
    #[must_use]
    pub fn broken_lines(&self) -> Vec<String> {
        let state = self.screen.lock();
        let screen = state.parser.screen();
        let (_, columns) = screen.size();
        let rows = screen.rows(0, columns.get()).zip(0..);
        rows.filter(|(_, row)| screen.row_wrapped(*row)).map(|(text, _)| text).collect()
    }

    /// Hangs up, as if the connection was lost: the program gets SIGHUP, and its output is lost.
    ///
    /// # Errors
    /// Returns an error if the reader thread panicked.
    pub fn hang_up(&mut self) -> Result<()> {
        drop(self.closing.take());
        if let Some(reader) = self.reader.take() {
            reader.join().map_err(|_| anyhow!("the reading thread panicked"))?;
        }
        self.master = None;
        Ok(())
    }

    /// Sets the time limit of all functions that wait.
    pub fn patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Waits until the screen shows `text`. Returns the screen.
    ///
    /// # Errors
    /// Returns an error if the time limit is exceeded, or if the output ends before the screen shows the text. The
    /// error contains the screen.
    pub fn wait_for(&self, text: &str) -> Result<String> {
        self.wait_until(text, |screen| screen.contains(text))
    }

    /// Waits until the screen satisfies `condition`. `what` describes the condition in the error. Returns the screen.
    ///
    /// # Errors
    /// Returns the same errors as [`Pty::wait_for`].
    pub fn wait_until(&self, what: &str, condition: impl Fn(&str) -> bool) -> Result<String> {
        let end = Instant::now() + self.patience;
        let mut state = self.screen.lock();
        loop {
            let contents = state.parser.screen().contents();
            if condition(&contents) {
                return Ok(contents);
            }
            let left = end.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                let why = if state.ended { "the output ended" } else { "time is up" };
                bail!("{what:?} is not on the screen and {why}:\n{contents}");
            }
            state = self.screen.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the end of the output, and returns the last screen.
    ///
    /// # Errors
    /// Returns an error if the output does not end within the time limit, because a process still has the
    /// terminal open.
    pub fn last_screen(&self) -> Result<String> {
        let end = Instant::now() + self.patience;
        let mut state = self.screen.lock();
        while !state.ended {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("something still has the terminal open:\n{}", state.parser.screen().contents());
            }
            state = self.screen.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.parser.screen().contents())
    }

    /// Types keys.
    ///
    /// # Errors
    /// Returns an error if the terminal was closed.
    pub fn type_keys(&mut self, keys: &str) -> Result<()> {
        self.master()?.write_all(keys.as_bytes()).context("type on the terminal")
    }

    /// Changes the size of the terminal. The program gets SIGWINCH.
    ///
    /// # Errors
    /// Returns an error if the terminal was closed.
    pub fn resize(&mut self, rows: u16, columns: u16) -> Result<()> {
        tcsetwinsize(self.master()?, size(rows, columns)).context("resize the terminal")?;
        let (rows, columns) = parsed(rows, columns);
        self.screen.lock().parser.screen_mut().set_size(rows, columns);
        Ok(())
    }

    fn master(&self) -> Result<&File> {
        self.master.as_ref().context("the terminal was hung up")
    }

    /// Whether the output has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.screen.lock().ended
    }

    /// Returns the process id of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program ends and the screen shows all its output. Returns its exit code (128 + n after signal
    /// n).
    ///
    /// # Errors
    /// Returns an error if the time limit is exceeded. In this case the program is killed, and the error
    /// contains the screen.
    pub fn wait_exit(&mut self) -> Result<i32> {
        let end = Instant::now() + self.patience;
        match program::wait(&mut self.child, end)? {
            Some(status) => self.wait_for_output(end).map(|()| program::code(status)),
            None => bail!("it did not end; the screen:\n{}", self.screen()),
        }
    }

    /// Waits until the reader has read all output of the terminal. After the end of the program, some of its
    /// output may still be unread.
    fn wait_for_output(&self, end: Instant) -> Result<()> {
        let Some(master) = &self.master else { return Ok(()) };
        let mut state = self.screen.lock();
        while !state.ended && has_output(master)? {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("its output does not end; the screen:\n{}", state.parser.screen().contents());
            }
            state = self.screen.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The reader thread is not joined, because a descendant of the program may keep the terminal open.
        drop(self.reader.take());
    }
}

/// Waits for output. Returns false when the reader must stop.
fn is_open(output: &File, closed: &OwnedFd) -> bool {
    let mut both = [PollFd::new(output, PollFlags::IN), PollFd::new(closed, PollFlags::IN)];
    loop {
        match poll(&mut both, None) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.is_ok() && both[1].revents().is_empty(),
        }
    }
}

/// Whether the terminal has output that was not read. Linux moves output to the controlling side in the background, but
/// `poll` moves the output immediately if that side has none (`n_tty_poll`).
fn has_output(master: &File) -> Result<bool> {
    let mut one = [PollFd::new(master, PollFlags::IN)];
    poll(&mut one, Some(&rustix::time::Timespec::default())).context("poll the terminal")?;
    Ok(one[0].revents().contains(PollFlags::IN))
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The size of the parsed screen. The parser needs a size even if the terminal reports none.
fn parsed(rows: u16, columns: u16) -> (NonZero<u16>, NonZero<u16>) {
    let size = NonZero::new(rows).zip(NonZero::new(columns));
    size.unwrap_or((vt100::Parser::DEFAULT_ROWS, vt100::Parser::DEFAULT_COLS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_to_a_shell_and_reads_its_screen() {
        let mut command = Command::new("/bin/sh");
        command.env_clear().env("PS1", "$ ").env("PATH", "/usr/bin:/bin").arg("-i");
        let mut pty = Pty::spawn(command, 6, 40).unwrap();
        pty.wait_for("$ ").unwrap();
        pty.type_keys("stty size; tty >/dev/null && echo has a tty\n").unwrap();
        pty.wait_for("6 40").unwrap();
        pty.wait_for("has a tty\n").unwrap();
        pty.resize(10, 30).unwrap();
        pty.type_keys("clear; stty size\n").unwrap();
        pty.wait_for("10 30").unwrap();
        pty.patience(Duration::from_millis(50));
        assert!(pty.wait_for("never shown").unwrap_err().to_string().contains("10 30"));
        pty.patience(PATIENCE);
        pty.type_keys("exit 7\n").unwrap();
        assert_eq!(pty.wait_exit().unwrap(), 7);
    }

    #[test]
    fn shows_all_output_after_the_end() {
        for _ in 0..20 {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "head -c 6000 /dev/zero; printf '\\033[?1049h'; exit 3"]);
            let mut pty = Pty::spawn(command, 6, 40).unwrap();
            let shared = Arc::clone(&pty.screen);
            // As on a busy machine, the program ends before its output is read.
            let reader_is_late = std::thread::spawn(move || {
                let state = shared.lock();
                std::thread::sleep(Duration::from_millis(50));
                drop(state);
            });
            assert_eq!(pty.wait_exit().unwrap(), 3);
            assert_eq!(pty.left_on(), ["the alternate screen"]);
            reader_is_late.join().unwrap();
        }
    }

    #[test]
    fn distinguishes_raw_from_cooked_mode() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo before; read x; stty raw; echo after; read x"]);
        let mut pty = Pty::spawn(command, 6, 40).unwrap();
        pty.wait_for("before").unwrap();
        assert!(pty.is_cooked().unwrap());
        pty.type_keys("\n").unwrap();
        pty.wait_for("after").unwrap();
        assert!(!pty.is_cooked().unwrap());
    }
}
