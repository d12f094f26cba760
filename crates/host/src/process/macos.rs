//! Processes on macOS. The start time comes from `proc_pidinfo`, in microseconds since 1970. An [`Opened`] process is a
//! kqueue that reports the end of the process.
//!
//! macOS has no pidfd, so a signal is sent to a process id. The signal is sent right after the start time was compared,
//! while the kqueue watches the process. The kernel reuses an id only after it has given out all other ids, so no other
//! process can have the id at that moment.

#![allow(unsafe_code)] // A SAFETY comment at each unsafe call says why it is sound.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::event::Timespec;
use rustix::event::kqueue::{Event, EventFilter, EventFlags, ProcessEvents, kevent_timespec, kqueue};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// Returns the start time of a process. Returns `None` if no process has this id, or if the process is a zombie.
pub(super) fn start_time(pid: u32) -> io::Result<Option<u64>> {
    let Ok(pid) = i32::try_from(pid) else { return Ok(None) };
    let mut info = MaybeUninit::<libc::proc_bsdinfo>::zeroed();
    let size = size_of::<libc::proc_bsdinfo>();
    let length = i32::try_from(size).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has this size and contains zeros.
    let written =
        unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, 0, info.as_mut_ptr().cast(), length) };
    if written != length {
        let error = io::Error::last_os_error();
        return if Errno::from_io_error(&error) == Some(Errno::SRCH) { Ok(None) } else { Err(error) };
    }
    // SAFETY: all bytes were zero before the call, and every value of the fields, which are numbers, is valid.
    let info = unsafe { info.assume_init() };
    if info.pbi_status == libc::SZOMB {
        return Ok(None);
    }
    Ok(Some(info.pbi_start_tvsec.saturating_mul(1_000_000).saturating_add(info.pbi_start_tvusec)))
}

/// An open process, whose end the kernel reports.
pub(super) struct Opened {
    pid: Pid,
    /// A kqueue that has one event when the process has ended.
    ends: OwnedFd,
}

impl Opened {
    /// Opens the process with this id. Returns `None` if no process has this id.
    pub(super) fn open(pid: Pid) -> io::Result<Option<Self>> {
        let ends = kqueue()?;
        let filter = EventFilter::Proc { pid, flags: ProcessEvents::EXIT };
        let watch = Event::new(filter, EventFlags::ADD | EventFlags::ONESHOT, std::ptr::null_mut());
        let mut none: [Event; 0] = [];
        // SAFETY: the filter names no descriptor that could be closed while the kqueue exists.
        match unsafe { kevent_timespec(&ends, &[watch], &mut none[..], None) } {
            Ok(_) => Ok(Some(Self { pid, ends })),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal. Returns false if the process has ended.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<bool> {
        match kill_process(self.pid, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process has ended, for at most `patience`.
    pub(super) fn wait(&self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).map_err(|_| io::Error::other("the wait is too long"))?;
            let mut events = Vec::with_capacity(1);
            let room = rustix::buffer::spare_capacity(&mut events);
            // SAFETY: the call adds no filter to the kqueue, so it names no descriptor.
            match unsafe { kevent_timespec(&self.ends, &[], room, Some(&wait)) } {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the process does not end")),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
