//! Reads the clock of the thread.

use std::time::Duration;

/// Returns the CPU time of this thread, which does not depend on other processes.
pub(crate) fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.try_into().unwrap_or_default(), used.tv_nsec.try_into().unwrap_or_default())
}
