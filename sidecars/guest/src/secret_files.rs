//! Provides the bottle's secrets as files in [`SECRETS_DIR`]. Each secret variable has one file, which only the agent's
//! user can read.
//!
//! Some programs accept a password only from a file. Unlike a variable, a file is not passed to every program that the
//! agent starts. The directory is in a tmpfs. The complete set of files is replaced at once, so that no program finds
//! files of two sets.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use bottle_policy::names::SECRETS_DIR;
use bottle_policy::secret::Secret;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, mkdirat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::facts::relative_to_root;
use crate::rooted::{make_directory, open_beneath};

/// The name of the directory in which a new set of files is prepared. This directory is in the same parent directory as
/// the current set.
const NEW: &str = ".secrets.new";

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

/// Replaces all files by a new set. The new set has one file for each name in `secrets`, with the value as its content.
///
/// # Errors
/// Fails if a file cannot be written. In this case, the current files stay unchanged.
pub(crate) fn replace<'a>(
    root: &Path,
    secrets: impl IntoIterator<Item = (&'a str, &'a Secret)>,
) -> io::Result<()> {
    let mut secrets = secrets.into_iter().peekable();
    if secrets.peek().is_none() {
        return remove(root);
    }
    let (run, name) = place(root)?;
    remove_directory(&run, OsStr::new(NEW))?;
    mkdirat(&run, NEW, Mode::from_raw_mode(0o700))?;
    let prepared = prepare(&run, secrets).and_then(|()| put_in_place(&run, &name));
    // At this point, `NEW` is the previous set, or an incomplete new set.
    prepared.and(remove_directory(&run, OsStr::new(NEW)))
}

/// Removes the files, if there are any.
///
/// # Errors
/// Fails if a file cannot be removed.
pub(crate) fn remove(root: &Path) -> io::Result<()> {
    let (run, name) = place(root)?;
    remove_directory(&run, &name)
}

/// Opens the parent directory of the set. Returns the open directory and the name of the set.
fn place(root: &Path) -> io::Result<(OwnedFd, std::ffi::OsString)> {
    let path = relative_to_root(SECRETS_DIR);
    let (Some(run), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Ok((make_directory(root, run)?, name.to_owned()))
}

fn prepare<'a>(run: &OwnedFd, secrets: impl Iterator<Item = (&'a str, &'a Secret)>) -> io::Result<()> {
    let directory = open_beneath(run, Path::new(NEW), DIRECTORY, Mode::empty())?;
    for (name, value) in secrets {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = open_beneath(&directory, Path::new(name), flags, Mode::from_raw_mode(0o600))?;
        File::from(file).write_all(value.expose().as_bytes())?;
    }
    Ok(())
}

/// Exchanges the names of the new set and the current set. After this, the previous set has the name [`NEW`].
fn put_in_place(run: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match renameat_with(run, NEW, run, name, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT) => Ok(renameat(run, NEW, run, name)?),
        done => Ok(done?),
    }
}

/// Removes a directory and its files. The agent may have created any entries in the directory, so symlinks are not
/// followed.
fn remove_directory(run: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let directory = match open_beneath(run, Path::new(name), DIRECTORY, Mode::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        directory => directory?,
    };
    let names: Vec<_> = Dir::read_from(&directory)?
        .filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_owned()))
        .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
        .collect();
    for name in names {
        unlinkat(&directory, &name, AtFlags::empty())?;
    }
    Ok(unlinkat(run, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set(root: &Path, secrets: &[(&str, &str)]) -> io::Result<()> {
        let secrets: BTreeMap<_, _> =
            secrets.iter().map(|(name, value)| (*name, Secret::new((*value).to_owned()))).collect();
        replace(root, secrets.iter().map(|(name, value)| (*name, value)))
    }

    fn files(root: &Path) -> BTreeMap<String, String> {
        let Ok(directory) = fs::read_dir(root.join("run/bottle/secrets")) else { return BTreeMap::new() };
        let file = |entry: fs::DirEntry| {
            (
                entry.file_name().into_string().expect("a name"),
                fs::read_to_string(entry.path()).expect("content"),
            )
        };
        directory.map(|entry| file(entry.expect("an entry"))).collect()
    }

    #[test]
    fn a_set_replaces_the_one_before() {
        let root = tempfile::tempdir().expect("root");
        let root = root.path();
        set(root, &[]).expect("no set");
        assert!(!root.join("run/bottle/secrets").exists(), "a bottle without secrets has no directory");
        set(root, &[("ONE", "hunter2"), ("TWO", "a\nb\n")]).expect("a set");
        let mode =
            |path: &str| fs::metadata(root.join(path)).expect("an entry").permissions().mode() & 0o7777;
        assert_eq!((mode("run/bottle/secrets"), mode("run/bottle/secrets/ONE")), (0o700, 0o600));
        let expected =
            [("ONE", "hunter2"), ("TWO", "a\nb\n")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(files(root), expected.into());
        set(root, &[("THREE", "x")]).expect("another set");
        assert_eq!(files(root), [("THREE".to_owned(), "x".to_owned())].into());
        assert_eq!(
            fs::read_dir(root.join("run/bottle")).expect("directory").count(),
            1,
            "no other directory stays"
        );
        set(root, &[]).expect("no set");
        assert!(!root.join("run/bottle/secrets").exists());
    }

    #[test]
    fn links_of_the_agent_lead_nowhere() {
        let root = tempfile::tempdir().expect("root");
        let root = root.path();
        let outside = root.join("outside");
        fs::create_dir_all(root.join("run/bottle")).expect("made");
        fs::create_dir(&outside).expect("made");
        fs::write(outside.join("mine"), "x").expect("written");
        symlink(&outside, root.join("run/bottle/secrets")).expect("a link");
        assert!(remove(root).is_err());
        set(root, &[("ONE", "hunter2")]).expect_err("the previous set cannot be removed");
        assert_eq!(fs::read_dir(&outside).expect("directory").count(), 1, "nothing was written or removed");
    }
}
