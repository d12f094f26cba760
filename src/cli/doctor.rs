//! `bottle doctor`: checks each backend and shows how to fix problems.

use bottle_host::{Host, ScannerRules, Settings};
use bottle_lib::registry;
use bottle_lib::report::BackendHealth;

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, inert};
use crate::console::runtime::block_on;

/// Check each backend on this machine, and show how to fix problems
///
/// Exits with 4 if no backend is usable.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {}

impl Doctor {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        Settings::load(host)?;
        report_rules(&ScannerRules::load(host)?, output);
        host.open_runtime()?;
        let report = block_on(async {
            let mut report = Vec::new();
            for backend in registry::choosable(host) {
                report.push(BackendHealth { backend: backend.name(), check: backend.check().await });
            }
            Ok(report)
        })?;
        output.json_or(&report, || output.print(&text(&report, output)))?;
        Ok(if report.iter().any(|backend| backend.check.usable) { exit::DONE } else { exit::BACKEND })
    }
}

/// Reports which of the user's scanner rules files are in use, and which are ignored.
fn report_rules(own: &ScannerRules, output: &Output) {
    if own.files.is_empty() {
        return;
    }
    let files: Vec<String> = own.files.iter().map(|file| inert(&file.name)).collect();
    output.note(format!("your own scanner rules: {}, from {}", own.rules.count(), files.join(", ")));
    for note in own.warnings().chain(own.notes()) {
        output.warn(format!("rules/{}", inert(&note)));
    }
}

fn text(report: &[BackendHealth], output: &Output) -> String {
    let styles = output.styles();
    let mut lines = Vec::new();
    for backend in report {
        let verdict = match (backend.check.usable, backend.check.findings.is_empty()) {
            (true, true) => styles.green("ready"),
            (true, false) => styles.yellow("ready, with limitations"),
            (false, _) => styles.red("not usable"),
        };
        lines.push(format!("{}: {verdict}", styles.bold(backend.backend)));
        if let Some(uses) = &backend.check.uses {
            lines.push(format!("  {}", styles.hanging(&inert(&format!("uses {uses}")), 2)));
        }
        for finding in &backend.check.findings {
            lines.push(format!("  {}", styles.hanging(&inert(&finding.what), 2)));
            lines.push(format!("    {} {}", styles.cyan("fix:"), styles.hanging(&inert(&finding.fix), 9)));
        }
    }
    lines.join("\n")
}
