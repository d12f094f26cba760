//! The git directory of a directory that is copied into a workspace.
//!
//! If `.git` is a file or a link, it names a path of the host. In the bottle, the git directory is an ordinary
//! directory `.git` instead. A git directory is copied only if it belongs to the copied directory
//! ([`bottle_repository::locate`]) or if the user confirmed it. [`bottle_repository::git_files`] describes which files
//! of the git directory are not copied.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bottle_plan::GitDirectory;
use bottle_repository::git_files::Worktree;
use bottle_repository::locate::{self, Kind};
use bottle_repository::{
    Directory, Entry, GitCopy, GitFile, GitFiles, Lender, Located, ObjectFormat, ObjectSources, Stop,
};
use rustix::fs::FileType;

use super::tar_entries::{append, append_directory};
use super::workspace_files::{GIT_DIR, Objects};

/// The git directory of a directory that is copied.
#[derive(Debug)]
pub struct GitDir {
    located: Located,
    copy: Arc<GitCopy>,
    /// The object directories: first the repository's own directory, then the directories from which the repository
    /// borrows objects. The user has confirmed the directories with borrowed objects.
    objects: Vec<Arc<Directory>>,
    /// The paths of the directories from which the repository borrows objects.
    borrowed: Vec<PathBuf>,
}

/// The linked worktrees that are copied because they are inside the copied directory.
#[derive(Debug, Clone, Default)]
pub struct CopiedWorktrees(Arc<Mutex<HashSet<PathBuf>>>);

impl CopiedWorktrees {
    /// If a copied entry is the `.git` file of a working tree, records this working tree.
    pub(super) fn note(&self, entry: &Entry) {
        if entry.kind() == FileType::RegularFile && entry.path().ends_with(GIT_DIR) {
            let tree = entry.path().parent().unwrap_or(Path::new("")).to_owned();
            let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(tree);
        }
    }

    fn paths(&self) -> HashSet<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl GitDir {
    /// Finds the git directory of this directory. Returns `None` if the directory has no git directory.
    ///
    /// # Errors
    /// When `.git` names a git directory that cannot be used. Also when the git directory, or a directory from which
    /// the repository borrows objects, needs a confirmation of the user and is not in `confirmed`.
    pub fn of(directory: &Path, confirmed: &[GitDirectory]) -> io::Result<Option<Self>> {
        let Some(located) = locate::at(directory).map_err(io::Error::other)? else { return Ok(None) };
        let id = located.git.id()?;
        if located.kind == Kind::Separate && !confirmed.iter().any(|known| known.id() == id) {
            let (top, git) = (directory.display(), located.git.path().display());
            return Err(io::Error::other(format!("the git directory {git} of {top} is not confirmed")));
        }
        let ObjectSources { own, lenders } = ObjectSources::of(&located).map_err(io::Error::other)?;
        let is_confirmed = |lender: &Lender| confirmed.iter().any(|known| known.id() == lender.id);
        if let Some(lender) = lenders.iter().find(|lender| !is_confirmed(lender)) {
            let (top, objects) = (directory.display(), lender.objects.path().display());
            let error = format!("the objects in {objects}, which {top} borrows, are not confirmed");
            return Err(io::Error::other(error));
        }
        let borrowed = lenders.iter().map(|lender| lender.objects.path().to_owned()).collect();
        let objects = own.into_iter().chain(lenders.into_iter().map(|lender| lender.objects));
        let objects = objects.map(Arc::new).collect();
        let copy = Arc::new(GitCopy::of(&located).map_err(io::Error::other)?);
        Ok(Some(Self { located, copy, objects, borrowed }))
    }

    /// Whether `.git` is a file or a link instead of the git directory itself.
    pub fn is_linked(&self) -> bool {
        self.located.kind != Kind::Own
    }

    /// If the git directory is outside of the copied directory, returns its path for messages.
    pub fn outside(&self) -> Option<PathBuf> {
        let path = self.located.is_outside().then(|| self.located.common.path())?;
        Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
    }

    /// The object directories, which can be transferred separately from the other files: first the repository's own
    /// directory, then the directories from which the repository borrows objects.
    pub fn objects(&self) -> &[Arc<Directory>] {
        &self.objects
    }

    /// The paths of the directories from which the repository borrows objects.
    pub fn borrowed(&self) -> &[PathBuf] {
        &self.borrowed
    }

    /// If the git directory is inside the copied directory but not at `.git`, returns its path relative to the copied
    /// directory. In the copy, the git directory is at `.git`.
    pub(super) fn inside(&self) -> Option<PathBuf> {
        let Located { top, git, kind, .. } = &self.located;
        let (top, git) = (top.path().canonicalize().ok()?, git.path().canonicalize().ok()?);
        git.strip_prefix(top).ok().filter(|_| *kind == Kind::Inside).map(Path::to_owned)
    }

    /// Whether the copy needs a recent git, because its objects do not use SHA-1.
    pub(super) fn needs_new_git(&self) -> bool {
        self.copy.format() != ObjectFormat::Sha1
    }

    /// The settings and hooks that are not copied.
    pub fn left_out(&self) -> &[String] {
        self.copy.left_out()
    }

    /// The rules that determine which entries of a directory `.git` are not copied.
    pub(super) fn copy(&self) -> Arc<GitCopy> {
        Arc::clone(&self.copy)
    }

    /// Returns the files of the git directory for a copy at the path `place`, with the records of these worktrees. If
    /// `.git` is the git directory itself, leaves out the files that are copied unchanged.
    ///
    /// # Errors
    /// When a directory cannot be opened again, or the record of a worktree cannot be read.
    pub fn files(
        &self,
        objects: Objects,
        worktrees: &CopiedWorktrees,
        place: &str,
        stop: &Stop,
    ) -> io::Result<GitFiles> {
        let (with_objects, kept) = (objects == Objects::Included, worktrees.paths());
        let files = self.copy.files(&self.located, with_objects, &kept, place).map_err(io::Error::other)?;
        Ok(files.until(stop))
    }

    /// Adds the files of the git directory to an archive, below the directory `.git`. Also adds the `.git` files of
    /// these worktrees.
    ///
    /// # Errors
    /// When a file cannot be read, or the archive cannot be written.
    pub(super) fn append(
        &self,
        archive: &mut tar::Builder<&mut dyn Write>,
        objects: Objects,
        worktrees: &CopiedWorktrees,
        place: &str,
        stop: &Stop,
    ) -> io::Result<()> {
        append_directory(archive, Path::new(GIT_DIR))?;
        for file in self.files(objects, worktrees, place, stop)? {
            match file.map_err(io::Error::other)? {
                GitFile::Entry(path, entry) => append(archive, &entry, &Path::new(GIT_DIR).join(path))?,
                GitFile::Made(path, text) => append_made(archive, &Path::new(GIT_DIR).join(path), &text, 0)?,
                GitFile::Index(index, modified) => {
                    append_made(archive, &Path::new(GIT_DIR).join("index"), &index, modified)?;
                }
                GitFile::Directory(path) => append_directory(archive, &Path::new(GIT_DIR).join(path))?,
            }
        }
        let kept = worktrees.paths();
        let mut of_copy = self.copy.worktrees().iter().filter(|worktree| kept.contains(&worktree.path));
        of_copy.try_for_each(|worktree: &Worktree| {
            append_made(archive, &worktree.path.join(GIT_DIR), &worktree.git_file(), 0)
        })
    }
}

/// Adds a generated file. `modified` is the file's modification time in seconds.
fn append_made(
    archive: &mut tar::Builder<&mut dyn Write>,
    path: &Path,
    text: &[u8],
    modified: u64,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mtime(modified);
    header.set_mode(0o644);
    header.set_size(text.len() as u64);
    archive.append_data(&mut header, path, text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn git_directory(path: &Path) {
        for directory in ["refs", "objects/info"] {
            fs::create_dir_all(path.join(directory)).expect("made");
        }
        fs::write(path.join("HEAD"), "ref: refs/heads/main\n").expect("written");
    }

    /// A project can name the objects of any repository of the user, so the user must confirm borrowed objects.
    #[test]
    fn borrowed_objects_have_to_be_confirmed() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().canonicalize().expect("real");
        let path = |path: &str| -> PathBuf { root.join(path) };
        let of = |confirmed: &[GitDirectory]| {
            let found = GitDir::of(&path("top"), confirmed).map_err(|error| error.to_string())?;
            Ok::<_, String>(found.map(|git_dir| (git_dir.objects().len(), git_dir.borrowed().to_vec())))
        };
        fs::create_dir(path("top")).expect("made");
        assert_eq!(of(&[]), Ok(None), "no repository");
        git_directory(&path("top/.git"));
        assert_eq!(of(&[]), Ok(Some((1, vec![]))));
        let objects = path("other/.git/objects");
        git_directory(&path("other/.git"));
        fs::write(path("top/.git/objects/info/alternates"), format!("{}\n", objects.display()))
            .expect("written");
        let id = Directory::open(&objects).and_then(|directory| directory.id()).expect("an id");
        let confirmed = [GitDirectory { path: objects.clone(), device: id.device, inode: id.inode }];
        let refusal = of(&[]).expect_err("not confirmed");
        assert!(refusal.contains(&objects.display().to_string()), "{refusal}");
        assert_eq!(of(&confirmed), Ok(Some((2, vec![objects.clone()]))));
        // The target of a link has to be confirmed too.
        fs::remove_dir_all(path("top/.git/objects")).expect("removed");
        symlink(&objects, path("top/.git/objects")).expect("link");
        assert!(of(&[]).is_err());
        assert_eq!(of(&confirmed), Ok(Some((1, vec![objects]))));
    }

    #[test]
    fn a_separate_git_directory_has_to_be_the_confirmed_one() {
        let root = tempfile::tempdir().expect("a directory");
        let path = |path: &str| -> PathBuf { root.path().join(path) };
        git_directory(&path("data"));
        git_directory(&path("other"));
        fs::create_dir_all(path("top")).expect("made");
        fs::write(path("top/.git"), "gitdir: ../data\n").expect("written");
        let confirmed = |name: &str| {
            let id = Directory::open(&path(name)).and_then(|directory| directory.id()).expect("an id");
            [GitDirectory { path: path(name), device: id.device, inode: id.inode }]
        };
        assert!(GitDir::of(&path("top"), &[]).is_err());
        assert!(GitDir::of(&path("top"), &confirmed("other")).is_err());
        let found = GitDir::of(&path("top"), &confirmed("data")).expect("confirmed").expect("found");
        assert!(found.is_linked() && found.outside().is_some());
    }
}
