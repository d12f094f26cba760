//! `bottle snapshots`: lists, shows and removes snapshots.

use std::collections::BTreeMap;

use bottle_contract::names::Name;
use clap::Subcommand;
use indicatif::HumanBytes;
use jiff::{SignedDuration, Timestamp};

use super::commit::{backend_of, claim_failed, freeze_failed};
use super::completions;
use super::connect::{carry_out, connect, unlistable};
use super::error::{CliError, Kind};
use super::exit;
use super::json_schema::ListedSnapshot;
use super::list::label_and_agent;
use super::output::Output;
use super::snapshot_selector::SnapshotSelector;
use crate::backend::{Snapshot, registry};
use crate::causes;
use crate::host::Host;
use crate::instance::committed::Committed;
use crate::instance::record::{Record, Status};
use crate::instance::snapshots::{self, Removal};
use crate::instance::{State, Store, engines};
use crate::keeper::protocol::KeeperRequest;

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
        #[arg(add = completions::preserved())]
        snapshot: SnapshotSelector,
    },
    /// Remove a bottle's snapshot, but keep its preserved workspace
    Rm {
        /// The snapshot, as `bottle snapshots` shows it: SLUG or SLUG@NAME
        #[arg(add = completions::preserved())]
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
    super::block_on(remove(host, &snapshot, which)).map_err(|error| error.about(slug))?;
    output.note(match (all, name) {
        (true, _) => format!("the snapshots of {slug} were removed"),
        (false, Some(_)) => format!("the snapshot {snapshot} was removed"),
        (false, None) => format!("the snapshot of {slug} was removed"),
    });
    output.json_or(&serde_json::json!({"slug": slug, "name": name}), || Ok(()))
}

/// Prints one snapshot.
fn show(host: &Host, selector: &SnapshotSelector, output: &Output) -> Result<(), CliError> {
    let found = super::block_on(find(host, output))?;
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

/// Lists all snapshots, including those whose bottle has no record.
pub(crate) fn list(host: &Host, output: &Output) -> Result<(), CliError> {
    let found = super::block_on(find(host, output))?;
    if found.is_empty() {
        output.note("there are no snapshots; `bottle commit` saves one");
    }
    let styles = output.styles();
    let row = |snapshot: &ListedSnapshot| {
        let label = label_and_agent(snapshot.label.as_deref(), snapshot.agent.as_deref());
        let status = match snapshot.status {
            "ready" => styles.green("ready"),
            "elsewhere" => {
                styles.yellow(&format!("on {}", snapshot.engine.as_deref().unwrap_or("another engine")))
            }
            "gone" => styles.red(GONE),
            other => styles.yellow(other),
        };
        let parent = parent_of(snapshot, &found).unwrap_or_else(|| "-".to_owned());
        let (made, size) = (date(snapshot.made_at), size(snapshot.bytes));
        vec![snapshot.backend.clone(), displayed(snapshot), label, made, size, status, parent]
    };
    let heading = ["BACKEND", "SLUG", "LABEL (AGENT)", "MADE", "SIZE", "STATUS", "PARENT"];
    output.print_list(&found, &heading, 1, row)
}

/// The status of a snapshot that was removed by other means.
const GONE: &str = "gone: `bottle resume` starts without it";

/// The snapshot as the arguments of commands name it.
fn displayed(snapshot: &ListedSnapshot) -> String {
    match &snapshot.name {
        Some(name) => format!("{}@{name}", snapshot.slug),
        None => snapshot.slug.clone(),
    }
}

/// The snapshot that this one continues, as the arguments of commands name it.
fn parent_of(snapshot: &ListedSnapshot, all: &[ListedSnapshot]) -> Option<String> {
    let reference = snapshot.parent.as_ref()?;
    let parent = all.iter().find(|one| one.backend == snapshot.backend && one.reference == *reference);
    Some(parent.map_or_else(|| "removed".to_owned(), displayed))
}

fn date(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), |bytes| HumanBytes(bytes).to_string())
}

/// A duration in its largest unit.
fn approximate(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

async fn find(host: &Host, output: &Output) -> Result<Vec<ListedSnapshot>, CliError> {
    let store = Store::of(host);
    let mut there: BTreeMap<&'static str, Vec<Snapshot>> = BTreeMap::new();
    for backend in registry::all(host) {
        match backend.snapshots().await {
            Ok(all) => drop(there.insert(backend.name(), all)),
            Err(error) => output.warn(format!("{}: {}", backend.name(), causes::one_line(&error))),
        }
    }
    let mut found = Vec::new();
    for listed in store.list().map_err(unlistable)? {
        let (State::Alive(record) | State::Dead(record) | State::Preserved(record)) = listed.state else {
            continue;
        };
        let list = match store.snapshots(&listed.slug) {
            Ok(list) => list,
            Err(error) => {
                output.warn(format!("{}: {error}", listed.slug));
                continue;
            }
        };
        for Committed { snapshot, .. } in list.snapshots {
            let status = match there.get(record.backend.as_str()) {
                None => "unknown",
                Some(all) if all.iter().any(|found| found.reference == snapshot.reference) => "ready",
                Some(_) if is_elsewhere(host, &store, &record).await => "elsewhere",
                Some(_) => "gone",
            };
            found.push(list_entry(snapshot, &record.backend, Some(&record), status));
        }
    }
    for (backend, all) in there {
        let orphaned = all.into_iter().filter(|snapshot| store.state(&snapshot.slug).is_none());
        found.extend(orphaned.map(|snapshot| list_entry(snapshot, backend, None, "unnamed")));
    }
    Ok(found)
}

/// Whether the snapshots of this bottle are on another engine, or on one that does not answer.
async fn is_elsewhere(host: &Host, store: &Store, record: &Record) -> bool {
    let Ok(backend) = backend_of(host, record) else { return false };
    engines::require(&*backend, &store.folder(&record.slug), record).await.is_err()
}

fn list_entry(
    snapshot: Snapshot,
    backend: &str,
    record: Option<&Record>,
    status: &'static str,
) -> ListedSnapshot {
    ListedSnapshot {
        slug: snapshot.slug.to_string(),
        label: record.and_then(|record| record.label.clone()),
        agent: record.map(|record| record.agent.to_string()),
        backend: backend.to_owned(),
        engine: record.and_then(|record| record.engine.as_ref()).map(|engine| engine.address.clone()),
        reference: snapshot.reference,
        name: snapshot.name.map(|name| name.to_string()),
        parent: snapshot.parent,
        made_at: snapshot.made_at,
        bytes: snapshot.bytes,
        status,
    }
}

/// Removes snapshots.
///
/// # Errors
/// When there is no such snapshot, or it cannot be removed.
pub(super) async fn remove(host: &Host, selector: &SnapshotSelector, which: Removal) -> Result<(), CliError> {
    let (store, slug) = (Store::of(host), &selector.slug);
    match store.state(slug) {
        None => return remove_unrecorded(host, selector, &which).await,
        Some(State::Damaged(why)) => return Err(CliError::state(why)),
        Some(State::Newer(schema)) => {
            return Err(CliError::state(format!("written by a newer bottle (schema {schema})"))
                .hint("use that version of bottle"));
        }
        Some(State::Alive(_)) => {
            require_snapshot(host, selector, &which)?;
            let request = match which {
                Removal::All => KeeperRequest::RemoveSnapshot,
                Removal::One(name) => KeeperRequest::RemoveOneSnapshot { name },
            };
            return carry_out(&connect(host, slug).await?, &request).await;
        }
        Some(State::Dead(_) | State::Preserved(_)) => {}
    }
    let claim = store.adopt_idle(slug).map_err(claim_failed)?;
    let record = claim.record();
    require_snapshot(host, selector, &which)?;
    let backend = backend_of(host, &record)?;
    engines::require(&*backend, claim.folder(), &record).await?;
    snapshots::remove(&*backend, &claim, &which).await.map_err(freeze_failed)?;
    if matches!(record.status, Status::Preserved) && !record.kept && !claim.has_snapshot() {
        // The bottle has no preserved files, so its record is not needed without a snapshot. The record is
        // kept only while a deploy key is not revoked.
        if !record.deploy_keys.is_empty() {
            let ended = claim.update(|record| record.status = Status::Ended);
            return ended.map_err(|error| CliError::cannot("write its record", error));
        }
        claim.remove().map_err(|error| CliError::cannot("remove its state", error))?;
    }
    Ok(())
}

/// Fails if the bottle's state says that there is no such snapshot.
fn require_snapshot(host: &Host, selector: &SnapshotSelector, which: &Removal) -> Result<(), CliError> {
    let Ok(list) = Store::of(host).snapshots(&selector.slug) else { return Ok(()) };
    let exists = match which {
        Removal::All => !list.snapshots.is_empty(),
        Removal::One(name) => list.find(name.as_ref()).is_some(),
    };
    if exists { Ok(()) } else { Err(no_snapshot(host, selector)) }
}

/// Removes snapshots of a bottle that has no record.
async fn remove_unrecorded(
    host: &Host,
    selector: &SnapshotSelector,
    which: &Removal,
) -> Result<(), CliError> {
    let is_meant = |found: &Snapshot| match which {
        Removal::All => found.slug == selector.slug,
        Removal::One(_) => SnapshotSelector::of(found) == *selector,
    };
    let mut removed = false;
    for backend in registry::all(host) {
        for snapshot in backend.snapshots().await?.iter().filter(|found| is_meant(found)) {
            backend.remove_snapshot(snapshot).await?;
            removed = true;
        }
    }
    if removed { Ok(()) } else { Err(no_snapshot(host, selector)) }
}

pub(super) fn no_snapshot(host: &Host, selector: &SnapshotSelector) -> CliError {
    let SnapshotSelector { slug, name } = selector;
    let others = Store::of(host).snapshots(slug).is_ok_and(|list| !list.snapshots.is_empty());
    let message = match (name, others) {
        (Some(_), _) => format!("there is no snapshot {selector}"),
        (None, true) => format!("{slug} has no snapshot without a name"),
        (None, false) => format!("there is no snapshot of a bottle named {slug}"),
    };
    CliError::new(Kind::NoSuchBottle, message).hint("`bottle snapshots` shows all snapshots")
}
