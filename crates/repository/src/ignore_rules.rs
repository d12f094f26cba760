//! Reads git's ignore rules (gitignore(5)) from files that an agent or a project wrote.
//!
//! The rules come from the user's own file (`core.excludesFile`), from `info/exclude` of the repository, and from the
//! `.gitignore` files from the top of the working tree down to the directory of an entry. Each of these files overrides
//! the files before it. An ignore file above the top of the working tree has no effect.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::directory::{Directory, ReadError};

/// The name of git's ignore files.
pub const IGNORE_FILE: &str = ".gitignore";

/// The path of a repository's own ignore file in its git directory.
const EXCLUDE_FILE: &str = "info/exclude";

/// The maximum size of an ignore file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The maximum number of patterns in one ignore file, and of all patterns that apply to one directory. With the longest
/// patterns, they need about 100 MiB of memory.
const MAX_PATTERNS: usize = 2_000;

/// The maximum number of patterns of all ignore files of a walk. Compiling so many patterns takes a few seconds.
/// Without this bound, a directory with many ignore files would take hours.
const MAX_PATTERNS_OF_WALK: usize = 200_000;

/// The maximum length of a pattern in bytes, which is the maximum length of a path.
const MAX_PATTERN: usize = 4_096;

/// The maximum number of files that [`IgnoreRules::not_read`] names.
const MAX_NAMED: usize = 20;

/// The files from which the rules for the entries of a directory come.
#[derive(Debug, Clone, Copy)]
pub struct RuleSources<'a> {
    /// The top of the repository's working tree. Outside of a repository, the directory itself.
    pub top: &'a Directory,
    /// The path of the directory below the top.
    pub below: &'a Path,
    /// The git directory with the repository's `info/exclude`, if there is one.
    pub git_directory: Option<&'a Directory>,
    /// The user's own ignore file, which the user's own configuration names. Links in its path are followed.
    pub user: Option<&'a Path>,
}

/// Why ignore rules are unknown.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// A file cannot be read, or is too long.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// A file has too many patterns, or its patterns are too long or need too much memory.
    #[error("{} has more or longer patterns than are read from an ignore file", .0.display())]
    TooManyPatterns(PathBuf),
}

/// The rules for the entries of a directory. [`Self::enter`] adds the rules of a directory below this directory, and
/// [`Self::leave`] removes them again.
#[derive(Debug, Default)]
pub struct IgnoreRules {
    /// The path of the directory below the top.
    below: PathBuf,
    /// The rules. Each file overrides the files before it.
    files: Vec<Rules>,
    patterns: usize,
    /// The number of patterns that were read, including those that [`Self::leave`] has removed.
    patterns_read: usize,
    not_read: Vec<PathBuf>,
}

/// The rules of one file.
#[derive(Debug)]
struct Rules {
    /// The directory to which the patterns are relative. Its path is relative to the top.
    base: PathBuf,
    patterns: usize,
    globs: Gitignore,
}

impl IgnoreRules {
    /// Reads the rules that apply to the entries of a directory, except the rules of the directory's own `.gitignore`.
    ///
    /// # Errors
    /// Returns [`RuleError`]. A file has no rules if it is missing, a link or not a regular file, as in git.
    pub fn of(sources: &RuleSources<'_>) -> Result<Self, RuleError> {
        let mut rules = Self { below: sources.below.to_owned(), ..Self::default() };
        if let Some(path) = sources.user {
            let bytes = read_users(path)?;
            rules.add(PathBuf::new(), path, &bytes)?;
        }
        if let Some(git_directory) = sources.git_directory {
            rules.add_file(PathBuf::new(), git_directory, Path::new(EXCLUDE_FILE))?;
        }
        let mut base = PathBuf::new();
        for name in sources.below {
            rules.add_file(base.clone(), sources.top, &base.join(IGNORE_FILE))?;
            base.push(name);
        }
        Ok(rules)
    }

    /// Adds the rules of a directory's `.gitignore`. `path` is relative to the directory of these rules. Returns a
    /// mark, which the caller passes to [`Self::leave`].
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::of`].
    pub fn enter(&mut self, directory: &Directory, path: &Path) -> Result<usize, RuleError> {
        let mark = self.files.len();
        self.add_file(self.below.join(path), directory, Path::new(IGNORE_FILE))?;
        Ok(mark)
    }

    /// Removes the rules that were added after `mark` was returned.
    pub fn leave(&mut self, mark: usize) {
        for removed in self.files.drain(mark.min(self.files.len())..) {
            self.patterns -= removed.patterns;
        }
    }

    /// Whether the rules ignore an entry. `path` is relative to the directory of these rules. The directories above the
    /// entry are not checked. The caller has to check them first, because everything below an ignored directory is
    /// ignored too.
    #[must_use]
    pub fn ignores(&self, path: &Path, is_directory: bool) -> bool {
        if self.files.is_empty() {
            return false;
        }
        let path = self.below.join(path);
        // The last matching pattern of the last file with a match decides.
        let decides = |rules: &Rules| decision(&rules.base, &rules.globs, &path, is_directory);
        self.files.iter().rev().find_map(decides).unwrap_or(false)
    }

    /// Returns the first files that have the name of an ignore file, but whose rules do not apply because they are
    /// links or not regular files.
    #[must_use]
    pub fn not_read(&self) -> &[PathBuf] {
        &self.not_read
    }

    fn add_file(&mut self, base: PathBuf, directory: &Directory, file: &Path) -> Result<(), RuleError> {
        match directory.read(file, MAX_BYTES) {
            Ok(Some(bytes)) => self.add(base, &directory.path().join(file), &bytes),
            Ok(None) => Ok(()),
            Err(ReadError::NotRegular(path)) => {
                if self.not_read.len() < MAX_NAMED {
                    self.not_read.push(path);
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Adds the rules in the content `bytes` of a file. `path` is only used in messages.
    fn add(&mut self, base: PathBuf, path: &Path, bytes: &[u8]) -> Result<(), RuleError> {
        let most = (MAX_PATTERNS - self.patterns).min(MAX_PATTERNS_OF_WALK - self.patterns_read);
        let compiled = compile(bytes, most).ok_or_else(|| RuleError::TooManyPatterns(path.to_owned()))?;
        if let Some((globs, patterns)) = compiled {
            self.patterns += patterns;
            self.patterns_read += patterns;
            self.files.push(Rules { base, patterns, globs });
        }
        Ok(())
    }
}

/// Compiles and counts the patterns of an ignore file, at most `most`. Returns `Some(None)` if the file has no
/// patterns, and `None` if the patterns are too many or too long.
fn compile(bytes: &[u8], most: usize) -> Option<Option<(Gitignore, usize)>> {
    let text = String::from_utf8_lossy(bytes);
    let mut builder = GitignoreBuilder::new("");
    let mut patterns = 0;
    for line in text.trim_start_matches('\u{feff}').lines() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        patterns += 1;
        if line.len() > MAX_PATTERN || patterns > most {
            return None;
        }
        // A line that is not a valid pattern matches nothing.
        let _ = builder.add_line(None, line);
    }
    if patterns == 0 {
        return Some(None);
    }
    Some(Some((builder.build().ok()?, patterns)))
}

/// Returns whether the rules of a file ignore a path, which is relative to the top. `None` if no rule matches the path.
fn decision(base: &Path, globs: &Gitignore, path: &Path, is_directory: bool) -> Option<bool> {
    match globs.matched(path.strip_prefix(base).ok()?, is_directory) {
        Match::Ignore(_) => Some(true),
        Match::Whitelist(_) => Some(false),
        Match::None => None,
    }
}

/// The text of an ignore file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleText {
    /// The directory to which the patterns are relative. Its path is relative to the top of the working tree.
    pub base: PathBuf,
    /// The content of the ignore file.
    pub text: Vec<u8>,
}

impl RuleText {
    /// Reads the texts of the ignore files for the entries of a directory, in the same order as [`IgnoreRules::of`].
    ///
    /// # Errors
    /// Fails if a file cannot be read or is too long.
    pub(crate) fn of(sources: &RuleSources<'_>) -> Result<Vec<Self>, ReadError> {
        let mut texts = Vec::new();
        let mut add = |base: &Path, text: Option<Vec<u8>>| {
            texts.extend(
                text.filter(|text| !text.is_empty()).map(|text| Self { base: base.to_owned(), text }),
            );
        };
        add(Path::new(""), sources.user.map(read_users).transpose()?);
        if let Some(git_directory) = sources.git_directory {
            add(Path::new(""), read_rules(git_directory, Path::new(EXCLUDE_FILE))?);
        }
        let mut base = PathBuf::new();
        for name in sources.below {
            add(&base, read_rules(sources.top, &base.join(IGNORE_FILE))?);
            base.push(name);
        }
        Ok(texts)
    }
}

/// Reads an ignore file. A file has no rules if it is missing, a link or not a regular file, as in git.
pub(crate) fn read_rules(directory: &Directory, file: &Path) -> Result<Option<Vec<u8>>, ReadError> {
    match directory.read(file, MAX_BYTES) {
        Err(ReadError::NotRegular(_)) => Ok(None),
        read => read,
    }
}

/// The rules that applied to a working tree at an earlier time, compiled from the recorded texts of their files.
#[derive(Debug, Default)]
pub struct RecordedRules {
    /// The path of the directory below the top.
    below: PathBuf,
    /// The rules of files outside of the working tree and of the file at its top. Each file overrides the files before
    /// it.
    everywhere: Vec<Gitignore>,
    by_directory: HashMap<PathBuf, Gitignore>,
}

impl RecordedRules {
    /// Compiles the rules for the entries of the directory `below`. Later texts override earlier texts.
    ///
    /// # Errors
    /// Fails if there are too many patterns.
    pub fn new<'a>(
        below: &Path,
        texts: impl IntoIterator<Item = (&'a Path, &'a [u8])>,
    ) -> Result<Self, RuleError> {
        let mut rules = Self { below: below.to_owned(), ..Self::default() };
        let mut left = MAX_PATTERNS_OF_WALK;
        for (base, text) in texts {
            let too_many = || RuleError::TooManyPatterns(base.join(IGNORE_FILE));
            let Some((globs, patterns)) = compile(text, left.min(MAX_PATTERNS)).ok_or_else(too_many)? else {
                continue;
            };
            left -= patterns;
            if base.as_os_str().is_empty() {
                rules.everywhere.push(globs);
            } else {
                rules.by_directory.insert(base.to_owned(), globs);
            }
        }
        Ok(rules)
    }

    /// Whether the rules ignore an entry, as in [`IgnoreRules::ignores`].
    #[must_use]
    pub fn ignores(&self, path: &Path, is_directory: bool) -> bool {
        let path = self.below.join(path);
        let nearest = path.ancestors().skip(1).filter_map(|base| Some((base, self.by_directory.get(base)?)));
        let everywhere = self.everywhere.iter().rev().map(|globs| (Path::new(""), globs));
        let mut all = nearest.chain(everywhere);
        all.find_map(|(base, globs)| decision(base, globs, &path, is_directory)).unwrap_or(false)
    }
}

/// Reads a file that the user's own configuration names. If the file is missing, or is a device such as `/dev/null`,
/// the result is empty. Links in the path are followed.
///
/// # Errors
/// Returns [`ReadError`], also if the file has more than 1 MiB.
pub fn read_users(path: &Path) -> Result<Vec<u8>, ReadError> {
    let failed = |error| ReadError::System { path: path.to_owned(), error };
    match path.metadata() {
        Ok(found) if found.is_file() => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => return Ok(Vec::new()),
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ReadError::TooLong { path: path.to_owned(), most: MAX_BYTES });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a repository at `here/top`, with an ignore file in the directory above.
    fn repository() -> tempfile::TempDir {
        let here = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| std::fs::write(here.path().join(path), text).expect("written");
        std::fs::create_dir_all(here.path().join("top/.git/info")).expect("made");
        std::fs::create_dir_all(here.path().join("top/sub/deep")).expect("made");
        write(".gitignore", "above\n");
        write("user", "mine\n*.swp\n");
        write("top/.git/info/exclude", "private\n!mine\n");
        write("top/.gitignore", "\u{feff}/target/\n*.log\n!keep.log\n/sub/one\n[\n# comment\n");
        write("top/sub/.gitignore", "!own.log\n/here\n");
        write("top/sub/deep/.gitignore", "!*.swp\n");
        here
    }

    fn rules(top: &Path, below: &str, user: Option<&Path>) -> Result<IgnoreRules, RuleError> {
        let top = Directory::open(top).expect("opened");
        let git_directory = top.directory(Path::new(".git")).expect("opened");
        let (below, git_directory) = (Path::new(below), git_directory.as_ref());
        IgnoreRules::of(&RuleSources { top: &top, below, git_directory, user })
    }

    #[test]
    fn the_strongest_file_decides_and_none_above_the_top_counts() {
        let here = repository();
        let top = here.path().join("top");
        let mut rules = rules(&top, "sub", Some(&here.path().join("user"))).expect("read");
        let sub = Directory::open(&top.join("sub")).expect("opened");
        rules.enter(&sub, Path::new("")).expect("read");
        let mark = rules
            .enter(&sub.directory(Path::new("deep")).expect("opened").expect("there"), Path::new("deep"));
        for (path, is_directory, ignored) in [
            ("a.log", false, true),
            ("keep.log", false, false),
            ("own.log", false, false),
            ("deep/x.log", false, true),
            ("one", false, true),
            ("here", false, true),
            ("deep/here", false, false),
            ("private", false, true),
            ("mine", false, false),
            ("above", false, false),
            ("x.swp", false, true),
            ("deep/x.swp", false, false),
            // The pattern is relative to the top.
            ("target", true, false),
        ] {
            assert_eq!(rules.ignores(Path::new(path), is_directory), ignored, "{path}");
        }
        rules.leave(mark.expect("read"));
        assert!(rules.ignores(Path::new("deep/x.swp"), false));
        assert!(rules.not_read().is_empty());
    }

    #[test]
    fn a_pattern_for_directories_matches_no_file() {
        let here = repository();
        let top = Directory::open(&here.path().join("top")).expect("opened");
        let mut rules = rules(top.path(), "", None).expect("read");
        rules.enter(&top, Path::new("")).expect("read");
        assert!(rules.ignores(Path::new("target"), true));
        assert!(!rules.ignores(Path::new("target"), false));
    }

    #[test]
    fn links_and_pipes_have_no_rules() {
        let here = repository();
        let top = here.path().join("top");
        for path in [".gitignore", ".git/info/exclude", "sub/.gitignore"] {
            std::fs::remove_file(top.join(path)).expect("removed");
        }
        symlink("/dev/zero", top.join(".gitignore")).expect("link");
        symlink("../../../user", top.join(".git/info/exclude")).expect("link");
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, top.join("sub/.gitignore"), pipe, rustix::fs::Mode::RWXU, 0)
            .expect("a named pipe");
        let mut rules = rules(&top, "sub", None).expect("read");
        rules.enter(&Directory::open(&top.join("sub")).expect("opened"), Path::new("")).expect("read");
        assert!(!rules.ignores(Path::new("mine"), false));
        assert_eq!(rules.not_read().len(), 3, "{:?}", rules.not_read());
    }

    #[test]
    fn a_file_beyond_the_bounds_is_an_error() {
        let here = repository();
        let top = here.path().join("top");
        let of = |text: String| {
            std::fs::write(top.join(".gitignore"), text).expect("written");
            rules(&top, "sub", None).map(drop)
        };
        assert!(matches!(
            of("#".repeat(1 + (1 << 20))),
            Err(RuleError::Unreadable(ReadError::TooLong { .. }))
        ));
        assert!(matches!(of("a".repeat(MAX_PATTERN + 1)), Err(RuleError::TooManyPatterns(_))));
        assert!(matches!(of("a\n".repeat(MAX_PATTERNS + 1)), Err(RuleError::TooManyPatterns(_))));
        // Comments and blank lines do not count as patterns.
        of("#\n\n".repeat(MAX_PATTERNS) + &"a\n".repeat(MAX_PATTERNS - 10)).expect("within the bounds");
    }

    /// Compiling patterns takes time even if the walk has already left their directories, so these patterns count too.
    #[test]
    fn the_patterns_of_a_walk_have_a_bound() {
        let top = tempfile::tempdir().expect("a directory");
        std::fs::write(top.path().join(IGNORE_FILE), "a\n".repeat(MAX_PATTERNS)).expect("written");
        let directory = Directory::open(top.path()).expect("opened");
        let mut rules = IgnoreRules::default();
        for _ in 0..MAX_PATTERNS_OF_WALK / MAX_PATTERNS {
            let mark = rules.enter(&directory, Path::new("")).expect("within the bound");
            rules.leave(mark);
        }
        let refused = rules.enter(&directory, Path::new(""));
        assert!(matches!(refused, Err(RuleError::TooManyPatterns(_))), "{refused:?}");
    }
}
