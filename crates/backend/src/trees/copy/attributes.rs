//! Copies file attributes: owner, permission bits, times, `user.*` extended attributes.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, fgetxattr,
    flistxattr, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

/// The maximum number of bytes of all attribute names, and of one attribute value (`xattr(7)`).
const XATTR_MAX: usize = 64 << 10;

/// The prefix of the attributes that overlay file systems use. The kernel interprets these attributes, so only
/// [`OPAQUE`] is copied.
const OVERLAY: &[u8] = b"user.overlay.";

/// The attribute that marks a directory as a complete replacement of the same directory in the image.
pub(crate) const OPAQUE: &[u8] = b"user.overlay.opaque";

/// The permission bits and the sticky bit. Set-id bits are not copied. They have no effect where an agent's files are
/// mounted, and a copy that root owns must not become a set-id program on the host.
const BITS: u32 = 0o1777;

/// The owner of a copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// Returns the mode of a copy.
pub(super) fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & BITS)
}

/// Copies the attributes of `from` to `to`. The caller must have written the complete content of `to`.
pub(super) fn copy(from: &OwnedFd, to: impl AsFd, stat: &Stat, owner: Option<Owner>) -> io::Result<()> {
    // Extended attributes are copied before the mode, because they cannot be set on a file that its owner may not
    // write.
    extended(from, &to)?;
    if let Some(Owner { user, group }) = owner {
        fchown(&to, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    fchmod(&to, mode(stat))?;
    Ok(futimens(&to, &times(stat))?)
}

/// Copies the owner and the times to a link or a named pipe without opening it.
pub(super) fn copy_by_name(
    directory: impl AsFd,
    name: &CStr,
    stat: &Stat,
    owner: Option<Owner>,
) -> io::Result<()> {
    if let Some(Owner { user, group }) = owner {
        let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
        chownat(&directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(utimensat(&directory, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds: i64, fraction: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(fraction).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn extended(from: &OwnedFd, to: impl AsFd) -> io::Result<()> {
    for (name, value) in user_attributes(from)? {
        fsetxattr(&to, &*name, &value, XattrFlags::empty())?;
    }
    Ok(())
}

/// Reads the `user.*` attributes to copy, as pairs of name and value.
///
/// # Errors
/// When an attribute cannot be read.
pub(crate) fn user_attributes(from: &OwnedFd) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let mut names = [0_u8; 512];
    let mut more = Vec::new();
    let names: &[u8] = match flistxattr(from, &mut names) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Ok(length) => &names[..length],
        Err(Errno::RANGE) => {
            more.resize(XATTR_MAX, 0);
            let length = flistxattr(from, &mut more[..])?;
            &more[..length]
        }
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    let mut value = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let bytes = name.to_bytes();
        if !bytes.starts_with(b"user.") || bytes.starts_with(OVERLAY) && bytes != OPAQUE {
            continue;
        }
        value.resize(XATTR_MAX, 0);
        let length = match fgetxattr(from, name, &mut value[..]) {
            Ok(length) => length,
            // The attribute was removed in the meantime.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(error.into()),
        };
        if bytes == OPAQUE && &value[..length] != b"y" {
            continue;
        }
        found.push((name.to_owned(), value[..length].to_vec()));
    }
    Ok(found)
}
