//! `bottle snapshots`: lists, shows and removes snapshots.

use bottle_host::Host;
use bottle_instance::snapshots::Removal;
use bottle_lib::report::ListedSnapshot;
use bottle_lib::snapshot_selector::SnapshotSelector;
use bottle_lib::snapshots::{no_snapshot, remove};
use bottle_policy::names::Name;
use clap::Subcommand;
use jiff::{SignedDuration, Timestamp};

use super::bottle_status::label_and_agent;
use super::candidates;
use super::snapshot_table::{GONE, date, find, list, parent_of, size};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::runtime::block_on;

/// List snapshots, show one, or remove some
#[derive(Debug, clap::Args)]
pub(crate) struct Snapshots {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show a snapshot: its size, its age, what it continues, and how to start from it
    Show {
        /// The snapshot, as `bottle snapshots` shows it: SLUG or SLUG@NAME
        #[arg(add = candidates::kept())]
        snapshot: SnapshotSelector,
    },
    /// Remove a bottle's snapshot, but keep its workspace
    Rm {
        /// The snapshot, as `bottle snapshots` shows it: SLUG or SLUG@NAME
        #[arg(add = candidates::kept())]
        snapshot: SnapshotSelector,
        /// Remove all snapshots of the bottle
        #[arg(long)]
        all: bool,
    },
}

impl Snapshots {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self.what {
            None => list(host, output)?,
            Some(What::Show { snapshot }) => show(host, &snapshot, output)?,
            Some(What::Rm { snapshot, all }) => rm(host, snapshot, all, output)?,
        }
        Ok(exit::DONE)
    }
}

fn rm(host: &Host, snapshot: SnapshotSelector, all: bool, output: &Output) -> Result<(), CliError> {
    let SnapshotSelector { slug, name } = &snapshot;
    let which = match (all, name) {
        (true, Some(_)) => {
            return Err(CliError::usage("`--all` removes every snapshot of a bottle")
                .about("--all")
                .hint(format!("`bottle snapshots rm {slug} --all`, or `bottle snapshots rm {snapshot}`")));
        }
        (true, None) => Removal::All,
        (false, name) => Removal::One(name.clone()),
    };
    block_on(async { Ok(remove(host, &snapshot, which).await?) }).map_err(|error| error.about(slug))?;
    output.note(match (all, name) {
        (true, _) => format!("the snapshots of {slug} were removed"),
        (false, Some(_)) => format!("the snapshot {snapshot} was removed"),
        (false, None) => format!("the snapshot of {slug} was removed"),
    });
    output.json_or(&serde_json::json!({"slug": slug, "name": name}), || Ok(()))
}

/// Prints one snapshot.
fn show(host: &Host, selector: &SnapshotSelector, output: &Output) -> Result<(), CliError> {
    let found = block_on(find(host, output))?;
    let name = selector.name.as_ref().map(Name::as_str);
    let is_named = |one: &&ListedSnapshot| one.slug == selector.slug.as_str() && one.name.as_deref() == name;
    let shown = found.iter().rev().find(is_named).ok_or_else(|| no_snapshot(host, selector))?;
    output.json_or(shown, || {
        let age = Timestamp::now().duration_since(shown.made_at);
        let mut lines = vec![
            ("snapshot", selector.to_string()),
            ("bottle", label_and_agent(shown.label.as_deref(), shown.agent.as_deref())),
            ("backend", shown.backend.clone()),
        ];
        lines.extend(shown.engine.clone().map(|engine| ("engine", engine)));
        lines.push(("reference", shown.reference.clone()));
        lines.push(("made", format!("{} ({} ago)", date(shown.made_at), approximate(age))));
        lines.push(("size", size(shown.bytes)));
        lines.push(("parent", parent_of(shown, &found).unwrap_or_else(|| "none".to_owned())));
        let status = if shown.status == "gone" { GONE } else { shown.status };
        lines.push(("status", status.to_owned()));
        if shown.status == "ready" {
            let named = name.map(|name| format!(" {name}")).unwrap_or_default();
            lines.push(("start", format!("bottle resume {} --snapshot{named}", shown.slug)));
        }
        let text = lines.iter().map(|(key, value)| format!("{key:<9}  {value}\n"));
        output.print(text.collect::<String>().trim_end())
    })
}

/// Formats a duration in its largest suitable unit.
fn approximate(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
