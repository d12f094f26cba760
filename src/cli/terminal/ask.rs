//! Questions to the user on `/dev/tty`, so that they work while standard input carries data.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};

use bottle_contract::secret::Secret;
use rustix::termios::{InputModes, LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::secrets::Ask;

/// The longest answer; what is typed beyond is ignored.
const ANSWER_MAX: usize = 64 * 1024;

/// Whether there is a user to ask: they see standard error and have a terminal to answer on.
pub(crate) fn interactive() -> bool {
    io::stderr().is_terminal() && TerminalUser::find().is_ok()
}

/// The user at the terminal.
#[derive(Debug)]
pub(crate) struct TerminalUser {
    terminal: File,
}

/// What becomes of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Go on.
    Yes,
    /// Leave.
    No,
    /// Choose again.
    Edit,
    /// Show all of it.
    Explain,
}

/// What an answer was ended by.
enum Answer {
    Given(Zeroizing<Vec<u8>>),
    Cancelled,
}

impl TerminalUser {
    /// The user of this process's controlling terminal.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn find() -> io::Result<Self> {
        Ok(Self { terminal: OpenOptions::new().read(true).write(true).open("/dev/tty")? })
    }

    /// Asks for yes or no; only `y` and `yes` mean yes. Nothing when the user presses Ctrl-C.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn confirm(&mut self, question: &str) -> io::Result<Option<bool>> {
        match self.answer(&format!("{question} [y/N] "), true)? {
            Answer::Given(bytes) => {
                let word = String::from_utf8_lossy(&bytes).trim().to_lowercase();
                Ok(Some(matches!(word.as_str(), "y" | "yes")))
            }
            Answer::Cancelled => Ok(None),
        }
    }

    /// Asks whether to start; only `y` and `yes` mean yes. Nothing when the user presses Esc or Ctrl-C.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn decide(&mut self, question: &str) -> io::Result<Option<Decision>> {
        let Some(word) = self.line(&format!("{question} [y/N/e/?]"))? else { return Ok(None) };
        Ok(Some(match word.trim().to_lowercase().as_str() {
            "y" | "yes" => Decision::Yes,
            "e" | "edit" => Decision::Edit,
            "?" | "h" | "help" => Decision::Explain,
            _ => Decision::No,
        }))
    }

    /// Asks for a line of text. Nothing when the user presses Esc or Ctrl-C.
    ///
    /// # Errors
    /// When the terminal is gone, or what was typed is no text.
    pub(crate) fn line(&mut self, question: &str) -> io::Result<Option<String>> {
        match self.answer(&format!("{question} "), true)? {
            Answer::Given(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => Err(io::Error::other("what was typed is no UTF-8 text")),
            },
            Answer::Cancelled => Ok(None),
        }
    }

    /// Shows the names with a number each, and asks for one, by number or name; again until it is one. Nothing
    /// when the user presses Esc or Ctrl-C.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn choose(&mut self, question: &str, names: &[String]) -> io::Result<Option<usize>> {
        let lines = names.iter().enumerate().map(|(index, name)| format!("  {}  {name}\r\n", index + 1));
        self.terminal.write_all(lines.collect::<String>().as_bytes())?;
        loop {
            let Answer::Given(bytes) = self.answer(&format!("{question} [1-{}] ", names.len()), true)? else {
                return Ok(None);
            };
            let word = String::from_utf8_lossy(&bytes).trim().to_owned();
            let numbered = word.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            let found = numbered.or_else(|| names.iter().position(|name| *name == word));
            if let Some(index) = found.filter(|index| *index < names.len()) {
                return Ok(Some(index));
            }
        }
    }

    /// Asks for one of these words, by its beginning; nothing typed is the first. Again until it is one. Nothing
    /// when the user presses Esc or Ctrl-C.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn word(&mut self, question: &str, words: &[&str]) -> io::Result<Option<usize>> {
        loop {
            let Answer::Given(bytes) = self.answer(&format!("{question} [{}] ", words.join("/")), true)?
            else {
                return Ok(None);
            };
            let typed = String::from_utf8_lossy(&bytes).trim().to_lowercase();
            if let Some(index) = words.iter().position(|word| word.starts_with(&typed)) {
                return Ok(Some(index));
            }
        }
    }

    /// Asks, and reads one line key by key: signals off, so that Ctrl-C comes as a key and nothing is left
    /// to undo. What was typed before the question was to be seen is no answer to it.
    fn answer(&mut self, question: &str, echo: bool) -> io::Result<Answer> {
        let _modes = Keys::of(&self.terminal)?;
        self.terminal.write_all(question.as_bytes())?;
        let mut line = Zeroizing::new(Vec::with_capacity(256));
        let mut byte = Zeroizing::new([0u8; 1]);
        loop {
            if self.terminal.read(&mut *byte)? == 0 {
                return Ok(Answer::Cancelled);
            }
            match byte[0] {
                b'\r' | b'\n' => {
                    self.terminal.write_all(b"\r\n")?;
                    return Ok(Answer::Given(line));
                }
                // Ctrl-C, Ctrl-D on an empty line, Esc.
                0x03 | 0x1b => {
                    self.terminal.write_all(b"\r\n")?;
                    return Ok(Answer::Cancelled);
                }
                0x04 if line.is_empty() => {
                    self.terminal.write_all(b"\r\n")?;
                    return Ok(Answer::Cancelled);
                }
                0x7f | 0x08 => erase(&mut self.terminal, &mut line, echo)?,
                0x15 => {
                    while !line.is_empty() {
                        erase(&mut self.terminal, &mut line, echo)?;
                    }
                }
                key @ (0x20..=0x7e | 0x80..) if line.len() < ANSWER_MAX => {
                    line.push(key);
                    if echo {
                        self.terminal.write_all(&[key])?;
                    }
                }
                _ => {}
            }
        }
    }
}

impl Ask for TerminalUser {
    fn secret(&mut self, question: &str) -> io::Result<Option<Secret>> {
        let plain: String = question.chars().filter(|c| !c.is_control()).collect();
        match self.answer(&format!("{plain}: "), false)? {
            Answer::Given(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => Ok(Some(Secret::new(text.to_owned()))),
                Err(_) => Err(io::Error::other("what was typed is no UTF-8 text")),
            },
            Answer::Cancelled => Ok(None),
        }
    }
}

/// Takes the last character off the line and, where it was shown, off the screen.
fn erase(terminal: &mut File, line: &mut Vec<u8>, echo: bool) -> io::Result<()> {
    while let Some(byte) = line.pop() {
        if byte & 0xc0 != 0x80 {
            if echo {
                terminal.write_all(b"\x08 \x08")?;
            }
            break;
        }
    }
    Ok(())
}

/// The terminal giving keys instead of lines, until dropped.
struct Keys(());

impl Keys {
    fn of(terminal: &File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut keys = before.clone();
        keys.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
        keys.input_modes &= !InputModes::IXON;
        // Remembered first, so that a signal or a panic gives the echo back.
        super::raw::remember(terminal, &before, false)?;
        tcsetattr(terminal, OptionalActions::Flush, &keys)?;
        Ok(Self(()))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        super::raw::restore();
    }
}
