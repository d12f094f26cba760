//! Writes the dirty pages of a file back, without the durability of `fdatasync(2)`.
#![allow(unsafe_code)] // The SAFETY comment says why the call is sound.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::libc;

/// Writes the dirty pages of the file back and waits until they are written. A later write through a memory mapping
/// then causes a page fault, which updates the file's times. A file system without this operation has no such pages.
///
/// `fdatasync(2)` also writes the dirty pages back, but it commits the file system's journal and flushes the disk for
/// every file.
pub(super) fn write_back(file: &File) {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open, and the call uses no memory of this process.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
}
