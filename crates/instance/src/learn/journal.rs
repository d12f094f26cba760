//! Reads denied requests from the proxy's log.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use bottle_host::plain_file;
use bottle_policy::decide::Reason;
use bottle_policy::names::NEVER_LISTED;
use serde::Deserialize;

use super::{Learning, Refused};
use crate::proxy_log::{LINE_MAX, files};

/// The fields of a log line that this module uses.
#[derive(Deserialize)]
struct Line {
    verdict: String,
    host: String,
    port: u16,
    method: String,
    path: String,
    reason: Reason,
}

/// Collects every denied request from the log files in `directory`. Skips other lines and lines that cannot be
/// parsed.
///
/// # Errors
/// Fails if the log exists but cannot be read.
pub(super) fn read(directory: &Path) -> io::Result<Learning> {
    let mut learning = Learning::default();
    for path in files(directory) {
        let file = match plain_file::open(&path) {
            Ok(file) => file,
            // The file was rotated after the directory was listed, or it is not a regular file.
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
    // The isolation probe sends a request to this host to check that the proxy denies the request. This denial is not
    // counted.
    let counts = matches!(verdict.as_str(), "denied" | "refused") && host != NEVER_LISTED;
    counts.then_some(Refused { host, port, method, path, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_denials_from_every_log_file_and_skips_other_lines() {
        let directory = tempfile::tempdir().expect("directory");
        let line = |host: &str, verdict: &str| {
            format!(
                "{{\"event\":\"request\",\"verdict\":\"{verdict}\",\"host\":\"{host}\",\"port\":443,\"method\":\"GET\",\
                 \"path\":\"/\",\"reason\":\"host-not-allowed\",\"bytes\":0}}\n"
            )
        };
        std::fs::write(directory.path().join("egress.1.jsonl"), line("old.example", "refused"))
            .expect("written");
        let now = [line("new.example", "denied"), "nonsense\n".to_owned(), line("x.example", "passed")];
        let now = now.concat() + &line(NEVER_LISTED, "denied") + "{\"verdict\":\"refu";
        std::fs::write(directory.path().join("egress.jsonl"), now).expect("written");
        std::os::unix::fs::symlink("egress.jsonl", directory.path().join("egress.2.jsonl")).expect("link");
        assert!(read(directory.path()).is_err(), "a link is refused");
        std::fs::remove_file(directory.path().join("egress.2.jsonl")).expect("removed");
        let table = bottle_policy::route::parse_routes("routes: []", bottle_policy::route::Form::Runtime);
        let learned = read(directory.path()).expect("read").learned(&table.expect("routes"));
        assert_eq!(learned.hosts, [("new.example".to_owned(), 1), ("old.example".to_owned(), 1)]);
        assert_eq!(learned.left_out, []);
    }
}
