//! Default limits on a bottle's memory and processes, the same on every backend.

/// Processes and threads: enough for a large build.
pub(crate) const PROCESSES: u64 = 4096;

/// Bytes in `/tmp`: enough to unpack and build a large package. Not a fraction of the machine's memory, which many
/// bottles share: on a large machine that would be too much.
const SCRATCH: u64 = 4 << 30;

/// Shared memory is this fraction of `/tmp`: browsers need more than the 64 MiB of engines.
const SHARED_PART: u64 = 4;

/// Bytes of memory per file: the kernel uses about a kilobyte for an empty file, which no size limit counts.
const BYTES_PER_FILE: u64 = 16 << 10;

/// Bytes of memory for a bottle without a memory limit. The rest is reserved for the user to stop the bottle.
pub(crate) fn default_max() -> u64 {
    machine_total() / 4 * 3
}

fn machine_total() -> u64 {
    let machine = rustix::system::sysinfo();
    u64::from(machine.mem_unit).saturating_mul(machine.totalram)
}

/// Bytes in `/tmp`: the requested size, at most half of the machine's memory.
pub(crate) fn scratch(requested: Option<u64>) -> u64 {
    requested.unwrap_or(SCRATCH).min(machine_total() / 2)
}

/// Bytes of shared memory for a `/tmp` of this size.
pub(crate) fn shared(scratch: u64) -> u64 {
    scratch / SHARED_PART
}

/// The inode limit of a tmpfs of this size.
pub(crate) fn files(bytes: u64) -> u64 {
    bytes / BYTES_PER_FILE
}
