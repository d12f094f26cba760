//! The proxy's log, read for what it refused.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use bottle_contract::decide::Reason;
use bottle_contract::names::NEVER_LISTED;
use serde::Deserialize;

use super::{Learning, Refused};
use crate::instance::journal::{LINE_MAX, files, open};

/// A line, as far as it matters here.
#[derive(Deserialize)]
struct Line {
    verdict: String,
    host: String,
    port: u16,
    method: String,
    path: String,
    reason: Reason,
}

/// Everything that the log in `folder` says was refused. A line that is none of a refusal, or cannot be read, is
/// passed over.
///
/// # Errors
/// When the log is there and cannot be read.
pub(super) fn read(folder: &Path) -> io::Result<Learning> {
    let mut learning = Learning::default();
    for path in files(folder) {
        let file = match open(&path) {
            Ok(file) => file,
            // The ring went on meanwhile, or it is no file.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line)? > 0 {
            if let Some(refused) = refused(&line) {
                learning.add(&refused);
            }
            line.clear();
        }
    }
    Ok(learning)
}

fn refused(line: &[u8]) -> Option<Refused> {
    let Line { verdict, host, port, method, path, reason } = serde_json::from_slice(line).ok()?;
    // The probe asks for that one, to see it refused.
    let counts = matches!(verdict.as_str(), "denied" | "refused") && host != NEVER_LISTED;
    counts.then_some(Refused { host, port, method, path, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_from_the_whole_ring_and_the_rest_is_passed_over() {
        let folder = tempfile::tempdir().expect("folder");
        let line = |host: &str, verdict: &str| {
            format!(
                "{{\"event\":\"request\",\"verdict\":\"{verdict}\",\"host\":\"{host}\",\"port\":443,\"method\":\"GET\",\
                 \"path\":\"/\",\"reason\":\"host-not-allowed\",\"bytes\":0}}\n"
            )
        };
        std::fs::write(folder.path().join("egress.1.jsonl"), line("old.example", "refused"))
            .expect("written");
        let now = [line("new.example", "denied"), "nonsense\n".to_owned(), line("x.example", "passed")];
        let now = now.concat() + &line(NEVER_LISTED, "denied") + "{\"verdict\":\"refu";
        std::fs::write(folder.path().join("egress.jsonl"), now).expect("written");
        std::os::unix::fs::symlink("egress.jsonl", folder.path().join("egress.2.jsonl")).expect("link");
        assert!(read(folder.path()).is_err(), "a link is none of ours");
        std::fs::remove_file(folder.path().join("egress.2.jsonl")).expect("removed");
        let table = bottle_contract::route::parse_routes("routes: []", bottle_contract::route::Form::Runtime);
        let learned = read(folder.path()).expect("read").learned(&table.expect("routes"));
        assert_eq!(learned.hosts, [("new.example".to_owned(), 1), ("old.example".to_owned(), 1)]);
        assert_eq!(learned.left_out, []);
    }
}
