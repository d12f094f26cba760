//! Parses the refs of an upstream, its default branch, and its symbolic refs. A symbolic ref is an alias of another
//! ref.
//!
//! With protocol version 2, an upstream reports every symbolic ref. With older versions, it reports only `HEAD`. git's
//! own trace (`trace2`) shows the version that git negotiated.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use bottle_daemon::remove_if_present;
use bottle_protocol::session::git_gate::GateRefs;
use serde_json::Value;

use crate::refs::{is_well_formed, matches};

/// The maximum number of mirrored refs of an upstream. An upstream with more refs cannot be used, because every push
/// and fetch would take too long. The same limit applies separately to the refs that are not mirrored. Beyond the
/// limit, these refs are ignored.
const MOST_REFS: usize = 200_000;

/// The prefixes of the refs that every mirror copies.
pub(crate) const MIRRORED: [&str; 3] = ["refs/heads/", "refs/tags/", "refs/notes/"];

/// The first line of `packed-refs` (git's `refs/packed-backend.c`). The line states that the refs are sorted, and that
/// after each ref to a tag object, the next line contains the object that the tag names.
const PACKED_HEAD: &str = "# pack-refs with: peeled fully-peeled sorted \n";

/// The maximum number of bytes of a trace that are read. The rest of the trace is ignored. The trace of an `ls-remote`
/// has a few thousand bytes.
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

impl From<ObjectFormat> for bottle_pack_check::ObjectFormat {
    fn from(format: ObjectFormat) -> Self {
        match format {
            ObjectFormat::Sha1 => Self::Sha1,
            ObjectFormat::Sha256 => Self::Sha256,
        }
    }
}

/// The error that an upstream has more than [`MOST_REFS`] mirrored refs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has more than {MOST_REFS} refs")]
pub(crate) struct TooManyRefs;

/// The state of an upstream, as its list of refs shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// The full name of the default branch, if the upstream reports it.
    pub(crate) default: Option<String>,
    /// The commit of `HEAD`, if the upstream reports it.
    pub(crate) head: Option<String>,
    /// Maps the names of mirrored refs to object ids.
    pub(crate) refs: BTreeMap<String, String>,
    /// Maps the names of the refs that are not mirrored to object ids. Examples are `refs/pull/1/head`, and names that
    /// are not UTF-8. The mirror has the objects of such a ref only after a client has fetched the ref.
    pub(crate) others: BTreeMap<Vec<u8>, String>,
    /// Maps the name of each ref to a tag object to the id of the object that the tag names.
    pub(crate) peeled: HashMap<Vec<u8>, String>,
    /// Maps the names of reported symbolic refs to their targets.
    pub(crate) aliases: HashMap<String, String>,
    /// Whether the upstream reports all symbolic refs.
    pub(crate) reports_aliases: bool,
    pub(crate) format: ObjectFormat,
}

impl Upstream {
    /// Parses the output of `ls-remote --symref`. The mirror also copies the refs that `rules` allows, in addition to
    /// the refs in [`MIRRORED`].
    ///
    /// # Errors
    /// Fails with [`TooManyRefs`] if the upstream has more than [`MOST_REFS`] mirrored refs.
    pub(crate) fn parse(text: &[u8], rules: &GateRefs) -> Result<Self, TooManyRefs> {
        let mut upstream = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            let Some(tab) = line.iter().position(|byte| *byte == b'\t') else { continue };
            let Ok(what) = std::str::from_utf8(&line[..tab]) else { continue };
            upstream.add(what, &line[tab + 1..], rules);
        }
        if upstream.refs.len() > MOST_REFS {
            return Err(TooManyRefs);
        }
        upstream.format =
            upstream.refs.values().next().map(|id| ObjectFormat::from_id(id)).unwrap_or_default();
        Ok(upstream)
    }

    /// Adds one line of `ls-remote`. `what` is an object id or the target of a symbolic ref, and `name` is the name of
    /// the ref.
    fn add(&mut self, what: &str, name: &[u8], rules: &GateRefs) {
        let target = what.strip_prefix("ref: ");
        if name == b"HEAD" {
            self.default = target.map(str::to_owned).or(self.default.take());
            self.head = Some(what).filter(|what| is_id(what)).map(str::to_owned).or(self.head.take());
        } else if let Some(tag) = name.strip_suffix(b"^{}").filter(|_| is_id(what)) {
            self.peeled.insert(tag.to_owned(), what.to_owned());
        } else if let (Some(target), Ok(name)) = (target, std::str::from_utf8(name)) {
            self.aliases.insert(name.to_owned(), target.to_owned());
        } else if is_id(what) && is_well_formed(name) {
            match std::str::from_utf8(name) {
                Ok(name) if is_mirrored(name, rules) => {
                    self.refs.insert(name.to_owned(), what.to_owned());
                }
                _ if self.others.len() < MOST_REFS => {
                    self.others.insert(name.to_owned(), what.to_owned());
                }
                _ => {}
            }
        }
    }

    /// Returns the content of `packed-refs` for the mirrored refs.
    pub(crate) fn packed_refs(&self) -> String {
        let mut text = PACKED_HEAD.to_owned();
        for (name, id) in &self.refs {
            text.extend([id, " ", name, "\n"]);
            if let Some(peeled) = self.peeled.get(name.as_bytes()) {
                text.extend(["^", peeled, "\n"]);
            }
        }
        text
    }
}

/// Returns whether the mirror copies a ref: a branch, a tag, a note, or another ref that the bottle may push.
fn is_mirrored(name: &str, rules: &GateRefs) -> bool {
    MIRRORED.iter().any(|prefix| name.starts_with(prefix))
        || rules.allow.iter().flatten().any(|glob| matches(glob, name))
}

/// Returns the object ids in the content of `packed-refs`.
pub(crate) fn packed_ids(text: &str) -> HashSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with(['#', '^']));
    lines.filter_map(|line| Some(line.split_once(' ')?.0)).collect()
}

/// Returns whether `text` is a full object id.
pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A trace file of one git command. The file is removed on drop.
pub(crate) struct Trace {
    variable: &'static str,
    path: PathBuf,
}

impl Trace {
    /// The variable that makes git write `trace2` events.
    pub(crate) const EVENTS: &str = "GIT_TRACE2_EVENT";

    /// The variable that makes git write the packets that it sends and receives.
    pub(crate) const PACKETS: &str = "GIT_TRACE_PACKET";

    /// The variable that makes git write the HTTP requests and responses. git leaves out the credentials.
    pub(crate) const HTTP: &str = "GIT_TRACE_CURL";

    /// Prepares a trace at `path`, and removes an older file at this path.
    pub(crate) fn new(variable: &'static str, path: PathBuf) -> io::Result<Self> {
        remove_if_present(&path)?;
        Ok(Self { variable, path })
    }

    /// Returns the environment variable and its value that make git write the trace.
    pub(crate) fn env(&self) -> (String, String) {
        (self.variable.to_owned(), self.path.to_string_lossy().into_owned())
    }

    /// Reads the first [`MOST_TRACE`] bytes of the trace. Returns an empty text if there is no file.
    pub(crate) fn read(&self) -> String {
        let mut text = Vec::new();
        let read = fs::File::open(&self.path).and_then(|file| file.take(MOST_TRACE).read_to_end(&mut text));
        if read.is_ok() { String::from_utf8_lossy(&text).into_owned() } else { String::new() }
    }

    /// Returns whether git negotiated only protocol version 2. Returns false if the trace shows no version.
    pub(crate) fn shows_version_2(&self) -> bool {
        shows_version_2(&self.read())
    }
}

/// The optional features of an upstream's `receive-pack` that the gate uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Features {
    /// Whether the upstream can update several refs atomically.
    pub(crate) atomic: bool,
    /// Whether the upstream accepts push options.
    pub(crate) push_options: bool,
}

impl Features {
    /// Parses the packet trace of a push. The features follow a zero byte in the packet of the first ref.
    pub(crate) fn parse(packets: &str) -> Option<Self> {
        let features = packets.lines().find_map(|line| line.split_once("\\0")?.1.into());
        let has = |name: &str| features.is_some_and(|all: &str| all.split(' ').any(|word| word == name));
        features.map(|_| Self { atomic: has("atomic"), push_options: has("push-options") })
    }
}

/// Returns the address in the last redirect of an HTTP trace, without the path and query of the git service.
pub(crate) fn redirect(trace: &str) -> Option<&str> {
    let header = |line: &'_ str| line.to_ascii_lowercase().find("header: location: ").map(|at| at + 18);
    let target = trace.lines().rev().find_map(|line| line.get(header(line)?..))?.trim();
    Some(target.split_once("/info/refs").map_or(target, |(repository, _)| repository))
}

impl Drop for Trace {
    fn drop(&mut self) {
        // An error is ignored: if the file cannot be removed now, it is removed before the next trace.
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
        let parse = |text: &str| Upstream::parse(text.as_bytes(), &GateRefs::default());
        let upstream = parse(&text).expect("read");
        assert_eq!(
            upstream.packed_refs(),
            format!("{PACKED_HEAD}{id} refs/heads/main\n{id} refs/tags/v1\n^{id}\n")
        );
        assert_eq!(packed_ids(&upstream.packed_refs()), HashSet::from([id.as_str()]));
        assert_eq!(upstream.default.as_deref(), Some("refs/heads/main"));
        assert_eq!(upstream.refs.keys().collect::<Vec<_>>(), ["refs/heads/main", "refs/tags/v1"]);
        assert_eq!(upstream.refs["refs/tags/v1"], id);
        assert_eq!(upstream.head.as_ref(), Some(&id));
        // `HEAD` names a branch that does not exist, and another branch is called `HEAD`.
        let unborn = parse(&format!("{id}\trefs/heads/HEAD\n")).expect("read");
        assert_eq!((unborn.default, unborn.head, unborn.refs.len()), (None, None, 1));
        let upstream =
            parse(&format!("ref: refs/heads/main\trefs/heads/a\n{id}\trefs/heads/a\n")).expect("read");
        assert_eq!((upstream.refs.len(), upstream.aliases["refs/heads/a"].as_str()), (1, "refs/heads/main"));
        assert_eq!(parse(""), Ok(Upstream::default()));
    }

    #[test]
    fn mirrors_branches_tags_notes_and_allowed_refs() {
        let id = "1".repeat(40);
        let names: [&[u8]; 7] = [
            b"refs/heads/a",
            b"refs/pull/1/head",
            b"refs/custom/x",
            b"refs/heads/caf\xe9",
            b"refs/x/refs/heads/y",
            b"refs/heads/../../x",
            b"refs/heads/a b",
        ];
        let text: Vec<u8> =
            names.iter().flat_map(|name| [id.as_bytes(), b"\t", name, b"\n"].concat()).collect();
        let rules = GateRefs { allow: Some(vec!["refs/custom/*".to_owned()]), ..GateRefs::default() };
        let upstream = Upstream::parse(&text, &rules).expect("read");
        assert_eq!(upstream.refs.keys().collect::<Vec<_>>(), ["refs/custom/x", "refs/heads/a"]);
        let others: Vec<&[u8]> = upstream.others.keys().map(Vec::as_slice).collect();
        assert_eq!(others, [names[3], names[1], names[4]]);
    }

    #[test]
    fn parses_the_features_and_the_redirect_in_a_trace() {
        let line = |text: &str| format!("packet: push< {} refs/heads/main{text}\n", "1".repeat(40));
        let features = |atomic, push_options| Some(Features { atomic, push_options });
        for (text, expected) in [
            ("\\0report-status atomic push-options agent=git/2", features(true, true)),
            ("\\0report-status not-atomic agent=git/2", features(false, false)),
            ("\\0", features(false, false)),
            ("", None),
        ] {
            assert_eq!(Features::parse(&line(text)), expected, "{text}");
        }
        let moved = "http.c:1 <= Recv header: HTTP/1.1 301\n\
                     http.c:1 <= Recv header: Location: https://a.example/new.git/info/refs?service=x\r\n";
        assert_eq!(redirect(moved), Some("https://a.example/new.git"));
        assert_eq!(redirect("<= Recv header: HTTP/1.1 200"), None);
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
