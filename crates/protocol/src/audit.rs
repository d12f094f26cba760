//! The hash-chained audit log.
//!
//! Each line of `audit/<slug>.jsonl` contains the hash of the previous line and a hash of itself. A reader
//! can therefore detect lines that were removed, inserted or altered. The last hash (the [`Head`]) is also
//! stored outside the file, so a truncated or completely rewritten log is detected too.
//!
//! ```text
//! {"seq":2,"prev":"<64 hex>","time":"…","by":"…","entry":{…},"hash":"<64 hex>"}
//! └──────────────────────── hashed as bytes ───────────────┘
//! ```
//! The hash covers the bytes of the line, not a parsed value, so two readers cannot compute different hashes. The entry
//! of a line may contain fields that a later version added.

use std::fmt;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The longest line that passes verification, in bytes. The largest entry is a diff between two sets of
/// routes.
pub const MAX_LINE: usize = 2 << 20;

/// The text between the hashed part of a line and the hash. A quote and the closing brace follow the hash.
const TAIL_START: &str = ",\"hash\":\"";
const TAIL_LENGTH: usize = TAIL_START.len() + 64 + 2;

/// The state of an audit log: its line count and the hash of its last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Number of lines so far. The next line has this number as its `seq`.
    pub seq: u64,
    /// SHA-256 of the last line, in hexadecimal; all zeros for an empty log.
    pub hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self { seq: 0, hash: "0".repeat(64) }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

/// One audit line without its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record<E> {
    /// The line's number, counted from zero.
    pub seq: u64,
    /// Hash of the previous line.
    pub prev: String,
    /// When the decision was made.
    pub time: Timestamp,
    /// Who made the decision: a user's account, `keeper` or `egress`.
    pub by: String,
    /// The decision that the line records.
    pub entry: E,
}

/// An audit line in the form in which it is parsed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<E> {
    seq: u64,
    prev: String,
    time: Timestamp,
    by: String,
    entry: E,
    #[serde(rename = "hash")]
    _hash: serde::de::IgnoredAny,
}

/// The first line at which a log fails verification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Broken {
    /// The line number, counted from one as editors do.
    pub line: u64,
    /// The defect, as a sentence fragment.
    pub why: &'static str,
}

/// Renders the next line of the log whose state is `head`, without a line break. Returns the line and the new
/// head.
///
/// # Errors
/// Fails only if serializing `entry` fails.
pub fn append<E: Serialize>(
    head: &Head,
    time: Timestamp,
    by: &str,
    entry: &E,
) -> Result<(String, Head), serde_json::Error> {
    let record = Record { seq: head.seq, prev: head.hash.clone(), time, by: by.to_owned(), entry };
    let mut line = serde_json::to_string(&record)?;
    // A record is a JSON object, so the last character is its closing brace.
    line.pop();
    let hash = digest(line.as_bytes());
    line.push_str(TAIL_START);
    line.push_str(&hash);
    line.push_str("\"}");
    Ok((line, Head { seq: head.seq + 1, hash }))
}

/// Parses and verifies the next line of the log whose state is `head`. Returns its record and the new head.
///
/// # Errors
/// [`Broken`] if the line is not a record, was altered, or does not follow `head`.
pub fn read<E: DeserializeOwned>(head: &Head, line: &str) -> Result<(Record<E>, Head), Broken> {
    let broken = |why| Broken { line: head.seq + 1, why };
    let next = link(head, line)?;
    let line: Line<E> = serde_json::from_str(line).map_err(|_| broken("it cannot be read as a record"))?;
    if line.seq != head.seq {
        return Err(broken("its number does not follow the previous line"));
    }
    if line.prev != head.hash {
        return Err(broken("it does not follow the previous line; a line was removed, inserted or altered"));
    }
    Ok((Record { seq: line.seq, prev: line.prev, time: line.time, by: line.by, entry: line.entry }, next))
}

/// Verifies a complete log with entries of any type. Returns its head for comparison with the stored head.
///
/// # Errors
/// [`Broken`] for the first line that fails.
pub fn verify<'l>(lines: impl IntoIterator<Item = &'l str>) -> Result<Head, Broken> {
    let mut head = Head::default();
    for line in lines {
        (_, head) = read::<serde::de::IgnoredAny>(&head, line)?;
    }
    Ok(head)
}

/// Verifies that the line's hash matches its content. Does not verify that the line follows `head`.
fn link(head: &Head, line: &str) -> Result<Head, Broken> {
    let broken = |why| Broken { line: head.seq + 1, why };
    if line.len() > MAX_LINE {
        return Err(broken("it is longer than any record"));
    }
    let body = line.len().checked_sub(TAIL_LENGTH).filter(|at| line.is_char_boundary(*at));
    let (body, tail) = line.split_at(body.ok_or_else(|| broken("it carries no hash"))?);
    let stated = tail.strip_prefix(TAIL_START).and_then(|rest| rest.strip_suffix("\"}"));
    let stated = stated.ok_or_else(|| broken("it carries no hash"))?;
    if digest(body.as_bytes()) != stated {
        return Err(broken("it was altered: its hash does not match"));
    }
    Ok(Head { seq: head.seq + 1, hash: stated.to_owned() })
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(entries: &[String]) -> (Vec<String>, Head) {
        let mut head = Head::default();
        let lines = entries.iter().map(|entry| {
            let (line, next) =
                append(&head, Timestamp::UNIX_EPOCH, "keeper", entry).expect("a string serializes");
            head = next;
            line
        });
        let lines = lines.collect();
        (lines, head)
    }

    fn check(lines: &[String]) -> Result<Head, Broken> {
        verify(lines.iter().map(String::as_str))
    }

    #[test]
    fn a_line_has_the_documented_form() {
        let (lines, head) = chain(&["routes 2".to_owned()]);
        let zeros = "0".repeat(64);
        let start = format!(
            "{{\"seq\":0,\"prev\":\"{zeros}\",\"time\":\"1970-01-01T00:00:00Z\",\"by\":\"keeper\",\"entry\":\"routes 2\""
        );
        assert_eq!(lines[0], format!("{start},\"hash\":\"{}\"}}", digest(start.as_bytes())));
        assert_eq!(head.seq, 1);
        let (record, _) = read::<String>(&Head::default(), &lines[0]).expect("record");
        assert_eq!((record.by.as_str(), record.entry.as_str()), ("keeper", "routes 2"));
    }

    #[test]
    fn detects_altered_removed_and_reordered_lines() {
        let entries: Vec<String> = (0..5).map(|number| format!("entry {number}")).collect();
        let (lines, head) = chain(&entries);
        assert_eq!(check(&lines), Ok(head.clone()));
        let mut altered = lines.clone();
        altered[2] = altered[2].replace("entry 2", "entry 7");
        assert_eq!(check(&altered).map_err(|broken| broken.line), Err(3));
        let mut without = lines.clone();
        without.remove(1);
        assert_eq!(check(&without).map_err(|broken| broken.line), Err(2));
        let mut swapped = lines.clone();
        swapped.swap(3, 4);
        assert!(check(&swapped).is_err());
        // A line is altered and its hash recomputed. The hash in `prev` of the next line then differs.
        let (forged, _) = append(
            &Head { seq: 1, hash: digest_of(&lines[0]) },
            Timestamp::UNIX_EPOCH,
            "keeper",
            &"something else",
        )
        .expect("a string serializes");
        let mut rewritten = lines.clone();
        rewritten[1] = forged;
        assert_eq!(check(&rewritten).map_err(|broken| broken.line), Err(3));
        // The log is truncated. Every line verifies, but the head differs from the stored head.
        assert!(check(&lines[..3]).is_ok_and(|short| short != head));
    }

    fn digest_of(line: &str) -> String {
        line[line.len() - 66..line.len() - 2].to_owned()
    }

    proptest! {
        #[test]
        fn any_entries_round_trip(entries in prop::collection::vec(any::<String>(), 0..6)) {
            let (lines, head) = chain(&entries);
            prop_assert!(lines.iter().all(|line| !line.contains('\n')));
            prop_assert_eq!(check(&lines), Ok(head));
            let mut at = Head::default();
            for (line, entry) in lines.iter().zip(&entries) {
                let (record, next) = read::<String>(&at, line).expect("record");
                prop_assert_eq!(&record.entry, entry);
                at = next;
            }
        }

        #[test]
        fn detects_one_changed_byte(at in 0usize..200, byte in b' '..=b'~') {
            let (mut lines, head) = chain(&["first".to_owned(), "second".to_owned()]);
            let at = at % lines[0].len();
            prop_assume!(lines[0].as_bytes()[at] != byte);
            lines[0].replace_range(at..=at, &char::from(byte).to_string());
            prop_assert_ne!(check(&lines), Ok(head));
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = verify([text.as_str()]);
        }
    }
}
