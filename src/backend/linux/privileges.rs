//! Giving up every privilege, for good, and setting the limits that hold for all that comes after.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// Capabilities are numbered from 0; the kernel says which one is beyond its last.
const CAPABILITIES_MAX: u32 = 63;

/// Open files of one process: what a login has on most systems. Without a bound some programs spend seconds
/// closing what was never open.
const FILES: u64 = 524_288;

/// Between -1000, never, and 1000, before all others: whom the kernel ends when memory is used up.
const ENDED_FIRST: &str = "500";

/// Has the kernel end what is in a bottle, when the machine's memory is used up, before what its user needs.
pub(super) fn offer_to_the_kernel() {
    // Where `/proc` cannot be written the kernel goes by size alone, as it does for everything else.
    let _ = std::fs::write("/proc/self/oom_score_adj", ENDED_FIRST);
}

/// Limits: no core files of a process that may hold secrets, a bound on open files, and one on processes,
/// which in a user namespace counts this bottle's alone.
///
/// # Errors
/// As the system says.
pub(super) fn limit(processes: u64) -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let lower = |resource, most: u64| {
        let inherited = rustix::process::getrlimit(resource);
        let least = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
        Rlimit { current: least(inherited.current), maximum: least(inherited.maximum) }
    };
    setrlimit(Resource::Nofile, lower(Resource::Nofile, FILES))?;
    let processes = lower(Resource::Nproc, processes).maximum;
    setrlimit(Resource::Nproc, Rlimit { current: processes, maximum: processes })?;
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
