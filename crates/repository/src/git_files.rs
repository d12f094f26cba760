//! The files of a git directory that a copy of its working tree gets as its `.git`, if the git directory is outside of
//! the working tree.
//!
//! Only files of git are copied (gitrepository-layout(5)), and those of Git LFS and git-annex, without which the files
//! of the working tree are incomplete. Whatever else lies there stays, such as the keys of git-crypt, and so do locks,
//! sockets, and what belongs to other worktrees. The copy has no path of this machine: `core.worktree` is left out.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::config::Config;
use crate::directory::{Directory, ReadError};
use crate::locate::{Located, MAX_CONFIG};
use crate::walk::{Entry, Stop, Walk, WalkError};

/// The directories of a git directory that are copied.
const DIRECTORIES: [&str; 17] = [
    OBJECTS,
    "annex",
    "branches",
    "common",
    "hooks",
    "info",
    "lfs",
    "logs",
    "modules",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "reftable",
    "remotes",
    "rr-cache",
    "sequencer",
    "svn",
];

/// The files of a git directory that are copied, besides references and messages, whose names are in capitals.
const FILES: [&str; 7] =
    ["HEAD", "config", "config.worktree", "description", "index", "packed-refs", "shallow"];

/// The directory of the objects.
const OBJECTS: &str = "objects";

/// The parts of a repository's git directory that belong to its own working tree, and not to linked ones
/// (git-worktree(1), "REFS" and "DETAILS").
const OF_MAIN_TREE: [&str; 11] = [
    "config.worktree",
    "index",
    "info/sparse-checkout",
    "logs/HEAD",
    "logs/refs/bisect",
    "logs/refs/worktree",
    "rebase-apply",
    "rebase-merge",
    "refs/bisect",
    "refs/rewritten",
    "refs/worktree",
];

/// The files of a git directory that are copied. The same path comes once: a file of the worktree hides the one of its
/// repository.
pub struct GitFiles {
    /// The directories that are left, last one first.
    left: Vec<Source>,
    done: HashSet<PathBuf>,
}

/// A file, directory or link of a git directory.
#[derive(Debug)]
pub enum GitFile {
    /// It is copied as it is. Its path is relative to the git directory.
    Entry(Entry),
    /// A configuration file at this path with this content.
    Config(PathBuf, Vec<u8>),
}

/// Why a file of a git directory is not copied.
#[derive(Debug, thiserror::Error)]
pub enum GitFileError {
    /// The walk's error.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// The configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ReadError),
}

struct Source {
    directory: Directory,
    walk: Walk,
}

/// Whose files a git directory contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Those of the working tree that is copied.
    Tree,
    /// Those of the repository of which it is a linked worktree.
    Common,
}

impl GitFiles {
    /// Walks the files of a git directory. Without `with_objects`, those in `objects` are left out.
    ///
    /// # Errors
    /// When the directory cannot be opened again.
    pub fn of(located: &Located, with_objects: bool) -> io::Result<Self> {
        let source = |part, directory: &Directory| {
            let (directory, walk) = (directory.try_clone()?, Walk::content(directory.try_clone()?));
            let walk = walk.leaving_out(Box::new(move |path, kind| !is_copied(path, kind, part)));
            let walk = if with_objects { walk } else { walk.except(OBJECTS) };
            Ok::<_, io::Error>(Source { directory, walk })
        };
        let mut left = vec![source(Part::Tree, &located.git)?];
        if located.git.id()? != located.common.id()? {
            left.insert(0, source(Part::Common, &located.common)?);
        }
        Ok(Self { left, done: HashSet::new() })
    }

    /// Ends with [`WalkError::Stopped`] when `stop` is set.
    #[must_use]
    pub fn until(mut self, stop: &Stop) -> Self {
        let until = |source: Source| Source { walk: source.walk.until(stop.clone()), ..source };
        self.left = self.left.into_iter().map(until).collect();
        self
    }
}

impl Iterator for GitFiles {
    type Item = Result<GitFile, GitFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let source = self.left.last_mut()?;
            let entry = match source.walk.next() {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => return Some(Err(error.into())),
                None => {
                    let _ = self.left.pop();
                    continue;
                }
            };
            let path = entry.path();
            if self.done.insert(path.to_owned()) {
                return Some(file(&source.directory, entry));
            }
        }
    }
}

/// Whether git, LFS or git-annex needs this file, directory or link in a copy.
fn is_copied(path: &Path, kind: FileType, part: Part) -> bool {
    if !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink) {
        return false;
    }
    let Some(top) = path.iter().next().map(OsStrExt::as_bytes) else { return false };
    let is_one_of = |known: &[&str]| known.iter().any(|name| name.as_bytes() == top);
    let is_top_level = path.components().count() == 1;
    let is_gits = match (is_top_level, kind) {
        (true, FileType::Directory) => is_one_of(&DIRECTORIES),
        (true, FileType::RegularFile) => is_one_of(&FILES) || is_in_capitals(top) || is_shared_index(top),
        // The older form of `HEAD`.
        (true, _) => top == b"HEAD",
        (false, _) => is_one_of(&DIRECTORIES) && !(top == b"modules" && has_keys(path)),
    };
    let is_lock = top != OBJECTS.as_bytes() && path.extension().is_some_and(|name| name == "lock");
    let is_of_main_tree = || {
        is_top_level && is_in_capitals(top)
            || OF_MAIN_TREE.iter().any(|of| path.starts_with(of))
            || is_shared_index(top)
    };
    is_gits && !is_lock && (part == Part::Tree || !is_of_main_tree())
}

/// Whether this path in the git directory of a submodule is of git-crypt's keys.
fn has_keys(path: &Path) -> bool {
    let names: Vec<_> = path.iter().collect();
    names.windows(2).any(|pair| pair == ["git-crypt", "keys"])
}

/// Whether git can have a reference or a message of this name beside `HEAD`, such as `ORIG_HEAD` and `MERGE_MSG`.
fn is_in_capitals(name: &[u8]) -> bool {
    name.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_')
}

/// Whether this is a part of a split index.
fn is_shared_index(name: &[u8]) -> bool {
    let id = name.strip_prefix(b"sharedindex.").unwrap_or_default();
    matches!(id.len(), 40 | 64) && id.iter().all(u8::is_ascii_hexdigit)
}

/// The file as it is copied. The copy has its files beside its git directory, also if the repository has none.
fn file(directory: &Directory, entry: Entry) -> Result<GitFile, GitFileError> {
    let path = entry.path();
    if !["config", "config.worktree"].iter().any(|name| path == Path::new(name)) {
        return Ok(GitFile::Entry(entry));
    }
    let text = directory.read(path, MAX_CONFIG)?.unwrap_or_default();
    let kept = Config::parse(&text).map(|config| config.without(&text, "core", &["bare", "worktree"]));
    Ok(GitFile::Config(path.to_owned(), kept.unwrap_or(text)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode};

    use super::*;
    use crate::locate::at;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    fn write(top: &Path, path: &str, text: &str) {
        let path = top.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn copied(top: &Path, with_objects: bool) -> Vec<String> {
        let located = at(top).expect("read").expect("found");
        let shown = |file: Result<GitFile, GitFileError>| match file.expect("walked") {
            GitFile::Entry(entry) if entry.kind() == FileType::Directory => None,
            GitFile::Entry(entry) => Some(entry.path().display().to_string()),
            GitFile::Config(path, text) => {
                Some(format!("{}={}", path.display(), String::from_utf8_lossy(&text)))
            }
        };
        let mut files: Vec<_> =
            GitFiles::of(&located, with_objects).expect("opened").filter_map(shown).collect();
        files.sort();
        files
    }

    #[test]
    fn copies_files_of_git_and_nothing_else() {
        let root = tempfile::tempdir().expect("a directory");
        let top = root.path().join("top");
        let write = |path: &str| write(root.path(), path, "x");
        write("top/.git");
        fs::write(top.join(".git"), "gitdir: ../data\n").expect("written");
        let shared = format!("sharedindex.{ID}");
        let wanted = [
            "BISECT_LOG",
            "HEAD",
            "MERGE_MSG",
            "annex/objects/a",
            "description",
            "hooks/pre-commit",
            "index",
            "info/exclude",
            "lfs/objects/a",
            "logs/HEAD",
            "modules/a/b/HEAD",
            "objects/pack/a.lock",
            "packed-refs",
            "rebase-merge/git-rebase-todo",
            "refs/heads/git-crypt/worktrees",
            "refs/heads/main",
            "rr-cache/a/preimage",
            "sequencer/todo",
            shared.as_str(),
            "shallow",
        ];
        let unwanted = [
            ".ssh/id_ed25519",
            "Documents/letter",
            "config.lock",
            "fsmonitor--daemon/cookies/a",
            "git-crypt/keys/default",
            "index.lock",
            "info/x.lock",
            "key.pem",
            "modules/a/b/git-crypt/keys/default",
            "sharedindex.x",
            "worktrees/other/HEAD",
        ];
        wanted.iter().chain(&unwanted).for_each(|path| write(&format!("data/{path}")));
        fs::write(root.path().join("data/HEAD"), "ref: refs/heads/main\n").expect("written");
        let config = "[core]\n\tbare = true\n\tworktree = ../top\n[user]\n\tname = a\n";
        fs::write(root.path().join("data/config"), config).expect("written");
        // A file in the place of a directory, a directory in the place of a file, a named pipe, a link.
        write("data/remotes");
        write("data/FETCH_HEAD/x");
        rustix::fs::mknodat(CWD, root.path().join("data/refs/pipe"), FileType::Fifo, Mode::RWXU, 0)
            .expect("a pipe");
        symlink("/etc", root.path().join("data/svn")).expect("link");
        let mut expected: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        expected.push("config=[core]\n\t\n\t\n[user]\n\tname = a\n".to_owned());
        expected.sort();
        assert_eq!(copied(&top, true), expected);
        expected.retain(|path| !path.starts_with("objects"));
        assert_eq!(copied(&top, false), expected);
    }

    #[test]
    fn a_linked_worktree_has_its_own_files_and_those_of_its_repository() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        for (path, text) in [
            ("HEAD", "ref: refs/heads/main\n"),
            ("FETCH_HEAD", ""),
            ("config", "[core]\n\tbare = true\n"),
            ("config.worktree", ""),
            ("index", ""),
            ("info/exclude", ""),
            ("info/sparse-checkout", ""),
            ("logs/HEAD", ""),
            ("logs/refs/heads/main", ""),
            ("modules/lib/HEAD", ""),
            ("objects/pack/a.pack", ""),
            ("rebase-merge/onto", ""),
            ("refs/heads/main", ""),
            ("refs/worktree/x", ""),
            ("worktrees/one/HEAD", "ref: refs/heads/one\n"),
            ("worktrees/one/commondir", "../..\n"),
            ("worktrees/one/gitdir", "../../../one/.git\n"),
            ("worktrees/one/index", ""),
            ("worktrees/one/locked", ""),
            ("worktrees/one/logs/HEAD", ""),
            ("worktrees/one/refs/bisect/bad", ""),
            ("worktrees/two/HEAD", ""),
        ] {
            write(&format!("main.git/{path}"), text);
        }
        write("one/.git", "gitdir: ../main.git/worktrees/one\n");
        let expected = [
            "HEAD",
            "config=[core]\n\t\n",
            "index",
            "info/exclude",
            "logs/HEAD",
            "logs/refs/heads/main",
            "modules/lib/HEAD",
            "refs/bisect/bad",
            "refs/heads/main",
        ];
        assert_eq!(copied(&root.path().join("one"), false), expected);
    }
}
