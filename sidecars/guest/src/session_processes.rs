//! Finds the processes of a session, and measures and signals them.
//!
//! Every process that the guest starts begins a session, whose id is its process id. Its children stay in the session
//! unless they begin one of their own.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What the processes of a session use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) processes: u32,
    pub(crate) cpu_ms: u64,
    pub(crate) memory_bytes: u64,
}

/// One process, from `/proc/PID/stat` (proc(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    session: i32,
    /// The processor time in clock ticks, with that of reaped children.
    ticks: u64,
    resident_pages: u64,
}

impl Stat {
    /// Parses the file. `None` for a process that has exited.
    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may contain any text.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        // The fields after the state: 3 is the session, 11 to 14 are times, 21 is the resident memory.
        let fields: Vec<i64> = fields.take(21).map(|field| field.parse().unwrap_or(0)).collect();
        let field = |number: usize| fields.get(number - 1).copied().unwrap_or(0);
        let ticks = (11..=14).map(|number| u64::try_from(field(number)).unwrap_or(0)).sum();
        let running = !matches!(state, "Z" | "X");
        running.then(|| Self {
            session: i32::try_from(field(3)).unwrap_or(0),
            ticks,
            resident_pages: u64::try_from(field(21)).unwrap_or(0),
        })
    }

    fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }
}

/// Measures all sessions that have processes, by their ids.
pub(crate) fn measure() -> HashMap<i32, Usage> {
    let tick_ms = 1000 / rustix::param::clock_ticks_per_second().max(1);
    let page = rustix::param::page_size() as u64;
    let mut sessions: HashMap<i32, Usage> = HashMap::new();
    for stat in pids().filter_map(Stat::of) {
        let usage = sessions.entry(stat.session).or_default();
        usage.processes += 1;
        usage.cpu_ms += stat.ticks.saturating_mul(tick_ms);
        usage.memory_bytes += stat.resident_pages.saturating_mul(page);
    }
    sessions
}

/// Sends a signal to all processes of the session of `leader`. Returns how many there were.
pub(crate) fn signal(leader: Pid, signal: Signal) -> usize {
    let session = leader.as_raw_pid();
    let is_member = |pid: i32| Stat::of(pid).is_some_and(|stat| stat.session == session);
    let mut found = 0;
    for pid in pids().filter(|pid| is_member(*pid)) {
        let Some(pid) = Pid::from_raw(pid) else { continue };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // The descriptor is of this process, even if its id is used again.
        if is_member(pid.as_raw_pid()) {
            // The error is that it has exited.
            let _ = pidfd_send_signal(&process, signal);
            found += 1;
        }
    }
    found
}

/// Kills all processes of the session of `leader`, until it has none.
pub(crate) async fn kill(leader: Pid) {
    // A process may fork while the others are killed.
    while signal(leader, Signal::KILL) > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_kernel_writes() {
        let line =
            "42 (a) b (c) S 1 42 40 34816 42 4194304 100 0 0 0 7 5 3 1 20 0 1 0 900 1000000 250 1844 1 1 0";
        assert_eq!(Stat::parse(line), Some(Stat { session: 40, ticks: 16, resident_pages: 250 }));
        assert_eq!(Stat::parse(&line.replace(") S", ") Z")), None, "a zombie");
        for broken in ["", "42", "42 (a", "42 (a)"] {
            assert_eq!(Stat::parse(broken), None, "{broken:?}");
        }
        assert!(
            Stat::of(i32::try_from(std::process::id()).unwrap_or(0))
                .is_some_and(|own| own.resident_pages > 0)
        );
    }
}
