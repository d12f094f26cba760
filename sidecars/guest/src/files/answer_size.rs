//! Limits the size of an answer to the maximum size of a message.

use bottle_protocol::session::files::FileInfo;
use bottle_protocol::session::frame::MAX_PAYLOAD;

/// The maximum size of all entries of an answer, in bytes.
const BUDGET: usize = MAX_PAYLOAD / 4 * 3;

/// The assumed size of an entry in JSON without its texts, in bytes.
const ENTRY: usize = 256;

/// Counts the size of an answer in JSON. The count may be too high, but is never too low.
#[derive(Debug, Default)]
pub(super) struct AnswerSize(usize);

impl AnswerSize {
    /// Adds the size of an entry with `texts`. If the answer would be too large, adds nothing and returns false.
    pub(super) fn add(&mut self, texts: &[&[u8]]) -> bool {
        let size = self.0 + ENTRY + texts.iter().map(|text| encoded(text)).sum::<usize>();
        if size > BUDGET {
            return false;
        }
        self.0 = size;
        true
    }

    /// Adds the size of a file description. Returns false if the answer would be too large.
    pub(super) fn add_info(&mut self, info: &FileInfo) -> bool {
        let target = info.target.as_ref().map(|target| target.as_bytes()).unwrap_or_default();
        self.add(&[info.path.as_bytes(), target])
    }
}

/// Returns the maximum size of a text in JSON, in bytes. Control characters are encoded as escapes, and a path that is
/// not UTF-8 is encoded as a list of numbers.
fn encoded(text: &[u8]) -> usize {
    let size = |byte: &u8| match byte {
        0..=0x1f | b'"' | b'\\' | 0x7f => 6,
        _ => 1,
    };
    let numbers = if std::str::from_utf8(text).is_ok() { 0 } else { text.len() * 4 };
    text.iter().map(size).sum::<usize>().max(numbers)
}
