//! How much of a machine a bottle may take where nobody says: the same on every backend.

/// Processes and threads: a large build, with room.
pub(crate) const PROCESSES: u64 = 4096;

/// Bytes in `/tmp`: room to unpack and build a large package. Many bottles share one machine's memory, so
/// that a part of it would be too much on a big one.
const SCRATCH: u64 = 4 << 30;

/// Of what `/tmp` may hold, the part that shared memory may: browsers need more than the 64 MiB of engines.
const SHARED_PART: u64 = 4;

/// Bytes in memory for each file: the kernel's part of an empty one is a kilobyte that no size counts.
const BYTES_PER_FILE: u64 = 16 << 10;

/// Bytes of memory that one bottle may take where nothing is asked for: the rest is for the user to end it by.
pub(crate) fn most() -> u64 {
    of_the_machine() / 4 * 3
}

fn of_the_machine() -> u64 {
    let machine = rustix::system::sysinfo();
    u64::from(machine.mem_unit).saturating_mul(machine.totalram)
}

/// Bytes in `/tmp`: never more than half of the machine's memory, whatever is asked for.
pub(crate) fn scratch(asked: Option<u64>) -> u64 {
    asked.unwrap_or(SCRATCH).min(of_the_machine() / 2)
}

/// Bytes of shared memory beside so much in `/tmp`.
pub(crate) fn shared(scratch: u64) -> u64 {
    scratch / SHARED_PART
}

/// Files that a file system in memory may have which holds so many bytes.
pub(crate) fn files(bytes: u64) -> u64 {
    bytes / BYTES_PER_FILE
}
