//! Finds a line in the output of a process that is read in parts.

use regex::bytes::{Regex, RegexBuilder};

/// The maximum size of a compiled pattern, in bytes.
const PATTERN_SIZE: usize = 2 << 20;

/// The maximum length of a line that is searched, in bytes. The rest of a longer line is searched as another line.
const LINE_MAX: usize = 64 << 10;

/// Compiles a pattern that is matched against single lines. The memory of the pattern is bounded.
///
/// # Errors
/// Returns why the pattern is invalid.
pub fn pattern(text: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(text).size_limit(PATTERN_SIZE).dfa_size_limit(PATTERN_SIZE).build();
    built.map_err(|error| error.to_string())
}

/// The lines of an output that is read in parts.
pub(crate) struct Lines {
    /// The position of the next part of the output.
    next: u64,
    /// The beginning of a line whose end is not read yet.
    rest: Vec<u8>,
}

impl Lines {
    /// Creates a search that begins at this position of the output.
    pub(crate) fn from(position: u64) -> Self {
        Self { next: position, rest: Vec::new() }
    }

    /// The position of the next part of the output.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Adds a part of the output that ends at the position `end`. Returns the first line that matches, and the position
    /// after this line.
    pub(crate) fn find(
        &mut self,
        part: &[u8],
        end: u64,
        is_last: bool,
        pattern: &Regex,
    ) -> Option<(Vec<u8>, u64)> {
        self.next = end;
        self.rest.extend_from_slice(part);
        let mut used = 0;
        let mut found = None;
        while found.is_none() {
            let text = &self.rest[used..];
            let line_break = text.iter().take(LINE_MAX).position(|byte| *byte == b'\n');
            let (length, skipped) = match line_break {
                Some(length) => (length, 1),
                None if text.len() >= LINE_MAX => (LINE_MAX, 0),
                None if is_last && !text.is_empty() => (text.len(), 0),
                None => break,
            };
            let line = text[..length].strip_suffix(b"\r").unwrap_or(&text[..length]);
            used += length + skipped;
            if pattern.is_match(line) {
                found = Some((line.to_vec(), end - (self.rest.len() - used) as u64));
            }
        }
        self.rest.drain(..used);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches the parts one after the other. Returns the line that was found, and the position after this line.
    fn find(parts: &[&[u8]], pattern_text: &str) -> Option<(Vec<u8>, u64)> {
        let mut lines = Lines::from(0);
        let pattern = pattern(pattern_text).expect("a pattern");
        let mut end = 0;
        parts.iter().enumerate().find_map(|(number, part)| {
            end += part.len() as u64;
            lines.find(part, end, number + 1 == parts.len(), &pattern)
        })
    }

    #[test]
    fn finds_a_line_in_parts() {
        for (parts, expected) in [
            (&[&b"one\nlistening on 80\nthree\n"[..]][..], Some(("listening on 80", 20))),
            (&[b"one\nlist", b"ening on 80\r\nth", b"ree"], Some(("listening on 80", 21))),
            (&[b"listening on 80"], Some(("listening on 80", 15))),
            (&[b"listening\non 80\n"], None),
            (&[b""], None),
        ] {
            let expected = expected.map(|(line, next)| (line.as_bytes().to_vec(), next));
            assert_eq!(find(parts, "^listening on \\d+$"), expected, "{parts:?}");
        }
    }

    #[test]
    fn a_long_line_is_searched_in_pieces() {
        let mut long = vec![b'x'; LINE_MAX];
        long.extend_from_slice(b"ready\n");
        assert_eq!(find(&[&long], "^ready$"), Some((b"ready".to_vec(), LINE_MAX as u64 + 6)));
        assert!(pattern("(").is_err());
    }
}
