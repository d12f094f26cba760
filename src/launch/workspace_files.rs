//! Chooses the files of a directory that a workspace starts with, and archives them for pid 1.
//!
//! The agent of another bottle may change the directory meanwhile (`--cwd=live`), and others may have written all of it.
//! It is therefore walked through descriptors, and ignore files are read as git reads them, within bounds.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bottle_repository::ignore_rules::IGNORE_FILE;
use bottle_repository::locate::{Kind, locate};
use bottle_repository::{Directory, Entry, IgnoreRules, Index, Located, RuleSources, Stop, Walk, WalkError};

use super::git_dir::GitDir;
use crate::archive;
use crate::backend::{HostEntries, RepositoryObjects};
use crate::plan::Workspace;

/// Whether a walk includes the objects of the folder's git repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Objects {
    /// It includes them.
    Included,
    /// They are transferred separately.
    Separate,
}

/// The folder of a git repository, relative to its working tree.
pub(super) const GIT_DIR: &str = ".git";

/// The folder of a git repository's objects, relative to its working tree.
const OBJECTS: &str = ".git/objects";

/// The files of a directory that `--cwd` copies. The files of its git repository, which no ignore rule affects, are the
/// last ones.
pub(crate) struct WorkspaceFiles {
    working_tree: Walk,
    repository: Walk,
    /// Whether git would read a `.gitignore` in the directory, or above it in its repository.
    pub(crate) has_ignore_file: bool,
}

impl WorkspaceFiles {
    /// Chooses the files of `folder`. If `everything` is false, skips the files that git ignores.
    ///
    /// # Errors
    /// When the directory or the ignore rules for it cannot be read.
    pub(crate) fn of(
        folder: &Path,
        everything: bool,
        objects: Objects,
        stop: &Stop,
    ) -> Result<Self, WalkError> {
        let repository = repository_files(folder, objects, stop)?;
        let walk = Walk::content(open(folder)?).except(GIT_DIR).until(stop.clone());
        if everything {
            return Ok(Self { working_tree: walk, repository, has_ignore_file: true });
        }
        let place = Place::of(folder)?;
        let has_ignore_file = place.has_ignore_file();
        Ok(Self { working_tree: place.without_ignored(walk)?, repository, has_ignore_file })
    }

    /// The ignore files so far whose rules do not apply, because they are links or not regular.
    pub(crate) fn ignore_files_not_read(&self) -> &[PathBuf] {
        self.working_tree.ignore_files_not_read()
    }
}

impl Iterator for WorkspaceFiles {
    type Item = Result<Entry, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.working_tree.next().or_else(|| self.repository.next())
    }
}

/// Where a directory is in its repository.
struct Place {
    /// The top of the working tree; outside of a repository, the directory.
    top: Directory,
    /// The path of the directory below the top.
    below: PathBuf,
    /// The repository, if it belongs to the working tree.
    repository: Option<Located>,
}

impl Place {
    fn of(folder: &Path) -> Result<Self, WalkError> {
        let real = folder.canonicalize().map_err(|error| unreadable(folder, error))?;
        // A repository that git would not use either has no rules.
        let found = locate(&real).ok().flatten().filter(|found| found.kind != Kind::Bare);
        if let Some(found) = found
            && let Ok(below) = real.strip_prefix(found.top.path())
        {
            let (top, below) = (found.top.try_clone(), below.to_owned());
            let top = top.map_err(|error| unreadable(folder, error))?;
            return Ok(Self { top, below, repository: found.is_proven().then_some(found) });
        }
        Ok(Self { top: open(&real)?, below: PathBuf::new(), repository: None })
    }

    /// The walk of the directory's content without the files that git ignores. The files that it tracks are never
    /// ignored.
    fn without_ignored(self, walk: Walk) -> Result<Walk, WalkError> {
        let Self { top, below, repository } = self;
        let git_directory = repository.as_ref().map(|found| &found.common);
        let rules = IgnoreRules::of(&RuleSources { top: &top, below: &below, git_directory, user: None })?;
        let walk = walk.with_rules(rules);
        // In an index that cannot be read, no file is tracked.
        let Some(index) = repository.and_then(|found| Index::read(&found.git).ok()) else { return Ok(walk) };
        Ok(walk.keeping(Box::new(move |path, kind| index.tracks(&below.join(path), kind))))
    }

    fn has_ignore_file(&self) -> bool {
        let has_file = |at: &Path| matches!(self.top.stat(&at.join(IGNORE_FILE)), Ok(Some(_)));
        self.below.ancestors().any(has_file)
    }
}

/// Walks the files of the git repository in `folder`, if there is one.
fn repository_files(folder: &Path, objects: Objects, stop: &Stop) -> Result<Walk, WalkError> {
    let walk = Walk::entry(open(folder)?, GIT_DIR.as_ref()).until(stop.clone());
    Ok(if objects == Objects::Separate { walk.except(OBJECTS) } else { walk })
}

fn open(folder: &Path) -> Result<Directory, WalkError> {
    Directory::open(folder).map_err(|error| unreadable(folder, error))
}

fn unreadable(path: &Path, error: io::Error) -> WalkError {
    WalkError::System { path: path.to_owned(), error }
}

/// The files of a directory that are a workspace's initial content.
pub(super) struct InitialFiles {
    /// The files, without a git directory that is not the directory `.git`.
    pub(super) entries: HostEntries,
    /// Such a git directory, which becomes an ordinary one.
    pub(super) git_dir: Option<Arc<GitDir>>,
}

impl InitialFiles {
    /// Chooses the files of `folder`. The directory is walked only when they are needed, until `stop` is set.
    ///
    /// # Errors
    /// When the directory or the ignore rules for it cannot be read.
    pub(super) fn of(
        folder: &Path,
        content: Workspace,
        objects: Objects,
        git_dir: Option<&Arc<GitDir>>,
        stop: &Stop,
    ) -> io::Result<Self> {
        type Entries = Box<dyn Iterator<Item = Result<Entry, WalkError>> + Send>;
        let entries: Entries = match content {
            Workspace::Repository => Box::new(repository_files(folder, objects, stop)?),
            Workspace::Files => Box::new(Walk::content(open(folder)?).except(GIT_DIR).until(stop.clone())),
            _ => Box::new(WorkspaceFiles::of(folder, content == Workspace::CopyAll, objects, stop)?),
        };
        let git_dir = git_dir.filter(|git_dir| git_dir.is_linked() && content != Workspace::Files).cloned();
        let is_linked = git_dir.is_some();
        let entries = entries.filter(move |entry| match entry {
            Ok(entry) => !(is_linked && entry.path() == Path::new(GIT_DIR)),
            Err(_) => true,
        });
        Ok(Self { entries: Box::new(entries.map(|entry| Ok(entry?))), git_dir })
    }
}

/// Archives the files of `folder` that are the workspace's initial content, until `stop` is set.
pub(super) fn archive_folder(
    folder: &Path,
    content: Workspace,
    objects: Objects,
    git_dir: Option<&Arc<GitDir>>,
    stop: &Stop,
    out: &mut dyn Write,
) -> io::Result<()> {
    let InitialFiles { entries, git_dir } = InitialFiles::of(folder, content, objects, git_dir, stop)?;
    let mut archive = tar::Builder::new(out);
    for entry in entries {
        let entry = entry?;
        append(&mut archive, &entry, entry.path())?;
    }
    if let Some(git_dir) = git_dir {
        git_dir.append(&mut archive, objects, stop)?;
    }
    archive.finish()
}

/// Archives a git directory that is not the directory `.git`, as this directory.
pub(super) fn archive_git_dir(
    git_dir: &GitDir,
    objects: Objects,
    stop: &Stop,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    git_dir.append(&mut archive, objects, stop)?;
    archive.finish()
}

/// Archives the objects of a git repository, until `stop` is set.
pub(super) fn archive_objects(objects: &Directory, stop: &Stop, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    append_directory(&mut archive, Path::new(OBJECTS))?;
    for entry in Walk::content(objects.try_clone()?).until(stop.clone()) {
        let entry = entry?;
        append(&mut archive, &entry, &Path::new(OBJECTS).join(entry.path()))?;
    }
    archive.finish()
}

/// Archives the folder of a repository's own objects, which names the shared objects as an alternate
/// (gitrepository-layout(5)).
pub(super) fn archive_alternate(objects: &RepositoryObjects, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    for folder in ["", "info", "pack"] {
        append_directory(&mut archive, &Path::new(OBJECTS).join(folder))?;
    }
    let alternate = format!("{}\n", objects.inside());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(alternate.len() as u64);
    archive.append_data(&mut header, Path::new(OBJECTS).join("info/alternates"), alternate.as_bytes())?;
    archive.finish()
}

/// Adds a directory that everybody may read.
pub(super) fn append_directory(archive: &mut tar::Builder<&mut dyn Write>, inside: &Path) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(0o755);
    header.set_size(0);
    archive.append_data(&mut header, inside, io::empty())
}

/// Adds one entry. Skips sockets, devices and pipes, and files that were removed in the meantime.
pub(super) fn append(
    archive: &mut tar::Builder<&mut dyn Write>,
    entry: &Entry,
    inside: &Path,
) -> io::Result<()> {
    match archive::append(archive, entry, inside) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let path = entry.whole_path();
            Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        std::fs::write(path, text).expect("write");
    }

    fn names_in(bytes: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(bytes);
        let mut names: Vec<_> = archive
            .entries()
            .expect("entries")
            .map(|entry| {
                // The path of a folder can end with a slash.
                let entry = entry.expect("entry");
                let path: PathBuf = entry.path().expect("path").components().collect();
                path.to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn copies_git_data_and_skips_ignored_files_unless_requested() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| write(folder.path(), path, text);
        write(".gitignore", "target/\n");
        write(".git/HEAD", "ref: refs/heads/main\n");
        write("target/huge", "x");
        write("src/main.rs", "fn main() {}");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).expect("link");
        let mut some = Vec::new();
        archive_folder(folder.path(), Workspace::Copy, Objects::Included, None, &Stop::default(), &mut some)
            .expect("archive");
        assert_eq!(names_in(&some), [".git", ".git/HEAD", ".gitignore", "link", "src", "src/main.rs"]);
        let mut all = Vec::new();
        archive_folder(
            folder.path(),
            Workspace::CopyAll,
            Objects::Included,
            None,
            &Stop::default(),
            &mut all,
        )
        .expect("archive");
        assert!(names_in(&all).contains(&"target/huge".to_owned()));
    }

    #[test]
    fn no_ignore_file_affects_the_repository_itself() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| write(folder.path(), path, text);
        write(".gitignore", "dist\n*.pack\n");
        write(".git/refs/heads/dist", "0");
        write(".git/objects/pack/a.pack", "0");
        write("sub/.git/config", "");
        write("sub/.git/dist", "");
        write("sub/dist", "0");
        let archived = |objects| {
            let mut bytes = Vec::new();
            archive_folder(folder.path(), Workspace::Copy, objects, None, &Stop::default(), &mut bytes)
                .expect("archive");
            names_in(&bytes)
        };
        let [all, apart] = [Objects::Included, Objects::Separate].map(archived);
        assert!(all.contains(&".git/objects/pack/a.pack".to_owned()), "{all:?}");
        let expected = [
            ".git",
            ".git/refs",
            ".git/refs/heads",
            ".git/refs/heads/dist",
            ".gitignore",
            "sub",
            "sub/.git",
            "sub/.git/config",
            "sub/.git/dist",
        ];
        assert_eq!(apart, expected);
        let mut objects = Vec::new();
        let opened = Directory::open(&folder.path().join(OBJECTS)).expect("opened");
        archive_objects(&opened, &Stop::default(), &mut objects).expect("archive");
        assert_eq!(names_in(&objects), [".git/objects", ".git/objects/pack", ".git/objects/pack/a.pack"]);
    }

    #[test]
    fn a_worktree_has_the_files_and_objects_of_its_repository() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        write("main/.git/worktrees/one/HEAD", "ref: refs/heads/one\n");
        write("main/.git/worktrees/one/commondir", "../..\n");
        write("main/.git/worktrees/one/gitdir", "../../../../one/.git\n");
        write("main/.git/objects/pack/a.pack", "0");
        write("main/.git/refs/heads/one", "0");
        write("main/.git/config", "[core]\n");
        write("main/.git/secret.pem", "0");
        write("one/.git", "gitdir: ../main/.git/worktrees/one\n");
        write("one/code", "0");
        let one = root.path().join("one");
        let git_dir = GitDir::of(&one, &[]).expect("read").map(Arc::new).expect("found");
        let archived = |objects| {
            let (git_dir, mut bytes) = (Some(&git_dir), Vec::new());
            archive_folder(&one, Workspace::Copy, objects, git_dir, &Stop::default(), &mut bytes)
                .expect("archive");
            names_in(&bytes)
        };
        let mut files = vec![
            ".git",
            ".git/HEAD",
            ".git/config",
            ".git/refs",
            ".git/refs/heads",
            ".git/refs/heads/one",
            "code",
        ];
        assert_eq!(archived(Objects::Separate), files);
        let objects = [".git/objects", ".git/objects/pack", ".git/objects/pack/a.pack"];
        files.extend(objects);
        files.sort_unstable();
        assert_eq!(archived(Objects::Included), files);
        let mut bytes = Vec::new();
        let opened = git_dir.shareable_objects().expect("its own");
        archive_objects(&opened, &Stop::default(), &mut bytes).expect("archive");
        assert_eq!(names_in(&bytes), objects);
    }

    #[test]
    fn only_rules_of_the_repository_and_its_ignore_files_count() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        write(".gitignore", "above\n");
        write("top/.gitignore", "ignored\n");
        write("top/.git/HEAD", "ref: refs/heads/main\n");
        write("top/.git/info/exclude", "excluded\n");
        for name in ["objects", "refs"] {
            std::fs::create_dir_all(root.path().join("top/.git").join(name)).expect("folder");
        }
        for name in ["above", "ignored", "excluded"] {
            write(&format!("top/sub/{name}"), "0");
        }
        let archived = |folder: &str| {
            let (folder, mut bytes) = (root.path().join(folder), Vec::new());
            archive_folder(&folder, Workspace::Copy, Objects::Included, None, &Stop::default(), &mut bytes)
                .expect("archive");
            names_in(&bytes)
        };
        assert_eq!(archived("top/sub"), ["above"]);
        std::fs::remove_dir_all(root.path().join("top/.git")).expect("removed");
        assert_eq!(archived("top/sub"), ["above", "excluded", "ignored"]);
    }

    #[test]
    fn tracked_files_are_copied_although_rules_ignore_them() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        let git = |arguments: &[&str]| {
            let mut git = std::process::Command::new("git");
            git.args(arguments).current_dir(root.path()).env_clear().env("PATH", "/usr/bin:/bin");
            git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
            git.status().is_ok_and(|status| status.success())
        };
        if !git(&["init", "-q"]) {
            return;
        }
        for name in ["sub/target/tracked", "sub/target/other", "sub/a.log", "sub/b.log", "target/tracked"] {
            write(name, "0");
        }
        write(".gitignore", "target\n*.log\n");
        assert!(git(&["add", "-f", "sub/target/tracked", "sub/b.log", "target/tracked"]));
        let mut bytes = Vec::new();
        let sub = root.path().join("sub");
        archive_folder(&sub, Workspace::Copy, Objects::Included, None, &Stop::default(), &mut bytes)
            .expect("archive");
        assert_eq!(names_in(&bytes), ["b.log", "target", "target/tracked"]);
    }

    /// Another thread exchanges a directory and a link to a private one while archives are made.
    #[test]
    #[cfg(target_os = "linux")]
    fn nothing_outside_is_archived_while_a_directory_and_a_link_are_exchanged() {
        use std::sync::atomic::{AtomicU64, Ordering};

        use rustix::fs::{CWD, RenameFlags, renameat_with};

        let root = tempfile::tempdir().expect("a temporary folder");
        for at in 0..20 {
            write(root.path(), &format!("project/work/{at}/file"), "inside");
            write(root.path(), &format!("private/{at}/file"), "CANARY");
        }
        let (project, private) = (root.path().join("project"), root.path().join("private"));
        let (work, link) = (project.join("work"), project.join("link"));
        std::os::unix::fs::symlink(&private, &link).expect("link");
        let (stop, exchanged) = (Stop::default(), AtomicU64::new(0));
        let mut files = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.is_set() {
                    renameat_with(CWD, &work, CWD, &link, RenameFlags::EXCHANGE).expect("exchanged");
                    exchanged.fetch_add(1, Ordering::Relaxed);
                }
            });
            // The other thread ends also if an assertion fails.
            let _stopped = stop.on_drop();
            let mut rounds = 0;
            while rounds < 300 || exchanged.load(Ordering::Relaxed) < 300 {
                rounds += 1;
                let content = [Workspace::Files, Workspace::Copy, Workspace::CopyAll][rounds % 3];
                let mut bytes = Vec::new();
                archive_folder(&project, content, Objects::Included, None, &Stop::default(), &mut bytes)
                    .expect("archive");
                let has_canary = bytes.windows(6).any(|window| window == b"CANARY");
                assert!(!has_canary, "round {rounds}, {content:?}");
                files += names_in(&bytes).iter().filter(|name| name.ends_with("/file")).count();
            }
        });
        assert!(files > 300, "{files}");
    }
}
