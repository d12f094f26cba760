//! `bottle doctor`: what each backend lacks here, and how to get it.

use super::error::CliError;
use super::exit;
use super::output::{Output, inert};
use super::shapes::BackendHealth;
use crate::backend::registry;
use crate::host::{Host, OwnRules, Settings};

/// Say what each backend lacks on this machine, and how to get it
///
/// Exit code 4 when no backend can be used.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {}

impl Doctor {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        Settings::load(host)?;
        say_rules(&OwnRules::load(host)?, output);
        host.open_runtime()?;
        let report = super::block_on(async {
            let mut report = Vec::new();
            for backend in registry::choosable(host) {
                let check = backend.check().await;
                report.push(BackendHealth {
                    backend: backend.name(),
                    usable: check.usable,
                    findings: check.findings,
                });
            }
            Ok(report)
        })?;
        if output.json {
            output.print_json(&report)?;
        } else {
            output.print(&text(&report, output))?;
        }
        Ok(if report.iter().any(|backend| backend.usable) { exit::DONE } else { exit::BACKEND })
    }
}

/// What is read of the person's own rules, and what is not.
fn say_rules(own: &OwnRules, output: &Output) {
    if own.files.is_empty() {
        return;
    }
    let files: Vec<String> = own.files.iter().map(|file| inert(&file.name)).collect();
    output.note(format!("rules of your own: {}, from {}", own.rules.count(), files.join(", ")));
    for note in own.notes() {
        output.warn(format!("rules/{}", inert(&note)));
    }
}

fn text(report: &[BackendHealth], output: &Output) -> String {
    let ink = output.ink();
    let mut lines = Vec::new();
    for backend in report {
        let verdict = match (backend.usable, backend.findings.is_empty()) {
            (true, true) => ink.green("ready"),
            (true, false) => ink.yellow("ready, with less than it could"),
            (false, _) => ink.red("not usable here"),
        };
        lines.push(format!("{}: {verdict}", ink.bold(backend.backend)));
        for finding in &backend.findings {
            lines.push(format!("  {}", ink.hanging(&inert(&finding.what), 2)));
            lines.push(format!("    {} {}", ink.cyan("fix:"), ink.hanging(&inert(&finding.fix), 9)));
        }
    }
    lines.join("\n")
}
