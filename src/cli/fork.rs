//! `bottle fork`: makes new bottles from the files of one that runs or is preserved.
//!
//! ```text
//!   the bottle ──commit──► a temporary snapshot ──launch──► new bottles, each with its own identity
//!   SLUG@NAME ─────────────────────────────────────┘  the temporary snapshot is removed
//! ```
//! The first bottle continues. A new bottle has its own slug, host name, certificate authority and canary, and none of
//! the first one's secrets.

use std::time::Duration;

use bottle_contract::names::Name;
use bottle_contract::session::guest::{GuestEvent, GuestRequest};
use rand::RngExt as _;

use super::candidates;
use super::choice::{manifests, resolved};
use super::connect::{connect, open_guest};
use super::error::CliError;
use super::exit;
use super::fork_point::ForkPoint;
use super::launch::child::require_no_parent;
use super::launch::manifest_changes::{changed, changes};
use super::launch::prepare::prepare_failed;
use super::launch::{
    ConfirmedLaunch, LaunchOptions, backend, preflight, require_free_slug, require_host_keys, run,
};
use super::live;
use super::output::Output;
use super::session::Signals;
use super::style::label_color_parser;
use super::terminal;
use crate::backend::{Backend, Origin};
use crate::cli::own_rules;
use crate::cli::runtime::block_on;
use crate::host::git_user::HostGitUser;
use crate::host::{Host, Settings};
use crate::instance::record::Record;
use crate::instance::work;
use crate::instance::{State, Store, engines};
use crate::launch::order::{Forked, LaunchOrder, Resumed};
use crate::library::budget::require_unspent;
use crate::library::connect::record;
use crate::library::record::backend_of;
use crate::library::snapshot_selector::SnapshotSelector;
use crate::plan::{self, Flags, Plan, PlanError, Workspace};
use crate::resolve::Resolved;

/// The maximum value of `--count`.
const MAX_COUNT: u16 = 100;

/// Time limit of the search for unsaved work, which may have to visit millions of files.
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// Make new bottles from the files of one that runs or is preserved
///
/// The new bottles run in the background, with the same manifests and a copy of all files. Each has an identity
/// and certificates of its own. The agent continues the last conversation if it can. The first bottle goes on. A
/// prompt and arguments for the agent are not inherited.
#[derive(Debug, clap::Args)]
pub(crate) struct Fork {
    /// The bottle, as `bottle list` shows it, or SLUG@NAME for one of its snapshots
    #[arg(add = candidates::all_bottles())]
    bottle: SnapshotSelector,
    /// Make this many bottles
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_COUNT)))]
    count: u16,
    /// Set the new bottle's name; with `--count`, followed by `-1`, `-2` and so on
    #[arg(long)]
    label: Option<String>,
    /// Set the colour of the new bottles' names in lists
    #[arg(long, value_parser = label_color_parser(), value_name = "COLOUR")]
    color_label: Option<String>,
    #[command(flatten)]
    launch: LaunchOptions,
}

impl Fork {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        require_no_parent(host)?;
        let slug = self.bottle.slug.clone();
        block_on(async {
            let forked = self.fork(host, &mut Signals::catch()?, output).await;
            forked.map_err(|error| error.about_if_unset(&slug))
        })
    }

    async fn fork(&self, host: &Host, signals: &mut Signals, output: &Output) -> Result<u8, CliError> {
        let settings = Settings::load(host)?;
        own_rules::load(host, output)?;
        let slug = &self.bottle.slug;
        let record = record(host, slug).await?;
        let shared = live::shared(&record)?;
        let host = &Host { cwd: record.start_directory(), ..host.clone() };
        let resolved = resolved(&manifests(host), record.agent.clone(), record.bottles.clone())?;
        let plans = self.plans(host, &settings, &resolved, &record)?;
        let anew = self.plan(host, &settings, &resolved, &record, None, false)?.agent.argv;
        let backend = backend_of(host, &record)?;
        backend::require(&*backend, &plans[0]).await?;
        engines::require(&*backend, &Store::of(host).directory(slug), &record).await?;
        require_host_keys(&plans[0])?;
        require_unspent(host, &settings, &plans[0], |text| output.warn(text))?;
        for plan in &plans {
            require_free_slug(host, plan)?;
        }
        let preview = backend.preview(&plans[0]).await.map_err(|error| prepare_failed(error, &plans[0]))?;
        let view = preflight::View {
            resolved: &resolved,
            plan: &plans[0],
            preview: &preview,
            backend: &*backend,
            home: &host.user_home,
            files: Some(format!("a copy of the files of {}", self.bottle)),
            copied: Vec::new(),
            live: shared
                .iter()
                .map(|path| format!("{path} is its workspace (`--cwd=live`), and is copied as it is now"))
                .collect(),
        };
        if self.launch.dry_run {
            preflight::show_dry_run(&view, self.label.is_some(), output)?;
            return Ok(exit::DONE);
        }
        if !self.confirm(host, &view, signals, output).await? {
            output.note("nothing was started");
            return Ok(exit::DONE);
        }
        let shown_notes = preview.notes;
        let unsaved = self.has_unsaved_work(host, &*backend, &record).await;
        let temporary = temporary_name(&plans)?;
        let fork_point = ForkPoint::find(host, &*backend, &record, &self.bottle, temporary, output).await?;
        let forked = Forked {
            from: slug.clone(),
            repositories: record.repositories.clone(),
            copied_cwd: record.copied_cwd,
            copied_all: record.copied_all || shared.is_some(),
            image: record.image.clone(),
            unsaved,
        };
        let origin = Origin::Snapshot(fork_point.snapshot.clone());
        let resumed = Some(Resumed { anew, give_back: false });
        let first = plans[0].clone();
        let confirmed = ConfirmedLaunch { backend, plan: first, shown_notes, origin, resumed };
        let started = start_all(host, confirmed, plans, forked, signals, output).await;
        fork_point.release(host, output).await;
        started.map(|()| exit::DONE)
    }

    /// The plans of the new bottles, at least one.
    fn plans(
        &self,
        host: &Host,
        settings: &Settings,
        resolved: &Resolved,
        record: &Record,
    ) -> Result<Vec<Plan>, CliError> {
        let label = |number: u16| match (&self.label, self.count) {
            (Some(label), 2..) => Some(format!("{label}-{number}")),
            (label, _) => label.clone(),
        };
        (1..=self.count)
            .map(|number| self.plan(host, settings, resolved, record, label(number), true))
            .collect()
    }

    fn plan(
        &self,
        host: &Host,
        settings: &Settings,
        resolved: &Resolved,
        record: &Record,
        label: Option<String>,
        resumed: bool,
    ) -> Result<Plan, CliError> {
        let flags = Flags {
            label,
            color: self.color_label.clone(),
            workspace: if record.live().is_some() { Workspace::Files } else { Workspace::Empty },
            repository: record.repository(),
            directories: record.directories.clone(),
            backend: record.backend.clone(),
            resumed,
            image: record.image.clone(),
            git_user: if record.copied_cwd {
                HostGitUser::of(host, &record.cwd)
            } else {
                HostGitUser::default()
            },
            ..self.launch.flags(settings)
        };
        let flags = Flags { detached: true, stdin: false, ..flags };
        let mut rng = rand::rng();
        plan::build(host, &resolved.manifest, &flags, &mut |bytes| rng.fill(bytes)).map_err(CliError::from)
    }

    /// Asks the user if manifests changed since the bottle was started.
    async fn confirm(
        &self,
        host: &Host,
        view: &preflight::View<'_>,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<bool, CliError> {
        let changes = changes(host, &self.bottle.slug, view.plan);
        let asks = !self.launch.yes && terminal::interactive();
        if let Some(changes) = &changes
            && (asks || !output.quiet && !output.json)
        {
            output.write_error_lines(&changed(changes, output.err_styles()));
        }
        for line in preflight::warnings(view) {
            output.note(line);
        }
        match changes {
            Some(_) if asks => preflight::ask(format!("Fork {}?", self.bottle), signals).await,
            _ => Ok(true),
        }
    }

    /// Whether the copied files contain unsaved work. A named snapshot is saved work. An unknown result counts as
    /// unsaved work.
    async fn has_unsaved_work(&self, host: &Host, backend: &dyn Backend, record: &Record) -> bool {
        if self.bottle.name.is_some() {
            return false;
        }
        let store = Store::of(host);
        if matches!(store.state(&record.slug), Some(State::Preserved(_))) {
            return record.kept;
        }
        let directory = store.directory(&record.slug);
        let Some(search) = work::search(backend, &directory, record).await else { return record.kept };
        // Only the keeper may connect to pid 1 of a running bottle.
        let asked = async {
            let channel = connect(host, &record.slug).await.ok()?;
            let request = GuestRequest::Changed(search.clone());
            let mut stream = open_guest(&channel, request).await.ok()?;
            match stream.receive().await {
                Ok(GuestEvent::Changed(changes)) => {
                    Some(work::judge(&directory, &search, changes).await.is_any())
                }
                _ => None,
            }
        };
        tokio::time::timeout(WORK_TIMEOUT, asked).await.ok().flatten().unwrap_or(true)
    }
}

/// Starts the new bottles. Prints the slug of each one that runs.
async fn start_all(
    host: &Host,
    confirmed: ConfirmedLaunch,
    plans: Vec<Plan>,
    forked: Forked,
    signals: &mut Signals,
    output: &Output,
) -> Result<(), CliError> {
    let from = forked.from.clone();
    let first = LaunchOrder { forked: Some(forked), ..confirmed.order(host, signals, output).await? };
    let order = |plan: Plan| Ok(LaunchOrder { plan: plan.settle(&first.secrets)?, ..first.clone() });
    let orders: Vec<_> = plans.into_iter().map(order).collect::<Result<_, PlanError>>()?;
    let (started, result) = match orders.as_slice() {
        [one] => match run::launch(host, one, signals, output).await {
            Ok(_channel) => (vec![one.plan.identity.slug.clone()], Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        },
        several => run::launch_all(host, several, signals, output).await,
    };
    if output.json {
        output.print_json(&serde_json::json!({"forked_from": from, "slugs": started}))?;
    } else {
        started.iter().try_for_each(|slug| output.print(slug.as_str()))?;
    }
    if let Some(slug) = started.first() {
        output.note(format!("`bottle attach {slug}` attaches to it, `bottle stop {slug}` stops it"));
    }
    result
}

/// The name of the temporary snapshot for these new bottles. No other bottle has the first one's slug.
fn temporary_name(plans: &[Plan]) -> Result<Name, CliError> {
    let first = plans.first().map_or("", |plan| plan.identity.slug.as_str());
    format!("fork-{first}").parse().map_err(|error| CliError::cannot("name a snapshot", error))
}
