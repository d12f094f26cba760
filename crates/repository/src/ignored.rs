//! Decides which files of a copy of a working tree are left out of a diff.
//!
//! Files that the ignore rules of the user's own commit match are left out silently, as in git. Files that only rules
//! in the bottle match are left out too, but the diff names them: the agent writes these rules, and could use them to
//! hide changes. Files that are in a commit are never left out.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// The maximum length of an ignore file that is read, in bytes. If a file exceeds this limit, or all files together
/// exceed `MAX_TOTAL`, further rules are not applied. A diff then shows more files, never fewer.
pub const MAX_FILE: usize = 64 << 10;

/// The maximum length of all ignore files together, in bytes.
const MAX_TOTAL: usize = 256 << 10;

/// The maximum number of patterns of all ignore files together, because each file is compared with each pattern.
const MAX_PATTERNS: usize = 2_000;

/// The maximum number of directories whose results are cached.
const MAX_KNOWN: usize = 4_096;

/// The maximum number of ignored paths that are listed individually. Files below further paths are only counted.
const MAX_LISTED: usize = 20;

/// Ignore rules. The key is the directory of their ignore file.
#[derive(Debug, Default)]
pub struct Rules {
    directories: HashMap<PathBuf, Vec<Gitignore>>,
    bytes: usize,
    patterns: usize,
    /// The cached results for the directories of earlier files. Most files share their directories.
    known: HashMap<PathBuf, Option<PathBuf>>,
}

impl Rules {
    /// Adds the rules of an ignore file in this directory of the workspace. An unreadable file adds no rules.
    pub fn add(&mut self, directory: &Path, text: &str) {
        self.bytes += text.len();
        if text.len() > MAX_FILE || self.bytes > MAX_TOTAL {
            return;
        }
        self.patterns +=
            text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).count();
        if self.patterns > MAX_PATTERNS {
            return;
        }
        self.known.clear();
        let mut builder = GitignoreBuilder::new("");
        for line in text.lines() {
            // An invalid pattern is skipped, as in git.
            let _ = builder.add_line(None, line);
        }
        if let Ok(rules) = builder.build() {
            self.directories.entry(directory.to_owned()).or_default().push(rules);
        }
    }

    /// Returns the topmost ignored directory that contains this file, or the file itself if only it is ignored.
    fn topmost(&mut self, file: &Path) -> Option<PathBuf> {
        if self.directories.is_empty() {
            return None;
        }
        let above = file.parent().and_then(|directory| self.topmost_directory(directory));
        above.or_else(|| self.excludes(file, false).then(|| file.to_owned()))
    }

    /// Returns the topmost ignored directory among a directory and its ancestors.
    fn topmost_directory(&mut self, directory: &Path) -> Option<PathBuf> {
        if directory.as_os_str().is_empty() {
            return None;
        }
        if let Some(known) = self.known.get(directory) {
            return known.clone();
        }
        let above = directory.parent().and_then(|above| self.topmost_directory(above));
        let topmost = above.or_else(|| self.excludes(directory, true).then(|| directory.to_owned()));
        if self.known.len() == MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(directory.to_owned(), topmost.clone());
        topmost
    }

    /// Whether the rules exclude a directory or one of its ancestors.
    pub fn exclude_directory(&self, directory: &Path) -> bool {
        let mut above: Vec<&Path> =
            directory.ancestors().filter(|place| !place.as_os_str().is_empty()).collect();
        above.reverse();
        above.into_iter().any(|place| self.excludes(place, true))
    }

    /// Whether the rules exclude a path. The rules in the directory nearest to the path decide.
    fn excludes(&self, place: &Path, is_directory: bool) -> bool {
        for directory in place.ancestors().skip(1) {
            let Ok(below) = place.strip_prefix(directory) else { continue };
            for rules in self.directories.get(directory).into_iter().flatten() {
                match rules.matched(below, is_directory) {
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                    Match::None => {}
                }
            }
        }
        false
    }
}

/// The ignore rules of the user and of the bottle.
#[derive(Debug, Default)]
pub struct Ignored {
    /// Rules of the user's commit and of the user's repository.
    pub own: Rules,
    /// The path of the workspace in the user's repository. Empty if the workspace is the top of the repository.
    pub prefix: PathBuf,
    /// Rules of the bottle's workspace.
    pub inside: Rules,
    left_out: BTreeMap<PathBuf, u64>,
    unlisted: u64,
}

impl Ignored {
    /// Whether to leave out a file that is in no commit. Counts the file if only the workspace's rules match it.
    pub fn excludes(&mut self, file: &Path) -> bool {
        if self.excludes_by_own(file) {
            return true;
        }
        let Some(topmost) = self.inside.topmost(file) else { return false };
        if let Some(files) = self.left_out.get_mut(&topmost) {
            *files += 1;
        } else if self.left_out.len() < MAX_LISTED {
            self.left_out.insert(topmost, 1);
        } else {
            self.unlisted += 1;
        }
        true
    }

    /// Whether the user's own rules match a file.
    pub fn excludes_by_own(&mut self, file: &Path) -> bool {
        // An ignored workspace, such as a build directory in which the user started the bottle, has files that are not
        // ignored themselves.
        self.own.topmost(&self.prefix.join(file)).is_some_and(|top| !self.prefix.starts_with(top))
    }

    /// Returns the paths that only the workspace's rules match, each with its number of files, and the number
    /// of files that are not listed.
    pub fn left_out(self) -> (BTreeMap<PathBuf, u64>, u64) {
        (self.left_out, self.unlisted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_gits_ignore_rules_and_lists_the_workspaces_own() {
        let mut ignored = Ignored::default();
        ignored.own.add(Path::new(""), "/target/\n*.log\n!keep.log\n");
        ignored.own.add(Path::new("deep"), "!own.log\n");
        ignored.inside.add(Path::new(""), "hidden\n.gitignore\n[\n");
        ignored.inside.add(Path::new("deep"), "x\n");
        for (file, out) in [
            ("target/debug/a", true),
            ("deep/target/a", false),
            ("a.log", true),
            ("keep.log", false),
            ("deep/own.log", false),
            ("deep/other.log", true),
            ("hidden/a/b", true),
            ("hidden/c", true),
            ("deep/x", true),
            ("x", false),
            (".gitignore", true),
            ("src/main.rs", false),
        ] {
            assert_eq!(ignored.excludes(Path::new(file)), out, "{file}");
        }
        let (left_out, unlisted) = ignored.left_out();
        let left_out: Vec<_> =
            left_out.iter().map(|(place, files)| (place.to_str().expect("text"), *files)).collect();
        assert_eq!((left_out, unlisted), (vec![(".gitignore", 1), ("deep/x", 1), ("hidden", 2)], 0));
    }

    #[test]
    fn patterns_beyond_the_bound_have_no_effect() {
        let mut ignored = Ignored::default();
        ignored.inside.add(Path::new(""), &("#\n\n".repeat(10) + &"hidden\n".repeat(MAX_PATTERNS)));
        assert!(ignored.excludes(Path::new("hidden")));
        ignored.inside.add(Path::new("a"), "other\n");
        assert!(!ignored.excludes(Path::new("a/other")));
    }

    /// The cached result for a directory is valid only until more rules are added.
    #[test]
    fn added_rules_apply_to_directories_that_are_known() {
        let mut ignored = Ignored::default();
        ignored.inside.add(Path::new(""), "other\n");
        assert!(!ignored.excludes(Path::new("a/b/file")));
        ignored.inside.add(Path::new("a"), "b/\n");
        assert!(ignored.excludes(Path::new("a/b/file")));
    }

    #[test]
    fn ignore_files_beyond_the_bounds_have_no_effect() {
        let mut ignored = Ignored::default();
        ignored.inside.add(Path::new(""), &format!("#{}\nhidden\n", "x".repeat(MAX_FILE)));
        assert!(!ignored.excludes(Path::new("hidden")));
        for at in 0..100 {
            ignored.inside.add(Path::new(&format!("{at}")), "hidden\n");
        }
        for at in 0..MAX_LISTED + 5 {
            assert!(ignored.excludes(Path::new(&format!("{at}/hidden"))), "{at}");
        }
        assert_eq!(ignored.left_out().1, 5);
    }
}
