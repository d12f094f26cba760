//! The arguments that name a process.

use bottle_policy::names::Slug;
use bottle_protocol::session::process::ProcessName;

use crate::cli::candidates;

/// A process of a bottle.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    pub(crate) slug: Slug,
    /// The process: its handle or name, as `bottle ps` shows it
    pub(crate) process: ProcessName,
}
