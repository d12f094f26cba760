//! The head of a push, read as it goes by to git.
//!
//! receive-pack holds every line of it, however many there are, and takes signed pushes that nobody offered
//! it: it stores what is signed, and asks gpg about it. So lines are counted, and a signature ends the push.

use crate::refs::MOST_UPDATES;

/// Where a shallow clone ends, line by line; large ones end in many places.
const MOST_SHALLOW: usize = 10_000;

/// The digits before a line's text.
pub(crate) const DIGITS: usize = 4;

/// The length that four digits of git's name, theirs included.
pub(crate) fn length(digits: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    usize::from_str_radix(digits, 16).ok()
}

/// Reads along, in whatever pieces it comes.
#[derive(Default)]
pub(crate) struct Head {
    /// Of a line that is not whole yet.
    held: Vec<u8>,
    updates: usize,
    shallow: usize,
    over: bool,
}

impl Head {
    /// The next piece. The error is a sentence for the agent.
    pub(crate) fn feed(&mut self, mut piece: &[u8]) -> Result<(), String> {
        while !self.over && !piece.is_empty() {
            let wanted = self.wanted()?;
            let (now, later) = piece.split_at(piece.len().min(wanted - self.held.len()));
            self.held.extend_from_slice(now);
            piece = later;
            if self.held.len() == self.wanted()? && self.held.len() >= DIGITS {
                self.line()?;
                self.held.clear();
            }
        }
        Ok(())
    }

    /// How long the line is, or as much of it as says so.
    fn wanted(&self) -> Result<usize, String> {
        let Some(digits) = self.held.get(..DIGITS) else { return Ok(DIGITS) };
        match length(digits) {
            Some(0) => Ok(DIGITS),
            Some(length) if length >= DIGITS => Ok(length),
            _ => Err("it does not begin as git's pushes do".to_owned()),
        }
    }

    /// A whole line.
    fn line(&mut self) -> Result<(), String> {
        let text = &self.held[DIGITS..];
        if self.held == b"0000" {
            self.over = true;
        } else if text.starts_with(b"push-cert") {
            return Err(
                "it is signed, which the git gate does not pass on; push with `--no-signed`".to_owned()
            );
        } else if text.starts_with(b"shallow ") {
            self.shallow += 1;
        } else {
            self.updates += 1;
        }
        if self.updates > MOST_UPDATES {
            return Err(format!(
                "the git gate takes at most {MOST_UPDATES} refs in a push; push fewer at once"
            ));
        }
        if self.shallow > MOST_SHALLOW {
            return Err(
                "the clone ends in too many places; fetch more of its history, and push again".to_owned()
            );
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

    fn fed(text: &[u8], pieces: usize) -> Result<(), String> {
        let mut head = Head::default();
        text.chunks(pieces).try_for_each(|piece| head.feed(piece))
    }

    #[test]
    fn heads_in_any_pieces() {
        let update = packet(&format!("{0} {0} refs/heads/x\0report-status", "1".repeat(40)));
        let shallow = packet(&format!("shallow {}", "1".repeat(40)));
        for (head, part) in [
            (format!("{update}0000PACK zzzz"), None),
            ("0000".to_owned(), None),
            (format!("{shallow}{update}0000PACK"), None),
            (update.repeat(MOST_UPDATES) + "0000", None),
            (update.repeat(MOST_UPDATES + 1), Some("at most 256 refs")),
            (shallow.repeat(MOST_SHALLOW + 1), Some("too many places")),
            (format!("{}more", packet("push-cert\0")), Some("signed")),
            ("zzzz".to_owned(), Some("does not begin")),
            ("0001".to_owned(), Some("does not begin")),
            ("+123".to_owned() + &"x".repeat(400), Some("does not begin")),
        ] {
            for pieces in [1, 3, 7, 1 << 20] {
                match (fed(head.as_bytes(), pieces), part) {
                    (Ok(()), None) => {}
                    (Err(said), Some(part)) if said.contains(part) => {}
                    (said, part) => panic!("{:.60}: {said:?}, not {part:?}", head),
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_much_for_it(bytes: Vec<u8>, pieces in 1_usize..9) {
            let _ = fed(&bytes, pieces);
        }
    }
}
