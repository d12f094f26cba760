//! `bottle supervise`: shows proposals from bottles, and answers them.
//!
//! A proposal is untrusted text from a bottle. Proposals are escaped before they are shown, and are never
//! executed.
//!
//! ```text
//! pending  pending proposals               route_change  what an approval changes in a bottle's routes
//! scope    the scope of an approval, and the manifest to save it to
//! plain    the subcommands                 screen        the full-screen view
//!             └──────────► answer ◄───────────┘          the only module that answers
//! review   proposals for the web dashboard, and their answers, also by `answer`
//! ```

mod answer;
mod pending;
mod plain;
pub(super) mod review;
mod route_change;
mod scope;
mod screen;

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};

pub(crate) use self::answer::Unsaved;
pub(super) use self::answer::user;
pub(crate) use self::pending::count_pending;
pub(super) use self::plain::show_addition;
pub(super) use self::route_change::lookalike_warning;
use self::scope::RequestedScope;
pub(super) use self::scope::{Addition, SaveError};
pub(super) use self::screen::{
    InputResult, QueueView, Selected, SharedTerminal, SignalFlags, Step, TypedLine, UnsavedRoutes, enter,
    print_unsaved, run_screen, show_selected,
};
use super::completions;
use super::error::CliError;
use super::exit;
use super::output::Output;
use super::terminal::is_terminal;
use crate::host::Host;

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
        #[arg(value_parser = pending::parse_id, add = completions::proposals())]
        id: String,
    },
    /// Approve a proposal
    Approve {
        /// The proposal's id, or its first characters
        #[arg(value_parser = pending::parse_id, add = completions::proposals())]
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
        #[arg(value_parser = pending::parse_id, add = completions::proposals())]
        id: String,
        /// Send this reason to the agent
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

impl Supervise {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self.what {
            None if self.plain || output.json || !is_terminal() || !screen::show(host, output)? => {
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
