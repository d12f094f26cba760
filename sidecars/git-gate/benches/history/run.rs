//! Runs a program and measures its duration and memory.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bottle_test_support::measure::held;
use rustix::process::{Pid, Signal, kill_process_group};

/// The interval between two measurements of memory.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The measurements of one run.
pub(crate) struct Ran {
    pub(crate) took: Duration,
    /// The peak memory of the program and its children in bytes, without mapped files.
    pub(crate) memory: u64,
    /// Whether the program exited within the time limit.
    pub(crate) ended: bool,
}

/// Runs a command and writes its output to a file.
pub(crate) fn run(command: &mut Command, output: &Path, within: Duration) -> Result<Ran> {
    let began = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(File::create(output)?)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("{command:?}"))?;
    let mut memory = 0;
    let ended = loop {
        if child.try_wait()?.is_some() {
            break true;
        }
        memory = memory.max(held(child.id()));
        if began.elapsed() > within {
            break false;
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let took = began.elapsed();
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw).filter(|_| !ended) {
        let _ = kill_process_group(group, Signal::KILL);
        child.wait()?;
    }
    Ok(Ran { took, memory, ended })
}
