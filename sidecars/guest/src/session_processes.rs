//! Finds the processes of a session, and measures and signals them.
//!
//! Every process that the guest starts begins a new session. The id of the session is the id of this process. Children
//! of the process stay in the session until they begin a new session.

use std::collections::HashMap;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::proc_stat::{Stat, pids};

/// The resource use of the processes of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) processes: u32,
    pub(crate) cpu_ms: u64,
    pub(crate) memory_bytes: u64,
}

/// Converts clock ticks to milliseconds.
pub(crate) fn ticks_to_ms(ticks: u64) -> u64 {
    ticks.saturating_mul(1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// Returns the resource use of all sessions by the id of the session.
pub(crate) fn measure() -> HashMap<i32, Usage> {
    let page = rustix::param::page_size() as u64;
    let mut sessions: HashMap<i32, Usage> = HashMap::new();
    for stat in pids().filter_map(Stat::of) {
        let usage = sessions.entry(stat.session).or_default();
        usage.processes += 1;
        usage.cpu_ms += ticks_to_ms(stat.ticks);
        usage.memory_bytes += stat.resident_pages.saturating_mul(page);
    }
    sessions
}

/// Sends a signal to all processes of the session of `leader`. Returns the number of processes.
pub(crate) fn signal(leader: Pid, signal: Signal) -> usize {
    let session = leader.as_raw_pid();
    let is_member = |pid: i32| Stat::of(pid).is_some_and(|stat| stat.session == session);
    let mut found = 0;
    for pid in pids().filter(|pid| is_member(*pid)) {
        let Some(pid) = Pid::from_raw(pid) else { continue };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The descriptor always refers to the same process, even if the process id is reused.
            Ok(process) if is_member(pid.as_raw_pid()) => {
                // Sending fails only if the process has exited.
                let _ = pidfd_send_signal(&process, signal);
            }
            // The kernel does not support pidfds.
            Err(Errno::NOSYS) => {
                let _ = kill_process(pid, signal);
            }
            Ok(_) | Err(_) => continue,
        }
        found += 1;
    }
    found
}

/// Kills all processes of the session of `leader`. Repeats this until the session has no process.
pub(crate) async fn kill(leader: Pid) {
    // A process may fork while other processes are being killed.
    while signal(leader, Signal::KILL) > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
