//! The table of all snapshots.

use std::collections::BTreeMap;

use bottle_backend::Snapshot;
use bottle_host::Host;
use bottle_host::causes;
use bottle_instance::committed::Committed;
use bottle_instance::record::Record;
use bottle_instance::{State, Store, engines};
use bottle_lib::record::backend_of;
use bottle_lib::registry;
use bottle_lib::report::ListedSnapshot;
use indicatif::HumanBytes;
use jiff::Timestamp;

use super::bottle_status::label_and_agent;
use super::connect::unlistable;
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::runtime::block_on;

/// Lists all snapshots, including those of bottles without a record.
pub(crate) fn list(host: &Host, output: &Output) -> Result<(), CliError> {
    let found = block_on(find(host, output))?;
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

/// The status of a snapshot that something other than `bottle` removed.
pub(crate) const GONE: &str = "gone: `bottle resume` starts without it";

/// Formats the name of a snapshot in the form that commands accept: SLUG or SLUG@NAME.
fn displayed(snapshot: &ListedSnapshot) -> String {
    match &snapshot.name {
        Some(name) => format!("{}@{name}", snapshot.slug),
        None => snapshot.slug.clone(),
    }
}

/// Returns the name of the snapshot that `snapshot` continues, in the form that commands accept. Returns `removed` if
/// that snapshot no longer exists.
pub(crate) fn parent_of(snapshot: &ListedSnapshot, all: &[ListedSnapshot]) -> Option<String> {
    let reference = snapshot.parent.as_ref()?;
    let parent = all.iter().find(|one| one.backend == snapshot.backend && one.reference == *reference);
    Some(parent.map_or_else(|| "removed".to_owned(), displayed))
}

pub(crate) fn date(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

pub(crate) fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), |bytes| HumanBytes(bytes).to_string())
}

pub(crate) async fn find(host: &Host, output: &Output) -> Result<Vec<ListedSnapshot>, CliError> {
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
        let (State::Alive(record) | State::Dead(record) | State::Kept(record)) = listed.state else {
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

/// Whether the snapshots of this bottle are on another engine, or on an engine that does not answer.
async fn is_elsewhere(host: &Host, store: &Store, record: &Record) -> bool {
    let Ok(backend) = backend_of(host, record) else { return false };
    engines::require(&*backend, &store.directory(&record.slug), record).await.is_err()
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
