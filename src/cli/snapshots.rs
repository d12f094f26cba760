//! `bottle snapshots`: lists and removes snapshots.

use std::collections::BTreeMap;

use bottle_contract::names::Slug;
use clap::Subcommand;
use indicatif::HumanBytes;

use super::commit::{backend_of, claim_failed, freeze_failed};
use super::completions;
use super::connect::{carry_out, connect, unlistable};
use super::error::{CliError, Kind};
use super::exit;
use super::json_schema::ListedSnapshot;
use super::list::label_and_agent;
use super::output::Output;
use crate::backend::{Snapshot, registry};
use crate::causes;
use crate::host::Host;
use crate::instance::record::{Record, Status};
use crate::instance::{State, Store, engines, snapshots};
use crate::keeper::protocol::KeeperRequest;

/// List snapshots, or remove one
#[derive(Debug, clap::Args)]
pub(crate) struct Snapshots {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Remove a bottle's snapshot, but keep its preserved workspace
    Rm {
        /// The bottle, as `bottle snapshots` shows it
        #[arg(add = completions::preserved())]
        slug: Slug,
    },
}

impl Snapshots {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self.what {
            None => list(host, output).map(|()| exit::DONE),
            Some(What::Rm { slug }) => {
                super::block_on(remove(host, &slug)).map_err(|error| error.about(&slug))?;
                output.note(format!("the snapshot of {slug} was removed"));
                output.json_or(&serde_json::json!({"slug": slug}), || Ok(()))?;
                Ok(exit::DONE)
            }
        }
    }
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
        let size = snapshot.bytes.map_or_else(|| "?".to_owned(), |bytes| HumanBytes(bytes).to_string());
        let status = match snapshot.status {
            "ready" => styles.green("ready"),
            "elsewhere" => {
                styles.yellow(&format!("on {}", snapshot.engine.as_deref().unwrap_or("another engine")))
            }
            "gone" => styles.red("gone: `bottle resume` starts without it"),
            other => styles.yellow(other),
        };
        let made = snapshot.made_at.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        vec![snapshot.backend.clone(), snapshot.slug.clone(), label, made, size, status]
    };
    let heading = ["BACKEND", "SLUG", "LABEL (AGENT)", "MADE", "SIZE", "STATUS"];
    output.print_list(&found, &heading, 1, row)
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
        match store.snapshot(&listed.slug) {
            Ok(None) => {}
            Ok(Some(snapshot)) => {
                let status = match there.get(record.backend.as_str()) {
                    None => "unknown",
                    Some(all) if all.iter().any(|found| found.reference == snapshot.reference) => "ready",
                    Some(_) if is_elsewhere(host, &store, &record).await => "elsewhere",
                    Some(_) => "gone",
                };
                found.push(list_entry(snapshot, &record.backend, Some(&record), status));
            }
            Err(error) => output.warn(format!("{}: {error}", listed.slug)),
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
        made_at: snapshot.made_at,
        bytes: snapshot.bytes,
        status,
    }
}

async fn remove(host: &Host, slug: &Slug) -> Result<(), CliError> {
    let store = Store::of(host);
    match store.state(slug) {
        None => return remove_unnamed(host, slug).await,
        Some(State::Alive(_)) => return remove_of_running(host, slug).await,
        Some(State::Damaged(why)) => return Err(CliError::state(why)),
        Some(State::Newer(schema)) => {
            return Err(CliError::state(format!("written by a newer bottle (schema {schema})"))
                .hint("use that version of bottle"));
        }
        Some(State::Dead(_) | State::Preserved(_)) => {}
    }
    let claim = store.adopt_idle(slug).map_err(claim_failed)?;
    let record = claim.record();
    if !claim.has_snapshot() {
        return Err(no_snapshot(slug));
    }
    let backend = backend_of(host, &record)?;
    engines::require(&*backend, claim.folder(), &record).await?;
    snapshots::remove_all(&*backend, &claim).await.map_err(freeze_failed)?;
    if matches!(record.status, Status::Preserved) && !record.kept {
        // The bottle has no preserved files, so its record is not needed without the snapshot. The record is
        // kept only while a deploy key is not revoked.
        if !record.deploy_keys.is_empty() {
            let ended = claim.update(|record| record.status = Status::Ended);
            return ended.map_err(|error| CliError::cannot("write its record", error));
        }
        claim.remove().map_err(|error| CliError::cannot("remove its state", error))?;
    }
    Ok(())
}

async fn remove_of_running(host: &Host, slug: &Slug) -> Result<(), CliError> {
    if matches!(Store::of(host).snapshot(slug), Ok(None)) {
        return Err(no_snapshot(slug));
    }
    carry_out(&connect(host, slug).await?, &KeeperRequest::RemoveSnapshot).await
}

/// Removes the snapshots of a bottle that has no record.
async fn remove_unnamed(host: &Host, slug: &Slug) -> Result<(), CliError> {
    let mut removed = false;
    for backend in registry::all(host) {
        for snapshot in backend.snapshots().await?.iter().filter(|snapshot| snapshot.slug == *slug) {
            backend.remove_snapshot(snapshot).await?;
            removed = true;
        }
    }
    if removed { Ok(()) } else { Err(no_snapshot(slug)) }
}

fn no_snapshot(slug: &Slug) -> CliError {
    CliError::new(Kind::NoSuchBottle, format!("there is no snapshot of a bottle named {slug}"))
        .hint("`bottle snapshots` shows all snapshots")
}
