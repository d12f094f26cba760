//! Reaps all child processes of the guest: processes that the guest started, and orphans.
//!
//! A single loop reaps all child processes. Spawning holds a lock from before the fork until the new process is
//! registered, and reaping takes the same lock. Therefore, no exit status is lost or consumed by other code, and no
//! signal is sent to a reused process id. Other code in the guest must not wait for a process with
//! `std::process::Child` or `tokio::process`.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_protocol::session::guest::Exit;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait, waitpid,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::proc_stat::{Stat, pids};

/// Provides the exit status of one child process to any number of readers.
#[derive(Debug, Clone)]
pub(crate) struct ExitWatch {
    exit: watch::Receiver<Option<Exit>>,
    reaped_ticks: Arc<AtomicU64>,
}

impl ExitWatch {
    /// Waits until the child has exited.
    pub(crate) async fn ended(&mut self) -> Exit {
        loop {
            if let Some(exit) = self.now() {
                return exit;
            }
            if self.exit.changed().await.is_err() {
                // [`Children`] sends an exit status before it drops a sender, so this line is never reached.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the exit status. Returns `None` while the child runs.
    pub(crate) fn now(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Returns the CPU time of the child and of other processes of its session that the guest reaped, in clock ticks. A
    /// process of the session that exits after the child does not count.
    pub(crate) fn reaped_ticks(&self) -> u64 {
        self.reaped_ticks.load(Ordering::Relaxed)
    }
}

/// A running child process.
#[derive(Debug)]
struct Alive {
    exit: watch::Sender<Option<Exit>>,
    /// See [`ExitWatch::reaped_ticks`].
    reaped_ticks: Arc<AtomicU64>,
}

/// The registry of all running child processes.
#[derive(Debug, Default)]
pub(crate) struct Children {
    alive: Mutex<HashMap<Pid, Alive>>,
}

impl Children {
    fn alive(&self) -> MutexGuard<'_, HashMap<Pid, Alive>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts `command` and registers the new process.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<(Pid, std::process::Child, ExitWatch)> {
        let mut alive = self.alive();
        // If exec fails, `spawn` itself reaps the child while it holds the lock.
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let (sender, receiver) = watch::channel(None);
        let reaped_ticks: Arc<AtomicU64> = Arc::default();
        alive.insert(pid, Alive { exit: sender, reaped_ticks: reaped_ticks.clone() });
        Ok((pid, child, ExitWatch { exit: receiver, reaped_ticks }))
    }

    /// Sends `signal` to the process group of `pid`, if the process is a registered child.
    pub(crate) fn signal_group(&self, pid: Pid, signal: Signal) {
        let alive = self.alive();
        // The process group may continue to exist after its leader exits, but its id is reserved only until the leader
        // is reaped.
        if alive.contains_key(&pid)
            && let Err(error) = kill_process_group(pid, signal)
        {
            tracing::debug!(%error, ?pid, "signal not sent");
        }
    }

    /// Reaps children until the guest exits.
    pub(crate) async fn reap(&self) -> io::Result<()> {
        let mut signals = signal(SignalKind::child())?;
        loop {
            self.reap_ready();
            signals.recv().await;
        }
    }

    fn reap_ready(&self) {
        let mut alive = self.alive();
        while let Ok(Some((pid, status))) = reap_next(&alive) {
            let Some(exit) = exit_of(status) else { continue };
            match alive.remove(&pid) {
                Some(child) => {
                    child.exit.send_replace(Some(exit));
                }
                None => tracing::trace!(?pid, ?exit, "orphan reaped"),
            }
        }
    }

    /// Pauses or continues all processes of the bottle except the guest.
    pub(crate) fn pause_all(&self, pause: bool) {
        let signal = if pause { nix::sys::signal::SIGSTOP } else { nix::sys::signal::SIGCONT };
        if std::process::id() == 1 {
            let everything = nix::unistd::Pid::from_raw(-1);
            // Sending the signal fails only if there is no other process.
            let _ = nix::sys::signal::kill(everything, signal);
            return;
        }
        // A stopped process cannot fork, so the second round reaches all processes that were started during the first
        // round.
        for _ in 0..2 {
            for pid in descendants(std::process::id()) {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
            }
        }
    }

    /// Kills all processes of the bottle except the guest, and waits until they have exited. Gives up after one second,
    /// because the remaining processes must be stuck in the kernel.
    pub(crate) async fn kill_all(&self) {
        for _ in 0..100 {
            let left = kill_round();
            self.reap_ready();
            if left == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Reaps a process that has exited, if there is one. Adds the CPU time of the process to the child that began the session
/// of the process.
fn reap_next(alive: &HashMap<Pid, Alive>) -> rustix::io::Result<Option<(Pid, WaitStatus)>> {
    // The CPU time of a process can be read only before the process is reaped.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    let next = waitid(Id::All, flags).ok().and_then(|status| Pid::from_raw(status.pid()?.as_raw()));
    // `waitid` fails for a process that a real-time signal killed.
    let Some(next) = next else { return wait(WaitOptions::NOHANG) };
    if let Some(stat) = Stat::of_unreaped(next.as_raw_pid())
        && let Some(child) = Pid::from_raw(stat.session).and_then(|session| alive.get(&session))
    {
        child.reaped_ticks.fetch_add(stat.ticks, Ordering::Relaxed);
    }
    waitpid(Some(next), WaitOptions::NOHANG)
}

/// Sends SIGKILL to the processes of the bottle. Returns 0 if there was no process. If the guest is pid 1, one call
/// reaches all processes. In a shared pid namespace, this function kills only the guest's children. The guest is a
/// subreaper, so it becomes the parent of the orphaned grandchildren, and the next round kills them.
fn kill_round() -> usize {
    if std::process::id() == 1 {
        let everything = nix::unistd::Pid::from_raw(-1);
        return usize::from(nix::sys::signal::kill(everything, nix::sys::signal::SIGKILL).is_ok());
    }
    let mut found = 0;
    for pid in own_children() {
        if kill_process(pid, Signal::KILL).is_ok() {
            found += 1;
        }
    }
    found
}

fn own_children() -> Vec<Pid> {
    let own = std::process::id();
    let children = with_parents().into_iter().filter(|(_, parent)| *parent == own);
    children.filter_map(|(pid, _)| Pid::from_raw(pid)).collect()
}

/// Returns the process ids of all descendants of `root`, parents before their children.
fn descendants(root: u32) -> Vec<i32> {
    let all = with_parents();
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        for (pid, _) in all.iter().filter(|(_, of)| *of == parent) {
            found.push(*pid);
            next.extend(u32::try_from(*pid));
        }
    }
    found
}

/// Returns the ids of all processes in the pid namespace, each with the id of its parent.
fn with_parents() -> Vec<(i32, u32)> {
    pids().filter_map(|pid| Some((pid, u32::try_from(Stat::of(pid)?.parent).ok()?))).collect()
}

fn exit_of(status: WaitStatus) -> Option<Exit> {
    if let Some(code) = status.exit_status() {
        return Some(Exit::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)));
    }
    let signal = status.terminating_signal()?;
    Some(Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)))
}
