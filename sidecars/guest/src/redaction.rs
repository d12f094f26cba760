//! Replaces the secret values of the bottle, in all their spellings, in what clients read.
//!
//! A client reads output and files by position, and a position counts the bytes that a process or the agent wrote. A
//! client may therefore read a secret value in two parts. Each part is searched together with the bytes before and
//! after it ([`bottle_scan::OutputRedactor`]). The output of attached terminals is not changed.

use bottle_policy::secret::Secret;
use bottle_protocol::session::process::REDACTED;
use bottle_scan::OutputRedactor;
use bytes::Bytes;

use crate::failure::{Outcome, other};
use crate::scrollback::OutputLog;

/// Prepares the search for `values`.
pub(crate) fn of_values<'s>(values: impl Iterator<Item = &'s Secret>) -> Outcome<OutputRedactor> {
    OutputRedactor::new(values, REDACTED).map_err(|error| other(error.to_string()))
}

/// Replaces secret values in `bytes`, a part of `log` that begins at the position `start`.
pub(crate) fn in_log(redactor: Option<&OutputRedactor>, log: &OutputLog, start: u64, bytes: Bytes) -> Bytes {
    let Some(redactor) = redactor.filter(|redactor| !redactor.is_empty() && !bytes.is_empty()) else {
        return bytes;
    };
    let around = redactor.reach() as u64;
    let end = start + bytes.len() as u64;
    let (from, window) = log.window(start.saturating_sub(around)..end.saturating_add(around));
    let before = usize::try_from(start.saturating_sub(from)).unwrap_or(usize::MAX);
    Bytes::from(redactor.redact_part(&window, before..before.saturating_add(bytes.len())).into_owned())
}

#[cfg(test)]
mod tests {
    use bottle_protocol::session::guest::STDOUT;

    use super::*;

    #[tokio::test]
    async fn a_value_that_arrives_in_parts_has_one_mark() {
        let secret = Secret::new("hunter2-hunter2".to_owned());
        let redactor = of_values([&secret].into_iter()).expect("a redactor");
        let log = OutputLog::default();
        log.push(STDOUT, b"a hunter2-hun").await;
        let shown = |start, bytes| in_log(Some(&redactor), &log, start, Bytes::from_static(bytes));
        assert_eq!(shown(0, b"a hunter2-hun"), "a [REDACTED]");
        log.push(STDOUT, b"ter2 b aHVudGVyMi1odW50ZXIy").await;
        assert_eq!(shown(0, b"a hunter2-hun"), "a [REDACTED]");
        assert_eq!(shown(13, b"ter2 b aHVudGV"), " b [REDACTED]");
        assert_eq!(shown(27, b"yMi1odW50ZXIy"), "");
        assert_eq!(in_log(None, &log, 0, Bytes::from_static(b"a hunter2-hun")), "a hunter2-hun");
    }
}
