//! Facts about a Mac.

#![allow(unsafe_code)] // The one call below says why it is sound.

use nix::libc;

/// The memory of the machine in bytes (`hw.memsize`, sysctl(3)). An engine whose virtual machine has less memory
/// enforces that lower limit itself.
pub(crate) fn memory_total() -> u64 {
    let mut bytes = 0_u64;
    let mut size = size_of::<u64>();
    // SAFETY: the name ends with a zero byte, the kernel writes at most `size` bytes to `bytes`, and nothing is set.
    let read = unsafe {
        libc::sysctlbyname(
            c"hw.memsize".as_ptr(),
            std::ptr::from_mut(&mut bytes).cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    if read == 0 { bytes } else { 0 }
}
