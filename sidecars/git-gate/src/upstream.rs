//! Parses the refs of an upstream, its default branch, and symbolic refs, which are aliases of other refs.
//!
//! Protocol version 2 reports every symbolic ref; older versions report only `HEAD`. git's own trace
//! (`trace2`) shows the version that git negotiated.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use bottle_daemon::remove_if_present;
use serde_json::Value;

/// The maximum number of refs of an upstream. An upstream with more cannot be used, because listing its refs
/// would take too long.
const MOST_REFS: usize = 200_000;

/// The number of bytes of a trace that are read. The rest is ignored. The trace of an `ls-remote` has a few
/// thousand bytes.
const MOST_TRACE: u64 = 256 << 10;

/// The hash algorithm of a repository's object ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ObjectFormat {
    #[default]
    Sha1,
    Sha256,
}

impl ObjectFormat {
    fn from_id(id: &str) -> Self {
        if id.len() == 64 { Self::Sha256 } else { Self::Sha1 }
    }
}

/// An error: an upstream has more than [`MOST_REFS`] refs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has more than {MOST_REFS} refs")]
pub(crate) struct TooManyRefs;

/// The state of an upstream, as its list of refs shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// The full name of the default branch, if the upstream reports it.
    pub(crate) default: Option<String>,
    /// The commit of `HEAD`, if it has one.
    pub(crate) head: Option<String>,
    /// Maps ref names to object ids.
    pub(crate) refs: BTreeMap<String, String>,
    /// Maps the names of reported symbolic refs to their targets.
    pub(crate) aliases: HashMap<String, String>,
    /// Whether the upstream reports all symbolic refs.
    pub(crate) reports_aliases: bool,
    pub(crate) format: ObjectFormat,
}

impl Upstream {
    /// Parses the output of `ls-remote --symref`.
    ///
    /// # Errors
    /// Fails with [`TooManyRefs`] if the upstream has more than [`MOST_REFS`] refs.
    pub(crate) fn parse(text: &str) -> Result<Self, TooManyRefs> {
        let mut upstream = Self::default();
        for line in text.lines() {
            let Some((what, name)) = line.split_once('\t') else { continue };
            if name == "HEAD" {
                upstream.default = what.strip_prefix("ref: ").map(str::to_owned).or(upstream.default);
                upstream.head = Some(what).filter(|what| is_id(what)).map(str::to_owned).or(upstream.head);
            } else if let Some(target) = what.strip_prefix("ref: ") {
                upstream.aliases.insert(name.to_owned(), target.to_owned());
            } else if is_id(what) && name.starts_with("refs/") && !name.ends_with("^{}") {
                upstream.refs.insert(name.to_owned(), what.to_owned());
            }
        }
        if upstream.refs.len() > MOST_REFS {
            return Err(TooManyRefs);
        }
        upstream.format =
            upstream.refs.values().next().map(|id| ObjectFormat::from_id(id)).unwrap_or_default();
        Ok(upstream)
    }
}

/// Whether `text` is a full object id.
pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A trace file of one git command. It is removed on drop.
pub(crate) struct Trace {
    variable: &'static str,
    path: PathBuf,
}

impl Trace {
    /// The variable that makes git write `trace2` events.
    pub(crate) const EVENTS: &str = "GIT_TRACE2_EVENT";

    /// The variable that makes git write the packets that it sends and receives.
    pub(crate) const PACKETS: &str = "GIT_TRACE_PACKET";

    /// Prepares a trace at `path`, where it removes any older file.
    pub(crate) fn new(variable: &'static str, path: PathBuf) -> io::Result<Self> {
        remove_if_present(&path)?;
        Ok(Self { variable, path })
    }

    /// The environment variable and value that make git write the trace.
    pub(crate) fn env(&self) -> (String, String) {
        (self.variable.to_owned(), self.path.to_string_lossy().into_owned())
    }

    /// Reads the first [`MOST_TRACE`] bytes of the trace; empty if there is no file.
    pub(crate) fn read(&self) -> String {
        let mut text = Vec::new();
        let read = fs::File::open(&self.path).and_then(|file| file.take(MOST_TRACE).read_to_end(&mut text));
        if read.is_ok() { String::from_utf8_lossy(&text).into_owned() } else { String::new() }
    }

    /// Whether git negotiated only protocol version 2. False if the trace shows no version.
    pub(crate) fn shows_version_2(&self) -> bool {
        shows_version_2(&self.read())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // If the file cannot be removed now, it is removed before the next trace.
        let _ = remove_if_present(&self.path);
    }
}

fn shows_version_2(trace: &str) -> bool {
    let events = trace.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut versions = events
        .filter(|event| event["key"] == "negotiated-version")
        .map(|event| event["value"] == "2")
        .peekable();
    versions.peek().is_some() && versions.all(|is_2| is_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_refs_of_an_upstream() {
        let id = "1".repeat(40);
        let text = format!(
            "ref: refs/heads/main\tHEAD\n{id}\tHEAD\n{id}\trefs/heads/main\n{id}\trefs/tags/v1\n{id}\trefs/tags/v1^{{}}\nnoise\n"
        );
        let upstream = Upstream::parse(&text).expect("read");
        assert_eq!(upstream.default.as_deref(), Some("refs/heads/main"));
        assert_eq!(upstream.refs.keys().collect::<Vec<_>>(), ["refs/heads/main", "refs/tags/v1"]);
        assert_eq!(upstream.refs["refs/tags/v1"], id);
        assert_eq!(upstream.head.as_ref(), Some(&id));
        // HEAD names a branch that does not exist, and another branch is called HEAD.
        let unborn = Upstream::parse(&format!("{id}\trefs/heads/HEAD\n")).expect("read");
        assert_eq!((unborn.default, unborn.head, unborn.refs.len()), (None, None, 1));
        let upstream = Upstream::parse(&format!("ref: refs/heads/main\trefs/heads/a\n{id}\trefs/heads/a\n"))
            .expect("read");
        assert_eq!((upstream.refs.len(), upstream.aliases["refs/heads/a"].as_str()), (1, "refs/heads/main"));
        assert_eq!(Upstream::parse(""), Ok(Upstream::default()));
    }

    #[test]
    fn detects_protocol_version_2_in_a_trace() {
        let version = |value: &str| {
            format!("{{\"event\":\"data\",\"key\":\"negotiated-version\",\"value\":\"{value}\"}}\n")
        };
        let other = "{\"event\":\"exit\",\"code\":0}\n";
        for (trace, expected) in [
            (format!("{other}{}{other}", version("2")), true),
            (version("2") + &version("2"), true),
            (version("2") + &version("0"), false),
            (version("1"), false),
            (other.to_owned(), false),
            (String::new(), false),
            ("negotiated-version 2".to_owned(), false),
            (version("2") + "{cut", true),
        ] {
            assert_eq!(shows_version_2(&trace), expected, "{trace}");
        }
    }
}
