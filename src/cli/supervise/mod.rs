//! `bottle supervise`: what bottles ask of a user, and the user's answers.
//!
//! Everything that is asked comes from inside a bottle: it is shown inert, and never anything but shown.
//!
//! ```text
//! waiting  what waits, and how it stands      opens  what a yes would do to a bottle's routes
//! scope    how long it holds, and the file it is added to
//! plain    the subcommands: lists and lines   screen  the whole terminal, live
//!             └────────────► answer ◄────────────┘    the one place that answers
//! ```

mod answer;
mod opens;
mod plain;
mod scope;
mod screen;
mod waiting;

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};

pub(crate) use self::answer::Unsaved;
pub(super) use self::plain::show_addition;
pub(super) use self::scope::Addition;
use self::scope::Wanted;
pub(crate) use self::waiting::waiting;
use super::completions;
use super::error::CliError;
use super::exit;
use super::output::Output;
use super::terminal::is_here;
use crate::host::Host;

/// Answer what bottles ask, or list it
///
/// On a terminal a screen with all that waits, live; `?` there has its keys. Without one, and with --plain, a list.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Supervise {
    /// A list in lines, as for a screen reader, and no screen
    #[arg(long)]
    plain: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List what waits for an answer
    List,
    /// Show all that is known of a question
    Show {
        /// The question, as `bottle supervise` names it
        #[arg(value_parser = waiting::wanted, add = completions::questions())]
        id: String,
    },
    /// Say yes
    Approve {
        /// The question, as `bottle supervise` names it
        #[arg(value_parser = waiting::wanted, add = completions::questions())]
        id: String,
        /// Why: it is kept with the question
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Routes that apply instead of the proposed ones, in the same words
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        edit: Option<PathBuf>,
        /// How long it holds: for one request, as long as the bottle runs, or for good: the routes are added to the
        /// bottle's file, or to that of BOTTLE
        #[arg(long, value_name = "once|run|save[:BOTTLE]", default_value = "run", hide_default_value = true)]
        scope: Wanted,
    },
    /// Say no, or take a question away that nobody waits for
    Reject {
        /// The question, as `bottle supervise` names it
        #[arg(value_parser = waiting::wanted, add = completions::questions())]
        id: String,
        /// Why: whoever asked is told
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

impl Supervise {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self.what {
            None if self.plain || output.json || !is_here() || !screen::show(host, output)? => {
                plain::list(host, output)?;
            }
            None => {}
            Some(What::List) => plain::list(host, output)?,
            Some(What::Show { id }) => plain::show(host, output, &id)?,
            Some(What::Approve { id, reason, edit, scope }) => {
                plain::approve(host, output, &id, reason, edit.as_deref(), &scope)?;
            }
            Some(What::Reject { id, reason }) => {
                plain::reject(host, output, &id, reason)?;
            }
        }
        Ok(exit::DONE)
    }
}
