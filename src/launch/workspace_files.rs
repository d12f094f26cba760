//! Chooses the files of a directory that a workspace starts with, and archives them for pid 1.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::git_dir::LinkedGitDir;
use crate::archive;
use crate::backend::{HostPaths, RepositoryObjects};
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
const GIT_DIR: &str = ".git";

/// The folder of a git repository's objects, relative to its working tree.
const OBJECTS: &str = ".git/objects";

/// Walks the files of `folder` that `--cwd` copies. If `everything` is false, skips the files that the `.gitignore`
/// files in it exclude. The folder itself comes first, and its git repository last, which no `.gitignore` affects.
pub(crate) fn workspace_files(
    folder: &Path,
    everything: bool,
    objects: Objects,
) -> impl Iterator<Item = Result<ignore::DirEntry, ignore::Error>> + use<> {
    working_tree_files(folder, everything).chain(repository_files(folder, objects))
}

/// Walks the files of `folder` as [`workspace_files`] does, without its git repository.
fn working_tree_files(
    folder: &Path,
    everything: bool,
) -> impl Iterator<Item = Result<ignore::DirEntry, ignore::Error>> + use<> {
    let mut files = walk(folder);
    let excluded = folder.join(GIT_DIR);
    files
        .standard_filters(!everything)
        .hidden(false)
        .ignore(false)
        .git_global(false)
        .require_git(false)
        .filter_entry(move |entry| entry.path() != excluded);
    files.build()
}

/// Walks the files of the git repository in `folder`, if there is one.
fn repository_files(
    folder: &Path,
    objects: Objects,
) -> impl Iterator<Item = Result<ignore::DirEntry, ignore::Error>> + use<> {
    let git_dir = folder.join(GIT_DIR);
    let mut files = walk(&git_dir);
    let separate = (objects == Objects::Separate).then(|| folder.join(OBJECTS));
    files.filter_entry(move |entry| Some(entry.path()) != separate.as_deref());
    git_dir.symlink_metadata().is_ok().then(|| files.build()).into_iter().flatten()
}

/// Walks all files of a folder.
fn walk(folder: &Path) -> ignore::WalkBuilder {
    let mut walk = ignore::WalkBuilder::new(folder);
    walk.standard_filters(false);
    walk
}

/// The objects of the git repository of `folder`, if they can be apart from its other files. `None` without a
/// repository, and if the repository borrows objects from another one.
pub(crate) fn shareable_objects(folder: &Path) -> Option<PathBuf> {
    let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let objects = match is_folder(&folder.join(GIT_DIR)) {
        true => folder.join(OBJECTS),
        false => LinkedGitDir::find(folder).ok()??.objects(),
    };
    let own = is_folder(&objects) && objects.join("info/alternates").symlink_metadata().is_err();
    own.then_some(objects)
}

/// The files of a directory that are a workspace's initial content.
pub(super) struct InitialFiles {
    /// The files, without a git directory outside of the working tree.
    pub(super) paths: HostPaths,
    /// Such a git directory, which becomes an ordinary one.
    pub(super) git_dir: Option<LinkedGitDir>,
}

impl InitialFiles {
    /// Chooses the files of `folder`. The paths are walked only when they are needed.
    ///
    /// # Errors
    /// When the file that names the git directory cannot be read.
    pub(super) fn of(folder: &Path, content: Workspace, objects: Objects) -> io::Result<Self> {
        type Walk = Box<dyn Iterator<Item = Result<ignore::DirEntry, ignore::Error>> + Send>;
        let entries: Walk = match content {
            Workspace::Repository => Box::new(repository_files(folder, objects)),
            Workspace::Files => Box::new(working_tree_files(folder, true)),
            _ => Box::new(workspace_files(folder, content == Workspace::CopyAll, objects)),
        };
        let git_dir = LinkedGitDir::find(folder)?.filter(|_| content != Workspace::Files);
        let is_linked = git_dir.is_some();
        let paths = paths_below(folder, entries).filter(move |path| match path {
            Ok(path) => !(path.as_os_str().is_empty() || is_linked && path == Path::new(GIT_DIR)),
            Err(_) => true,
        });
        Ok(Self { paths: Box::new(paths), git_dir })
    }
}

/// The paths of entries below a folder. The path of the folder itself is empty.
fn paths_below<Entries: Iterator<Item = Result<ignore::DirEntry, ignore::Error>>>(
    folder: &Path,
    entries: Entries,
) -> impl Iterator<Item = io::Result<PathBuf>> + use<Entries> {
    let folder = folder.to_owned();
    entries.filter_map(move |entry| match entry {
        Ok(entry) => entry.path().strip_prefix(&folder).ok().map(|path| Ok(path.to_owned())),
        Err(error) => {
            let kind = error.io_error().map_or(io::ErrorKind::Other, io::Error::kind);
            Some(Err(io::Error::new(kind, error)))
        }
    })
}

/// Archives the files of `folder` that are the workspace's initial content.
pub(super) fn archive_folder(
    folder: &Path,
    content: Workspace,
    objects: Objects,
    out: &mut dyn Write,
) -> io::Result<()> {
    let InitialFiles { paths, git_dir } = InitialFiles::of(folder, content, objects)?;
    let mut archive = new_archive(out);
    for path in paths {
        let path = path?;
        append(&mut archive, &folder.join(&path), &path)?;
    }
    if let Some(git_dir) = git_dir {
        git_dir.append(&mut archive, objects)?;
    }
    archive.finish()
}

/// Archives a git directory outside of its working tree, as the folder `.git`.
pub(super) fn archive_git_dir(
    git_dir: &LinkedGitDir,
    objects: Objects,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut archive = new_archive(out);
    git_dir.append(&mut archive, objects)?;
    archive.finish()
}

/// Archives the objects of a git repository, which are in the folder `objects`.
pub(super) fn archive_objects(objects: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = new_archive(out);
    for path in paths_below(objects, walk(objects).build()) {
        let path = path?;
        append(&mut archive, &objects.join(&path), &Path::new(OBJECTS).join(&path))?;
    }
    archive.finish()
}

/// An archive that contains links as they are.
fn new_archive(out: &mut dyn Write) -> tar::Builder<&mut dyn Write> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    archive
}

/// Archives the folder of a repository's own objects, which names the shared objects as an alternate
/// (gitrepository-layout(5)).
pub(super) fn archive_alternate(objects: &RepositoryObjects, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    for folder in ["", "info", "pack"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        archive.append_data(&mut header, Path::new(OBJECTS).join(folder), io::empty())?;
    }
    let alternate = format!("{}\n", objects.inside());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(alternate.len() as u64);
    archive.append_data(&mut header, Path::new(OBJECTS).join("info/alternates"), alternate.as_bytes())?;
    archive.finish()
}

/// Adds one entry. Skips sockets, devices and pipes, and files that were removed in the meantime.
pub(super) fn append(
    archive: &mut tar::Builder<&mut dyn Write>,
    path: &Path,
    inside: &Path,
) -> io::Result<()> {
    let kind = match path.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(named(path, &error)),
    };
    if !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
        return Ok(());
    }
    match archive::append(archive, path, inside) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(named(path, &error)),
        done => done,
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    let path: PathBuf = path.to_owned();
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
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
        archive_folder(folder.path(), Workspace::Copy, Objects::Included, &mut some).expect("archive");
        assert_eq!(names_in(&some), [".git", ".git/HEAD", ".gitignore", "link", "src", "src/main.rs"]);
        let mut all = Vec::new();
        archive_folder(folder.path(), Workspace::CopyAll, Objects::Included, &mut all).expect("archive");
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
        write("sub/dist", "0");
        let archived = |objects| {
            let mut bytes = Vec::new();
            archive_folder(folder.path(), Workspace::Copy, objects, &mut bytes).expect("archive");
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
        ];
        assert_eq!(apart, expected);
        let mut objects = Vec::new();
        archive_objects(&folder.path().join(OBJECTS), &mut objects).expect("archive");
        assert_eq!(names_in(&objects), [".git/objects", ".git/objects/pack", ".git/objects/pack/a.pack"]);
    }

    #[test]
    fn objects_that_depend_on_another_repository_are_copied_with_the_rest() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |path: &str| folder.path().join(path);
        assert_eq!(shareable_objects(folder.path()), None, "no repository");
        std::fs::create_dir_all(path(".git/objects/info")).expect("folder");
        assert_eq!(shareable_objects(folder.path()), Some(path(".git/objects")));
        std::fs::write(path(".git/objects/info/alternates"), "/other\n").expect("write");
        assert_eq!(shareable_objects(folder.path()), None);
        std::fs::rename(path(".git"), path("elsewhere")).expect("moved");
        std::os::unix::fs::symlink(path("elsewhere"), path(".git")).expect("link");
        std::fs::remove_file(path("elsewhere/objects/info/alternates")).expect("removed");
        assert_eq!(shareable_objects(folder.path()), None, "a link is copied as a link");
    }

    #[test]
    fn a_worktree_has_the_objects_of_its_repository() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        write("main/.git/worktrees/one/HEAD", "ref: refs/heads/one\n");
        write("main/.git/worktrees/one/commondir", "../..\n");
        write("main/.git/objects/pack/a.pack", "0");
        write("main/.git/config", "[core]\n");
        write("one/.git", "gitdir: ../main/.git/worktrees/one\n");
        write("one/code", "0");
        let one = root.path().join("one");
        let objects = shareable_objects(&one).expect("found");
        assert!(objects.ends_with("main/.git/worktrees/one/../../objects"), "{}", objects.display());
        let archived = |objects| {
            let mut bytes = Vec::new();
            archive_folder(&one, Workspace::Copy, objects, &mut bytes).expect("archive");
            names_in(&bytes)
        };
        let mut files = vec![".git", ".git/HEAD", ".git/config", "code"];
        assert_eq!(archived(Objects::Separate), files);
        files.extend([".git/objects", ".git/objects/pack", ".git/objects/pack/a.pack"]);
        files.sort_unstable();
        assert_eq!(archived(Objects::Included), files);
        let mut bytes = Vec::new();
        archive_objects(&objects, &mut bytes).expect("archive");
        assert_eq!(names_in(&bytes), files[3..6]);
    }
}
