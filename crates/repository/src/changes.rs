//! Finds the changes that an agent made in its copy of a working tree, as git would commit them.
//!
//! ```text
//!  reference, a commit ──┐
//!  start, the given files ├──► the paths at which the agent's work differs from the reference
//!  now, the files ────────┘
//! ```
//! A file that the agent did not touch is treated as equal to the file in the reference, whatever its bytes are. A file
//! that was never copied is not treated as deleted.

use std::collections::{BTreeSet, HashMap};

/// The mode and the object id of a file, as git prints them.
pub type Version = (String, String);

/// The files of a tree, by path.
pub type Files = HashMap<Vec<u8>, Version>;

/// The mode of a symbolic link.
pub const LINK: &str = "120000";

/// The mode of a submodule.
pub const SUBMODULE: &str = "160000";

/// A file of the working tree when it was copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// Whether the copy received the file.
    pub is_given: bool,
    /// The file as git would commit it. `None` if this version is unknown.
    pub committed: Option<Version>,
    /// The file as it was in the working tree. `None` if its content is unknown.
    pub raw: Option<Version>,
}

/// The files of the working tree when it was copied.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// The files of the commit that was checked out.
    pub head: Files,
    /// The files of the working tree, and the files of the commit that were not copied.
    pub files: HashMap<Vec<u8>, Started>,
}

/// The current state of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// The path does not exist.
    Absent,
    /// The path has a file, in the version that git would commit.
    Committed(Version),
    /// The path has a file, in the version of the working tree. Git's conversion is not applied yet.
    Raw(Version),
}

/// A path at which the agent's work may differ from the reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path.
    pub path: Vec<u8>,
    /// The file at this path when the agent began, as git would commit it.
    pub before: Option<Version>,
    /// The current state of the path.
    pub after: After,
}

impl Start {
    /// Whether the reference and the commit that was checked out have the same file at this path, or both have no file.
    #[must_use]
    pub fn is_in(&self, reference: &Files, path: &[u8]) -> bool {
        reference.get(path) == self.head.get(path)
    }

    /// Returns the differences between the agent's work and a reference, sorted by path. `now` contains the current
    /// files of the working tree.
    #[must_use]
    pub fn differences(&self, reference: &Files, now: &Files) -> Vec<Difference> {
        let paths: BTreeSet<&Vec<u8>> = reference.keys().chain(self.files.keys()).chain(now.keys()).collect();
        let difference = |path: &Vec<u8>| {
            let (before, after) = (self.before(reference, path), self.after(reference, now, path)?);
            let is_same = match &after {
                After::Absent => before.is_none(),
                After::Committed(version) => before.as_ref() == Some(version),
                After::Raw(_) => false,
            };
            (!is_same).then(|| Difference { path: path.clone(), before, after })
        };
        paths.into_iter().filter_map(difference).collect()
    }

    /// Returns the file at a path when the agent began. If the reference and the commit that was checked out differ at
    /// this path, returns the file of the reference.
    #[must_use]
    pub fn before(&self, reference: &Files, path: &[u8]) -> Option<Version> {
        let given = self.files.get(path).filter(|started| started.is_given && self.is_in(reference, path));
        given.and_then(|started| started.committed.clone()).or_else(|| reference.get(path).cloned())
    }

    /// Returns the current state of a path. `None` if the agent did not touch the file and the version that git would
    /// commit is unknown.
    fn after(&self, reference: &Files, now: &Files, path: &[u8]) -> Option<After> {
        let started = self.files.get(path);
        let Some(version) = now.get(path) else {
            let was_there = started.map_or_else(|| reference.contains_key(path), |started| started.is_given);
            return (was_there || !self.is_in(reference, path)).then_some(After::Absent);
        };
        if let Some(started) = started.filter(|started| started.raw.as_ref() == Some(version)) {
            return started.committed.clone().map(After::Committed);
        }
        Some(match version.0.as_str() {
            LINK | SUBMODULE => After::Committed(version.clone()),
            _ => After::Raw(version.clone()),
        })
    }

    /// Returns the files of the reference, in which the unconverted files at the agent's start replace the files at the
    /// same paths. If the content of a file at the start is unknown, the file of the reference stays.
    #[must_use]
    pub fn raw(&self, reference: &Files) -> Files {
        let mut files = reference.clone();
        for (path, started) in &self.files {
            if let Some(raw) = started.raw.as_ref().filter(|_| self.is_in(reference, path)) {
                files.insert(path.clone(), raw.clone());
            }
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(object: &str) -> Version {
        ("100644".to_owned(), object.to_owned())
    }

    fn files(of: &[(&str, &str)]) -> Files {
        of.iter().map(|(path, object)| (path.as_bytes().to_vec(), version(object))).collect()
    }

    fn started(is_given: bool, committed: &str, raw: &str) -> Started {
        let known = |object: &str| (!object.is_empty()).then(|| version(object));
        Started { is_given, committed: known(committed), raw: known(raw) }
    }

    /// Each case contains the versions of one file: in the commit at the start, in the reference, as given (committed
    /// and raw), and now. The expected result is the version before and the version after.
    #[test]
    fn finds_what_the_agent_did() {
        let given = |committed: &str, raw: &str| Some(started(true, committed, raw));
        let none = ("", "");
        let deleted = |before: &'static str| (before, "-");
        for (case, head, reference, start, now, expected) in [
            ("untouched", "a", "a", given("a", "a"), "a", none),
            ("untouched, with other bytes", "a", "a", given("a", "A"), "A", none),
            ("changed", "a", "a", given("a", "A"), "B", ("a", "raw B")),
            ("changed by the user before", "a", "a", given("u", "u"), "u", none),
            ("changed by both", "a", "a", given("u", "u"), "v", ("u", "raw v")),
            ("deleted", "a", "a", given("a", "A"), "", deleted("a")),
            ("not given", "a", "a", Some(started(false, "a", "a")), "", none),
            ("not given, kept as it is", "a", "a", Some(started(false, "a", "a")), "a", none),
            ("not given, then created", "a", "a", Some(started(false, "a", "a")), "n", ("a", "raw n")),
            ("new of the user", "", "", given("n", "n"), "n", none),
            ("new of the user, deleted", "", "", given("n", "n"), "", deleted("n")),
            ("new of the agent", "", "", None, "n", ("", "raw n")),
            ("new of the agent, committed", "", "n", None, "n", ("n", "raw n")),
            ("committed", "a", "b", given("a", "A"), "B", ("b", "raw B")),
            ("committed, then as at the start", "a", "b", given("a", "A"), "A", ("b", "a")),
            ("committed, then deleted", "a", "b", given("a", "A"), "", deleted("b")),
            ("committed as new, then deleted", "", "n", None, "", deleted("n")),
            ("deletion committed", "a", "", given("a", "A"), "", none),
            ("deletion committed, then restored", "a", "", given("a", "A"), "A", ("", "a")),
            ("new of the user, committed", "", "n", given("n", "n"), "n", none),
            ("not known how git commits it", "a", "a", given("", "A"), "A", none),
            ("content at the start not known", "a", "a", given("a", ""), "B", ("a", "raw B")),
        ] {
            let one = |object: &str| if object.is_empty() { Files::new() } else { files(&[("f", object)]) };
            let known = start.map(|started| (b"f".to_vec(), started)).into_iter().collect();
            let start = Start { head: one(head), files: known };
            let found = start.differences(&one(reference), &one(now));
            let shown: Vec<(String, String)> = found
                .into_iter()
                .map(|Difference { before, after, .. }| {
                    let after = match after {
                        After::Absent => "-".to_owned(),
                        After::Committed((_, object)) => object,
                        After::Raw((_, object)) => format!("raw {object}"),
                    };
                    (before.map(|(_, object)| object).unwrap_or_default(), after)
                })
                .collect();
            let expected = (expected != none).then(|| (expected.0.to_owned(), expected.1.to_owned()));
            assert_eq!(shown, expected.into_iter().collect::<Vec<_>>(), "{case}");
        }
    }

    #[test]
    fn begins_with_the_bytes_that_the_copy_was_given() {
        let start = Start {
            head: files(&[("same", "a"), ("taken", "a"), ("absent", "a"), ("unknown", "a")]),
            files: [
                ("same", started(true, "a", "A")),
                ("taken", started(true, "a", "A")),
                ("absent", started(false, "a", "a")),
                ("unknown", started(true, "a", "")),
                ("new", started(true, "n", "N")),
            ]
            .map(|(path, started)| (path.as_bytes().to_vec(), started))
            .into(),
        };
        let reference = files(&[("same", "a"), ("taken", "b"), ("absent", "a"), ("unknown", "a")]);
        let expected =
            files(&[("same", "A"), ("taken", "b"), ("absent", "a"), ("unknown", "a"), ("new", "N")]);
        assert_eq!(start.raw(&reference), expected);
    }
}
