//! `bottle list`: lists bottles, manifests and snapshots. If one entry is broken, the other entries are still listed.

use bottle_host::Host;
use bottle_instance::record::Service;
use bottle_lib::bottles::active_bottles;
use bottle_lib::manifests::listed;
use bottle_lib::report::{ActiveBottle, NamedManifest};
use bottle_lib::text::from_home;
use bottle_manifest::Kind;
use clap::Subcommand;
use indicatif::HumanBytes;
use jiff::Timestamp;

use super::bottle_status::{ago, is_on_terminal, label_and_agent, shows_activity, status};
use super::snapshot_table;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, Styles, one_line};
use crate::console::runtime::block_on;

/// The arguments of `list`; the default is to list running and kept bottles.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show running and kept bottles (the default)
    Active,
    /// Show agents that can be started in the current directory
    Agents,
    /// Show bottle manifests that can be chosen
    Bottles,
    /// Show snapshots that can be resumed
    Snapshots,
}

impl List {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self.what.unwrap_or(What::Active) {
            What::Active => active(host, output)?,
            What::Agents => named(Kind::Agent, host, output)?,
            What::Bottles => named(Kind::Bottle, host, output)?,
            What::Snapshots => snapshot_table::list(host, output)?,
        }
        Ok(exit::DONE)
    }
}

fn active(host: &Host, output: &Output) -> Result<(), CliError> {
    let bottles = block_on(async { Ok(active_bottles(host, shows_activity(output)).await?) })?;
    if bottles.is_empty() {
        output.note("no bottle is running; `bottle start AGENT` starts one");
    }
    let width = output.styles().columns();
    let now = Timestamp::now();
    // Scripts read the columns from a pipe by their position, so a pipe always gets the same columns. `--json` has the
    // other values.
    let columns = [
        ("BACKEND", true),
        ("SLUG", true),
        ("LABEL (AGENT)", true),
        ("STATUS", true),
        ("SERVICES", true),
        ("AGE", width.is_some()),
        ("SIZE", width >= Some(SIZE_FROM) && bottles.iter().any(|bottle| bottle.disk_bytes.is_some())),
        ("DIRECTORY", width >= Some(DIRECTORY_FROM) && bottles.iter().any(|bottle| bottle.copied_cwd)),
    ];
    let heading: Vec<&str> = columns.iter().filter(|(_, shown)| *shown).map(|(name, _)| *name).collect();
    let row = |bottle: &ActiveBottle| {
        let mut row = row(bottle, output);
        row.extend([age(bottle, now), size(bottle), directory(bottle, host)]);
        row.into_iter().zip(columns).filter(|(_, (_, shown))| *shown).map(|(cell, _)| cell).collect()
    };
    output.print_list(&bottles, &heading, 1, row)?;
    if is_on_terminal(output) && !output.json {
        for bottle in &bottles {
            bottle.problem.iter().for_each(|problem| output.warn(format!("{}: {problem}", bottle.slug)));
        }
    }
    Ok(())
}

/// Formats how long ago the current launch of a bottle began.
fn age(bottle: &ActiveBottle, now: Timestamp) -> String {
    bottle.started_at.map(|started| ago(started, now)).unwrap_or_default()
}

/// Formats the disk space of the bottle's own files.
fn size(bottle: &ActiveBottle) -> String {
    bottle.disk_bytes.map(|bytes| HumanBytes(bytes).to_string()).unwrap_or_default()
}

/// Formats the paths of the user's directories that were copied into the bottle.
fn directory(bottle: &ActiveBottle, host: &Host) -> String {
    let shown = |directory: &str| one_line(&from_home(directory, &host.user_home));
    if !bottle.directories.is_empty() {
        let directories =
            bottle.directories.iter().map(|directory| shown(&directory.path.display().to_string()));
        return directories.collect::<Vec<_>>().join(", ");
    }
    bottle.cwd.as_deref().filter(|_| bottle.copied_cwd).map(shown).unwrap_or_default()
}

/// The minimum width of the terminal, in columns, at which the size is shown.
const SIZE_FROM: usize = 90;

/// The minimum width of the terminal, in columns, at which the directory is shown.
const DIRECTORY_FROM: usize = 100;

fn named(kind: Kind, host: &Host, output: &Output) -> Result<(), CliError> {
    let found = listed(host, kind, &|notice| output.notice(notice));
    output.print_list(&found, &["NAME", "FROM", "FILE"], 0, |NamedManifest { name, from, file, replaces }| {
        let replaces = replaces.map(|other| format!(" (replaces {other})")).unwrap_or_default();
        // On a terminal, the home directory is shortened to `~`.
        let file = if is_on_terminal(output) { from_home(file, &host.user_home) } else { file.clone() };
        vec![name.clone(), format!("{from}{replaces}"), one_line(&file)]
    })
}

fn row(bottle: &ActiveBottle, output: &Output) -> Vec<String> {
    let styles = output.styles();
    let label = label_and_agent(bottle.label.as_deref(), bottle.agent.as_deref());
    let backend = bottle.backend.as_deref().unwrap_or("?").to_owned();
    // The supervise sidecar does not isolate the bottle, so it is shown only when it is down.
    let is_shown = |service: &&Service| !service.up || service.name != bottle_supervise::NAME;
    let services: Vec<String> =
        bottle.services.iter().filter(is_shown).map(|service| named_service(service, styles)).collect();
    let slug = styles.named(bottle.color.as_deref(), &bottle.slug);
    vec![backend, slug, label, status(bottle, output), services.join(", ")]
}

fn named_service(service: &Service, styles: Styles) -> String {
    let name = one_line(&service.name);
    if service.up { name } else { styles.red(&format!("{name} down")) }
}
