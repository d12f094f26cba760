//! Facts about a Linux machine.

/// The memory of the machine in bytes (sysinfo(2)).
pub(crate) fn memory_total() -> u64 {
    let machine = rustix::system::sysinfo();
    u64::from(machine.mem_unit).saturating_mul(machine.totalram)
}
