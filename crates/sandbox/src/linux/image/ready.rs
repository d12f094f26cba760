//! Prepares the files of an image for an agent. Adds a user, a home, a workspace, links to the provisioned
//! certificates, and mount points. No program of the image runs. The docker backend prepares its images in the same
//! way.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use bottle_backend::ROOT_FILES;
use bottle_backend::image::account::{Account, Users, default_home};
use bottle_backend::image::saved::BadImage;
use bottle_backend::trees::image_tree::Tree;
use bottle_policy::names::{AGENT_USER, CA_BUNDLE_FILE, WORKSPACE};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// The maximum number of bytes read of a user list (`/etc/passwd`, `/etc/group`). The rest of a longer file is ignored.
const LIST_MAX: u64 = 1 << 20;

/// The configuration directory of dpkg. By default, dpkg requires root. A file in this directory disables this check,
/// because in a bottle all files belong to the agent.
const DPKG: &str = "etc/dpkg/dpkg.cfg.d";

/// Directories that every bottle on an image needs: `/etc` for generated files, and the other directories as mount
/// points.
const OWN: [&str; 6] = ["dev", "etc", "proc", "run", "sys", "tmp"];

/// Adds the files that the image lacks. `user` is the value of the image's instruction `USER`; this user becomes the
/// agent.
///
/// # Errors
/// [`BadImage`] when the user is invalid, or when a path cannot be created because another kind of file exists at this
/// path.
pub(super) fn make(tree: &Tree, user: &str) -> Result<Account, BadImage> {
    let (passwd, group) = (list(tree, "etc/passwd")?, list(tree, "etc/group")?);
    let users = Users { user, passwd: &passwd, group: &group };
    let mut account = users.agent().map_err(|why| BadImage::refused(why.to_string()))?;
    for directory in OWN {
        own_directory(tree, directory)?;
    }
    if own_directory(tree, account.home.trim_start_matches('/')).is_err() {
        account.home = default_home(&account.name);
        own_directory(tree, account.home.trim_start_matches('/'))?;
    }
    own_directory(tree, WORKSPACE.trim_start_matches('/'))?;
    let with_agent = users.passwd_with(&account);
    // A file that is already complete is not rewritten, so that an image that was prepared before keeps its file times.
    if with_agent != passwd {
        replace(tree, "etc/passwd", |parent, name| write(parent, name, &with_agent))?;
    }
    if let Some(group) = users.group_with(&account) {
        replace(tree, "etc/group", |parent, name| write(parent, name, &group))?;
    }
    let usual = default_home(AGENT_USER);
    if account.home != usual {
        let place = usual.trim_start_matches('/');
        let there = tree
            .directory(Path::new("home"))
            .is_ok_and(|home| statat(&home, AGENT_USER, AtFlags::SYMLINK_NOFOLLOW).is_ok());
        if !there {
            replace(tree, place, |parent, name| symlinkat(&account.home, parent, name))?;
        }
    }
    for file in ROOT_FILES {
        let place = file.trim_start_matches('/');
        let directory = Path::new(place).parent().unwrap_or(Path::new(""));
        if is_directory(tree, directory) && !is_link_to(tree, place, CA_BUNDLE_FILE) {
            replace(tree, place, |parent, name| symlinkat(CA_BUNDLE_FILE, parent, name))?;
        }
    }
    if is_directory(tree, Path::new(DPKG)) {
        replace(tree, &format!("{DPKG}/bottle"), |parent, name| write(parent, name, "force-not-root\n"))?;
    }
    Ok(account)
}

/// Creates a directory and the missing directories above it. No part of the path may be a link.
fn own_directory(tree: &Tree, place: &str) -> Result<(), BadImage> {
    let place = Path::new(place);
    for part in place.ancestors().filter(|part| !part.as_os_str().is_empty()) {
        let parent = part.parent().unwrap_or(Path::new(""));
        if !is_directory(tree, parent) {
            continue;
        }
        let (directory, name) = (tree.directory(parent)?, part.file_name().unwrap_or_default());
        match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {}
            Ok(_) => {
                return Err(BadImage::refused(format!("must have a directory at {part:?}")));
            }
            Err(error) => return Err(BadImage::at(part, error)),
        }
    }
    tree.directory(place).map(drop)
}

fn is_directory(tree: &Tree, place: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    openat2(tree.top(), place, flags, Mode::empty(), resolve).is_ok()
}

fn is_link_to(tree: &Tree, place: &str, target: &str) -> bool {
    let path = Path::new(place);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let link = tree.directory(parent).ok().and_then(|parent| readlinkat(&parent, name, Vec::new()).ok());
    link.is_some_and(|link| link.to_bytes() == target.as_bytes())
}

/// Replaces the file or link at this path.
fn replace(
    tree: &Tree,
    place: &str,
    make: impl FnOnce(&OwnedFd, &str) -> rustix::io::Result<()>,
) -> Result<(), BadImage> {
    let path = Path::new(place);
    let parent = tree.directory(path.parent().unwrap_or(Path::new("")))?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match unlinkat(&parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(BadImage::at(path, error)),
    }
    make(&parent, name).map_err(|error| BadImage::at(path, error))
}

fn write(parent: &OwnedFd, name: &str, text: &str) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(parent, name, flags, Mode::from_raw_mode(0o644))?);
    file.write_all(text.as_bytes()).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Reads a short file. Links are resolved relative to the image's root. Returns an empty string if the file does not
/// exist or is not a regular file.
fn list(tree: &Tree, place: &str) -> Result<String, BadImage> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = openat2(tree.top(), place, flags, Mode::empty(), resolve) else {
        return Ok(String::new());
    };
    let failed = |error: std::io::Error| BadImage::at(Path::new(place), error);
    let file = File::from(file);
    let mut text = Vec::new();
    if file.metadata().map_err(failed)?.is_file() {
        file.take(LIST_MAX).read_to_end(&mut text).map_err(failed)?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
