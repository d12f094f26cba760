//! Removes capabilities from the bounding set.

use std::io;

use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

/// The highest capability number to try. The kernel rejects numbers above its own highest capability.
const CAPABILITIES_MAX: u32 = 63;

/// Prevents this process and its children from ever regaining a capability that they do not have.
///
/// # Errors
/// The system's error, such as EPERM without `CAP_SETPCAP`.
pub fn clear_bounding_set() -> io::Result<()> {
    for number in 0..=CAPABILITIES_MAX {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Err(rustix::io::Errno::INVAL) => break,
            removed => removed?,
        }
    }
    Ok(())
}
