//! Where software is installed beside the system: `/usr/local` and `/opt`, the bottle's own to write in.
//!
//! ```text
//!   /usr/local   an overlay: what the bottle writes, over empty folders of its own, over the host's
//!   /opt         the bottle's alone
//!   ~/.prefix    where both are kept, so that they stay with the home: local/ opt/ work/, read-only to the agent
//! ```
//! With one id inside, a folder of the host's cannot be written in even through an overlay: it belongs to
//! somebody else. So a layer in memory has each of them anew, and what is in it shows through; the disk sees
//! none of them before something is installed there. Where the kernel refuses the overlay `/usr/local` is the
//! host's, read-only, as all of its system.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat};

use super::mounts::{Tree, folder};
use super::sources::{READ_ONLY, WRITABLE};
use crate::backend::local::failure::Step;
use crate::backend::local::spawn_ipc::SetupFailure;

/// The folder of the home that keeps both.
const KEPT: &str = ".prefix";

/// The prefix that hosts and programs install to.
pub(super) const LOCAL: &str = "/usr/local";

/// The other one.
pub(super) const OPT: &str = "/opt";

/// What installers expect, where the host has not made it.
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

/// Folders of the host's prefix as deep as this, and as many, are made writable, and no more: each takes time at
/// the start of a bottle. Below are those of single packages.
const DEEPEST: usize = 2;
const MOST: usize = 100;

/// Programs that change a system, which an agent tries first and which cannot work; each says what can.
const INSTEAD: [&str; 2] = ["apt", "apt-get"];
const SAID_INSTEAD: &str = "#!/bin/sh\n\
    echo 'this bottle sees the machine'\"'\"'s system read-only, so there is no apt here.' >&2\n\
    echo 'pip, npm -g, cargo install --root /usr/local and make install work; or start it with an image.' >&2\n\
    exit 100\n";

/// Puts both in their places; the home is at its own by now.
pub(super) fn build(root: BorrowedFd<'_>, home: BorrowedFd<'_>) -> Result<(), SetupFailure> {
    let kept = folder(home, Path::new(KEPT)).step("make the folder of its prefix")?;
    for name in ["local", "opt", "work"] {
        folder(&kept, Path::new(name)).step_at("make the folder of its prefix", Path::new(name))?;
    }
    let below = folder(root, Path::new(OPT)).step("make /opt")?;
    if let Some(local) = overlay(&kept, &below) {
        let over = openat(root, "usr/local", FOLDER, Mode::empty()).step("open /usr/local")?;
        local.attach(over).step("mount /usr/local")?;
    }
    let opt = Tree::of_folder(&kept, c"opt", WRITABLE).step("take /opt")?;
    opt.attach(below).step("mount /opt")?;
    // What lies below an overlay is nobody's to change while it is one.
    let shut = Tree::of_folder(home, c".prefix", READ_ONLY).step("shut the folder of its prefix")?;
    shut.attach(&kept).step("shut the folder of its prefix")
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Where the host has no such folder, or its kernel or file system no overlays, there is none. The empty folders
/// are made in `hidden`, a folder of the root's file system that something will be mounted over.
fn overlay(kept: &OwnedFd, hidden: &OwnedFd) -> Option<Tree> {
    let host = openat(CWD, LOCAL, FOLDER, Mode::empty()).ok()?;
    let [upper, work] = ["local", "work"].map(|name| openat(kept, name, FOLDER, Mode::empty()).ok());
    let (upper, work) = (upper?, work?);
    seed(hidden, Path::new(LOCAL)).ok()?;
    forget(&work);
    let path = |of: &OwnedFd| format!("/proc/self/fd/{}", of.as_raw_fd());
    let lower = format!("{}:{}", path(hidden), path(&host));
    // Otherwise the end of a bottle would wait until all of the disk's file system is written.
    Tree::overlay(&lower, &path(&upper), &path(&work), &["volatile"]).ok()
}

/// Takes away the kernel's note that there was an overlay before which may not have got to the disk: a machine
/// that stopped between may have lost of it what it may have lost of any file.
fn forget(work: &OwnedFd) {
    // A new bottle has none, and where one stays the kernel refuses the overlay.
    let _ = rustix::fs::unlinkat(work, "work/incompat/volatile/dirty", AtFlags::empty());
    for folder in ["work/incompat/volatile", "work/incompat"] {
        let _ = rustix::fs::unlinkat(work, folder, AtFlags::REMOVEDIR);
    }
}

/// Folders of the bottle's user over those of the host.
fn seed(own: &OwnedFd, host: &Path) -> io::Result<()> {
    let mut made = vec![PathBuf::new()];
    made.extend(SKELETON.map(PathBuf::from));
    made.extend(python(Path::new("/usr/lib"))?);
    folders(host, &mut made)?;
    for path in made {
        folder(own, &path)?;
    }
    let bin = folder(own, Path::new("bin"))?;
    for name in INSTEAD {
        if Path::new("/usr/bin").join(name).exists() && !host.join("bin").join(name).exists() {
            instead(&bin, name)?;
        }
    }
    Ok(())
}

/// Where the system's Pythons look for what is installed beside them.
fn python(libraries: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    // Debian's name for it, and everybody else's.
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

/// The folders that a host has, as deep and as many as the bounds say; links are left as they are.
fn folders(host: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut level = vec![PathBuf::new()];
    let most = found.len() + MOST;
    for _ in 0..DEEPEST {
        let mut below = Vec::new();
        for folder in level {
            // One that this user may not look into is not theirs to install to.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(opened) = openat(CWD, host.join(&folder), flags, Mode::empty()) else { continue };
            for entry in Dir::read_from(opened)? {
                let entry = entry?;
                let name = entry.file_name();
                if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
                    below.push(folder.join(name.to_string_lossy().as_ref()));
                }
            }
        }
        found.extend(below.iter().take(most.saturating_sub(found.len())).cloned());
        level = below;
    }
    Ok(())
}

fn instead(bin: impl AsFd, name: &str) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    File::from(openat(bin, name, flags, Mode::from_raw_mode(0o755))?).write_all(SAID_INSTEAD.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_hosts_folders_are_made_again_without_what_is_in_them() {
        let place = tempfile::tempdir().expect("folder");
        let [host, own] = ["host", "own"].map(|name| place.path().join(name));
        fs::create_dir_all(host.join("share/a/b/c/d/e")).expect("made");
        fs::create_dir_all(&own).expect("made");
        fs::write(host.join("share/file"), "x").expect("written");
        symlink("share", host.join("man")).expect("linked");
        seed(&openat(CWD, &own, FOLDER, Mode::empty()).expect("opened"), &host).expect("seeded");
        assert!(own.join("share/a").is_dir() && !own.join("share/a/b").exists());
        assert!(own.join("lib/node_modules").is_dir());
        assert!(!own.join("man").exists() && !own.join("share/file").exists());
    }
}
