//! Where the gate's files are.
//!
//! Started by root, the gate becomes a user to whom the way to its folder is closed, and whom the machine does
//! not know. git and ssh want paths and a name of their user. So the process first gets a view of the file
//! system of its own, in which the folder is at a fixed place and the user has a name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bottle_harden::identity::Identity;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// The folder's place in a view of its own: what is there is nothing of the gate's.
const PLACE: &str = "/tmp";

/// Makes the view and says where the folder is in it. Needs root, and no other thread.
///
/// # Errors
/// What the kernel says.
pub(crate) fn of_its_own(folder: &Path, identity: Identity) -> io::Result<PathBuf> {
    let Identity { uid, gid } = identity;
    let passwd = folder.join("passwd");
    fs::write(&passwd, format!("root:x:0:0:::\ngate:x:{uid}:{gid}::/nonexistent:/bin/false\n"))?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(&passwd), "/etc/passwd", none, MsFlags::MS_BIND, none)?;
    mount(Some(folder), PLACE, none, MsFlags::MS_BIND, none)?;
    let plain = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(none, PLACE, none, plain, none)?;
    Ok(PLACE.into())
}
