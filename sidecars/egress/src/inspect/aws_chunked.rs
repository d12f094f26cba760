//! Decodes `aws-chunked`, the framing of signed uploads to S3 and to compatible stores (AWS, "Signature calculations
//! for the Authorization header: transferring payload in multiple chunks"). Trailers may follow the data.
//!
//! ```text
//! 10000;chunk-signature=<64 hex>\r\n  <data>  \r\n  …  0;chunk-signature=<64 hex>\r\n  <trailers>  \r\n
//! ```
//! The server removes the framing before it stores the data, so a secret that is split over chunks would be stored in
//! one piece. The agent also controls the signatures and trailers. So the decoder outputs them after the data, and they
//! are scanned too.

use super::decode::Sink;
use super::unreadable::Unreadable;

/// The longest line of a chunk or a trailer, in bytes.
const MAX_LINE: usize = 8 << 10;
/// The most bytes of all chunk extensions and trailers together. A body of 90 MiB has extensions of this size if its
/// chunks have 8 KiB, the smallest size that S3 accepts. SDKs send chunks of at least 64 KiB.
const MAX_ASIDE: usize = 1 << 20;
/// The most hexadecimal digits of a chunk's length.
const MAX_DIGITS: usize = 12;

/// The state between two bytes of the body.
#[derive(Default)]
enum State {
    /// In the line before a chunk's data.
    #[default]
    Size,
    /// In a chunk's data, with this many bytes left.
    Data(u64),
    /// In the line end after a chunk's data.
    DataEnd,
    /// After the last chunk, in a trailer or the empty line after all trailers.
    Trailer,
    /// After the complete body.
    End,
}

/// A decoder of one body.
#[derive(Default)]
pub(super) struct AwsChunked {
    state: State,
    /// The received part of the current line, without the line end.
    line: Vec<u8>,
    /// The chunk extensions and trailers that were received so far.
    aside: Vec<u8>,
    begun: bool,
}

impl AwsChunked {
    /// Decodes the next part of the body.
    ///
    /// # Errors
    /// [`Unreadable::Broken`] if the body is not in this framing, or a limit is exceeded.
    pub(super) fn feed(&mut self, mut input: &[u8], sink: Sink<'_>) -> Result<(), Unreadable> {
        self.begun |= !input.is_empty();
        while !input.is_empty() {
            match self.state {
                State::Data(left) => {
                    let length = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                    let (data, rest) = input.split_at(length);
                    sink(data)?;
                    input = rest;
                    let left = left - length as u64;
                    self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
                }
                State::End => return Err(Unreadable::Broken),
                State::Size | State::DataEnd | State::Trailer => {
                    let end = memchr::memchr(b'\n', input);
                    let (part, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
                    self.line.extend_from_slice(part);
                    input = rest;
                    if self.line.len() > MAX_LINE {
                        return Err(Unreadable::Broken);
                    }
                    if end.is_some() {
                        let line = std::mem::take(&mut self.line);
                        self.end_line(line.strip_suffix(b"\r\n").ok_or(Unreadable::Broken)?, sink)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn end_line(&mut self, line: &[u8], sink: Sink<'_>) -> Result<(), Unreadable> {
        self.state = match self.state {
            State::Size => {
                let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
                let (size, extension) = line.split_at(digits);
                if !(1..=MAX_DIGITS).contains(&digits) || !(extension.is_empty() || extension[0] == b';') {
                    return Err(Unreadable::Broken);
                }
                // The decoder drops the name of the extension. If a secret is split over the extensions of several
                // chunks, its parts are then adjacent.
                let value = extension
                    .iter()
                    .position(|byte| *byte == b'=')
                    .map_or(extension, |at| &extension[at + 1..]);
                self.set_aside(value)?;
                let size = size.iter().fold(0_u64, |size, digit| {
                    size << 4 | u64::from(char::from(*digit).to_digit(16).unwrap_or_default())
                });
                if size == 0 { State::Trailer } else { State::Data(size) }
            }
            State::DataEnd if line.is_empty() => State::Size,
            State::Trailer if line.is_empty() => {
                if !self.aside.is_empty() {
                    sink(b"\n")?;
                    sink(&std::mem::take(&mut self.aside))?;
                }
                State::End
            }
            State::Trailer => {
                self.set_aside(b"\n")?;
                self.set_aside(line)?;
                State::Trailer
            }
            State::DataEnd | State::Data(_) | State::End => return Err(Unreadable::Broken),
        };
        Ok(())
    }

    fn set_aside(&mut self, text: &[u8]) -> Result<(), Unreadable> {
        self.aside.extend_from_slice(text);
        if self.aside.len() > MAX_ASIDE { Err(Unreadable::Broken) } else { Ok(()) }
    }

    /// Whether the body is complete. An empty body is complete.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.state, State::End) || !self.begun
    }
}
