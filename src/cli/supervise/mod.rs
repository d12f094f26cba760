//! `bottle supervise`: shows proposals from bottles, and answers them.
//!
//! A proposal is untrusted text from a bottle. Proposals are escaped before they are shown, and are never
//! executed.
//!
//! - `plain`: the subcommands · `screens::supervise`: the full screen · `bottle_lib::proposals`: the proposals and their answers

mod plain;

use std::path::PathBuf;

use bottle_host::Host;
use bottle_lib::proposals::scope::RequestedScope;
use clap::{Subcommand, ValueHint};

use super::candidates;
use super::route_args::parse_typed;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::terminal::is_terminal;
use crate::screens;

/// Review and answer proposals from bottles
///
/// On a terminal, opens a full-screen view that stays up to date (`?` shows its keys). Otherwise, or with
/// --plain, prints a list.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Supervise {
    /// Print a plain list instead of opening the screen, for example for a screen reader
    #[arg(long)]
    plain: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List pending proposals
    List,
    /// Show a proposal in full
    Show {
        /// The proposal's id, or its first characters
        #[arg(value_parser = plain::parse_id, add = candidates::proposals())]
        id: String,
    },
    /// Approve a proposal
    Approve {
        /// The proposal's id, or its first characters
        #[arg(value_parser = plain::parse_id, add = candidates::proposals())]
        id: String,
        /// Record this reason with the approval; required unless the proposal asks for routes
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Approve this number of findings, as `bottle supervise show` counts them; required for more than one
        #[arg(long, value_name = "N")]
        findings: Option<usize>,
        /// Apply the routes in this file instead of the proposed routes
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        edit: Option<PathBuf>,
        /// Set how long approved routes apply: `once` for one request, `run` while the bottle runs; `save` also
        /// adds the routes to the bottle manifest BOTTLE, or to the one that the bottle was started from
        #[arg(long, value_name = "once|run|save[:BOTTLE]", default_value = "run", hide_default_value = true)]
        scope: RequestedScope,
    },
    /// Reject a proposal, or dismiss a proposal that no process waits for
    Reject {
        /// The proposal's id, or its first characters
        #[arg(value_parser = plain::parse_id, add = candidates::proposals())]
        id: String,
        /// Send this reason to the agent
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

impl Supervise {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self.what {
            None if self.plain
                || output.json
                || !is_terminal()
                || !screens::supervise::show(host, output, parse_typed)? =>
            {
                plain::list(host, output)?;
            }
            None => {}
            Some(What::List) => plain::list(host, output)?,
            Some(What::Show { id }) => plain::show(host, output, &id)?,
            Some(What::Approve { id, reason, findings, edit, scope }) => {
                let approval = plain::Approval { reason, findings, edit, scope };
                plain::approve(host, output, &id, approval)?;
            }
            Some(What::Reject { id, reason }) => {
                plain::reject(host, output, &id, reason)?;
            }
        }
        Ok(exit::DONE)
    }
}
