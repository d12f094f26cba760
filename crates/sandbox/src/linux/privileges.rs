//! Drops all privileges irrevocably and sets resource limits.

use std::io;

use bottle_backend::restrictions::clear_bounding_set;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

/// The limit of open files for each process. Most systems use the same limit for logins. Without a limit, some programs
/// spend seconds on closing descriptors that were never open.
const FILES: u64 = 524_288;

/// The OOM score adjustment, between -1000 (never killed) and 1000 (killed first).
const OOM_SCORE_ADJ: &str = "500";

/// Makes the OOM killer prefer the bottle's processes to the other processes of the user.
pub(super) fn raise_oom_score() {
    // An error is ignored: if `/proc` is not writable, the OOM killer chooses a process by its memory use only.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
}

/// Sets resource limits. Core files are disabled, because a process may have secrets in memory. The number of open
/// files is limited to [`FILES`]. The number of processes is limited to `processes`. In a user namespace, this limit
/// counts only the bottle's own processes.
///
/// # Errors
/// The error of the failed system call.
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

/// Drops all capabilities from every set and prevents the process from regaining them. Also makes pid 1 non-dumpable.
/// Otherwise, the agent, which runs as the same user, would have access to the memory and descriptors of pid 1.
///
/// # Errors
/// The error of the failed system call.
pub(super) fn drop_all() -> io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    clear_bounding_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
