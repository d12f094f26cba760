//! Decides recorded requests again with the current routes.
//!
//! A record is a line of the proxy's access log, as `bottle logs --egress --json` prints it, or a handwritten line with
//! at least `host`, `method` and `path`. Only the decisions of the routes are compared. The log is redacted, so a
//! request that a content scan blocked is treated as allowed.

use std::io::{self, BufRead, Read};
use std::path::Path;

use bottle_policy::decide::Reason;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use super::Decider;
use crate::failure::Failure;
use crate::report::{ChangedVerdict, RecordedVerdict, Replayed};

/// The maximum length of a record in bytes. A longer record is an error. Records that the proxy writes are much
/// shorter.
const MAX_RECORD: u64 = 1 << 20;

/// The maximum number of distinct changes that are listed. Further changes only set [`Replayed::more`].
const MAX_CHANGES: usize = 1000;

/// The fields that are read from a record. Other fields are ignored.
#[derive(Debug, Deserialize)]
struct Record {
    host: String,
    port: Option<u16>,
    method: String,
    path: String,
    query: Option<String>,
    verdict: Option<String>,
    reason: Option<String>,
    request: Option<Message>,
}

#[derive(Debug, Deserialize)]
struct Message {
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
}

/// The event of a log line.
#[derive(Deserialize)]
struct Other {
    event: String,
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("cannot read {}: {error}", path.display()))
        .about(path.display())
        .hint("name a file of recorded requests: `bottle logs --egress --json SLUG > FILE` writes one")
}

/// Decides each request of a recording again. `open` opens the recording, and `path` is its path for messages.
///
/// # Errors
/// When the recording cannot be read, or a line is not a record.
pub fn replay(
    decider: &Decider,
    path: &Path,
    open: impl FnOnce() -> io::Result<Box<dyn BufRead>>,
) -> Result<Replayed, Failure> {
    let mut lines = open().map_err(|error| unreadable(path, &error))?;
    let mut replayed = Replayed::default();
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        let mut line = lines.by_ref().take(MAX_RECORD + 1);
        if line.read_until(b'\n', &mut text).map_err(|error| unreadable(path, &error))? == 0 {
            break;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |why: &str| {
            let place = format!("{}:{number}", path.display());
            Failure::usage(format!("{place}: {why}"))
                .about(path.display())
                .hint("a record is a line of JSON with `host`, `method` and `path`, as `bottle logs --egress --json` prints it")
        };
        if text.len() as u64 > MAX_RECORD {
            return Err(wrong("the record is longer than 1 MiB"));
        }
        match record(&text) {
            Ok(Some(record)) => {
                put(&mut replayed, number, &record, decider).map_err(|error| wrong(&error.message))?;
            }
            Ok(None) => replayed.skipped += 1,
            Err(error) => return Err(wrong(&format!("not a record of a request: {error}"))),
        }
    }
    Ok(replayed)
}

/// Parses the request in a line. `None` if the line records another event, or a request that cannot be decided again.
fn record(text: &[u8]) -> Result<Option<Record>, serde_json::Error> {
    if serde_json::from_slice::<Other>(text).is_ok_and(|other| other.event != "request") {
        return Ok(None);
    }
    let record: Record = serde_json::from_slice(text)?;
    let decided = matches!(record.verdict.as_deref(), None | Some("passed" | "denied" | "refused"));
    let request = !record.method.is_empty() && !record.path.is_empty();
    Ok(Some(record).filter(|record| decided && request && record.was().is_some()))
}

impl Record {
    /// Returns the recorded verdict of the routes. A denial that the routes did not decide is returned as allowed.
    /// Returns `None` if the request was denied because of two different host names, because a record does not contain
    /// both names.
    fn was(&self) -> Option<RecordedVerdict> {
        let allow = RecordedVerdict { verdict: "allow".to_owned(), reason: None };
        let Some(reason) =
            self.reason.as_deref().filter(|_| matches!(self.verdict.as_deref(), Some("denied" | "refused")))
        else {
            return Some(allow);
        };
        match serde_json::from_value::<Reason>(reason.into()) {
            Ok(Reason::AuthorityMismatch) => None,
            Ok(reason) if !is_by_routes(reason) => Some(allow),
            _ => Some(RecordedVerdict { verdict: "deny".to_owned(), reason: Some(reason.to_owned()) }),
        }
    }

    fn url(&self) -> String {
        let (scheme, port) = match self.port {
            Some(80) => ("http", String::new()),
            None | Some(443) => ("https", String::new()),
            Some(port) => ("https", format!(":{port}")),
        };
        let query = self.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        format!("{scheme}://{}{port}{}{query}", self.host, self.path)
    }

    fn headers(&self) -> HeaderMap {
        let headers = self.request.iter().flat_map(|request| &request.headers);
        let read = headers.filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?))
        });
        read.collect()
    }
}

/// Whether a denial for this reason depends only on method, host and path.
fn is_by_routes(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::AuthorityMismatch
            | Reason::PathAmbiguous
            | Reason::HostNotAllowed
            | Reason::PortNotAllowed
            | Reason::UseGitGate
            | Reason::GitNotAllowed
            | Reason::MethodRefused
            | Reason::RequestNotAllowed
    )
}

/// Decides a request again. If the verdict changed, adds the request to `replayed`.
fn put(replayed: &mut Replayed, line: usize, record: &Record, decider: &Decider) -> Result<(), Failure> {
    let Some(was) = record.was() else { return Ok(()) };
    let (url, headers) = (record.url(), record.headers());
    let body = record.request.as_ref().and_then(|request| request.body.as_deref());
    let answer = decider.decide(&record.method, &url, &headers, body.map(str::as_bytes))?;
    let reason = answer.reason.map(|reason| reason.as_str().to_owned());
    let now = RecordedVerdict { verdict: answer.verdict.to_owned(), reason };
    replayed.replayed += 1;
    if was == now {
        return Ok(());
    }
    let same = |known: &&mut ChangedVerdict| {
        known.method == record.method && known.url == url && known.was == was && known.now == now
    };
    if let Some(known) = replayed.changed.iter_mut().find(same) {
        known.times += 1;
    } else if replayed.changed.len() >= MAX_CHANGES {
        replayed.more = true;
    } else {
        let (method, sentence) = (record.method.clone(), answer.sentence);
        replayed.changed.push(ChangedVerdict { line, times: 1, method, url, was, now, sentence });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Record> {
        record(text.as_bytes()).expect(text)
    }

    #[test]
    fn reads_the_verdict_of_the_routes_from_a_record() {
        for (rest, was) in [
            ("", Some("allow")),
            (r#","verdict":"passed","status":200"#, Some("allow")),
            (r#","verdict":"refused","reason":"host-not-allowed""#, Some("host-not-allowed")),
            (r#","verdict":"denied","reason":"secret-found""#, Some("allow")),
            (r#","verdict":"denied","reason":"upstream-untrusted""#, Some("allow")),
            (r#","verdict":"denied","reason":"authority-mismatch""#, None),
            (r#","verdict":"redacted""#, None),
            (r#","verdict":"passed-unopened""#, None),
        ] {
            let line = format!(r#"{{"event":"request","host":"a.example","method":"GET","path":"/"{rest}}}"#);
            let recorded = read(&line).and_then(|record| record.was());
            let recorded = recorded.map(|recorded| recorded.reason.unwrap_or(recorded.verdict));
            assert_eq!(recorded.as_deref(), was, "{rest}");
        }
        assert!(read(r#"{"event":"lost","lines":4}"#).is_none());
        assert!(read(r#"{"event":"request","host":"a.example","port":443,"method":"","path":""}"#).is_none());
        assert!(record(b"nonsense").is_err() && record(b"{}").is_err());
    }

    #[test]
    fn rebuilds_the_url_of_a_record() {
        for (rest, url) in [
            ("", "https://a.example/b"),
            (r#","port":443,"query":"c=d""#, "https://a.example/b?c=d"),
            (r#","port":80"#, "http://a.example/b"),
            (r#","port":8443"#, "https://a.example:8443/b"),
        ] {
            let line = format!(r#"{{"host":"a.example","method":"GET","path":"/b"{rest}}}"#);
            assert_eq!(read(&line).expect("a record").url(), url);
        }
    }
}
