//! Whose the files of an image are for a bottle that root starts: the bottle's, who is another user each time.
//!
//! On the disk they are root's, once for all bottles. A mount shows them with another owner, by a user namespace
//! that exists for nothing else.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use nix::sched::CloneFlags;
use rustix::process::{Signal, WaitOptions, getpid, kill_process, waitpid};

use crate::backend::linux::sys::{Forked, fork};

/// A user namespace in which root is the user with this id outside.
///
/// # Errors
/// As the system says.
pub(super) fn root_as(id: u32) -> io::Result<File> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    match fork()? {
        Forked::Child => {
            drop(ours);
            // Whatever comes of it, this process does no more than to be in it until the other one is done.
            let made = nix::sched::unshare(CloneFlags::CLONE_NEWUSER).is_ok();
            let _ = theirs.write_all(&[u8::from(made)]);
            let _ = theirs.read(&mut [0]);
            // Nothing of what it has from this process is its own to undo.
            kill_process(getpid(), Signal::KILL)?;
            Err(io::Error::other("it outlives its end"))
        }
        Forked::Parent(pid) => {
            drop(theirs);
            let mapped = (|| {
                let mut made = [0];
                ours.read_exact(&mut made)?;
                if made == [0] {
                    return Err(io::Error::other("it cannot be made"));
                }
                let place = format!("/proc/{}", pid.as_raw_nonzero());
                for map in ["gid_map", "uid_map"] {
                    std::fs::write(format!("{place}/{map}"), format!("0 {id} 1"))?;
                }
                File::open(format!("{place}/ns/user"))
            })();
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
            mapped
        }
    }
}
