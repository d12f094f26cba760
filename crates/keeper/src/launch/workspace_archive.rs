//! Creates the archives of a workspace's initial files for pid 1.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use bottle_backend::{HostEntries, RepositoryObjects};
use bottle_plan::Workspace;
use bottle_repository::{Entry, Stop, Walk, WalkError};

use super::git_dir::{CopiedWorktrees, GitDir};
use super::given_record::GivenRecord;
use super::tar_entries::{append, append_directory};
use super::workspace_files::{
    FileSelection, GIT_DIR, OBJECTS, Objects, WorkspaceFiles, open, repository_files,
};

/// Selects the files of a directory that become a workspace's initial content.
#[derive(Clone, Copy)]
pub(super) struct SelectedFiles<'a> {
    pub(super) directory: &'a Path,
    pub(super) content: Workspace,
    /// The path of the user's own ignore file.
    pub(super) user_ignore_file: Option<&'a Path>,
    pub(super) objects: Objects,
    pub(super) git_dir: Option<&'a Arc<GitDir>>,
    /// The record to which the files are added.
    pub(super) given: Option<&'a GivenRecord>,
}

/// The files of a directory that are a workspace's initial content.
pub(super) struct InitialFiles {
    /// The files, without a git directory that is not at `.git`.
    pub(super) entries: HostEntries,
    /// The git directory. The files of the git directory that are not in `entries` are copied after `entries`.
    pub(super) git_dir: Option<Arc<GitDir>>,
    /// The linked worktrees among the files that were read so far.
    pub(super) worktrees: CopiedWorktrees,
}

impl InitialFiles {
    /// Chooses the files. Walks the directory only when the files are needed, and stops when `stop` is set.
    ///
    /// # Errors
    /// When the directory or the ignore rules for it cannot be read.
    pub(super) fn of(files: SelectedFiles<'_>, stop: &Stop) -> io::Result<Self> {
        let SelectedFiles { directory, content, user_ignore_file, objects, git_dir, given } = files;
        type Entries = Box<dyn Iterator<Item = Result<Entry, WalkError>> + Send>;
        let entries: Entries = match content {
            Workspace::Repository => {
                Box::new(repository_files(directory, objects, git_dir.map(Arc::as_ref), stop)?)
            }
            Workspace::Files => Box::new(Walk::content(open(directory)?).except(GIT_DIR).until(stop.clone())),
            Workspace::CopyAll | Workspace::Copy | Workspace::Empty => {
                let selection = match content {
                    Workspace::CopyAll => FileSelection::All,
                    _ => FileSelection::NotIgnored(user_ignore_file),
                };
                Box::new(WorkspaceFiles::of(directory, selection, objects, git_dir.map(Arc::as_ref), stop)?)
            }
        };
        let git_dir = git_dir.filter(|_| content != Workspace::Files).cloned();
        let is_linked = git_dir.as_ref().is_some_and(|git_dir| git_dir.is_linked());
        let worktrees = CopiedWorktrees::default();
        let noted = worktrees.clone();
        let entries = entries.filter(move |entry| match entry {
            Ok(entry) => {
                noted.note(entry);
                !(is_linked && entry.path() == Path::new(GIT_DIR))
            }
            Err(_) => true,
        });
        let entries = entries.map(|entry| Ok(entry?));
        let Some(given) = given.cloned() else {
            return Ok(Self { entries: Box::new(entries), git_dir, worktrees });
        };
        given.begin();
        let entries = entries.inspect(move |entry: &io::Result<Entry>| {
            if let Ok(entry) = entry {
                given.add(entry);
            }
        });
        Ok(Self { entries: Box::new(entries), git_dir, worktrees })
    }
}

/// Archives these files until `stop` is set. `place` is the path in the bottle at which pid 1 extracts the files.
pub(super) fn archive_directory(
    files: SelectedFiles<'_>,
    place: &str,
    stop: &Stop,
    out: &mut dyn Write,
) -> io::Result<()> {
    let objects = files.objects;
    let InitialFiles { entries, git_dir, worktrees } = InitialFiles::of(files, stop)?;
    let mut archive = tar::Builder::new(out);
    for entry in entries {
        let entry = entry?;
        append(&mut archive, &entry, entry.path())?;
    }
    if let Some(git_dir) = git_dir {
        git_dir.append(&mut archive, objects, &worktrees, place, stop)?;
    }
    archive.finish()
}

/// Archives the files of a git directory that are not among the copied files of its working tree.
pub(super) fn archive_git_dir(
    git_dir: &GitDir,
    objects: Objects,
    worktrees: &CopiedWorktrees,
    place: &str,
    stop: &Stop,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    git_dir.append(&mut archive, objects, worktrees, place, stop)?;
    archive.finish()
}

/// Archives the objects of a git repository, including borrowed objects, until `stop` is set.
pub(super) fn archive_objects(
    objects: &RepositoryObjects,
    stop: &Stop,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    append_directory(&mut archive, Path::new(OBJECTS))?;
    let mut done = HashSet::new();
    let several = !objects.borrowed.is_empty();
    for from in std::iter::once(&objects.from).chain(&objects.borrowed) {
        let walk = Walk::content(from.try_clone()?).until(stop.clone());
        for entry in walk.leaving_out(Box::new(move |path, _| is_of_one(path, several))) {
            let entry = entry?;
            if done.insert(entry.path().to_owned()) {
                append(&mut archive, &entry, &Path::new(OBJECTS).join(entry.path()))?;
            }
        }
    }
    archive.finish()
}

/// Whether a file in an object directory is valid only in this directory and must not be copied. The file of alternates
/// is always such a file. If `several` object directories are merged, commit graphs and multi-pack indexes are such
/// files too.
fn is_of_one(path: &Path, several: bool) -> bool {
    let is_index = |path: &Path| {
        let name =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"multi-pack-index"));
        name || path == Path::new("info")
    };
    path == Path::new("info/alternates") || several && is_index(path)
}

/// Archives an empty object directory that names the shared objects as an alternate (gitrepository-layout(5)).
pub(super) fn archive_alternate(objects: &RepositoryObjects, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    for directory in ["", "info", "pack"] {
        append_directory(&mut archive, &Path::new(OBJECTS).join(directory))?;
    }
    let alternate = format!("{}\n", objects.inside());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(alternate.len() as u64);
    archive.append_data(&mut header, Path::new(OBJECTS).join("info/alternates"), alternate.as_bytes())?;
    archive.finish()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use bottle_repository::Directory;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        std::fs::write(path, text).expect("write");
    }

    fn names_in(bytes: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(bytes);
        let mut names: Vec<_> = archive
            .entries()
            .expect("entries")
            .map(|entry| {
                // `components` removes the slash at the end of a directory's path.
                let entry = entry.expect("entry");
                let path: PathBuf = entry.path().expect("path").components().collect();
                path.to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    }

    fn archive(
        directory: &Path,
        content: Workspace,
        user_ignore_file: Option<&Path>,
        objects: Objects,
        git_dir: Option<&Arc<GitDir>>,
    ) -> Vec<u8> {
        let files = SelectedFiles { directory, content, user_ignore_file, objects, git_dir, given: None };
        let mut bytes = Vec::new();
        archive_directory(files, "", &Stop::default(), &mut bytes).expect("archive");
        bytes
    }

    #[test]
    fn copies_git_data_and_skips_ignored_files_unless_requested() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, text: &str| write(directory.path(), path, text);
        write(".gitignore", "target/\n");
        write(".git/HEAD", "ref: refs/heads/main\n");
        write("target/huge", "x");
        write("src/main.rs", "fn main() {}");
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).expect("link");
        let some = archive(directory.path(), Workspace::Copy, None, Objects::Included, None);
        assert_eq!(names_in(&some), [".git", ".git/HEAD", ".gitignore", "link", "src", "src/main.rs"]);
        let all = archive(directory.path(), Workspace::CopyAll, None, Objects::Included, None);
        assert!(names_in(&all).contains(&"target/huge".to_owned()));
    }

    #[test]
    fn the_users_own_ignore_file_applies() {
        let home = tempfile::tempdir().expect("a temporary directory");
        write(home.path(), "ignore", "*.swp\nmine\n");
        write(home.path(), "project/.gitignore", "!keep.swp\n");
        for file in ["a.swp", "keep.swp", "mine", "code"] {
            write(home.path(), &format!("project/{file}"), "x");
        }
        let (project, ignore) = (home.path().join("project"), home.path().join("ignore"));
        let archived = |content| {
            let bytes = archive(&project, content, Some(&ignore), Objects::Included, None);
            names_in(&bytes)
        };
        assert_eq!(archived(Workspace::Copy), [".gitignore", "code", "keep.swp"]);
        assert_eq!(archived(Workspace::CopyAll).len(), 5);
    }

    #[test]
    fn no_ignore_file_affects_the_repository_itself() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, text: &str| write(directory.path(), path, text);
        write(".gitignore", "dist\n*.pack\n");
        write(".git/refs/heads/dist", "0");
        write(".git/objects/pack/a.pack", "0");
        write("sub/.git/config", "");
        write("sub/.git/dist", "");
        write("sub/dist", "0");
        let archived = |objects| {
            let bytes = archive(directory.path(), Workspace::Copy, None, objects, None);
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
        let opened = Directory::open(&directory.path().join(OBJECTS)).expect("opened");
        let own = RepositoryObjects { from: Arc::new(opened), borrowed: Vec::new(), directory: None };
        archive_objects(&own, &Stop::default(), &mut objects).expect("archive");
        assert_eq!(names_in(&objects), [".git/objects", ".git/objects/pack", ".git/objects/pack/a.pack"]);
    }

    /// The copy contains borrowed objects in the same way as the repository's own objects, and no path of the host.
    #[test]
    fn borrowed_objects_are_archived_as_those_of_the_repository() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str| write(root.path(), path, "0");
        for path in ["own/ab/1", "own/pack/pack-1.pack", "own/info/alternates", "own/info/commit-graph"] {
            write(path);
        }
        for path in ["lender/ab/1", "lender/ab/2", "lender/pack/pack-2.pack", "lender/pack/multi-pack-index"]
        {
            write(path);
        }
        let open = |name: &str| Arc::new(Directory::open(&root.path().join(name)).expect("opened"));
        let objects =
            RepositoryObjects { from: open("own"), borrowed: vec![open("lender")], directory: None };
        let mut bytes = Vec::new();
        archive_objects(&objects, &Stop::default(), &mut bytes).expect("archive");
        let names = ["", "/ab", "/ab/1", "/ab/2", "/pack", "/pack/pack-1.pack", "/pack/pack-2.pack"];
        assert_eq!(names_in(&bytes), names.map(|name| format!("{OBJECTS}{name}")));
    }

    #[test]
    fn a_worktree_has_the_files_and_objects_of_its_repository() {
        let root = tempfile::tempdir().expect("a temporary directory");
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
            let bytes = archive(&one, Workspace::Copy, None, objects, Some(&git_dir));
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
        let [own] = git_dir.objects() else { panic!("its own") };
        let own = RepositoryObjects { from: Arc::clone(own), borrowed: Vec::new(), directory: None };
        archive_objects(&own, &Stop::default(), &mut bytes).expect("archive");
        assert_eq!(names_in(&bytes), objects);
    }

    #[test]
    fn only_rules_of_the_repository_and_its_ignore_files_count() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        write(".gitignore", "above\n");
        write("top/.gitignore", "ignored\n");
        write("top/.git/HEAD", "ref: refs/heads/main\n");
        write("top/.git/info/exclude", "excluded\n");
        for name in ["objects", "refs"] {
            std::fs::create_dir_all(root.path().join("top/.git").join(name)).expect("directory");
        }
        for name in ["above", "ignored", "excluded"] {
            write(&format!("top/sub/{name}"), "0");
        }
        let archived = |directory: &str| {
            let bytes = archive(&root.path().join(directory), Workspace::Copy, None, Objects::Included, None);
            names_in(&bytes)
        };
        assert_eq!(archived("top/sub"), ["above"]);
        std::fs::remove_dir_all(root.path().join("top/.git")).expect("removed");
        assert_eq!(archived("top/sub"), ["above", "excluded", "ignored"]);
    }

    #[test]
    fn tracked_files_are_copied_although_rules_ignore_them() {
        let root = tempfile::tempdir().expect("a temporary directory");
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
        let bytes = archive(&root.path().join("sub"), Workspace::Copy, None, Objects::Included, None);
        assert_eq!(names_in(&bytes), ["b.log", "target", "target/tracked"]);
    }

    /// While archives are made, another thread exchanges a directory with a link to a private directory.
    #[test]
    #[cfg(target_os = "linux")]
    fn nothing_outside_is_archived_while_a_directory_and_a_link_are_exchanged() {
        use std::sync::atomic::{AtomicU64, Ordering};

        use rustix::fs::{CWD, RenameFlags, renameat_with};

        let root = tempfile::tempdir().expect("a temporary directory");
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
            // Dropping this guard ends the other thread, even if an assertion fails.
            let _stopped = stop.on_drop();
            let mut rounds = 0;
            while rounds < 300 || exchanged.load(Ordering::Relaxed) < 300 {
                rounds += 1;
                let content = [Workspace::Files, Workspace::Copy, Workspace::CopyAll][rounds % 3];
                let bytes = archive(&project, content, None, Objects::Included, None);
                let has_canary = bytes.windows(6).any(|window| window == b"CANARY");
                assert!(!has_canary, "round {rounds}, {content:?}");
                files += names_in(&bytes).iter().filter(|name| name.ends_with("/file")).count();
            }
        });
        assert!(files > 300, "{files}");
    }
}
