//! `bottle policy`: shows what the proxy would allow, and why.

mod check_request;
mod replay;

use bottle_host::Host;
use bottle_lib::policy::{Decider, Whose};
use bottle_policy::names::{Name, Slug};
use clap::{ArgGroup, Subcommand};

use super::candidates;
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::style::Styles;

/// Show what the egress proxy allows, and why
#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Check whether the proxy would allow a request, and show why
    Check(check_request::Check),
    /// Decide recorded requests again, and show which verdicts changed
    ///
    /// Exits with 1 if a verdict changed.
    Test(replay::Test),
}

impl Policy {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self {
            Self::Check(check) => check.run(host, output),
            Self::Test(test) => test.run(host, output),
        }
    }
}

/// The flags that select the bottle or agent whose routes are used.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("whose").args(["slug", "agent"]))]
struct PolicySource {
    /// Use the routes of this bottle; by default the only running bottle
    #[arg(long, add = candidates::all_bottles())]
    slug: Option<Slug>,
    /// Use the routes that this agent would start with
    #[arg(long, add = candidates::agents())]
    agent: Option<Name>,
    /// Use this bottle manifest instead of the agent's default; repeat to merge several, in order
    #[arg(long = "bottle", value_name = "BOTTLE", requires = "agent", add = candidates::bottles())]
    bottles: Vec<Name>,
}

impl PolicySource {
    fn decider(&self, host: &Host, output: &Output) -> Result<Decider, CliError> {
        let whose = match (&self.agent, &self.slug) {
            (Some(agent), _) => Whose::Agent(agent.clone(), self.bottles.clone()),
            (None, Some(slug)) => Whose::Bottle(slug.clone()),
            (None, None) => Whose::OnlyRunning,
        };
        Ok(Decider::of(host, whose, &|notice| output.notice(notice))?)
    }
}

/// Colours a verdict by its severity.
fn colored_verdict(verdict: &str, styles: Styles) -> String {
    match verdict {
        "deny" => styles.red(verdict),
        "ask" => styles.yellow(verdict),
        _ => styles.green(verdict),
    }
}
