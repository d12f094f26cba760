//! What an upstream lists: its refs, which of them is the default branch, and which are only other names.
//!
//! git's newest protocol says of every ref whether it is symbolic, the older ones of `HEAD` alone. So git is asked
//! which one it spoke, in its own record of what it does (`trace2`).

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// More refs than this are not mirrored: nobody could list them in time.
const MOST_REFS: usize = 200_000;

/// Of git's record; one of a list has a few thousand bytes.
const MOST_RECORD: u64 = 256 << 10;

/// How a repository names its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ObjectFormat {
    #[default]
    Sha1,
    Sha256,
}

impl ObjectFormat {
    /// By one of the names.
    fn of(id: &str) -> Self {
        if id.len() == 64 { Self::Sha256 } else { Self::Sha1 }
    }
}

/// What is known of the upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// Full name of its default branch, where it says one.
    pub(crate) default: Option<String>,
    /// The commit of its `HEAD`, where that leads to one.
    pub(crate) head: Option<String>,
    /// Its refs, and the object of each.
    pub(crate) refs: BTreeMap<String, String>,
    /// Of these the ones that are known to be only another name, and of what.
    pub(crate) aliases: HashMap<String, String>,
    /// Whether it says so of each that is.
    pub(crate) tells_aliases: bool,
    /// How it names its objects.
    pub(crate) format: ObjectFormat,
}

impl Upstream {
    /// Reads what `ls-remote --symref` says.
    ///
    /// # Errors
    /// A lower-case fragment.
    pub(crate) fn listed(text: &str) -> Result<Self, String> {
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
            return Err(format!("it has more than {MOST_REFS} refs"));
        }
        upstream.format = upstream.refs.values().next().map(|id| ObjectFormat::of(id)).unwrap_or_default();
        Ok(upstream)
    }
}

/// Whether it is an object's name.
pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Where one git writes down what it does.
pub(crate) struct Record {
    what: &'static str,
    path: PathBuf,
}

impl Record {
    /// What it did, in events.
    pub(crate) const EVENTS: &str = "GIT_TRACE2_EVENT";

    /// What it said and heard.
    pub(crate) const PACKETS: &str = "GIT_TRACE_PACKET";

    /// At `path`, which is gone before and after.
    pub(crate) fn of(what: &'static str, path: PathBuf) -> io::Result<Self> {
        remove(&path)?;
        Ok(Self { what, path })
    }

    /// What makes git keep it.
    pub(crate) fn env(&self) -> (String, String) {
        (self.what.to_owned(), self.path.to_string_lossy().into_owned())
    }

    /// Its beginning; nothing where there is none.
    pub(crate) fn read(&self) -> String {
        let mut text = Vec::new();
        let read = fs::File::open(&self.path).and_then(|file| file.take(MOST_RECORD).read_to_end(&mut text));
        if read.is_ok() { String::from_utf8_lossy(&text).into_owned() } else { String::new() }
    }

    /// Whether git spoke the newest protocol, and no other. Not, too, where it did not say.
    pub(crate) fn says_newest(&self) -> bool {
        spoke_newest(&self.read())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // One that stays is removed before the next.
        let _ = remove(&self.path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn spoke_newest(record: &str) -> bool {
    let events = record.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut versions = events
        .filter(|event| event["key"] == "negotiated-version")
        .map(|event| event["value"] == "2")
        .peekable();
    versions.peek().is_some() && versions.all(|newest| newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_an_upstream() {
        let id = "1".repeat(40);
        let text = format!(
            "ref: refs/heads/main\tHEAD\n{id}\tHEAD\n{id}\trefs/heads/main\n{id}\trefs/tags/v1\n{id}\trefs/tags/v1^{{}}\nnoise\n"
        );
        let upstream = Upstream::listed(&text).expect("read");
        assert_eq!(upstream.default.as_deref(), Some("refs/heads/main"));
        assert_eq!(upstream.refs.keys().collect::<Vec<_>>(), ["refs/heads/main", "refs/tags/v1"]);
        assert_eq!(upstream.refs["refs/tags/v1"], id);
        assert_eq!(upstream.head.as_ref(), Some(&id));
        // A HEAD that leads nowhere, beside a branch of that name.
        let unborn = Upstream::listed(&format!("{id}\trefs/heads/HEAD\n")).expect("read");
        assert_eq!((unborn.default, unborn.head, unborn.refs.len()), (None, None, 1));
        let upstream = Upstream::listed(&format!("ref: refs/heads/main\trefs/heads/a\n{id}\trefs/heads/a\n"))
            .expect("read");
        assert_eq!((upstream.refs.len(), upstream.aliases["refs/heads/a"].as_str()), (1, "refs/heads/main"));
        assert_eq!(Upstream::listed(""), Ok(Upstream::default()));
    }

    #[test]
    fn which_protocol_git_spoke() {
        let said = |value: &str| {
            format!("{{\"event\":\"data\",\"key\":\"negotiated-version\",\"value\":\"{value}\"}}\n")
        };
        let other = "{\"event\":\"exit\",\"code\":0}\n";
        for (record, newest) in [
            (format!("{other}{}{other}", said("2")), true),
            (said("2") + &said("2"), true),
            (said("2") + &said("0"), false),
            (said("1"), false),
            (other.to_owned(), false),
            (String::new(), false),
            ("negotiated-version 2".to_owned(), false),
            (said("2") + "{cut", true),
        ] {
            assert_eq!(spoke_newest(&record), newest, "{record}");
        }
    }
}
