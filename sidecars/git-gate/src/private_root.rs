//! Where the gate's files are.
//!
//! Started by root, the gate becomes a user to whom the way to its folder is closed, and whom the machine does
//! not know. git and ssh want paths and a name of their user. So the process first gets a view of the file
//! system of its own, in which the folder is at a fixed place and the user has a name.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bottle_harden::identity::Identity;
use bottle_harden::reach::Held;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// The folder's place in a view of its own: what is there is nothing of the gate's.
const PLACE: &str = "/tmp";

/// What git and ssh read of the machine's `/etc`, where it is there.
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

/// Makes the view and says where the folder is in it. Needs root, and no other thread.
///
/// # Errors
/// What the kernel says.
pub(crate) fn of_its_own(folder: &Path, identity: Identity) -> io::Result<PathBuf> {
    let Identity { uid, gid } = identity;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    etc_of_its_own(&format!("root:x:0:0:::\ngate:x:{uid}:{gid}::/nonexistent:/bin/false\n"))?;
    mount(Some(folder), PLACE, none, MsFlags::MS_BIND, none)?;
    let plain = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(none, PLACE, none, plain, none)?;
    Ok(PLACE.into())
}

/// An `/etc` with these users and what git and ssh read of the machine's.
///
/// The kernel takes a mount away whose place is renamed over, in every view of it: a file mounted over the machine's
/// `/etc/passwd` goes with the next `useradd`. In a folder of our own no place is anybody else's, and what the
/// machine replaces stays here as it was.
fn etc_of_its_own(passwd: &str) -> io::Result<()> {
    let machine = Held::open(Path::new("/etc")).map_err(io::Error::other)?;
    let (from, to) = (machine.path(), Path::new("/etc"));
    let none = None::<&str>;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), to, Some("tmpfs"), flags, Some("mode=755,size=1m"))?;
    fs::write(to.join("passwd"), passwd)?;
    for entry in fs::read_dir(&from)? {
        let entry = entry?;
        let (kind, place) = (entry.file_type()?, to.join(entry.file_name()));
        // All of them: one may lead over another one.
        if kind.is_symlink() && !place.exists() {
            symlink(fs::read_link(entry.path())?, &place)?;
        } else if ETC.iter().any(|name| entry.file_name() == *name) {
            if kind.is_dir() {
                fs::create_dir(&place)?
            } else {
                fs::write(&place, "")?
            }
            mount(Some(&entry.path()), &place, none, MsFlags::MS_BIND, none)?;
        }
    }
    let openssl = from.join("ssl/openssl.cnf");
    if openssl.is_file() && !to.join("ssl").exists() {
        fs::create_dir(to.join("ssl"))?;
        fs::copy(openssl, to.join("ssl/openssl.cnf"))?;
    }
    Ok(())
}
