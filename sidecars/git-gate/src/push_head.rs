//! Checks the head of a push while it arrives. The head contains the list of commands and the push options.
//!
//! receive-pack buffers each line of the head without a limit. receive-pack also accepts signed pushes although it does
//! not advertise signed pushes. For a signed push, receive-pack stores the signature and runs gpg. The gate therefore
//! limits the number and the length of the lines, and refuses signed pushes.

use crate::refs::MOST_UPDATES;

/// The maximum number of `shallow` lines in one push. A push with more lines is refused. A shallow clone sends one line
/// for each boundary commit.
const MOST_SHALLOW: usize = 10_000;

/// The maximum number of push options in one push. A push with more options is refused.
const MOST_OPTIONS: usize = 32;

/// The maximum length of a push option in bytes, including the length prefix of its line. A push with a longer option
/// is refused.
const LONGEST_OPTION: usize = 1024;

/// The number of hexadecimal digits in the length of a packet line.
pub(crate) const DIGITS: usize = 4;

/// Parses the length of a packet line. The length includes its own four digits.
pub(crate) fn length(digits: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    usize::from_str_radix(digits, 16).ok()
}

/// The reason why the gate refuses the head of a push. The `Display` text is a sentence for the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("it is not a git push")]
    NotAPush,
    #[error("it is signed, which the git gate does not support; push with `--no-signed`")]
    Signed,
    #[error("the git gate takes at most {MOST_UPDATES} refs in a push; push fewer at once")]
    Updates,
    #[error("the git gate takes at most {MOST_OPTIONS} push options of {LONGEST_OPTION} bytes")]
    Options,
    #[error("the clone has too many shallow commits; fetch more of its history, and push again")]
    Shallow,
}

/// Checks the head of a push in chunks.
#[derive(Default)]
pub(crate) struct Head {
    /// The bytes of the current line that have arrived so far.
    buffer: Vec<u8>,
    updates: usize,
    shallow: usize,
    /// The number of push options so far. `None` if the push did not announce push options.
    options: Option<usize>,
    /// Whether the list of commands has ended, so that options follow.
    commands_done: bool,
    done: bool,
}

impl Head {
    /// Checks the next chunk of the push. Returns the part of the chunk after the head, which belongs to the pack.
    pub(crate) fn feed<'c>(&mut self, mut chunk: &'c [u8]) -> Result<&'c [u8], HeadError> {
        while !self.done && !chunk.is_empty() {
            let length = self.line_length()?;
            let (now, later) = chunk.split_at(chunk.len().min(length - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            chunk = later;
            if self.buffer.len() == self.line_length()? && self.buffer.len() >= DIGITS {
                self.check_line()?;
                self.buffer.clear();
            }
        }
        Ok(chunk)
    }

    /// Returns the length of the current line. Until the four digits of the length have arrived, returns the number of
    /// these digits.
    fn line_length(&self) -> Result<usize, HeadError> {
        let Some(digits) = self.buffer.get(..DIGITS) else { return Ok(DIGITS) };
        match length(digits) {
            Some(0) => Ok(DIGITS),
            Some(length) if length >= DIGITS => Ok(length),
            _ => Err(HeadError::NotAPush),
        }
    }

    /// Checks a line that has arrived completely.
    fn check_line(&mut self) -> Result<(), HeadError> {
        let text = &self.buffer[DIGITS..];
        if self.buffer == b"0000" {
            self.done = self.commands_done || self.options.is_none();
            self.commands_done = true;
        } else if self.commands_done {
            let number = self.options.get_or_insert(0);
            *number += 1;
            if *number > MOST_OPTIONS || text.len() > LONGEST_OPTION {
                return Err(HeadError::Options);
            }
        } else if text.starts_with(b"push-cert") {
            return Err(HeadError::Signed);
        } else if text.starts_with(b"shallow ") {
            self.shallow += 1;
        } else {
            self.updates += 1;
            // In the line of the first command, a zero byte and the features that the client uses follow the command.
            let mut features =
                text.split(|byte| *byte == 0).nth(1).into_iter().flat_map(|all| all.split(|b| *b == b' '));
            if self.updates == 1 && features.any(|feature| feature.trim_ascii() == b"push-options") {
                self.options = Some(0);
            }
        }
        if self.updates > MOST_UPDATES {
            return Err(HeadError::Updates);
        }
        if self.shallow > MOST_SHALLOW {
            return Err(HeadError::Shallow);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(text: &str) -> String {
        format!("{:04x}{text}", text.len() + DIGITS)
    }

    fn check(text: &[u8], size: usize) -> Result<(), HeadError> {
        let mut head = Head::default();
        text.chunks(size).try_for_each(|chunk| head.feed(chunk).map(drop))
    }

    #[test]
    fn checks_heads_in_chunks_of_any_size() {
        let update = packet(&format!("{0} {0} refs/heads/x\0report-status", "1".repeat(40)));
        let with_options = packet(&format!("{0} {0} refs/heads/x\0atomic push-options", "1".repeat(40)));
        let option = packet("ci.skip");
        let shallow = packet(&format!("shallow {}", "1".repeat(40)));
        for (head, part) in [
            (format!("{update}0000PACK zzzz"), None),
            ("0000".to_owned(), None),
            (format!("{shallow}{update}0000PACK"), None),
            (format!("{with_options}0000{}0000PACK zzzz", option.repeat(MOST_OPTIONS)), None),
            (format!("{with_options}0000{}", option.repeat(MOST_OPTIONS + 1)), Some("push options")),
            (format!("{with_options}0000{}", packet(&"x".repeat(2000))), Some("push options")),
            (format!("{update}0000{}", option.repeat(MOST_OPTIONS + 1)), None),
            (update.repeat(MOST_UPDATES) + "0000", None),
            (update.repeat(MOST_UPDATES + 1), Some("at most 256 refs")),
            (shallow.repeat(MOST_SHALLOW + 1), Some("too many shallow commits")),
            (format!("{}more", packet("push-cert\0")), Some("signed")),
            ("zzzz".to_owned(), Some("not a git push")),
            ("0001".to_owned(), Some("not a git push")),
            ("+123".to_owned() + &"x".repeat(400), Some("not a git push")),
        ] {
            for size in [1, 3, 7, 1 << 20] {
                match (check(head.as_bytes(), size), part) {
                    (Ok(()), None) => {}
                    (Err(why), Some(part)) if why.to_string().contains(part) => {}
                    (result, part) => panic!("{:.60}: {result:?}, not {part:?}", head),
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_any_bytes(bytes: Vec<u8>, size in 1_usize..9) {
            let _ = check(&bytes, size);
        }
    }
}
