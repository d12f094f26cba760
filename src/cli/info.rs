//! `bottle info`: what an agent and its bottles come to, before anything is started.

use std::fmt::Write as _;

use bottle_contract::names::Name;

use super::choice::{manifests, resolved};
use super::error::CliError;
use super::exit;
use super::output::{Output, inert};
use crate::host::Host;
use crate::resolve::{Resolved, explain, weaknesses};

/// Show what an agent and its bottles come to
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    /// The agent
    agent: Name,
    /// A bottle to fold in, instead of the agent's own; in order, may be repeated
    #[arg(long = "bottle", value_name = "BOTTLE")]
    bottles: Vec<Name>,
    /// Show the whole resolved manifest, with the file and line of every value
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
            output.print(&summary(&resolved, output))?;
        }
        Ok(exit::DONE)
    }
}

/// One screen: who, where, what it may reach, what weakens it.
fn summary(resolved: &Resolved, output: &Output) -> String {
    let manifest = &resolved.manifest;
    let ink = output.ink();
    let mut text = format!("{}  {}\n", ink.bold(manifest.agent.name.as_str()), manifest.agent.source);
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(text, "  {:<9} {}", key, inert(value));
    };
    let names = |names: &[Name]| names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
    line("bottles", &names(&manifest.bottles));
    for layer in &manifest.layers {
        line("", &format!("{}  {}", layer.name, layer.source));
    }
    line("provider", &manifest.provider.template.value.to_string());
    if let Some(command) = &manifest.provider.command {
        line("command", &command.value.join(" "));
    }
    line("backend", manifest.backend.as_ref().map_or("any", |backend| backend.value.as_str()));
    let skills: Vec<&str> = manifest.agent.skills.iter().map(|skill| skill.value.name.as_str()).collect();
    if !skills.is_empty() {
        line("skills", &skills.join(", "));
    }
    if manifest.egress.routes.is_empty() {
        line("reaches", "nothing: no host is listed");
    }
    for (index, route) in manifest.egress.routes.iter().enumerate() {
        let key = if index == 0 { "reaches" } else { "" };
        line(key, &format!("{}  {}", route.value.host, route.origin));
    }
    for weakness in weaknesses(manifest) {
        let _ = writeln!(
            text,
            "  {} {} {} ({})",
            ink.red("weaker:"),
            weakness.host,
            weakness.what.sentence(),
            inert(&weakness.origin.to_string())
        );
    }
    text
}
