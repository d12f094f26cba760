//! Sets up a private mount namespace for a gate that root starts.
//!
//! A gate that root starts switches to another user. This user cannot access the parents of the gate's directory, and
//! has no entry in `/etc/passwd`. However, git and ssh need accessible paths and a user name. The process therefore
//! first enters a new mount namespace. In this namespace, the gate's directory has a fixed path, and `/etc/passwd`
//! contains an entry for the user.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bottle_harden::directory_access::Held;
use bottle_harden::identity::Identity;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// The mount point of the gate's directory in the namespace. The mount hides the host's `/tmp`, which the gate does not
/// need.
const MOUNT_POINT: &str = "/tmp";

/// The files and directories in the host's `/etc` that git and ssh read if they exist.
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

/// Enters a new mount namespace, and returns the path of `directory` in the new namespace. Requires root and a process
/// with a single thread.
///
/// # Errors
/// Fails with the kernel's error.
pub(crate) fn enter(directory: &Path, identity: Identity) -> io::Result<PathBuf> {
    let Identity { uid, gid } = identity;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount_private_etc(&format!("root:x:0:0:::\ngate:x:{uid}:{gid}::/nonexistent:/bin/false\n"))?;
    mount(Some(directory), MOUNT_POINT, none, MsFlags::MS_BIND, none)?;
    let plain = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(none, MOUNT_POINT, none, plain, none)?;
    Ok(MOUNT_POINT.into())
}

/// Mounts a new `/etc` that contains `passwd` and the files of the host that git and ssh read.
///
/// If a process renames a file over a mount point, the kernel removes the mount in every namespace. A file mounted over
/// the host's `/etc/passwd` would therefore disappear with the next `useradd`. In a private directory, no other process
/// renames files, so the mounts remain.
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
        // All symlinks are copied, because a symlink may point to another symlink.
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
