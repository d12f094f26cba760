//! Limits the resources of a child process before its program starts.
#![allow(unsafe_code)] // A SAFETY comment at the only unsafe call says why it is sound.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};

/// The maximum number of bytes that git allocates. Packs that git maps into memory are not counted.
#[cfg(target_os = "linux")]
const MEMORY: u64 = 3 << 30;

/// The maximum size in bytes of a file that git writes.
const FILE: u64 = 16 << 30;

/// The maximum processor time of one git process in seconds.
const SECONDS: u64 = 1800;

/// Limits the memory, the size of written files and the processor time of a command. If a limit cannot be set, the
/// command does not start. On macOS, the memory is not limited.
pub(crate) fn limit(command: &mut Command) {
    let set = || {
        for (resource, most) in [
            #[cfg(target_os = "linux")]
            (Resource::Data, MEMORY),
            (Resource::Fsize, FILE),
            (Resource::Cpu, SECONDS),
            (Resource::Core, 0),
        ] {
            // If the user has set a lower limit, the lower limit stays.
            let maximum = rustix::process::getrlimit(resource).maximum.map_or(most, |set| set.min(most));
            setrlimit(resource, Rlimit { current: Some(maximum), maximum: Some(maximum) })?;
        }
        Ok::<(), io::Error>(())
    };
    // SAFETY: between fork and exec, the closure only makes system calls: it does not allocate, take a lock or panic.
    unsafe {
        command.pre_exec(set);
    }
}
