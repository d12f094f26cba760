//! The ignore rules that applied to a copied directory, and the tracked files that they ignore.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::contents::create;
use super::{damaged, open_list};
use crate::RuleError;
use crate::directory::Directory;
use crate::ignore_rules::{IGNORE_FILE, RecordedRules, RuleSources, RuleText, read_rules};
use crate::locate::Located;

/// The maximum size of all texts of ignore rules in bytes, and their maximum number. If a limit is exceeded, no rules
/// are recorded, and no file is treated as ignored.
const MAX_RULES: usize = 128 << 10;
const MAX_RULE_FILES: usize = 1_000;

/// The maximum number of tracked files that the rules ignore. If there are more, no rules are recorded.
const MAX_TRACKED: usize = 1_000;

/// The maximum size in bytes of the file with the rules. It contains the paths of tracked files and the texts of ignore
/// files.
const MAX_FILE: u64 = 8 << 20;

/// The name of the file with the rules in a record.
const RULES: &str = "rules";

/// The ignore rules that applied to a copied directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenRules {
    /// The path of the directory below the top of the working tree.
    pub below: PathBuf,
    /// The texts of the ignore files. Later texts override earlier ones.
    pub texts: Vec<RuleText>,
    /// The files that git tracks although the rules ignore them, relative to the directory.
    pub tracked: Vec<PathBuf>,
}

impl GivenRules {
    /// Returns the rules that apply to the directory `below` of a working tree and come from files outside of that
    /// directory. `user` is the user's own ignore file. `None` if one of the files cannot be read.
    pub(super) fn around(located: &Located, below: &Path, user: Option<&Path>) -> Option<Self> {
        let sources = RuleSources { top: &located.top, below, git_directory: Some(&located.common), user };
        let texts = RuleText::of(&sources).ok()?;
        Some(Self { below: below.to_owned(), texts, tracked: Vec::new() })
    }

    /// Adds the ignore file of a directory. `None` if the file cannot be read: one unknown rule makes all rules
    /// unknown, because it can be an exception from other rules.
    pub(super) fn with_file_of(mut self, from: &Directory, directory: PathBuf) -> Option<Self> {
        let text = read_rules(from, Path::new(IGNORE_FILE)).ok()?;
        self.texts.extend(text.map(|text| RuleText { base: directory, text }));
        Some(self)
    }

    /// Compiles the rules.
    ///
    /// # Errors
    /// Fails if there are too many rules.
    pub fn compile(&self) -> Result<RecordedRules, RuleError> {
        RecordedRules::new(&self.below, self.texts.iter().map(|rule| (&*rule.base, &*rule.text)))
    }

    /// Adds the tracked files that the rules ignore. If the rules or these files exceed the bounds, the result has no
    /// rules.
    pub(super) fn with_tracked(mut self, tracked: HashSet<Vec<u8>>) -> Self {
        let size: usize = self.texts.iter().map(|rule| rule.text.len()).sum();
        let rules = self.compile().ok().filter(|_| size <= MAX_RULES && self.texts.len() <= MAX_RULE_FILES);
        let Some(rules) = rules else { return Self::default() };
        let mut ignored = IgnoredPaths::new(&rules);
        let tracked = tracked.into_iter().map(|path| PathBuf::from(OsString::from_vec(path)));
        self.tracked = tracked.filter(|path| ignored.contains(path)).take(MAX_TRACKED + 1).collect();
        self.tracked.sort_unstable();
        if self.tracked.len() > MAX_TRACKED { Self::default() } else { self }
    }

    /// Writes the rules. Each part of the file consists of its kind, the lengths of its path and its text, the path,
    /// and the text.
    pub(super) fn write(&self, record: &Path) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut part = |kind: char, path: &Path, text: &[u8]| {
            let path = path.as_os_str().as_bytes();
            bytes.extend_from_slice(format!("{kind} {} {}\n", path.len(), text.len()).as_bytes());
            bytes.extend_from_slice(path);
            bytes.extend_from_slice(text);
        };
        part('d', &self.below, b"");
        self.texts.iter().for_each(|rule| part('r', &rule.base, &rule.text));
        self.tracked.iter().for_each(|path| part('t', path, b""));
        create(&record.join(RULES))?.write_all(&bytes)
    }

    /// Reads the rules of a complete record. `None` if there is no complete record, or if the record has no rules.
    ///
    /// # Errors
    /// Fails if the rules cannot be read or are malformed.
    pub fn read(record: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(record.join(RULES)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        if open_list(record)?.is_none() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Self::parse(&bytes).map(Some).ok_or_else(damaged)
    }

    fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut rules = Self::default();
        while !bytes.is_empty() {
            let line = bytes.iter().position(|byte| *byte == b'\n')?;
            let mut words = std::str::from_utf8(&bytes[..line]).ok()?.split(' ');
            let (kind, path, text) =
                (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let (name, rest) = bytes[line + 1..].split_at_checked(path)?;
            let (content, rest) = rest.split_at_checked(text)?;
            bytes = rest;
            let path = PathBuf::from(OsStr::from_bytes(name));
            match kind {
                "d" => rules.below = path,
                "r" => rules.texts.push(RuleText { base: path, text: content.to_owned() }),
                "t" => rules.tracked.push(path),
                _ => return None,
            }
        }
        Some(rules)
    }
}

/// Finds the paths that rules ignore, either directly or because the rules ignore a directory above them.
pub struct IgnoredPaths<'a> {
    rules: &'a RecordedRules,
    /// The cached results for directories. Most paths share their directories.
    known: HashMap<PathBuf, bool>,
}

impl<'a> IgnoredPaths<'a> {
    /// Creates the set of the paths that these rules ignore.
    #[must_use]
    pub fn new(rules: &'a RecordedRules) -> Self {
        Self { rules, known: HashMap::new() }
    }

    /// Whether a file is ignored.
    pub fn contains(&mut self, file: &Path) -> bool {
        file.parent().is_some_and(|parent| self.contains_directory(parent)) || self.rules.ignores(file, false)
    }

    fn contains_directory(&mut self, directory: &Path) -> bool {
        if directory.as_os_str().is_empty() {
            return false;
        }
        if let Some(known) = self.known.get(directory) {
            return *known;
        }
        let above = directory.parent().is_some_and(|above| self.contains_directory(above));
        let ignored = above || self.rules.ignores(directory, true);
        self.known.insert(directory.to_owned(), ignored);
        ignored
    }
}

/// Copies the rules of a record, if the record has rules.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::copy(from.join(RULES), to.join(RULES)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::git;
    use super::*;
    use crate::given::GivenFiles;
    use crate::repository::Repository;
    use crate::walk::Walk;

    #[test]
    fn records_the_rules_and_the_tracked_files_that_they_ignore() {
        let scene = tempfile::tempdir().expect("a directory");
        let top = scene.path().join("top");
        let write = |name: &str, text: &str| {
            let path = top.join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write(".gitignore", "dist\n");
        write("a/.gitignore", "*.log\n");
        for name in ["dist/page", "a/b/one.log", "a/b/two.log", "b.log", "a/b/user"] {
            write(name, name);
        }
        let user = scene.path().join("user");
        std::fs::write(&user, "user\n").expect("written");
        git(&top, &["init", "-q", "."]);
        git(
            &top,
            &["add", "-f", "dist/page", "a/b/one.log", "b.log", "a/b/user", ".gitignore", "a/.gitignore"],
        );
        write(".git/info/exclude", "x\n");
        let located = crate::locate::at(&top).expect("read").expect("found");
        let repository = Repository::open(located).expect("opened");
        let record = |below: &str| {
            let record = scene.path().join("record");
            let mut given =
                GivenFiles::begin(&repository, Path::new(below), false, Some(&user), &record).expect("begun");
            for entry in Walk::content(Directory::open(&top.join(below)).expect("opened")) {
                given.add(&entry.expect("walked")).expect("added");
            }
            given.end().expect("written");
            GivenRules::read(&record).expect("read").expect("recorded")
        };
        let rules = record("");
        let bases: Vec<_> = rules.texts.iter().map(|rule| rule.base.to_str().expect("text")).collect();
        assert_eq!(bases, ["", "", "", "a"]);
        let tracked: Vec<_> = rules.tracked.iter().map(|path| path.to_str().expect("text")).collect();
        assert_eq!(tracked, ["a/b/one.log", "a/b/user", "dist/page"]);
        let rules = record("a");
        let tracked: Vec<_> = rules.tracked.iter().map(|path| path.to_str().expect("text")).collect();
        assert_eq!((rules.below.as_path(), &tracked[..]), (Path::new("a"), &["b/one.log", "b/user"][..]));
        assert!(GivenRules::parse(b"r 5 1\nab").is_none(), "it is cut off");
    }
}
