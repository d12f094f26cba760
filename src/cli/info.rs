//! `bottle info`: shows the resolved configuration of an agent and its bottles.

use bottle_host::Host;
use bottle_lib::text::from_home;
use bottle_manifest::resolve::{Resolved, explain};
use bottle_policy::names::Name;

use super::candidates;
use super::choice::{manifests, resolved};
use super::summary::{Summary, Tone};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, Styles};

/// Show the resolved configuration of an agent and its bottles
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    /// The agent
    #[arg(add = candidates::agents())]
    agent: Name,
    /// Use this bottle manifest instead of the agent's default; repeat to merge several, in order
    #[arg(long = "bottle", value_name = "BOTTLE", add = candidates::bottles())]
    bottles: Vec<Name>,
    /// Show the full resolved manifest, with the file and line of every value
    #[arg(long)]
    explain: bool,
}

impl Info {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let resolved = resolved(&manifests(host), self.agent, self.bottles)?;
        for warning in &resolved.warnings {
            output.warn(warning);
        }
        if output.json {
            output.print_json(&resolved.manifest)?;
        } else if self.explain {
            output.print(&explain(&resolved.manifest))?;
        } else {
            output.print(&summary(&resolved, host, output.styles()))?;
        }
        Ok(exit::DONE)
    }
}

/// Builds the summary for one screen: agent, bottles, reachable hosts and weakening settings.
fn summary(resolved: &Resolved, host: &Host, styles: Styles) -> String {
    let manifest = &resolved.manifest;
    let home = &host.user_home;
    let mut summary = Summary::new(resolved, home);
    let files = manifest
        .layers
        .iter()
        .map(|layer| format!("{}  {}", layer.name, from_home(&layer.source.to_string(), home)));
    summary.row("files", Tone::Plain, files.collect());
    summary.row("provider", Tone::Plain, vec![manifest.provider.template.value.to_string()]);
    let command = manifest.provider.command.as_ref().map(|command| command.value.join(" "));
    summary.row("command", Tone::Plain, command.into_iter().collect());
    let backend = manifest.backend.as_ref().map_or("any", |backend| backend.value.as_str());
    summary.row("backend", Tone::Plain, vec![backend.to_owned()]);
    summary.inside(manifest, home);
    summary.author(manifest);
    summary.reach(manifest, home, Vec::new());
    summary.project(resolved);
    summary.text(styles, None)
}
