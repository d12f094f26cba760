//! Reads the accounts and the memory of a Mac.

#![allow(unsafe_code)] // A SAFETY comment at the only unsafe call says why it is sound.

use nix::libc;
use nix::unistd::{Uid, User};

use crate::account::Account;

/// Returns the account with this user id.
pub fn account(uid: u32) -> Option<Account> {
    let user = User::from_uid(Uid::from_raw(uid)).ok()??;
    Some(Account { name: user.name, home: user.dir })
}

/// Returns the memory of the machine in bytes (`hw.memsize`, sysctl(3)). If the virtual machine of a container engine
/// has less memory, the engine enforces the lower limit itself.
pub fn memory_total() -> u64 {
    let mut bytes = 0_u64;
    let mut size = size_of::<u64>();
    // SAFETY: the name ends with a zero byte, the kernel writes at most `size` bytes to `bytes`, and no new value is
    // set.
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
