//! Removes trees of files that an agent made. The code follows no link. At any depth, only a few descriptors are open.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::nofollow;

/// Removes a directory and its content, at any depth and with any modes. A missing directory is no error.
///
/// Makes each directory accessible and empties it. Moves a directory at the depth limit into the outermost directory,
/// and then empties it. The length of paths and the number of open files therefore do not grow with the depth.
///
/// # Errors
/// When an entry cannot be removed.
pub fn remove_tree(directory: &Path) -> io::Result<()> {
    remove_tree_at(CWD, directory)
}

/// Removes the directory `name` in the open directory `at`, and its content.
///
/// # Errors
/// The errors of [`remove_tree`].
pub(super) fn remove_tree_at<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> io::Result<()> {
    let at = at.as_fd();
    match Directory::open(at, name) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(top) => {
            let mut moved = 0_u64;
            loop {
                let entries = top.entries()?;
                if entries.is_empty() {
                    break;
                }
                for (name, is_directory) in entries {
                    if is_directory {
                        empty_into(&top, &name, &mut moved)?;
                    } else {
                        rustix::fs::unlinkat(&top.0, &name, AtFlags::empty())?;
                    }
                }
            }
        }
    }
    rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?;
    Ok(())
}

/// The depth limit: a deeper directory is moved to the top before it is emptied. Moving takes longer than emptying a
/// directory in place.
const MAX_DEPTH: usize = 16;

fn empty_into(top: &Directory, name: &CString, moved: &mut u64) -> rustix::io::Result<()> {
    empty(&Directory::open(&top.0, name)?, top, moved, MAX_DEPTH)?;
    rustix::fs::unlinkat(&top.0, name, AtFlags::REMOVEDIR)
}

fn empty(directory: &Directory, top: &Directory, moved: &mut u64, deeper: usize) -> rustix::io::Result<()> {
    for (child, is_directory) in directory.entries()? {
        if !is_directory {
            rustix::fs::unlinkat(&directory.0, &child, AtFlags::empty())?;
        } else if let Some(deeper) = deeper.checked_sub(1) {
            empty(&Directory::open(&directory.0, &child)?, top, moved, deeper)?;
            rustix::fs::unlinkat(&directory.0, &child, AtFlags::REMOVEDIR)?;
        } else {
            move_to_top(directory, &child, top, moved)?;
        }
    }
    Ok(())
}

fn move_to_top(
    directory: &Directory,
    child: &CString,
    top: &Directory,
    moved: &mut u64,
) -> rustix::io::Result<()> {
    // Moving a directory changes its entry `..`, so the directory must be writable.
    nofollow::chmod(&directory.0, child, Mode::RWXU)?;
    loop {
        let aside = format!(".removed-{moved}");
        *moved += 1;
        match rustix::fs::renameat(&directory.0, child, &top.0, &aside) {
            // An entry with this name exists. If it is an empty directory, the rename would replace it, which would be
            // harmless.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
            done => return done,
        }
    }
}

struct Directory(OwnedFd);

impl Directory {
    fn open<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = at.as_fd();
        let opened = match rustix::fs::openat(at, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                nofollow::chmod(at, name, Mode::RWXU)?;
                rustix::fs::openat(at, name, flags, Mode::empty())?
            }
            opened => opened?,
        };
        if !rustix::fs::Mode::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).contains(Mode::RWXU) {
            rustix::fs::fchmod(&opened, Mode::RWXU)?;
        }
        Ok(Self(opened))
    }

    fn entries(&self) -> rustix::io::Result<Vec<(CString, bool)>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                }
                known => known == FileType::Directory,
            };
            entries.push((name.to_owned(), is_directory));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn removes_unreadable_directories_and_directories_deeper_than_the_longest_path() {
        let directory = tempfile::tempdir().expect("directory");
        let tree = directory.path().join("tree");
        let (home, workspace) = (tree.join("home"), tree.join("workspace"));
        fs::create_dir_all(&home).expect("made");
        fs::create_dir(&workspace).expect("made");
        fs::write(directory.path().join("outside"), "kept").expect("written");
        symlink(directory.path(), home.join("link")).expect("link");
        fs::create_dir_all(home.join("closed/inner/.removed-0")).expect("directories");
        fs::write(home.join("closed/inner/file"), "x").expect("file");
        fs::set_permissions(home.join("closed/inner"), fs::Permissions::from_mode(0o0)).expect("closed");
        fs::set_permissions(home.join("closed"), fs::Permissions::from_mode(0o0)).expect("closed");
        let mut at = Directory::open(CWD, workspace.as_path()).expect("open").0;
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).expect("made");
            at = Directory::open(&at, "deeper").expect("open").0;
        }
        drop(at);
        remove_tree(&tree).expect("removed");
        remove_tree(&tree).expect("twice is no error");
        assert!(!tree.exists());
        assert!(directory.path().join("outside").exists(), "a link is not followed");
    }
}
