//! Runs a program on a pseudo-terminal and reads its screen.

mod child;

use std::fs::File;
use std::io::{Read, Write};
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

/// A running program with its pseudo-terminal. Dropping it kills the program and closes the terminal.
pub struct Pty {
    child: Child,
    /// None after a hang-up.
    master: Option<File>,
    /// Closed to stop the reader thread, which has the terminal open too.
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
    /// Starts `command` as the leader of a session whose terminal has this size.
    ///
    /// # Errors
    /// When there is no terminal left or the program cannot start.
    pub fn spawn(command: Command, rows: u16, columns: u16) -> Result<Self> {
        let (child, master) = child::spawn(command, size(rows, columns))?;
        // The parser needs a size even for a terminal without one.
        let (rows, columns) = if rows == 0 || columns == 0 { (24, 80) } else { (rows, columns) };
        let state = State { parser: vt100::Parser::new(rows, columns, 0), raw: Vec::new(), ended: false };
        let screen = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let mut output = master.try_clone()?;
        let (closed, closing) = pipe_with(PipeFlags::CLOEXEC)?;
        let shared = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The kernel returns EIO after the last process has closed the other end.
            while is_open(&output, &closed)
                && let Ok(length @ 1..) = output.read(&mut buffer)
            {
                let mut state = shared.lock();
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

    /// The screen's text, without colours and trailing spaces.
    #[must_use]
    pub fn screen(&self) -> String {
        self.screen.lock().parser.screen().contents()
    }

    /// Every byte of the output, for sequences that a screen does not show.
    #[must_use]
    pub fn raw(&self) -> Vec<u8> {
        self.screen.lock().raw.clone()
    }

    /// The cursor's row and column, from 0.
    #[must_use]
    pub fn cursor(&self) -> (u16, u16) {
        self.screen.lock().parser.screen().cursor_position()
    }

    /// Whether the terminal is in cooked mode, with lines and echo, as a shell expects.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn is_cooked(&self) -> Result<bool> {
        let modes = tcgetattr(self.master()?).context("terminal modes")?.local_modes;
        Ok(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG))
    }

    /// Terminal modes that a program left on and a shell does not expect.
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

    /// Lines that wrapped, because the program wrote past the last column.
    #[must_use]
    pub fn broken_lines(&self) -> Vec<String> {
        let state = self.screen.lock();
        let screen = state.parser.screen();
        let (_, columns) = screen.size();
        let rows = screen.rows(0, columns).zip(0..);
        rows.filter(|(_, row)| screen.row_wrapped(*row)).map(|(text, _)| text).collect()
    }

    /// Hangs up like a lost connection: the program gets SIGHUP, and its output is lost.
    ///
    /// # Errors
    /// When the reader thread panicked.
    pub fn hang_up(&mut self) -> Result<()> {
        drop(self.closing.take());
        if let Some(reader) = self.reader.take() {
            reader.join().map_err(|_| anyhow!("the reading thread panicked"))?;
        }
        self.master = None;
        Ok(())
    }

    /// Sets the time limit of every wait.
    pub fn patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Waits until the screen shows `text` and returns the screen.
    ///
    /// # Errors
    /// At the time limit, or when the output ends before; the error has the screen.
    pub fn wait_for(&self, text: &str) -> Result<String> {
        self.wait_until(text, |screen| screen.contains(text))
    }

    /// Waits until the screen satisfies `condition`, called `what` in the error, and returns the screen.
    ///
    /// # Errors
    /// As [`Pty::wait_for`].
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

    /// The final screen, after the output has ended.
    ///
    /// # Errors
    /// When the output does not end in time: something still has the terminal open.
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
    /// When the terminal is gone.
    pub fn type_keys(&mut self, keys: &str) -> Result<()> {
        self.master()?.write_all(keys.as_bytes()).context("type on the terminal")
    }

    /// Changes the terminal's size; the program gets SIGWINCH.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn resize(&mut self, rows: u16, columns: u16) -> Result<()> {
        tcsetwinsize(self.master()?, size(rows, columns)).context("resize the terminal")?;
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

    /// The program's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the program's end and returns its exit code (128 + n after signal n).
    ///
    /// # Errors
    /// At the time limit; the program is then killed, and the error has the screen.
    pub fn wait_exit(&mut self) -> Result<i32> {
        match program::wait(&mut self.child, Instant::now() + self.patience)? {
            Some(status) => Ok(program::code(status)),
            None => bail!("it did not end; the screen:\n{}", self.screen()),
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A grandchild may keep the terminal open; the thread then ends with it.
        drop(self.reader.take());
    }
}

/// Waits for output; false when the reader should stop.
fn is_open(output: &File, closed: &OwnedFd) -> bool {
    let mut both = [PollFd::new(output, PollFlags::IN), PollFd::new(closed, PollFlags::IN)];
    loop {
        match poll(&mut both, None) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.is_ok() && both[1].revents().is_empty(),
        }
    }
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
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
