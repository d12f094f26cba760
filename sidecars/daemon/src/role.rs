//! Starts a daemon from its command line and drops all privileges that it does not need.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::Context;
use bottle_harden::identity::Identity;
use bottle_harden::landlock::Files;
use bottle_harden::{HardenError, MissingProtection, process};
use serde::de::DeserializeOwned;

use crate::memory::Memory;

/// The maximum writable memory of a daemon, in bytes. The daemons' own limits are far lower, so only an attack that
/// defeats them reaches this limit. In that case, the daemon ends instead of other programs on the machine. The kernel
/// also counts the reserved stacks of up to 512 threads, which are a gigabyte.
const MEMORY: u64 = 3 << 30;

/// Runs a daemon whose command line is `ROLE HOME SLUG CONFIG`: calls `work` with the parsed configuration.
/// The home directory and slug only identify the process in process listings.
pub fn run<Config: DeserializeOwned>(
    role: &str,
    work: impl FnOnce(Config) -> anyhow::Result<()>,
) -> ExitCode {
    bottle_sidecar_log::start();
    match configuration(role).and_then(work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{role}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn configuration<Config: DeserializeOwned>(role: &str) -> anyhow::Result<Config> {
    let argument = std::env::args().nth(4).with_context(|| format!("{role} needs its configuration"))?;
    serde_json::from_str(&argument).with_context(|| format!("{role}'s configuration"))
}

/// The privileges that a daemon keeps.
#[derive(Debug)]
pub struct Confinement {
    /// The user to switch to if the daemon is started as root.
    pub identity: Option<Identity>,
    /// The limit of open file descriptors. `None` keeps the inherited limit.
    pub descriptors: Option<u64>,
    /// The file access rules.
    pub files: Files,
    /// The function that applies the daemon's system call filter, as the last step.
    pub calls: fn() -> Result<Option<MissingProtection>, HardenError>,
}

/// A process that has dropped its privileges.
#[derive(Debug)]
pub struct Confined {
    pub(crate) parent: UnixStream,
    pub(crate) memory: Memory,
    pub(crate) weaker: Vec<MissingProtection>,
}

impl Confinement {
    /// Drops all privileges that `self` does not list, permanently. [`bottle_harden`] describes the order.
    ///
    /// # Errors
    /// If a step fails although the kernel supports it. After such an error, the process must not continue.
    pub fn apply(self) -> anyhow::Result<Confined> {
        let parent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let memory = Memory::open();
        if let Some(identity) = self.identity {
            identity.assume()?;
        }
        process::die_with_parent()?;
        process::seal()?;
        if let Some(descriptors) = self.descriptors {
            process::allow_files(descriptors)?;
        }
        process::limit_memory(MEMORY)?;
        process::drop_capabilities()?;
        let weaker = [self.files.restrict()?, (self.calls)()?];
        Ok(Confined { parent, memory, weaker: weaker.into_iter().flatten().collect() })
    }
}
