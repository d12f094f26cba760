//! Finds the entries of a workspace that changed after a given time, and decides which of them git ignores by rules
//! that the agent did not write.
//!
//! The agent wrote the files, so the search follows no link. The search uses only recorded rules and the change time
//! (`ctime`), which the agent cannot set. It never uses the ignore files and the index of the workspace.
//!
//! ```text
//! an entry that no rule ignores ──► work              ignored, below a directory that tools fill ──► nothing
//! `.git`, except its index ───────► work              ignored, elsewhere ─────────────────────────► counted
//! a directory whose entries changed ──► work; a suspect, if it has ignored entries or is empty
//! ```
//! A directory is a suspect if it is unknown whether it lost a file: it may have changed only because of its ignored
//! entries. The entries that a suspect still has are counted, and the caller compares their number with the number at
//! the start.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use crate::build_output::is_build_directory;
use crate::directory::Directory;
use crate::given::GivenRules;
use crate::ignore_rules::RecordedRules;
use crate::walk::{Entry, Stop, Walk, WalkError};

/// The maximum number of ignored files whose paths are listed.
const MAX_NAMED: usize = 3;

/// The maximum number of suspect directories. If there are more, the search reports work.
const MAX_SUSPECTS: usize = 1_000;

/// The times after which changes are reported.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// The time after which changes are reported, in nanoseconds since 1970.
    pub since: i128,
    /// The time after which changes of ignored files are reported, in nanoseconds since 1970.
    pub ignored_since: i128,
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unsaved {
    /// Whether there is unsaved work.
    pub work: bool,
    /// The number of changed files that the rules ignore, without build output.
    pub ignored: u64,
    /// The paths of the first few of these files.
    pub named: Vec<PathBuf>,
    /// The suspect directories.
    pub suspects: Vec<Suspect>,
    /// Whether the search ended before it had visited all entries.
    pub unfinished: bool,
}

/// A directory that changed, but may not have lost an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// The path of the directory, relative to the searched directory.
    pub path: PathBuf,
    /// The number of files in the directory that are not ignored.
    pub files: u64,
    /// The number of its subdirectories that contain files that are not ignored, at any depth.
    pub directories: u64,
}

/// The rules of a workspace, compiled.
#[derive(Debug, Default)]
struct Rules {
    ignore: RecordedRules,
    tracked: Vec<PathBuf>,
}

/// Whether anything below a directory changed after a given time, when no rules are known for the directory. A change
/// of an empty directory is not reported, because a file that was created and removed is not work.
///
/// # Errors
/// Fails if a part of the directory cannot be read, or `stop` ended the search.
pub fn has_changes(directory: Directory, since: i128, stop: Stop) -> io::Result<bool> {
    let search = Search { since, ignored_since: since };
    let mut finder = Finder::new(search, None);
    finder.enter(PathBuf::new(), is_changed(&directory, since)?, Class::Unruled, false);
    for entry in Walk::content(directory).until(stop) {
        finder.entry(&entry?);
        if finder.found.work {
            return Ok(true);
        }
    }
    Ok(finder.end().work)
}

/// Finds the changes below a directory that was copied from a working tree with these rules.
///
/// # Errors
/// Fails if a part of the directory cannot be read. If `stop` ends the search, or if there are too many or too deep
/// entries, the function returns an unfinished result instead of an error.
pub fn find(directory: Directory, search: &Search, rules: &GivenRules, stop: Stop) -> io::Result<Unsaved> {
    let ignore = rules.compile().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let rules = Rules { ignore, tracked: rules.tracked.clone() };
    let mut finder = Finder::new(*search, Some(rules));
    finder.enter(PathBuf::new(), is_changed(&directory, search.since)?, Class::Ruled, false);
    let mut walk = Walk::content(directory).until(stop);
    while let Some(entry) = walk.next() {
        match entry {
            Ok(entry) => {
                if finder.entry(&entry) == Content::Skipped {
                    walk.skip_content();
                }
            }
            Err(WalkError::Stopped | WalkError::TooMany(_) | WalkError::TooDeep(_)) => {
                finder.found.unfinished = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(finder.end())
}

/// How the ignore rules apply to the entries of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// The rules decide for each entry.
    Ruled,
    /// All entries are ignored.
    Ignored,
    /// The entries are the files of a git directory.
    Repository,
    /// There are no rules for the directory.
    Unruled,
}

/// Whether the content of an entry is searched.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    Searched,
    Skipped,
}

/// A directory whose entries are being searched.
#[derive(Debug)]
struct Frame {
    path: PathBuf,
    class: Class,
    /// Whether this directory or a directory above it is a directory that tools fill.
    is_build: bool,
    changed: bool,
    /// Whether the search found an entry that explains the change of the directory.
    explained: bool,
    /// Whether the directory has an entry.
    has_entries: bool,
    /// Whether there are files below the directory that are not ignored.
    has_files: bool,
    files: u64,
    directories: u64,
}

struct Finder {
    search: Search,
    rules: Option<Rules>,
    frames: Vec<Frame>,
    found: Unsaved,
}

impl Finder {
    fn new(search: Search, rules: Option<Rules>) -> Self {
        Self { search, rules, frames: Vec::new(), found: Unsaved::default() }
    }

    fn enter(&mut self, path: PathBuf, changed: bool, class: Class, is_build: bool) {
        self.frames.push(Frame {
            path,
            class,
            is_build,
            changed,
            explained: false,
            has_entries: false,
            has_files: false,
            files: 0,
            directories: 0,
        });
    }

    fn entry(&mut self, entry: &Entry) -> Content {
        let path = entry.path();
        let parent = path.parent().unwrap_or(Path::new(""));
        while self.frames.last().is_some_and(|frame| frame.path != parent) {
            self.leave();
        }
        let name = path.file_name().unwrap_or_default();
        let is_directory = entry.kind() == FileType::Directory;
        let Some(frame) = self.frames.last() else { return Content::Skipped };
        let class = self.class(frame, path, name, is_directory);
        let is_build = frame.is_build || is_directory && is_build_directory(name);
        let is_output = class == Class::Ignored && is_build;
        let is_git = name == OsStr::new(".git");
        let newer = is_newer(entry.status(), self.search.since);
        // Git also rewrites the index only to record when it compared the files, so a newer index is not work. If the
        // agent stages content, new objects show this.
        let is_index = frame.class == Class::Repository
            && frame.path == Path::new(".git")
            && name == OsStr::new("index")
            && self.rules.is_some();
        let Some(frame) = self.frames.last_mut() else { return Content::Skipped };
        frame.has_entries = true;
        frame.explained |= class == Class::Ignored || is_index && newer;
        if is_directory {
            if is_output && !self.has_tracked_below(path) {
                return Content::Skipped;
            }
            self.enter(path.to_owned(), newer, class, is_build);
            return Content::Searched;
        }
        match class {
            Class::Ignored => {
                if !is_output && is_newer(entry.status(), self.search.ignored_since) {
                    self.found.ignored += 1;
                    if self.found.named.len() < MAX_NAMED {
                        self.found.named.push(path.to_owned());
                    }
                }
            }
            _ => {
                frame.files += u64::from(!is_git);
                frame.has_files |= !is_git;
                self.found.work |= newer && !is_index;
            }
        }
        Content::Searched
    }

    fn class(&self, parent: &Frame, path: &Path, name: &OsStr, is_directory: bool) -> Class {
        let tracked =
            || self.rules.as_ref().is_some_and(|rules| rules.tracked.iter().any(|file| file == path));
        match (parent.class, &self.rules) {
            (Class::Ruled, Some(_)) if is_directory && name == OsStr::new(".git") => Class::Repository,
            (Class::Ruled, Some(rules)) if rules.ignore.ignores(path, is_directory) => match tracked() {
                true => Class::Ruled,
                false => Class::Ignored,
            },
            (Class::Ignored, _) if !is_directory && tracked() => Class::Ruled,
            (class, _) => class,
        }
    }

    fn has_tracked_below(&self, directory: &Path) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.tracked.iter().any(|file| file.starts_with(directory)))
    }

    /// Returns the number of tracked files directly in an ignored directory.
    fn tracked_in(&self, directory: &Path) -> u64 {
        let tracked = self.rules.iter().flat_map(|rules| &rules.tracked);
        tracked.filter(|file| file.parent() == Some(directory)).map(|_| 1).sum()
    }

    /// Ends the search of the innermost directory.
    fn leave(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        match frame.class {
            Class::Unruled => self.found.work |= frame.changed && frame.has_entries,
            Class::Repository => self.found.work |= frame.changed && frame.has_entries && !frame.explained,
            // In an ignored directory, only the tracked files are known.
            Class::Ignored => self.found.work |= frame.changed && frame.files < self.tracked_in(&frame.path),
            Class::Ruled if !frame.changed => {}
            Class::Ruled if frame.explained || !frame.has_files => {
                if self.found.suspects.len() == MAX_SUSPECTS {
                    self.found.work = true;
                    return;
                }
                let Frame { path, files, directories, .. } = &frame;
                let (path, files, directories) = (path.clone(), *files, *directories);
                self.found.suspects.push(Suspect { path, files, directories });
            }
            Class::Ruled => self.found.work = true,
        }
        if let Some(parent) = self.frames.last_mut()
            && frame.class != Class::Repository
            && frame.has_files
        {
            parent.has_files = true;
            parent.directories += 1;
        }
    }

    fn end(mut self) -> Unsaved {
        while !self.frames.is_empty() {
            self.leave();
        }
        self.found
    }
}

/// Whether an entry with this status changed after a time, in nanoseconds since 1970.
#[must_use]
pub fn is_newer(status: &Stat, since: i128) -> bool {
    i128::from(status.st_ctime) * 1_000_000_000 + i128::from(status.st_ctime_nsec) > since
}

fn is_changed(directory: &Directory, since: i128) -> io::Result<bool> {
    Ok(directory.stat(Path::new(""))?.is_some_and(|status| is_newer(&status, since)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::ignore_rules::RuleText;

    /// Creates a workspace, and returns the time at which it was ready.
    fn workspace() -> (tempfile::TempDir, i128) {
        let top = tempfile::tempdir().expect("a directory");
        let files = [
            ".git/HEAD",
            ".git/index",
            ".git/tick",
            "README",
            "src/one",
            "src/two",
            "lone/only",
            "old/target/made",
            "dist/page.html",
            "data/kept",
        ];
        for file in files {
            fs::create_dir_all(top.path().join(file).parent().expect("a parent")).expect("made");
            fs::write(top.path().join(file), file).expect("written");
        }
        // The clock of the file system advances in ticks, and a new file could get an earlier tick than the change of
        // its directory.
        std::thread::sleep(Duration::from_millis(30));
        fs::write(top.path().join(".git/tick"), "now").expect("written");
        let status = fs::symlink_metadata(top.path().join(".git/tick")).expect("found");
        use std::os::unix::fs::MetadataExt;
        let ready = i128::from(status.ctime()) * 1_000_000_000 + i128::from(status.ctime_nsec());
        std::thread::sleep(Duration::from_millis(30));
        (top, ready)
    }

    fn rules() -> GivenRules {
        let text = b"target\ndist\n/data/\n*.log\nnode_modules/\n.env\nout/*\n!out/kept\n".to_vec();
        let texts = vec![RuleText { base: PathBuf::new(), text }];
        GivenRules { below: PathBuf::new(), texts, tracked: vec!["dist/page.html".into()] }
    }

    fn found(top: &Path, ready: i128) -> Unsaved {
        let directory = Directory::open(top).expect("opened");
        let search = Search { since: ready, ignored_since: ready };
        find(directory, &search, &rules(), Stop::default()).expect("searched")
    }

    /// The columns of a case: an agent's action, whether it is work, the number of ignored files, and the suspect
    /// directories.
    type Case = (&'static str, fn(&Path), bool, u64, &'static [(&'static str, u64, u64)]);

    fn write(top: &Path, path: &str) {
        fs::create_dir_all(top.join(path).parent().expect("a parent")).expect("made");
        fs::write(top.join(path), "new").expect("written");
    }

    #[test]
    fn tells_work_from_build_output_and_other_ignored_files() {
        let cases: &[Case] = &[
            ("nothing", |_| {}, false, 0, &[]),
            ("the top's build", |top| write(top, "target/debug/x"), false, 0, &[("", 1, 3)]),
            ("a package's", |top| write(top, "src/node_modules/x/y"), false, 0, &[("src", 2, 0)]),
            ("more in it", |top| write(top, "old/target/made"), false, 0, &[]),
            ("a new file", |top| write(top, "src/three"), true, 0, &[]),
            ("a changed file", |top| write(top, "src/two"), true, 0, &[]),
            (
                "a new file and a build",
                |top| (write(top, "x"), write(top, "target/x")).0,
                true,
                0,
                &[("", 2, 3)],
            ),
            ("an ignored file", |top| write(top, "src/a.log"), false, 1, &[("src", 2, 0)]),
            ("in an ignored directory", |top| write(top, "data/deep/x"), false, 1, &[]),
            ("a build in an ignored directory", |top| write(top, "data/node_modules/x"), false, 0, &[]),
            ("below a directory of tools", |top| write(top, "out/x"), false, 0, &[("", 1, 3), ("out", 0, 0)]),
            ("an exception from the rules", |top| write(top, "out/kept"), true, 0, &[]),
            ("a tracked file in a build", |top| write(top, "dist/page.html"), true, 0, &[]),
            ("another file beside it", |top| write(top, "dist/a.js"), false, 0, &[]),
            (
                "a tracked file that is gone",
                |top| fs::remove_file(top.join("dist/page.html")).expect("removed"),
                true,
                0,
                &[],
            ),
            ("the index", |top| write(top, ".git/index"), false, 0, &[]),
            ("a reference", |top| write(top, ".git/refs/heads/x"), true, 0, &[]),
            (
                "a file that is gone",
                |top| fs::remove_file(top.join("src/two")).expect("removed"),
                true,
                0,
                &[],
            ),
            (
                "gone beside a build",
                |top| {
                    fs::remove_file(top.join("src/two")).expect("removed");
                    write(top, "src/target/x");
                },
                false,
                0,
                &[("src", 1, 0)],
            ),
            (
                "the only file of a directory",
                |top| fs::remove_file(top.join("lone/only")).expect("removed"),
                false,
                0,
                &[("lone", 0, 0)],
            ),
            (
                "another name",
                |top| fs::rename(top.join("src"), top.join("lib")).expect("renamed"),
                true,
                0,
                &[],
            ),
            ("an empty directory", |top| fs::create_dir(top.join("lone/empty")).expect("made"), true, 0, &[]),
            (
                "rules of the agent",
                |top| {
                    write(top, "src/new.secret");
                    fs::write(top.join(".git/info-exclude"), "*").expect("written");
                },
                true,
                0,
                &[],
            ),
        ];
        for (what, act, work, ignored, suspects) in cases {
            let (top, ready) = workspace();
            act(top.path());
            let found = found(top.path(), ready);
            let mut named: Vec<(&str, u64, u64)> = found
                .suspects
                .iter()
                .map(|at| (at.path.to_str().expect("text"), at.files, at.directories))
                .collect();
            named.sort_unstable();
            if !work {
                assert_eq!(named, *suspects, "{what}");
            }
            assert_eq!((found.work, found.ignored, found.unfinished), (*work, *ignored, false), "{what}");
        }
    }

    /// If a link has the name of a build directory, the link is an entry itself, and its target is not searched.
    #[test]
    fn a_link_is_no_build_directory() {
        let (top, ready) = workspace();
        std::os::unix::fs::symlink("/", top.path().join("target")).expect("link");
        let found = found(top.path(), ready);
        assert_eq!((found.work, found.ignored, found.named), (false, 1, vec!["target".into()]));
    }

    #[test]
    fn a_search_without_time_is_unfinished() {
        let (top, ready) = workspace();
        let directory = Directory::open(top.path()).expect("opened");
        let search = Search { since: ready, ignored_since: ready };
        let stop = Stop::default();
        stop.set();
        let found = find(directory, &search, &rules(), stop).expect("searched");
        assert!(found.unfinished && !found.work, "{found:?}");
    }
}
