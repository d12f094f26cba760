//! Sets up the private mount namespace of a gate that root starts.
//!
//! Such a gate switches to a user without access to the parents of its folder and without an entry in
//! `/etc/passwd`. git and ssh need accessible paths and a user name. So the process first enters its own
//! mount namespace, with the folder at a fixed path and an `/etc` that names the user.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bottle_harden::identity::Identity;
use bottle_harden::reach::Held;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// The folder's mount point in the namespace; the gate needs nothing of the machine's `/tmp`.
const MOUNT_POINT: &str = "/tmp";

/// The files in the machine's `/etc` that git and ssh read, if present.
const ETC: [&str; 13] = [
    "alternatives",
    "crypto-policies",
    "gai.conf",
    "gnutls",
    "group",
    "host.conf",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "nsswitch.conf",
    "resolv.conf",
    "services",
];

/// Enters a new mount namespace and returns the folder's path in it. Needs root, and a process with a
/// single thread.
///
/// # Errors
/// The kernel's error.
pub(crate) fn enter(folder: &Path, identity: Identity) -> io::Result<PathBuf> {
    let Identity { uid, gid } = identity;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount_private_etc(&format!("root:x:0:0:::\ngate:x:{uid}:{gid}::/nonexistent:/bin/false\n"))?;
    mount(Some(folder), MOUNT_POINT, none, MsFlags::MS_BIND, none)?;
    let plain = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(none, MOUNT_POINT, none, plain, none)?;
    Ok(MOUNT_POINT.into())
}

/// Mounts an `/etc` with these users and the machine's files that git and ssh read.
///
/// A rename over a mount point removes the mount in every namespace: a file mounted over the machine's
/// `/etc/passwd` disappears with the next `useradd`. In a private folder no other process renames, and
/// the files stay as they were.
fn mount_private_etc(passwd: &str) -> io::Result<()> {
    let machine = Held::open(Path::new("/etc")).map_err(io::Error::other)?;
    let (from, to) = (machine.path(), Path::new("/etc"));
    let none = None::<&str>;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), to, Some("tmpfs"), flags, Some("mode=755,size=1m"))?;
    fs::write(to.join("passwd"), passwd)?;
    for entry in fs::read_dir(&from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        // All symlinks: one may point to another.
        if kind.is_symlink() && !target.exists() {
            symlink(fs::read_link(entry.path())?, &target)?;
        } else if ETC.iter().any(|name| entry.file_name() == *name) {
            if kind.is_dir() {
                fs::create_dir(&target)?
            } else {
                fs::write(&target, "")?
            }
            mount(Some(&entry.path()), &target, none, MsFlags::MS_BIND, none)?;
        }
    }
    let openssl = from.join("ssl/openssl.cnf");
    if openssl.is_file() && !to.join("ssl").exists() {
        fs::create_dir(to.join("ssl"))?;
        fs::copy(openssl, to.join("ssl/openssl.cnf"))?;
    }
    Ok(())
}
