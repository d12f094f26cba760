//! Asks the user on `/dev/tty`, which also works while standard input carries data.
//!
//! This module does not use the prompts of the crate `dialoguer`. These prompts accept `no way` as yes, and they accept
//! text that was typed before the question. On Ctrl-C, the prompts end the process with the cursor hidden or the echo
//! off. The prompts also cut a secret at 4,095 bytes, and leave a copy of the secret in the buffer of standard input.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};

use bottle_plan::secrets::Ask;
use bottle_policy::secret::Secret;
use rustix::termios::{InputModes, LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use super::raw::{self, Restore};

/// The maximum length of an answer in bytes. Further input is ignored.
const ANSWER_MAX: usize = 64 * 1024;

/// Whether there is a user to ask: standard error is a terminal, and the process has a controlling terminal.
pub(crate) fn interactive() -> bool {
    io::stderr().is_terminal() && TerminalUser::find().is_ok()
}

/// The controlling terminal, on which the user answers questions.
#[derive(Debug)]
pub(crate) struct TerminalUser {
    terminal: File,
}

/// The user's decision about a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Start the bottle.
    Yes,
    /// Do not start the bottle.
    No,
    /// Change the choices before the start.
    Edit,
    /// Show the full preview instead of starting.
    Explain,
}

impl TerminalUser {
    /// Opens the controlling terminal.
    ///
    /// # Errors
    /// Returns an error if there is no controlling terminal.
    pub(crate) fn find() -> io::Result<Self> {
        Ok(Self { terminal: OpenOptions::new().read(true).write(true).open("/dev/tty")? })
    }

    /// Asks for yes or no. Only `y` and `yes` mean yes. Returns `None` on Esc or Ctrl-C.
    ///
    /// # Errors
    /// Returns an error if the terminal hung up.
    pub(crate) fn confirm(&mut self, question: &str) -> io::Result<Option<bool>> {
        let word = self.answered(&format!("{question} [y/N] "))?;
        Ok(word.map(|word| matches!(word.to_lowercase().as_str(), "y" | "yes")))
    }

    /// Asks whether to start. Only `y` and `yes` mean yes. Returns `None` on Esc or Ctrl-C.
    ///
    /// # Errors
    /// Returns an error if the terminal hung up.
    pub(crate) fn decide(&mut self, question: &str) -> io::Result<Option<Decision>> {
        let word = self.line(&format!("{question} [y/N/e/?]"))?;
        Ok(word.map(|word| match word.trim().to_lowercase().as_str() {
            "y" | "yes" => Decision::Yes,
            "e" | "edit" => Decision::Edit,
            "?" | "h" | "help" => Decision::Explain,
            _ => Decision::No,
        }))
    }

    /// Asks for a line of text. Returns `None` on Esc or Ctrl-C.
    ///
    /// # Errors
    /// Returns an error if the terminal hung up, or the input is not UTF-8.
    pub(crate) fn line(&mut self, question: &str) -> io::Result<Option<String>> {
        self.answer(&format!("{question} "), true)?.map(|bytes| text(&bytes)).transpose()
    }

    /// Shows a numbered list, and asks for a number or name until the answer is valid. Returns `None` on Esc or Ctrl-C.
    ///
    /// # Errors
    /// Returns an error if the terminal hung up.
    pub(crate) fn choose(&mut self, question: &str, names: &[String]) -> io::Result<Option<usize>> {
        let lines = names.iter().enumerate().map(|(index, name)| format!("  {}  {name}\r\n", index + 1));
        self.terminal.write_all(lines.collect::<String>().as_bytes())?;
        loop {
            let Some(word) = self.answered(&format!("{question} [1-{}] ", names.len()))? else {
                return Ok(None);
            };
            let numbered = word.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            let found = numbered.or_else(|| names.iter().position(|name| *name == word));
            if let Some(index) = found.filter(|index| *index < names.len()) {
                return Ok(Some(index));
            }
        }
    }

    /// Asks for one of these words, or its first letters, until the answer is valid. An empty answer selects the first
    /// word. Returns `None` on Esc or Ctrl-C.
    ///
    /// # Errors
    /// Returns an error if the terminal hung up.
    pub(crate) fn word(&mut self, question: &str, words: &[&str]) -> io::Result<Option<usize>> {
        loop {
            let Some(typed) = self.answered(&format!("{question} [{}] ", words.join("/")))? else {
                return Ok(None);
            };
            if let Some(index) = words.iter().position(|word| word.starts_with(&typed.to_lowercase())) {
                return Ok(Some(index));
            }
        }
    }

    /// Asks for a word. Invalid UTF-8 is replaced, so that the answer matches no word.
    fn answered(&mut self, question: &str) -> io::Result<Option<String>> {
        Ok(self.answer(question, true)?.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
    }

    /// Asks a question, and reads one line key by key. Returns `None` if the user cancels. The terminal's signals are
    /// disabled, so that Ctrl-C arrives as a key and needs no cleanup. Drops input that was typed before the question
    /// was visible.
    fn answer(&mut self, question: &str, echo: bool) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        let _modes = read_keys(&self.terminal)?;
        self.terminal.write_all(question.as_bytes())?;
        let mut line = Zeroizing::new(Vec::with_capacity(256));
        let mut byte = Zeroizing::new([0u8; 1]);
        loop {
            if self.terminal.read(&mut *byte)? == 0 {
                return Ok(None);
            }
            match byte[0] {
                b'\r' | b'\n' => {
                    self.terminal.write_all(b"\r\n")?;
                    return Ok(Some(line));
                }
                // Ctrl-C, Esc, and Ctrl-D on an empty line cancel the question.
                key @ (0x03 | 0x04 | 0x1b) if key != 0x04 || line.is_empty() => {
                    self.terminal.write_all(b"\r\n")?;
                    return Ok(None);
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
        let bytes = self.answer(&format!("{plain}: "), false)?;
        bytes.map(|bytes| text(&bytes).map(Secret::new)).transpose()
    }
}

fn text(bytes: &[u8]) -> io::Result<String> {
    let text = std::str::from_utf8(bytes).map_err(|_| io::Error::other("the input is not UTF-8"))?;
    Ok(text.to_owned())
}

/// Removes the last character of the line. If the input is echoed, also removes the character from the screen.
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

/// Disables the terminal's line editing until the returned value is dropped.
fn read_keys(terminal: &File) -> io::Result<Restore> {
    let before = tcgetattr(terminal)?;
    let mut keys = before.clone();
    keys.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
    keys.input_modes &= !InputModes::IXON;
    // The previous modes are saved first, so that a signal or a panic restores the echo.
    let restore = raw::save(terminal, &before, false)?;
    tcsetattr(terminal, OptionalActions::Flush, &keys)?;
    Ok(restore)
}
