//! Maps the owner that files have on the disk to the user of a bottle that root starts.
//!
//! An idmapped mount shows the bottle's user as the owner of files that have another owner on the disk. The files of an
//! image, which all bottles share, belong to root. A directory of `--cwd=live` belongs to its user. The mount's id
//! mapping comes from a user namespace that is created only for this purpose.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use nix::sched::CloneFlags;
use rustix::process::{Signal, WaitOptions, getpid, kill_process, waitpid};

use crate::linux::sys::{Forked, fork};

/// The owner of files on the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnDisk {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl OnDisk {
    pub(super) const ROOT: Self = Self { uid: 0, gid: 0 };
}

/// Creates a user namespace that maps `owner` to the host user id `id`.
///
/// # Errors
/// The error of the failed system call.
pub(super) fn owner_as(owner: OnDisk, id: u32) -> io::Result<File> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    match fork()? {
        Forked::Child => {
            drop(ours);
            // The child only keeps the user namespace alive until the parent has opened the namespace.
            let made = nix::sched::unshare(CloneFlags::CLONE_NEWUSER).is_ok();
            let _ = theirs.write_all(&[u8::from(made)]);
            let _ = theirs.read(&mut [0]);
            // The child kills itself, so that it runs no destructors of the state that it copied from the parent.
            kill_process(getpid(), Signal::KILL)?;
            Err(io::Error::other("it survived SIGKILL"))
        }
        Forked::Parent(pid) => {
            drop(theirs);
            let mapped = (|| {
                let mut made = [0];
                ours.read_exact(&mut made)?;
                if made == [0] {
                    return Err(io::Error::other("cannot create a user namespace"));
                }
                let proc = format!("/proc/{}", pid.as_raw_nonzero());
                for (map, on_disk) in [("gid_map", owner.gid), ("uid_map", owner.uid)] {
                    std::fs::write(format!("{proc}/{map}"), format!("{on_disk} {id} 1"))?;
                }
                File::open(format!("{proc}/ns/user"))
            })();
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
            mapped
        }
    }
}
