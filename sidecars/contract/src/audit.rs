//! Decisions as chained lines.
//!
//! Each line of `audit/<slug>.jsonl` carries the hash of the line before it and its own, so that a line
//! taken out, put in or altered shows. The last hash (the [`Head`]) is kept elsewhere too, so that a
//! chain that was cut short or written anew shows against it.
//!
//! ```text
//! {"seq":2,"prev":"<64 hex>","time":"…","by":"…","entry":{…},"hash":"<64 hex>"}
//! └──────────────────────── hashed as it stands ───────────┘
//! ```
//! What is hashed are the bytes of the line, not a value read from them: no two readers can disagree on
//! it, and a line may hold whatever a later version writes.

use std::fmt;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The longest line that is read, in bytes; an entry holds a diff of routes at most.
pub const MAX_LINE: usize = 2 << 20;

/// What ends a line: the key, 64 digits, a quote and the brace.
const TAIL_START: &str = ",\"hash\":\"";
const TAIL_LENGTH: usize = TAIL_START.len() + 64 + 2;

/// The state of a chain: how many lines it has and the hash of the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Lines so far; the next one has this number.
    pub seq: u64,
    /// SHA-256 of the last line, in hexadecimal; zeros before the first.
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

/// One line without its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record<E> {
    /// Counts from zero.
    pub seq: u64,
    /// Hash of the line before.
    pub prev: String,
    /// When.
    pub time: Timestamp,
    /// Who: a user's account, `keeper`, `egress`.
    pub by: String,
    /// What.
    pub entry: E,
}

/// A line as it is read.
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

/// Where a chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Broken {
    /// Counts from one, as editors do.
    pub line: u64,
    /// How, as a fragment.
    pub why: &'static str,
}

/// Writes the line after `head` (without a line break), with the head that follows.
///
/// # Errors
/// Only what `entry`'s own `Serialize` reports.
pub fn append<E: Serialize>(
    head: &Head,
    time: Timestamp,
    by: &str,
    entry: &E,
) -> Result<(String, Head), serde_json::Error> {
    let record = Record { seq: head.seq, prev: head.hash.clone(), time, by: by.to_owned(), entry };
    let mut line = serde_json::to_string(&record)?;
    // A record is an object, so this is its closing brace.
    line.pop();
    let hash = digest(line.as_bytes());
    line.push_str(TAIL_START);
    line.push_str(&hash);
    line.push_str("\"}");
    Ok((line, Head { seq: head.seq + 1, hash }))
}

/// Reads the line after `head`, with the head that follows.
///
/// # Errors
/// [`Broken`] when the line is no record, was altered, or does not follow.
pub fn read<E: DeserializeOwned>(head: &Head, line: &str) -> Result<(Record<E>, Head), Broken> {
    let broken = |why| Broken { line: head.seq + 1, why };
    let next = link(head, line)?;
    let line: Line<E> = serde_json::from_str(line).map_err(|_| broken("it cannot be read as a record"))?;
    if line.seq != head.seq {
        return Err(broken("its number does not follow the line before"));
    }
    if line.prev != head.hash {
        return Err(broken("it does not follow the line before; one was taken out, put in or altered"));
    }
    Ok((Record { seq: line.seq, prev: line.prev, time: line.time, by: line.by, entry: line.entry }, next))
}

/// Checks a whole chain, whatever its entries are, and gives its head to compare with the one that was
/// kept.
///
/// # Errors
/// The first [`Broken`] line.
pub fn verify<'l>(lines: impl IntoIterator<Item = &'l str>) -> Result<Head, Broken> {
    let mut head = Head::default();
    for line in lines {
        (_, head) = read::<serde::de::IgnoredAny>(&head, line)?;
    }
    Ok(head)
}

/// Checks the hash that a line states of itself.
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
        return Err(broken("it was altered: its hash does not fit"));
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
    fn a_line_looks_as_documented() {
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
    fn what_was_done_to_a_chain_shows() {
        let entries: Vec<String> = (0..5).map(|number| format!("entry {number}")).collect();
        let (lines, head) = chain(&entries);
        assert_eq!(check(&lines), Ok(head.clone()));
        let mut altered = lines.clone();
        altered[2] = altered[2].replace("entry 2", "entry 7");
        assert_eq!(check(&altered).map_err(|broken| broken.line), Err(3));
        let mut without = lines.clone();
        without.remove(1);
        assert_eq!(check(&without).map_err(|broken| broken.line), Err(2));
        let mut turned = lines.clone();
        turned.swap(3, 4);
        assert!(check(&turned).is_err());
        // Altered and hashed anew: the next line no longer follows.
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
        // Cut short: the chain holds, and its head is not the one that was kept.
        assert!(check(&lines[..3]).is_ok_and(|short| short != head));
    }

    fn digest_of(line: &str) -> String {
        line[line.len() - 66..line.len() - 2].to_owned()
    }

    proptest! {
        #[test]
        fn any_entries_chain_and_read_back(entries in prop::collection::vec(any::<String>(), 0..6)) {
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
        fn one_changed_byte_shows(at in 0usize..200, byte in b' '..=b'~') {
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
