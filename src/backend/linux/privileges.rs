//! Giving up every privilege, for good, and setting the limits that hold for all that comes after.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// Capabilities are numbered from 0; the kernel says which one is beyond its last.
const CAPABILITIES_MAX: u32 = 63;

/// Limits: no core files of a process that may hold secrets, and a bound on processes, which in a user
/// namespace counts this bottle's alone.
///
/// # Errors
/// As the system says.
pub(super) fn limit(processes: u64) -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let inherited = rustix::process::getrlimit(Resource::Nproc).maximum;
    let processes = inherited.map_or(processes, |inherited| inherited.min(processes));
    setrlimit(Resource::Nproc, Rlimit { current: Some(processes), maximum: Some(processes) })?;
    Ok(())
}

/// Drops every capability from every set and shuts the ways to get one back. Pid 1's memory and
/// descriptors are closed to the agent, which is the same user.
///
/// # Errors
/// As the system says.
pub(super) fn drop_all() -> io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    for number in 0..=CAPABILITIES_MAX {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Err(rustix::io::Errno::INVAL) => break,
            removed => removed?,
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
