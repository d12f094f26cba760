//! Lists all bottles of a `$BOTTLE_HOME`, and what their agents do.

use std::collections::BTreeMap;

use crate::registry;
use bottle_host::Host;
use bottle_host::budget::OnSpent;
use bottle_instance::record::{Mode, Record, Service, Status};
use bottle_instance::{Listed, State, Store};
use bottle_keeper::client;
use bottle_keeper::protocol::Activity;
use bottle_policy::names::Slug;
use futures_util::future::join_all;

use super::connect::unlistable;
use super::failure::Failure;
use super::natural;
use super::proposals::pending::count_pending;
use super::report::{ActiveBottle, kept_word};

/// The status of a detached bottle whose keeper ended. A new keeper can adopt the bottle.
const UNKEPT: &str = "unkept";

/// Returns all bottles of this `$BOTTLE_HOME`, each with the number of its pending proposals. With `live`, also asks
/// the keepers of running bottles what their agents do.
pub async fn active_bottles(host: &Host, live: bool) -> Result<Vec<ActiveBottle>, Failure> {
    let listed = Store::of(host).list().map_err(unlistable)?;
    let running = listed.iter().filter(|listed| live && agent_runs(listed)).map(|listed| listed.slug.clone());
    let mut activities = activities(host, running.collect()).await;
    let with_proposals = |listed: Listed| {
        let slug = listed.slug.clone();
        let pending = count_pending(&host.home, &slug);
        let activity = activities.remove(&slug);
        let mut bottle = ActiveBottle { pending, ..ActiveBottle::from(listed) };
        if let Some(activity) = activity {
            add_activity(&mut bottle, activity);
        }
        let backend = bottle.backend.as_deref().and_then(|name| registry::by_name(host, name));
        if bottle.status == UNKEPT {
            let running = backend.as_ref().and_then(|backend| backend.running_sidecars(&slug));
            update_sidecars(&mut bottle.services, running.as_deref());
        }
        bottle.selected_engine = backend.and_then(|backend| backend.engine_address());
        bottle
    };
    let mut bottles: Vec<ActiveBottle> = listed.into_iter().map(with_proposals).collect();
    bottles.sort_by(|one, other| natural::compare(&one.slug, &other.slug));
    Ok(bottles)
}

fn agent_runs(listed: &Listed) -> bool {
    matches!(&listed.state, State::Alive(record) if record.status == Status::Running)
}

/// Whether a client can connect to the bottle, either now or after a new keeper has adopted it.
pub fn is_running(state: &State) -> bool {
    match state {
        State::Alive(_) => true,
        State::Dead(record) => record.is_adoptable(),
        State::Kept(_) | State::Damaged(_) | State::Newer(_) => false,
    }
}

/// Asks the keepers of these bottles concurrently what their agents do. Omits the bottles whose keeper does not answer.
pub(crate) async fn activities(host: &Host, slugs: Vec<Slug>) -> BTreeMap<Slug, Activity> {
    let ask = async |slug: &Slug| Some((slug.clone(), client::activity(host, slug).await?));
    join_all(slugs.iter().map(ask)).await.into_iter().flatten().collect()
}

/// Updates the recorded sidecars of a bottle without a keeper. `running` contains the names of the sidecars that run.
/// Without this list, a sidecar that was running is removed, because it may have ended since.
fn update_sidecars(sidecars: &mut Vec<Service>, running: Option<&[&str]>) {
    match running {
        Some(running) => {
            sidecars.iter_mut().for_each(|sidecar| sidecar.up &= running.contains(&sidecar.name.as_str()));
        }
        None => sidecars.retain(|sidecar| !sidecar.up),
    }
}

fn add_activity(bottle: &mut ActiveBottle, Activity { works, active_at, size }: Activity) {
    bottle.activity = match (bottle.pending, works) {
        (1.., _) => Some("asking"),
        (0, Some(true)) => Some("working"),
        (0, Some(false)) => Some("idle"),
        (0, None) => None,
    };
    bottle.active_at = active_at;
    bottle.disk_bytes = size.map(|size| size.bytes);
    bottle.measured_at = size.map(|size| size.at);
}

impl From<Listed> for ActiveBottle {
    fn from(listed: Listed) -> Self {
        let slug = listed.slug;
        match listed.state {
            State::Alive(record) => from_record(*record, None),
            State::Dead(record) if record.is_adoptable() => from_record(*record, Some(UNKEPT)),
            State::Dead(record) if record.agent_exit.is_some() || record.status == Status::Ended => {
                from_record(*record, Some("ended"))
            }
            State::Dead(record) => from_record(*record, Some("orphaned")),
            State::Kept(record) => from_record(*record, Some("kept")),
            State::Damaged(why) => unreadable(slug.to_string(), "damaged", why),
            State::Newer(schema) => {
                unreadable(slug.to_string(), "newer", format!("written by a newer bottle (schema {schema})"))
            }
        }
    }
}

fn from_record(record: Record, status: Option<&'static str>) -> ActiveBottle {
    let mode = match record.mode {
        Mode::Attached => "attached",
        Mode::Detached => "detached",
    };
    // The record of a stopped bottle still contains its last sidecars.
    let runs = record.status == Status::Running && matches!(status, None | Some(UNKEPT));
    let live = record.live().is_some();
    ActiveBottle {
        slug: record.slug.to_string(),
        services: if runs { record.services } else { Vec::new() },
        locked: record.locked.filter(|_| runs),
        paused: record.budget_hold.filter(|_| runs),
        cut_off: runs && record.budget_order == Some(OnSpent::Cutoff),
        label: record.label,
        color: record.color,
        agent: Some(record.agent.to_string()),
        bottles: record.bottles.iter().map(ToString::to_string).collect(),
        forked_from: record.forked_from.map(|slug| slug.to_string()),
        parent: record.parent,
        engine: record.engine.map(|engine| engine.address),
        backend: Some(record.backend),
        mode: Some(mode),
        status: status.unwrap_or(status_name(record.status)),
        kept_for: record.kept_for.as_ref().filter(|_| status == Some("kept")).map(kept_word),
        started_at: Some(record.started_at),
        cwd: Some(record.cwd.display().to_string()),
        copied_cwd: record.copied_cwd,
        directories: record.directories,
        live,
        disk_bytes: record.size.map(|size| size.bytes),
        measured_at: record.size.map(|size| size.at),
        ..ActiveBottle::default()
    }
}

fn unreadable(slug: String, status: &'static str, problem: String) -> ActiveBottle {
    ActiveBottle { slug, status, problem: Some(problem), ..ActiveBottle::default() }
}

fn status_name(status: Status) -> &'static str {
    match status {
        Status::Starting => "starting",
        Status::Running => "running",
        Status::Ending => "ending",
        Status::Ended => "ended",
        Status::Kept => "kept",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_without_a_keeper_is_up_only_if_its_process_runs() {
        let recorded = |sidecars: &[(&str, bool)]| -> Vec<Service> {
            sidecars.iter().map(|&(name, up)| Service { name: name.to_owned(), up }).collect()
        };
        let before = [("egress", true), ("git-gate", false), ("supervise", true)];
        for (running, after) in [
            (Some(&["supervise", "egress"][..]), &before[..]),
            (Some(&["egress", "git-gate"]), &[("egress", true), ("git-gate", false), ("supervise", false)]),
            (Some(&[]), &[("egress", false), ("git-gate", false), ("supervise", false)]),
            (None, &[("git-gate", false)]),
        ] {
            let mut sidecars = recorded(&before);
            update_sidecars(&mut sidecars, running);
            assert_eq!(sidecars, recorded(after), "{running:?}");
        }
    }
}
