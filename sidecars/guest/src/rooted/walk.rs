//! Resolves a path component by component, for kernels without `openat2`.
//!
//! Each component is opened relative to the directory before it, without following a symlink. Therefore a concurrent
//! rename cannot lead the resolution out of the directories that it has opened: `..` returns to the directory that was
//! opened before, and never asks the kernel for a parent.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

/// The maximum number of symlinks that one path may contain, as in Linux (path_resolution(7)).
const MAX_SYMLINKS: usize = 40;

/// The maximum number of components of a path, with those of its symlinks. A path of Linux has at most 4,096 bytes.
const MAX_COMPONENTS: usize = 4096;

/// Opens a path relative to `root`. Of `bounds`, `IN_ROOT`, `BENEATH` and `NO_SYMLINKS` have the meaning of openat2(2).
pub(super) fn open(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    bounds: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let mut walk = Walk { root, above: Vec::new(), left: VecDeque::new(), bounds, symlinks: 0 };
    walk.push(path.as_os_str())?;
    while let Some(name) = walk.left.pop_front() {
        // The directory that this component names is open already.
        if name == "." {
            continue;
        }
        if name == ".." {
            walk.go_up()?;
            continue;
        }
        let is_last = walk.left.is_empty();
        match walk.follow(&name, is_last && flags.intersects(OFlags::NOFOLLOW | OFlags::EXCL))? {
            Found::Symlink => {}
            Found::Missing if is_last && flags.contains(OFlags::CREATE) => {
                return openat(walk.current(), &name, flags | OFlags::NOFOLLOW, mode);
            }
            Found::Missing => return Err(Errno::NOENT),
            Found::Other if is_last => return openat(walk.current(), &name, flags | OFlags::NOFOLLOW, mode),
            Found::Other => walk.enter(&name)?,
        }
    }
    openat(walk.current(), ".", flags, mode)
}

/// What a component of a path is.
enum Found {
    Missing,
    /// A symlink, whose target is now part of the path that is left.
    Symlink,
    Other,
}

struct Walk<'a> {
    root: BorrowedFd<'a>,
    /// The directories below `root` that the path has entered.
    above: Vec<OwnedFd>,
    /// The components that are left.
    left: VecDeque<OsString>,
    bounds: ResolveFlags,
    symlinks: usize,
}

impl Walk<'_> {
    fn current(&self) -> BorrowedFd<'_> {
        self.above.last().map_or(self.root, AsFd::as_fd)
    }

    /// Puts the components of a path before those that are left.
    fn push(&mut self, path: &OsStr) -> rustix::io::Result<()> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let path = Path::new(path);
        if path.has_root() {
            if !self.bounds.contains(ResolveFlags::IN_ROOT) {
                return Err(Errno::XDEV);
            }
            self.above.clear();
        }
        // A trailing slash or dot demands a directory.
        let bytes = path.as_os_str().as_bytes();
        if bytes.ends_with(b"/") || bytes.ends_with(b"/.") {
            self.left.push_front(".".into());
        }
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => self.left.push_front(name.to_owned()),
                Component::ParentDir => self.left.push_front("..".into()),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        if self.left.len() > MAX_COMPONENTS { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    fn go_up(&mut self) -> rustix::io::Result<()> {
        if self.above.pop().is_none() && !self.bounds.contains(ResolveFlags::IN_ROOT) {
            return Err(Errno::XDEV);
        }
        Ok(())
    }

    fn enter(&mut self, name: &OsStr) -> rustix::io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(self.current(), name, flags, Mode::empty())?;
        self.above.push(directory);
        Ok(())
    }

    /// Looks at a component, and replaces a symlink by its target. With `as_is`, a symlink is a component like any
    /// other.
    fn follow(&mut self, name: &OsStr, as_is: bool) -> rustix::io::Result<Found> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match openat(self.current(), name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Found::Missing),
            found => found?,
        };
        if as_is || FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::Symlink {
            return Ok(Found::Other);
        }
        self.symlinks += 1;
        if self.symlinks > MAX_SYMLINKS || self.bounds.contains(ResolveFlags::NO_SYMLINKS) {
            return Err(Errno::LOOP);
        }
        let target = readlinkat(&found, "", Vec::new())?;
        self.push(&OsString::from_vec(target.into_bytes()))?;
        Ok(Found::Symlink)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use rustix::fs::openat2;

    use super::*;

    const NAMES: [&str; 4] = ["a", "b", "a/b", "b/a"];

    /// An entry of a small tree. An entry that cannot be created is left out.
    #[derive(Debug, Clone)]
    enum Entry {
        Directory(&'static str),
        File(&'static str),
        Symlink(&'static str, String),
    }

    fn paths() -> impl Strategy<Value = String> {
        let component = prop_oneof![Just("a"), Just("b"), Just("c"), Just(".."), Just("."), Just("")];
        prop::collection::vec(component, 1..5)
            .prop_map(|components| components.join("/"))
            .prop_filter("an empty path names nothing", |path| !path.is_empty())
    }

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let name = || prop::sample::select(NAMES.to_vec());
        let entry = prop_oneof![
            name().prop_map(Entry::Directory),
            name().prop_map(Entry::File),
            (name(), paths()).prop_map(|(name, target)| Entry::Symlink(name, target)),
        ];
        prop::collection::vec(entry, 0..8)
    }

    fn create(root: &Path, entries: &[Entry]) {
        for entry in entries {
            let _ = match entry {
                Entry::Directory(name) => fs::create_dir(root.join(name)),
                Entry::File(name) => fs::File::create_new(root.join(name)).map(drop),
                Entry::Symlink(name, target) => symlink(target, root.join(name)),
            };
        }
    }

    fn identity(opened: rustix::io::Result<OwnedFd>) -> rustix::io::Result<(u64, u64, u32)> {
        let seen = fstat(opened?)?;
        Ok((seen.st_dev, seen.st_ino, seen.st_mode))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// The result is the file of `openat2`, or its error.
        #[test]
        fn a_walk_ends_where_openat2_ends(
            entries in entries(),
            path in paths(),
            bounds in prop::sample::select(vec![
                ResolveFlags::IN_ROOT,
                ResolveFlags::BENEATH,
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
            ]),
            flags in prop::sample::select(vec![
                OFlags::PATH,
                OFlags::PATH | OFlags::NOFOLLOW,
                OFlags::RDONLY,
                OFlags::RDONLY | OFlags::DIRECTORY,
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW,
            ]),
        ) {
            // Symlinks with `..` may name directories above the root, which must exist and be empty.
            let outer = tempfile::tempdir().expect("a directory");
            let root = outer.path().join("outside/root");
            fs::create_dir_all(&root).expect("the root");
            create(&root, &entries);
            let directory = fs::File::open(&root).expect("the root");
            let flags = flags | OFlags::CLOEXEC;
            let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR } else { Mode::empty() };
            let walked = open(directory.as_fd(), Path::new(&path), flags, mode, bounds);
            let made = flags.contains(OFlags::CREATE) && walked.is_ok();
            let walked = identity(walked);
            // A file that was created exists now, so that only its place can be compared.
            let again = if made { OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC } else { flags };
            let mode = if made { Mode::empty() } else { mode };
            let by_kernel = identity(openat2(&directory, &path, again, mode, bounds));
            if flags.contains(OFlags::CREATE) {
                // Which of several errors of a creation is reported differs.
                prop_assert_eq!(walked.ok(), by_kernel.ok());
            } else {
                prop_assert_eq!(walked, by_kernel);
            }
        }
    }

    #[test]
    fn a_walk_ends_at_its_bounds() {
        let root = tempfile::tempdir().expect("a directory");
        symlink("round", root.path().join("round")).expect("a symlink");
        let many = "./a/../".repeat(MAX_COMPONENTS);
        let directory = fs::File::open(root.path()).expect("the root");
        fs::create_dir(root.path().join("a")).expect("a directory");
        for (path, error) in [("round", Errno::LOOP), (many.as_str(), Errno::NAMETOOLONG)] {
            let opened =
                open(directory.as_fd(), Path::new(path), OFlags::PATH, Mode::empty(), ResolveFlags::IN_ROOT);
            assert_eq!(opened.expect_err("refused"), error);
        }
    }
}
