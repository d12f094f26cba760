//! Which files of a workspace a diff leaves out.
//!
//! What the user's own commit ignores is left out without a word, as git does it. What only the rules in the bottle
//! ignore is left out too, and named: they are the agent's to write, and may be there to hide something. What is in a
//! commit is never left out.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// A file of rules.
pub(super) const NAME: &str = ".gitignore";

/// The longest file of rules that is gone by, and how much of all of them is, in bytes. Without the rest a diff shows
/// more.
pub(super) const LONGEST: usize = 64 << 10;
const MOST: usize = 256 << 10;

/// Places that are named of all that is left out.
const NAMED: usize = 20;

/// The rules of one side, by the folder that they stand in.
#[derive(Debug, Default)]
pub(super) struct Rules {
    folders: HashMap<PathBuf, Vec<Gitignore>>,
    bytes: usize,
}

impl Rules {
    /// Adds the rules of a file in this folder of the workspace. One that cannot be read has none.
    pub(super) fn add(&mut self, folder: &Path, text: &str) {
        self.bytes += text.len();
        if text.len() > LONGEST || self.bytes > MOST {
            return;
        }
        let mut builder = GitignoreBuilder::new("");
        for line in text.lines() {
            // A line that is no pattern says nothing, to git as well.
            let _ = builder.add_line(None, line);
        }
        if let Ok(rules) = builder.build() {
            self.folders.entry(folder.to_owned()).or_default().push(rules);
        }
    }

    /// The highest place on the way to this file, or the file itself, that is left out.
    fn top(&self, file: &Path) -> Option<PathBuf> {
        if self.folders.is_empty() {
            return None;
        }
        let mut place = PathBuf::new();
        let mut parts = file.components().peekable();
        while let Some(part) = parts.next() {
            place.push(part);
            if self.leaves_out(&place, parts.peek().is_some()) {
                return Some(place);
            }
        }
        None
    }

    /// The nearest rule decides.
    fn leaves_out(&self, place: &Path, is_folder: bool) -> bool {
        for folder in place.ancestors().skip(1) {
            let Ok(below) = place.strip_prefix(folder) else { continue };
            for rules in self.folders.get(folder).into_iter().flatten() {
                match rules.matched(below, is_folder) {
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                    Match::None => {}
                }
            }
        }
        false
    }
}

/// The rules of both sides.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    /// Of the user's commit and repository.
    pub(super) own: Rules,
    /// Of the workspace.
    pub(super) inside: Rules,
    left_out: BTreeMap<PathBuf, u64>,
    unnamed: u64,
}

impl Ignored {
    /// Whether a file that is in no commit is left out. What the rules inside leave out is noted.
    pub(super) fn leaves_out(&mut self, file: &Path) -> bool {
        if self.own.top(file).is_some() {
            return true;
        }
        let Some(top) = self.inside.top(file) else { return false };
        if let Some(files) = self.left_out.get_mut(&top) {
            *files += 1;
        } else if self.left_out.len() < NAMED {
            self.left_out.insert(top, 1);
        } else {
            self.unnamed += 1;
        }
        true
    }

    /// What the rules inside left out: places with the number of their files, and how many files more.
    pub(super) fn left_out(self) -> (BTreeMap<PathBuf, u64>, u64) {
        (self.left_out, self.unnamed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_git_reads_them_and_those_inside_are_named() {
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
            assert_eq!(ignored.leaves_out(Path::new(file)), out, "{file}");
        }
        let (left_out, unnamed) = ignored.left_out();
        let left_out: Vec<_> =
            left_out.iter().map(|(place, files)| (place.to_str().expect("text"), *files)).collect();
        assert_eq!((left_out, unnamed), (vec![(".gitignore", 1), ("deep/x", 1), ("hidden", 2)], 0));
    }

    #[test]
    fn rules_beyond_the_bounds_leave_nothing_out() {
        let mut ignored = Ignored::default();
        ignored.inside.add(Path::new(""), &format!("#{}\nhidden\n", "x".repeat(LONGEST)));
        assert!(!ignored.leaves_out(Path::new("hidden")));
        for at in 0..100 {
            ignored.inside.add(Path::new(&format!("{at}")), "hidden\n");
        }
        for at in 0..NAMED + 5 {
            assert!(ignored.leaves_out(Path::new(&format!("{at}/hidden"))), "{at}");
        }
        assert_eq!(ignored.left_out().1, 5);
    }
}
