//! Starts a daemon from its command line, and drops all privileges that the daemon does not need.

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

/// The maximum writable memory of a daemon, in bytes. The limits on requests and connections in the daemons keep the
/// memory use far lower. A daemon reaches this limit only if an attack bypasses the limits on requests and connections.
/// In that case, the daemon ends instead of other programs on the machine. The kernel also counts the reserved stacks
/// of up to 512 threads, which are a gigabyte.
const MEMORY: u64 = 3 << 30;

/// Runs a daemon that has the command line `ROLE HOME SLUG CONFIG`. Parses the configuration, and passes it to `work`.
/// The home directory and the slug only identify the process in process listings.
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

/// The privileges that a daemon keeps after it has dropped all others.
#[derive(Debug)]
pub struct Confinement {
    /// The user that the daemon switches to if it is started as root.
    pub identity: Option<Identity>,
    /// The maximum number of open file descriptors. `None` keeps the inherited limit.
    pub descriptors: Option<u64>,
    /// The rules for access to files.
    pub files: Files,
    /// The function that applies the daemon's system call filter. This function is called as the last step.
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
    /// Permanently drops all privileges that `self` does not list. [`bottle_harden`] describes the order of the steps.
    ///
    /// # Errors
    /// Fails if a step fails although the kernel supports the step. After an error, the process must not continue.
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
