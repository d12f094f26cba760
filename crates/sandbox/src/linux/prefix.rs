//! Builds the bottle's writable install prefixes, `/usr/local` and `/opt`.
//!
//! ```text
//!   /usr/local   an overlay: the bottle's upper directory, over empty directories that the agent
//!                owns, over the host's directory
//!   /opt         a directory of the bottle
//!   ~/.prefix    stores the content of both: local/ opt/ work/; read-only to the agent
//! ```
//! The host's directories do not belong to the bottle's single user, so the agent could not write to them even through
//! an overlay. The overlay therefore has an additional layer: a tmpfs with empty directories that belong to the agent's
//! user. The host's files stay visible, and nothing is written to disk before a program is installed. If the kernel
//! refuses the overlay, `/usr/local` is the host's directory, which is read-only like the other system directories.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat};

use super::mounts::{READ_ONLY, Tree, WRITABLE, directory};
use super::sys::restrict_mount;
use crate::local::failure::Step;
use crate::local::spawn_ipc::SetupFailure;

/// The directory in the home that stores the content of both prefixes.
const PREFIX_DIRECTORY: &str = ".prefix";

/// The prefix into which users and programs install additional software.
pub(super) const LOCAL: &str = "/usr/local";

/// The prefix for self-contained packages.
pub(super) const OPT: &str = "/opt";

/// Directories that installers expect. These directories are created even if the host lacks them.
const SKELETON: [&str; 9] = [
    "bin",
    "etc",
    "include",
    "lib/node_modules",
    "lib/pkgconfig",
    "libexec",
    "sbin",
    "share/man/man1",
    "src",
];

/// The maximum depth and number of host directories that are recreated as writable directories. There is a maximum
/// because each directory adds to a bottle's start time. The host's other directories stay read-only. Most of these
/// belong to single packages.
const MAX_DEPTH: usize = 2;
const MAX_DIRECTORIES: usize = 100;

/// System package managers, which cannot work in a bottle that uses the host's system directories. A script replaces
/// each package manager and names alternatives.
const REPLACED_COMMANDS: [&str; 2] = ["apt", "apt-get"];
const REPLACEMENT_SCRIPT: &str = "#!/bin/sh\n\
    echo 'this bottle sees the machine'\"'\"'s system read-only, so there is no apt here.' >&2\n\
    echo 'pip, npm -g, cargo install --root /usr/local and make install work; or start it with an image.' >&2\n\
    exit 100\n";

/// Mounts both prefixes. The home must already be mounted and must be writable.
pub(super) fn build(root: BorrowedFd<'_>, home: BorrowedFd<'_>, read_only: bool) -> Result<(), SetupFailure> {
    let directory_fd =
        directory(home, Path::new(PREFIX_DIRECTORY)).step("make the directory of its prefix")?;
    for name in ["local", "opt", "work"] {
        directory(&directory_fd, Path::new(name))
            .step_at("make the directory of its prefix", Path::new(name))?;
    }
    let below = directory(root, Path::new(OPT)).step("make /opt")?;
    if let Some(local) = overlay(&directory_fd, &below) {
        let over = openat(root, "usr/local", DIRECTORY, Mode::empty()).step("open /usr/local")?;
        local.attach(over).step("mount /usr/local")?;
        if read_only {
            restrict_mount(local.root(), READ_ONLY, false).step("make /usr/local read-only")?;
        }
    }
    let opt = if read_only { READ_ONLY } else { WRITABLE };
    let opt = Tree::clone_at(&directory_fd, c"opt", opt).step("take /opt")?;
    opt.attach(below).step("mount /opt")?;
    // The directories of a mounted overlay must not be changed directly, so the agent sees them read-only.
    let read_only = Tree::clone_at(home, c".prefix", READ_ONLY).step("shut the directory of its prefix")?;
    read_only.attach(&directory_fd).step("shut the directory of its prefix")
}

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Creates the overlay for `/usr/local`. Returns `None` if the host has no `/usr/local`, or if the kernel or the file
/// system does not support overlays. The empty directories of the agent are created in `hidden`, a directory of the
/// root tmpfs that a later mount covers.
fn overlay(directory_fd: &OwnedFd, hidden: &OwnedFd) -> Option<Tree> {
    let host = openat(CWD, LOCAL, DIRECTORY, Mode::empty()).ok()?;
    let [upper, work] =
        ["local", "work"].map(|name| openat(directory_fd, name, DIRECTORY, Mode::empty()).ok());
    let (upper, work) = (upper?, work?);
    seed(hidden, Path::new(LOCAL)).ok()?;
    clear_volatile_mark(&work);
    let path = |of: &OwnedFd| format!("/proc/self/fd/{}", of.as_raw_fd());
    let lower = format!("{}:{}", path(hidden), path(&host));
    // Without `volatile`, the kernel would write the complete file system to disk when the bottle ends.
    Tree::overlay(&lower, &path(&upper), &path(&work), &["volatile"]).ok()
}

/// Removes the mark that the kernel leaves in the work directory of a volatile overlay. After a crash of the machine,
/// the overlay's recent writes may be lost, as with any other file.
fn clear_volatile_mark(work: &OwnedFd) {
    // Errors are ignored, because a new bottle has no mark. If the mark remained, the kernel would refuse the overlay.
    let _ = rustix::fs::unlinkat(work, "work/incompat/volatile/dirty", AtFlags::empty());
    for directory in ["work/incompat/volatile", "work/incompat"] {
        let _ = rustix::fs::unlinkat(work, directory, AtFlags::REMOVEDIR);
    }
}

/// Creates the directories of the host's prefix, and the directories that installers expect, with the bottle's user as
/// owner.
fn seed(own: &OwnedFd, host: &Path) -> io::Result<()> {
    let mut made = vec![PathBuf::new()];
    made.extend(SKELETON.map(PathBuf::from));
    made.extend(python(Path::new("/usr/lib"))?);
    directories(host, &mut made)?;
    for path in made {
        directory(own, &path)?;
    }
    let bin = directory(own, Path::new("bin"))?;
    for name in REPLACED_COMMANDS {
        if Path::new("/usr/bin").join(name).exists() && !host.join("bin").join(name).exists() {
            write_replacement(&bin, name)?;
        }
    }
    Ok(())
}

/// Returns the package directories of the Python versions that are installed on the host.
fn python(libraries: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    // Debian names the directory `dist-packages`. Other distributions name it `site-packages`.
    let packages =
        if libraries.join("python3/dist-packages").exists() { "dist-packages" } else { "site-packages" };
    for entry in std::fs::read_dir(libraries)? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("python3.")) {
            let own = Path::new("lib").join(name);
            found.push(own.join(packages));
        }
    }
    Ok(found)
}

/// Adds the host's directories up to the depth and number limits. Skips links.
fn directories(host: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut level = vec![PathBuf::new()];
    let max = found.len() + MAX_DIRECTORIES;
    for _ in 0..MAX_DEPTH {
        let mut below = Vec::new();
        for directory in level {
            // A directory that cannot be read is skipped.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(opened) = openat(CWD, host.join(&directory), flags, Mode::empty()) else { continue };
            for entry in Dir::read_from(opened)? {
                let entry = entry?;
                let name = entry.file_name();
                if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
                    below.push(directory.join(name.to_string_lossy().as_ref()));
                }
            }
        }
        found.extend(below.iter().take(max.saturating_sub(found.len())).cloned());
        level = below;
    }
    Ok(())
}

fn write_replacement(bin: impl AsFd, name: &str) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    File::from(openat(bin, name, flags, Mode::from_raw_mode(0o755))?).write_all(REPLACEMENT_SCRIPT.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn recreates_the_hosts_directories_without_their_files() {
        let scratch = tempfile::tempdir().expect("directory");
        let [host, own] = ["host", "own"].map(|name| scratch.path().join(name));
        fs::create_dir_all(host.join("share/a/b/c/d/e")).expect("made");
        fs::create_dir_all(&own).expect("made");
        fs::write(host.join("share/file"), "x").expect("written");
        symlink("share", host.join("man")).expect("linked");
        seed(&openat(CWD, &own, DIRECTORY, Mode::empty()).expect("opened"), &host).expect("seeded");
        assert!(own.join("share/a").is_dir() && !own.join("share/a/b").exists());
        assert!(own.join("lib/node_modules").is_dir());
        assert!(!own.join("man").exists() && !own.join("share/file").exists());
    }
}
