//! `bottle list`: lists bottles, manifests and snapshots. A broken entry does not prevent the listing of the
//! others.

use std::collections::BTreeMap;

use bottle_contract::names::Slug;
use clap::Subcommand;
use futures_util::future::join_all;
use indicatif::HumanBytes;
use jiff::Timestamp;

use super::choice::manifests;
use super::connect::unlistable;
use super::error::CliError;
use super::exit;
use super::json_schema::{ActiveBottle, NamedManifest};
use super::natural;
use super::output::{Output, Styles, counted, one_line};
use super::summary::from_home;
use super::supervise;
use crate::backend::registry;
use crate::host::Host;
use crate::host::budget::Policy;
use crate::instance::record::{Mode, Record, Service, Status};
use crate::instance::{Listed, State, Store};
use crate::keeper::client;
use crate::keeper::protocol::Activity;
use crate::manifest::{Kind, Place};

/// The arguments of `list`; the default is to list running and preserved bottles.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show running and preserved bottles (the default)
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
            What::Snapshots => super::snapshots::list(host, output)?,
        }
        Ok(exit::DONE)
    }
}

/// Returns all bottles of this home, each with the number of its pending proposals. With `live`, also asks the keepers of
/// running bottles what their agents do.
pub(super) fn active_bottles(host: &Host, live: bool) -> Result<Vec<ActiveBottle>, CliError> {
    let listed = Store::of(host).list().map_err(unlistable)?;
    let running = listed.iter().filter(|listed| live && is_running(listed)).map(|listed| listed.slug.clone());
    let mut activities = activities(host, running.collect())?;
    let with_proposals = |listed: Listed| {
        let pending = supervise::count_pending(&host.home, &listed.slug);
        let activity = activities.remove(&listed.slug);
        let mut bottle = ActiveBottle { pending, ..ActiveBottle::from(listed) };
        if let Some(activity) = activity {
            add_activity(&mut bottle, activity);
        }
        let backend = bottle.backend.as_deref().and_then(|name| registry::by_name(host, name));
        bottle.selected_engine = backend.and_then(|backend| backend.engine_address());
        bottle
    };
    let mut bottles: Vec<ActiveBottle> = listed.into_iter().map(with_proposals).collect();
    bottles.sort_by(|one, other| natural::compare(&one.slug, &other.slug));
    Ok(bottles)
}

fn is_running(listed: &Listed) -> bool {
    matches!(&listed.state, State::Alive(record) if record.status == Status::Running)
}

/// Asks the keepers of these bottles at the same time what their agents do. Omits those that do not answer.
fn activities(host: &Host, slugs: Vec<Slug>) -> Result<BTreeMap<Slug, Activity>, CliError> {
    if slugs.is_empty() {
        return Ok(BTreeMap::new());
    }
    super::block_on(async {
        let ask = async |slug: &Slug| Some((slug.clone(), client::activity(host, slug).await?));
        Ok(join_all(slugs.iter().map(ask)).await.into_iter().flatten().collect())
    })
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

fn active(host: &Host, output: &Output) -> Result<(), CliError> {
    let bottles = active_bottles(host, shows_activity(output))?;
    if bottles.is_empty() {
        output.note("no bottle is running; `bottle start AGENT` starts one");
    }
    let width = output.styles().columns();
    let now = Timestamp::now();
    // Scripts read the columns of a pipe by their position, and take the others from `--json`.
    let columns = [
        ("BACKEND", true),
        ("SLUG", true),
        ("LABEL (AGENT)", true),
        ("STATUS", true),
        ("SERVICES", true),
        ("AGE", width.is_some()),
        ("SIZE", width >= Some(SIZE_FROM) && bottles.iter().any(|bottle| bottle.disk_bytes.is_some())),
        ("FOLDER", width >= Some(FOLDER_FROM) && bottles.iter().any(|bottle| bottle.copied_cwd)),
    ];
    let heading: Vec<&str> = columns.iter().filter(|(_, shown)| *shown).map(|(name, _)| *name).collect();
    let row = |bottle: &ActiveBottle| {
        let mut row = row(bottle, output);
        row.extend([age(bottle, now), size(bottle), folder(bottle, host)]);
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

/// Whether the output shows what the agents do.
pub(super) fn shows_activity(output: &Output) -> bool {
    output.json || is_on_terminal(output)
}

/// How long ago the current launch of a bottle began.
fn age(bottle: &ActiveBottle, now: Timestamp) -> String {
    bottle.started_at.map(|started| ago(started, now)).unwrap_or_default()
}

/// How long ago a time was, in its largest unit.
fn ago(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(time).as_secs().max(0);
    match seconds {
        0..60 => "<1 min".to_owned(),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => counted(seconds / 86_400, "day"),
    }
}

/// The disk space of the bottle's own files.
fn size(bottle: &ActiveBottle) -> String {
    bottle.disk_bytes.map(|bytes| HumanBytes(bytes).to_string()).unwrap_or_default()
}

/// The directories of `bottle start` if the bottle has copies of them.
fn folder(bottle: &ActiveBottle, host: &Host) -> String {
    let shown = |folder: &str| one_line(&from_home(folder, &host.user_home));
    if !bottle.folders.is_empty() {
        let folders = bottle.folders.iter().map(|folder| shown(&folder.path.display().to_string()));
        return folders.collect::<Vec<_>>().join(", ");
    }
    bottle.cwd.as_deref().filter(|_| bottle.copied_cwd).map(shown).unwrap_or_default()
}

/// The width in columns from which the size is shown.
const SIZE_FROM: usize = 90;

/// The width in columns from which the folder is shown.
const FOLDER_FROM: usize = 100;

/// Whether the output is a terminal. On a terminal, problems are listed below the table.
fn is_on_terminal(output: &Output) -> bool {
    output.styles().columns().is_some()
}

/// Lists manifests by file name without reading them, so that a broken manifest is listed too.
fn named(kind: Kind, host: &Host, output: &Output) -> Result<(), CliError> {
    let listing = manifests(host).list(kind);
    for warning in &listing.warnings {
        output.warn(warning);
    }
    let found: Vec<NamedManifest> = listing
        .entries
        .iter()
        .map(|entry| NamedManifest {
            name: entry.name.to_string(),
            from: entry.source.place.word(),
            file: entry.source.to_string(),
            replaces: entry.replaces.map(Place::word),
        })
        .collect();
    output.print_list(&found, &["NAME", "FROM", "FILE"], 0, |NamedManifest { name, from, file, replaces }| {
        let replaces = replaces.map(|other| format!(" (replaces {other})")).unwrap_or_default();
        // On a terminal, the home folder is shortened to `~`.
        let file = if is_on_terminal(output) { from_home(file, &host.user_home) } else { file.clone() };
        vec![name.clone(), format!("{from}{replaces}"), one_line(&file)]
    })
}

/// Describes the status of a bottle, and what needs the user's attention.
pub(super) fn status(bottle: &ActiveBottle, output: &Output) -> String {
    let styles = output.styles();
    let status = match (bottle.status, bottle.mode, &bottle.problem) {
        (status, _, Some(_)) if is_on_terminal(output) => styles.red(status),
        (status, _, Some(problem)) => format!("{}: {}", styles.red(status), one_line(problem)),
        ("running", Some(mode), None) => format!("{} ({mode})", running(bottle, output)),
        (status, ..) => styles.yellow(status),
    };
    let status = match &bottle.locked {
        Some(_) => format!("{status}, {}", styles.red("locked")),
        None => status,
    };
    let status = match &bottle.paused {
        Some(_) => format!("{status}, {}", styles.yellow("paused: budget")),
        None => status,
    };
    let status = match bottle.cut_off {
        true => format!("{status}, {}", styles.yellow("cut off from models")),
        false => status,
    };
    let status = match bottle.pending {
        0 => status,
        pending => format!("{status}, {}", styles.yellow(&counted(pending, "proposal"))),
    };
    match bottle.other_engine() {
        Some(address) => format!("{status}, {}", styles.yellow(&format!("on {}", one_line(address)))),
        None => status,
    }
}

/// The status of a running bottle: on a terminal what its agent does, if that is known.
fn running(bottle: &ActiveBottle, output: &Output) -> String {
    let styles = output.styles();
    match bottle.activity.filter(|_| is_on_terminal(output)) {
        Some("working") => styles.green("working"),
        Some("asking") => styles.yellow("needs an answer"),
        Some(_) => {
            let since = bottle.active_at.map(|at| format!(" {}", ago(at, Timestamp::now())));
            styles.dim(&format!("idle{}", since.unwrap_or_default()))
        }
        None => styles.green("running"),
    }
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

/// Formats `LABEL (AGENT)`.
pub(crate) fn label_and_agent(label: Option<&str>, agent: Option<&str>) -> String {
    let label = label.map(|label| format!("{} ", one_line(label))).unwrap_or_default();
    format!("{label}({})", agent.unwrap_or("?"))
}

fn named_service(service: &Service, styles: Styles) -> String {
    let name = one_line(&service.name);
    if service.up { name } else { styles.red(&format!("{name} down")) }
}

impl From<Listed> for ActiveBottle {
    fn from(listed: Listed) -> Self {
        let slug = listed.slug;
        match listed.state {
            State::Alive(record) => from_record(*record, None),
            State::Dead(record) if record.is_adoptable() => from_record(*record, Some("unkept")),
            State::Dead(record) if record.agent_exit.is_some() || record.status == Status::Ended => {
                from_record(*record, Some("ended"))
            }
            State::Dead(record) => from_record(*record, Some("orphaned")),
            State::Preserved(record) => from_record(*record, Some("preserved")),
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
    let runs = record.status == Status::Running && matches!(status, None | Some("unkept"));
    let live = record.live().is_some();
    ActiveBottle {
        slug: record.slug.to_string(),
        services: if runs { record.services } else { Vec::new() },
        locked: record.locked.filter(|_| runs),
        paused: record.budget_hold.filter(|_| runs),
        cut_off: runs && record.budget_order == Some(Policy::Cutoff),
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
        started_at: Some(record.started_at),
        cwd: Some(record.cwd.display().to_string()),
        copied_cwd: record.copied_cwd,
        folders: record.folders,
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
        Status::Preserved => "preserved",
    }
}
