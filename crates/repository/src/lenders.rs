//! Finds the other directories from which a repository reads objects (its lenders). They are the directories in
//! `objects/info/alternates`, which `git clone --shared` and `--reference` write, and the target of `objects` if
//! `objects` is a link, as in repositories of Android's `repo`.
//!
//! Anyone who can write a repository can write these paths, and could name the objects of any repository of the user. A
//! copy therefore gets the objects of another directory only after the user has confirmed this directory. The user
//! confirms the directory of [`Lender::objects`].

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::directory::{Directory, FileId, ReadError};
use crate::locate::{self, Located, OBJECTS};
use crate::objects::{alternates, open_real};

/// The maximum number of repositories from which a repository borrows objects, directly or indirectly.
pub(crate) const MAX_LENDERS: usize = 32;

/// The maximum length of a chain of repositories that borrow objects from each other. Git has the same limit.
const MAX_LEVELS: usize = 5;

/// Another directory from which a repository reads objects.
#[derive(Debug)]
pub struct Lender {
    /// The directory. Its path is the real path.
    pub objects: Directory,
    /// The git directory to which the objects belong.
    pub git: PathBuf,
    /// The identity of the directory.
    pub id: FileId,
}

/// The directories with the objects of a repository.
#[derive(Debug)]
pub struct ObjectSources {
    /// The repository's own objects. `None` if there are none, or `objects` is a link.
    pub own: Option<Directory>,
    /// The other directories. If `objects` is a link, the first one is the target of the link.
    pub lenders: Vec<Lender>,
}

/// Why objects may not be read from a directory.
#[derive(Debug, thiserror::Error)]
pub enum LenderError {
    /// A list of other directories cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The target of the link `objects` is not a directory.
    #[error("{} leads to no directory", .0.display())]
    Missing(PathBuf),
    /// The directory does not belong to a git directory.
    #[error("{} is not the `objects` of a git directory", .0.display())]
    NotObjects(PathBuf),
    /// Another user owns the directory.
    #[error("{} belongs to another user", .0.display())]
    Owner(PathBuf),
    /// There are too many directories, or the chain of directories that borrow from each other is too long.
    #[error("{} borrows from more than {MAX_LENDERS} repositories, or through more than {MAX_LEVELS}", .0.display())]
    TooMany(PathBuf),
    /// A system call failed.
    #[error("{}: {error}", path.display())]
    System {
        /// The path of the directory.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
}

impl ObjectSources {
    /// Finds the directories with the objects of a repository. Directories in `objects/info/alternates` that do not
    /// exist are left out, as in git.
    ///
    /// # Errors
    /// Returns a [`LenderError`] of any kind.
    pub fn of(located: &Located) -> Result<Self, LenderError> {
        let path = located.common.path().join(OBJECTS);
        let failed = |error| LenderError::System { path: path.clone(), error };
        let mut found = Self { own: None, lenders: Vec::new() };
        let mut next = Vec::new();
        if located.has_linked_objects() {
            let target = path.canonicalize().map_err(|_| LenderError::Missing(path.clone()))?;
            next.push((target, 1));
        } else if let Some(own) = located.objects().map_err(failed)? {
            next.extend(alternates(&own)?.into_iter().map(|path| (path, 1)));
            found.own = Some(own);
        }
        while let Some((lender, level)) = next.pop() {
            if found.lenders.iter().any(|known| known.objects.path() == lender) {
                continue;
            }
            if found.lenders.len() == MAX_LENDERS || level > MAX_LEVELS {
                return Err(LenderError::TooMany(path));
            }
            let lender = Lender::open(&lender, located.owner)?;
            next.extend(alternates(&lender.objects)?.into_iter().map(|path| (path, level + 1)));
            found.lenders.push(lender);
        }
        Ok(found)
    }
}

impl Lender {
    /// Opens a directory by its real path. The directory must belong to a git directory of the user. If the user is
    /// root, it may belong to the owner of the borrowing repository instead.
    fn open(path: &Path, base: u32) -> Result<Self, LenderError> {
        let failed = |error| LenderError::System { path: path.to_owned(), error };
        let objects = open_real(path).map_err(failed)?;
        let git =
            objects.parent().map_err(failed)?.ok_or_else(|| LenderError::NotObjects(path.to_owned()))?;
        let id = objects.id().map_err(failed)?;
        let is_its =
            git.directory(Path::new(OBJECTS)).ok().flatten().and_then(|found| found.id().ok()) == Some(id);
        if !is_its || !locate::is_git_directory(&git, &git) {
            return Err(LenderError::NotObjects(path.to_owned()));
        }
        if !locate::is_trusted(objects.owner().map_err(failed)?, base) {
            return Err(LenderError::Owner(path.to_owned()));
        }
        Ok(Self { git: git.path().to_owned(), objects, id })
    }
}

impl Located {
    /// Whether `objects` is a link.
    #[must_use]
    pub fn has_linked_objects(&self) -> bool {
        let status = self.common.stat(Path::new(OBJECTS)).ok().flatten();
        status.is_some_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a git directory at this path, whose objects borrow from the directories `borrows`.
    fn repository(path: &Path, borrows: &[&Path]) {
        for directory in ["refs", "objects/info"] {
            fs::create_dir_all(path.join(directory)).expect("made");
        }
        fs::write(path.join("HEAD"), "ref: refs/heads/main\n").expect("written");
        let lines: String = borrows.iter().map(|path| format!("{}\n", path.display())).collect();
        fs::write(path.join("objects/info/alternates"), lines).expect("written");
    }

    /// Returns whether the repository at `top` has its own objects, and the git directories from which it borrows
    /// objects.
    fn found(top: &Path) -> Result<(bool, Vec<PathBuf>), String> {
        let located = locate::at(top).expect("read").expect("found");
        let found = ObjectSources::of(&located).map_err(|error| error.to_string())?;
        Ok((found.own.is_some(), found.lenders.into_iter().map(|lender| lender.git).collect()))
    }

    #[test]
    fn finds_what_is_borrowed_directly_and_through_others() {
        let scene = tempfile::tempdir().expect("a directory");
        let root = scene.path().canonicalize().expect("real");
        let (top, one, two) = (root.join("top"), root.join("one/.git"), root.join("two.git"));
        repository(&top.join(".git"), &[]);
        assert_eq!(found(&top), Ok((true, vec![])));
        repository(&two, &[&one.join("objects")]);
        repository(&one, &[&two.join("objects")]);
        repository(&top.join(".git"), &[Path::new("../../../one/.git/objects"), &root.join("none/objects")]);
        assert_eq!(found(&top), Ok((true, vec![one.clone(), two.clone()])), "a missing one is left out");
        // A link in the path is resolved, so the user sees the real path.
        symlink(&root, root.join("link")).expect("link");
        repository(&top.join(".git"), &[&root.join("link/two.git/objects")]);
        assert_eq!(found(&top), Ok((true, vec![two, one])));
    }

    #[test]
    fn objects_that_are_a_link_are_those_of_another_repository() {
        let scene = tempfile::tempdir().expect("a directory");
        let root = scene.path().canonicalize().expect("real");
        let (top, other) = (root.join("top"), root.join("lender.git"));
        repository(&other, &[]);
        repository(&top.join(".git"), &[]);
        fs::remove_dir_all(top.join(".git/objects")).expect("removed");
        symlink("../../lender.git/objects", top.join(".git/objects")).expect("link");
        assert_eq!(found(&top), Ok((false, vec![other.clone()])));
        fs::remove_dir_all(other).expect("removed");
        assert!(found(&top).is_err_and(|error| error.ends_with("objects leads to no directory")));
    }

    #[test]
    fn refuses_what_is_no_git_directory_and_what_has_too_many_levels() {
        let scene = tempfile::tempdir().expect("a directory");
        let root = scene.path().canonicalize().expect("real");
        let top = root.join("top");
        for path in ["plain", "plain/objects"] {
            fs::create_dir_all(root.join(path)).expect("made");
            repository(&top.join(".git"), &[&root.join(path)]);
            assert!(found(&top).is_err_and(|error| error.contains("is not the `objects`")), "{path}");
        }
        let chain: Vec<PathBuf> = (0..=MAX_LEVELS).map(|level| root.join(format!("{level}.git"))).collect();
        for pair in chain.windows(2) {
            repository(&pair[0], &[&pair[1].join("objects")]);
        }
        repository(&chain[MAX_LEVELS], &[]);
        repository(&top.join(".git"), &[&chain[0].join("objects")]);
        assert!(found(&top).is_err_and(|error| error.contains("borrows from more than")));
        repository(&top.join(".git"), &[&chain[1].join("objects")]);
        assert_eq!(found(&top).map(|(_, lenders)| lenders.len()), Ok(MAX_LEVELS));
    }
}
