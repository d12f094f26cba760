//! Default limits on the memory and the processes of a bottle. The limits are the same on every backend.

use bottle_host::system;

/// The maximum number of processes and threads of a bottle whose plan sets no limit. This number is enough for a large
/// build.
pub const PROCESSES: u64 = 4096;

/// The default size of `/tmp` in bytes. A large package can be unpacked and built in it. The size is not a fraction of
/// the machine's memory, because many bottles share that memory, and a fraction of a large machine's memory would be
/// too large.
const SCRATCH: u64 = 4 << 30;

/// The size of shared memory is the size of `/tmp` divided by this number. Browsers need more than the 64 MiB that
/// container engines give by default.
const SHARED_PART: u64 = 4;

/// Bytes of tmpfs for each allowed inode. The number of inodes is limited because an empty file takes about a kilobyte
/// of kernel memory, which the size limit of a tmpfs does not count.
const BYTES_PER_FILE: u64 = 16 << 10;

/// The memory limit, in bytes, of a bottle whose plan sets no memory limit: three quarters of the machine's memory. The
/// last quarter is enough for the user to stop the bottle.
pub fn default_max() -> u64 {
    system::memory_total() / 4 * 3
}

/// The size of `/tmp` in bytes: the requested size or the default size, but at most half of the machine's memory.
pub fn scratch(requested: Option<u64>) -> u64 {
    requested.unwrap_or(SCRATCH).min(system::memory_total() / 2)
}

/// The size of shared memory in bytes for a `/tmp` of this size.
pub fn shared(scratch: u64) -> u64 {
    scratch / SHARED_PART
}

/// The inode limit of a tmpfs of this size.
pub fn files(bytes: u64) -> u64 {
    bytes / BYTES_PER_FILE
}
