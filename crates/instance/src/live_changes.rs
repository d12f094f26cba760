//! With `--cwd=live`, a directory of the user is the bottle's workspace. This module lists the agent's changes in this
//! directory that have an effect outside of the bottle: files that programs on the host run or obey, nested
//! repositories, set-id programs, pipes, sockets, and links to paths outside of the directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use bottle_host::directory_walk::{Bounds, Entry, MAX_DEPTH, Next, walk};
use bottle_plan::LiveDirectory;
use bottle_repository::nested::is_git_directory;
use jiff::Timestamp;
use rustix::fs::{FileType, Mode};
use serde::{Deserialize, Serialize};

use super::live_directory::{GIT_DIR, is_repository_moved};
use super::live_tree::{LiveTree, is_users_repository};
use super::tool_files::tool_files;

/// The bounds of the search. The search has bounds because the user waits for it at the start and at the end of a
/// bottle.
pub const BOUNDS: Bounds = Bounds { entries: 2_000_000, time: Duration::from_secs(10) };

/// The maximum number of files that are listed. Further files are only counted.
const MAX_NAMED: usize = 100;

/// The mode bits that make a program run with the rights of the file's owner or group.
const SET_ID: Mode = Mode::SUID.union(Mode::SGID);

/// The changes that an agent made in the directory and that have an effect outside of the bottle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveChanges {
    /// The user's directory.
    #[serde(rename = "folder")]
    pub directory: PathBuf,
    /// The files, relative to the directory, in the order of their paths.
    pub files: Vec<LiveFile>,
    /// The number of changed files that `files` does not contain.
    pub more: usize,
    /// Why some changes may be missing in `files`, as a sentence fragment. `None` if the search was complete.
    pub unknown: Option<String>,
    /// Whether the user's `.git`, which the agent does not see, was moved or replaced while the bottle ran. The agent
    /// may have changed the new `.git`.
    pub repository_moved: bool,
}

/// A file that an agent changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveFile {
    /// The path, relative to the directory.
    pub path: PathBuf,
    /// The effect of the change.
    pub why: String,
}

/// What is known about the directory before the agent changed it.
#[derive(Debug)]
pub enum Before {
    /// The directory's entries when the agent started.
    Tree(LiveTree),
    /// Only the time at which the agent started. The files in a renamed directory are not newer than this time, so only
    /// the directory's own change time shows the rename.
    Time(Timestamp),
}

impl Before {
    /// Whether an entry is new or has changed since the agent started. An agent can set neither inode nor change time.
    fn is_changed(&self, entry: &Entry<'_>, stat: &rustix::fs::Stat) -> bool {
        match self {
            Self::Tree(tree) => !tree.has(entry, stat),
            Self::Time(since) => is_newer(stat, *since),
        }
    }
}

/// Searches the directory for entries that differ from `before`.
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn find(live: &LiveDirectory, before: &Before) -> io::Result<LiveChanges> {
    let mut found: BTreeMap<PathBuf, &'static str> = BTreeMap::new();
    let mut more = 0;
    let walked = walk(&live.path, BOUNDS, &mut |entry| {
        if is_users_repository(live, entry.path) {
            return Next::Skip;
        }
        if let Some((path, why)) = effect(entry, before) {
            if found.len() < MAX_NAMED || found.contains_key(&path) {
                found.entry(path).or_insert(why);
            } else {
                more += 1;
            }
        }
        Next::Enter
    })?;
    let unreadable = walked.unreadable.first().map(|path| format!("cannot read {}", path.display()));
    let files = found.into_iter().map(|(path, why)| LiveFile { path, why: why.to_owned() });
    Ok(LiveChanges {
        directory: live.path.clone(),
        files: files.collect(),
        more,
        unknown: walked.bound.map(|bound| bound.to_string()).or(unreadable),
        repository_moved: is_repository_moved(live),
    })
}

/// Returns the path and the effect of an entry that differs from `before`. `None` if the entry does not differ or has
/// no effect.
fn effect(entry: &Entry<'_>, before: &Before) -> Option<(PathBuf, &'static str)> {
    let repository = repository(entry);
    let used = || tool_files([entry.path]).next().map(|(_, why)| why);
    let is_deepest = || entry.path.components().count() == MAX_DEPTH;
    if entry.kind == FileType::Directory && repository.is_none() && used().is_none() && !is_deepest() {
        return None;
    }
    let stat = entry.stat()?;
    if !before.is_changed(entry, &stat) {
        return None;
    }
    if let Some(path) = repository {
        return Some((path, "git runs its hooks and programs"));
    }
    let why = match entry.kind {
        FileType::Directory if is_deepest() => Some("it is too deep to be checked"),
        // If `before` is a tree, the files of a renamed directory are reported, because each of them is at a new path.
        // If `before` is a time, only the directory itself has a newer change time.
        FileType::Directory if matches!(before, Before::Tree(_)) => None,
        FileType::Fifo => Some("a pipe: programs that read it wait"),
        FileType::Socket => Some("a socket, which programs may connect to"),
        FileType::RegularFile if Mode::from_raw_mode(stat.st_mode).intersects(SET_ID) => {
            Some("it runs with the rights of its owner or group")
        }
        FileType::Symlink if leaves(entry) => Some("a link out of the directory"),
        _ => used(),
    };
    Some((entry.path.to_owned(), why?))
}

/// The entries of a bare repository that decide what git does in it.
const OF_BARE: [&str; 7] = ["HEAD", "config", "config.worktree", "commondir", "objects", "refs", "hooks"];

/// Returns the path of the repository to which an entry belongs: a directory or file `.git`, or the directory of a bare
/// repository that contains the entry.
fn repository(entry: &Entry<'_>) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for component in entry.path.components() {
        path.push(component);
        if component.as_os_str().eq_ignore_ascii_case(GIT_DIR) {
            return Some(path);
        }
    }
    let is_of_bare = OF_BARE.iter().any(|name| entry.name().eq_ignore_ascii_case(name));
    if is_of_bare && is_git_directory(|name| entry.is_beside(name)) {
        entry.path.parent().map(Path::to_owned)
    } else {
        None
    }
}

/// Whether the target of a symlink is outside of the directory. Only the text of the target is checked.
fn leaves(entry: &Entry<'_>) -> bool {
    let Some(target) = entry.target() else { return false };
    let mut depth = entry.path.components().count().saturating_sub(1);
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    false
}

fn is_newer(stat: &rustix::fs::Stat, since: Timestamp) -> bool {
    let seconds = i128::from(stat.st_ctime);
    seconds * 1_000_000_000 + i128::from(stat.st_ctime_nsec) > since.as_nanosecond()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn names_what_changed_and_has_an_effect_on_the_host() {
        let directory = tempfile::tempdir().expect("directory");
        let path = |path: &str| directory.path().join(path);
        let write = |name: &str| {
            fs::create_dir_all(path(name).parent().expect("a parent")).expect("directory");
            fs::write(path(name), "x").expect("file");
        };
        [
            ".git/config",
            "src/main.c",
            "vendor/a/.git",
            "tools/.git/config",
            ".vscode/tasks.json",
            "sub/.envrc",
        ]
        .into_iter()
        .for_each(write);
        ["bare/HEAD", "bare/objects/x", "bare/refs/x", "HEAD"].into_iter().for_each(write);
        fs::create_dir_all(path("empty/.git")).expect("directory");
        write("run");
        fs::set_permissions(path("run"), fs::Permissions::from_mode(0o4755)).expect("mode");
        symlink("../../etc/passwd", path("src/out")).expect("link");
        symlink("../run", path("src/in")).expect("link");
        symlink("/etc/passwd", path("absolute")).expect("link");
        let live = LiveDirectory {
            path: directory.path().to_owned(),
            device: 0,
            inode: 0,
            uid: 0,
            gid: 0,
            repository: Some(0),
        };
        let names = |since: Timestamp, repository: Option<u64>| {
            let live = LiveDirectory { repository, ..live.clone() };
            let found = find(&live, &Before::Time(since)).expect("searched");
            assert_eq!((found.more, &found.unknown), (0, &None));
            let files = found.files.into_iter().map(|file| file.path.display().to_string());
            files.collect::<Vec<_>>()
        };
        let expected = [
            ".vscode",
            ".vscode/tasks.json",
            "absolute",
            "bare",
            "empty/.git",
            "run",
            "src/out",
            "sub/.envrc",
            "tools/.git",
            "vendor/a/.git",
        ];
        assert_eq!(names(Timestamp::MIN, Some(0)), expected);
        assert_eq!(names(Timestamp::MIN, None)[0], ".git", "a repository that the agent made");
        assert_eq!(names(Timestamp::MAX, Some(0)), [""; 0]);
    }

    fn live(path: &Path) -> LiveDirectory {
        LiveDirectory { path: path.to_owned(), device: 0, inode: 0, uid: 0, gid: 0, repository: None }
    }

    /// Returns the changes that `agent` makes in a directory that `prepare` has filled.
    fn changes(prepare: impl Fn(&Path), agent: impl Fn(&Path)) -> Vec<String> {
        let top = tempfile::tempdir().expect("directory");
        prepare(top.path());
        let live = live(top.path());
        let tree = LiveTree::of(&live, BOUNDS).expect("read").expect("small");
        agent(top.path());
        let found = find(&live, &Before::Tree(tree)).expect("searched");
        assert_eq!((found.more, &found.unknown), (0, &None));
        found.files.into_iter().map(|file| file.path.display().to_string()).collect()
    }

    fn file(path: &Path) {
        fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
        fs::write(path, "x").expect("file");
    }

    #[test]
    fn names_nothing_that_was_there_before() {
        let found = changes(
            |top| {
                [".vscode/tasks.json", "a/.envrc", "a/.git/config"]
                    .iter()
                    .for_each(|path| file(&top.join(path)))
            },
            |top| {
                file(&top.join("a/new.c"));
                fs::remove_file(top.join("a/new.c")).expect("removed");
            },
        );
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn names_the_files_of_a_renamed_directory() {
        let found = changes(
            |top| {
                ["tmpl/tasks.json", "pkg/.idea/run.xml", "keep/.envrc"]
                    .iter()
                    .for_each(|path| file(&top.join(path)))
            },
            |top| {
                for (from, to) in [("tmpl", ".vscode"), ("pkg", "other")] {
                    fs::rename(top.join(from), top.join(to)).expect("renamed");
                }
            },
        );
        assert_eq!(found, [".vscode/tasks.json", "other/.idea/run.xml"]);
    }

    /// Git on the host obeys a bare repository in the project. The agent can change such a repository, or can turn
    /// another directory into one.
    #[test]
    fn names_a_bare_repository_whose_head_was_there_before() {
        let found = changes(
            |top| {
                [
                    "old/HEAD",
                    "old/objects/x",
                    "old/refs/x",
                    "half/HEAD",
                    "half/refs/x",
                    "linked/HEAD",
                    "no/HEAD",
                ]
                .iter()
                .for_each(|path| file(&top.join(path)))
            },
            |top| {
                ["old/config", "half/objects/x", "linked/commondir", "no/config", "old/refs/y"]
                    .iter()
                    .for_each(|path| file(&top.join(path)))
            },
        );
        assert_eq!(found, ["half", "linked", "old"]);
    }

    #[test]
    fn names_a_tool_directory_that_is_renamed_if_only_the_time_is_known() {
        let top = tempfile::tempdir().expect("directory");
        file(&top.path().join("tmpl/tasks.json"));
        std::thread::sleep(Duration::from_millis(30));
        let since = Timestamp::now();
        std::thread::sleep(Duration::from_millis(30));
        fs::rename(top.path().join("tmpl"), top.path().join(".vscode")).expect("renamed");
        let found = find(&live(top.path()), &Before::Time(since)).expect("searched");
        let files: Vec<_> = found.files.iter().map(|file| file.path.as_path()).collect();
        // Not every file system changes the times of a renamed entry.
        assert!(files.is_empty() || files == [Path::new(".vscode")], "{files:?}");
    }

    #[test]
    fn names_what_is_deep_and_what_is_no_file() {
        let deep: PathBuf = std::iter::repeat_n("d", MAX_DEPTH + 2).collect();
        let found = changes(
            |top| file(&top.join("z")),
            |top| {
                file(&top.join(&deep).join(".envrc"));
                drop(std::os::unix::net::UnixListener::bind(top.join("s")).expect("socket"));
                let made = std::process::Command::new("mkfifo").arg(top.join("p")).status().expect("mkfifo");
                assert!(made.success());
                fs::rename(top.join("z"), top.join(".envrc")).expect("renamed");
            },
        );
        let deepest: PathBuf = std::iter::repeat_n("d", MAX_DEPTH).collect();
        assert_eq!(found, [".envrc", &deepest.display().to_string(), "p", "s"]);
    }
}
