//! From the command line to a process that has given up every right that it does not need.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::Context;
use bottle_harden::files::Files;
use bottle_harden::identity::Identity;
use bottle_harden::{HardenError, MissingProtection, process};
use serde::de::DeserializeOwned;

use crate::memory::Memory;

/// A daemon's role `ROLE HOME SLUG CONFIG`: `work` with the configuration, to its end. Home and slug are there for
/// whoever looks for the bottle's processes.
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

/// What a daemon keeps, of all that its process could do.
#[derive(Debug)]
pub struct Confinement {
    /// Whom to become, when started as root.
    pub identity: Option<Identity>,
    /// Descriptors that it may have open; none: as many as it was given.
    pub descriptors: Option<u64>,
    /// The files of its own.
    pub files: Files,
    /// Applies its filter of system calls, last.
    pub calls: fn() -> Result<Option<MissingProtection>, HardenError>,
}

/// A process that has given up the rest: what is left to know of it.
#[derive(Debug)]
pub struct Confined {
    pub(crate) parent: UnixStream,
    pub(crate) memory: Memory,
    pub(crate) weaker: Vec<MissingProtection>,
}

impl Confinement {
    /// Gives up every right that is not kept; see [`bottle_harden`] for the order. For good.
    ///
    /// # Errors
    /// The step that a kernel refuses which has it; then the process must not go on.
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
        process::drop_capabilities()?;
        let weaker = [self.files.restrict()?, (self.calls)()?];
        Ok(Confined { parent, memory, weaker: weaker.into_iter().flatten().collect() })
    }
}
