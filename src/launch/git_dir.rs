//! The git directory of a directory that is copied.
//!
//! If `.git` is a file or a link, it names a path of this machine. In the bottle, the git directory is an ordinary
//! directory `.git` instead. Only a git directory that belongs to the directory is copied
//! ([`bottle_repository::locate`]), or one that the user confirmed.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_repository::locate::{self, Kind};
use bottle_repository::{Directory, GitFile, GitFiles, Located, Stop};

use super::workspace_files::{GIT_DIR, Objects, append, append_directory};
use crate::plan::GitDirectory;

/// The directory of the objects in a git directory.
const OBJECTS: &str = "objects";

/// A git directory.
#[derive(Debug)]
pub(crate) struct GitDir {
    located: Located,
}

impl GitDir {
    /// Finds the git directory of this directory. `None` without one.
    ///
    /// # Errors
    /// When `.git` names a git directory that cannot be used, or one that is not `confirmed` and has to be.
    pub(crate) fn of(directory: &Path, confirmed: &[GitDirectory]) -> io::Result<Option<Self>> {
        let Some(located) = locate::at(directory).map_err(io::Error::other)? else { return Ok(None) };
        let id = located.git.id()?;
        if located.kind == Kind::Separate && !confirmed.iter().any(|known| known.id() == id) {
            let (top, git) = (directory.display(), located.git.path().display());
            return Err(io::Error::other(format!("nobody confirmed {git} as the git directory of {top}")));
        }
        Ok(Some(Self { located }))
    }

    /// Whether `.git` is not the directory itself.
    pub(crate) fn is_linked(&self) -> bool {
        self.located.kind != Kind::Own
    }

    /// The path for messages, if the directory is outside of the one that is copied.
    pub(crate) fn outside(&self) -> Option<PathBuf> {
        let path = self.located.is_outside().then(|| self.located.common.path())?;
        Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
    }

    /// The objects, if they can be apart from the other files. `None` if the repository borrows objects from another
    /// one, or its objects are elsewhere.
    pub(crate) fn shareable_objects(&self) -> Option<Directory> {
        let objects = self.located.common.directory(Path::new(OBJECTS)).ok()??;
        let borrows = objects.stat(Path::new("info/alternates")).map_or(true, |found| found.is_some());
        (!borrows).then_some(objects)
    }

    /// The files that a copy gets, if `.git` is not the directory itself.
    ///
    /// # Errors
    /// When the directory cannot be opened again.
    pub(crate) fn files(&self, objects: Objects, stop: &Stop) -> io::Result<GitFiles> {
        Ok(GitFiles::of(&self.located, objects == Objects::Included)?.until(stop))
    }

    /// Adds the files to an archive, as the directory `.git`.
    ///
    /// # Errors
    /// When a file cannot be read, or the archive cannot be written.
    pub(super) fn append(
        &self,
        archive: &mut tar::Builder<&mut dyn Write>,
        objects: Objects,
        stop: &Stop,
    ) -> io::Result<()> {
        append_directory(archive, Path::new(GIT_DIR))?;
        for file in self.files(objects, stop)? {
            match file.map_err(io::Error::other)? {
                GitFile::Entry(entry) => append(archive, &entry, &Path::new(GIT_DIR).join(entry.path()))?,
                GitFile::Config(path, text) => {
                    let mut header = tar::Header::new_gnu();
                    header.set_mode(0o644);
                    header.set_size(text.len() as u64);
                    archive.append_data(&mut header, Path::new(GIT_DIR).join(path), text.as_slice())?;
                }
            }
        }
        Ok(())
    }
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

    #[test]
    fn only_objects_of_the_repository_itself_are_shared() {
        let root = tempfile::tempdir().expect("a directory");
        let path = |path: &str| -> PathBuf { root.path().join(path) };
        let shares = || {
            let git_dir = GitDir::of(root.path(), &[]).expect("read");
            git_dir.map(|git_dir| git_dir.shareable_objects().is_some())
        };
        assert_eq!(shares(), None, "no repository");
        git_directory(&path(".git"));
        assert_eq!(shares(), Some(true));
        fs::write(path(".git/objects/info/alternates"), "/other\n").expect("written");
        assert_eq!(shares(), Some(false));
        fs::remove_file(path(".git/objects/info/alternates")).expect("removed");
        fs::rename(path(".git/objects"), path("elsewhere")).expect("moved");
        symlink(path("elsewhere"), path(".git/objects")).expect("link");
        assert_eq!(shares(), Some(false), "a link is copied as a link");
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
