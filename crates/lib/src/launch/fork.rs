//! Starts new bottles from the files of a running or kept bottle, the original.
//!
//! ```text
//!   the bottle ──commit──► a temporary snapshot ──launch──► new bottles, each with its own identity
//!   SLUG@NAME ─────────────────────────────────────┘  the temporary snapshot is removed
//! ```
//! The original bottle is not stopped. A new bottle has its own slug, host name, certificate authority and canary, and
//! none of the original bottle's secrets.

use std::time::Duration;

use bottle_backend::Origin;
use bottle_host::git_user::HostGitUser;
use bottle_host::{Host, Settings};
use bottle_instance::live_directory::identify_again;
use bottle_instance::record::Record;
use bottle_instance::{State, Store, engines, work};
use bottle_keeper::launch::order::{Forked, LaunchOrder, Resumed};
use bottle_manifest::resolve::{Resolved, Selection, resolve};
use bottle_plan::{Flags, Plan, PlanError, Workspace};
use bottle_policy::names::Name;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};
use rand::RngExt as _;

use super::backend;
use super::changed_manifests::changes;
use super::checks::{require_free_slug, require_host_keys};
use super::confirmed::Confirmed;
use super::preflight::Preflight;
use crate::budget::require_unspent;
use crate::connect::{connect, open_guest, record};
use crate::failure::Failure;
use crate::fork_point::{ForkPoint, Found};
use crate::manifests::manifests;
use crate::notice::{Notice, Notify};
use crate::record::backend_of;
use crate::snapshot_selector::SnapshotSelector;
use crate::text::shown;

/// The time limit of the search for unsaved work. The search may have to visit millions of files.
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// A request to start new bottles from the files of another bottle.
#[derive(Debug)]
pub struct ForkOrder {
    /// The bottle or snapshot whose files are copied.
    pub from: SnapshotSelector,
    /// The number of new bottles.
    pub count: u16,
    /// The label of the new bottle. With several new bottles, a number is appended to each label.
    pub label: Option<String>,
    /// The task, the colour and similar flags. Flags that the original bottle or the settings decide are ignored.
    pub flags: Flags,
}

/// A fork that the user has not confirmed yet.
pub struct ForkPreflight {
    /// The launch of the first new bottle.
    pub launch: Preflight,
    /// How the manifests changed since the original bottle was started, as a unified diff. `None` if the manifests did
    /// not change.
    pub changes: Option<String>,
    /// The host, with the working directory of the original bottle.
    pub host: Host,
    from: SnapshotSelector,
    record: Record,
    plans: Vec<Plan>,
    is_live: bool,
    /// Whether the copied files contain unsaved work.
    unsaved: bool,
}

/// A fork that the user has confirmed.
pub struct Fork {
    /// The launch of the first new bottle.
    pub confirmed: Confirmed,
    /// The launches of all new bottles.
    pub orders: ForkOrders,
    /// The snapshot with the copied files. The caller has to release it with [`ForkPoint::release`].
    pub point: ForkPoint,
}

/// The launches of all new bottles of a fork.
pub struct ForkOrders {
    plans: Vec<Plan>,
    forked: Forked,
}

impl ForkOrders {
    /// Returns the launch orders of all new bottles. `first` is the order of the first new bottle.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::settle`].
    pub fn of(self, first: &LaunchOrder) -> Result<Vec<LaunchOrder>, Failure> {
        let Self { plans, forked } = self;
        let order = |plan: Plan| {
            let (plan, forked) = (plan.settle(&first.secrets)?, Some(forked.clone()));
            Ok(LaunchOrder { plan, forked, ..first.clone() })
        };
        plans.into_iter().map(order).collect::<Result<_, PlanError>>().map_err(Failure::from)
    }
}

impl ForkOrder {
    /// Determines what the fork would start.
    ///
    /// # Errors
    /// When the fork cannot be started.
    pub async fn preflight(
        &self,
        host: &Host,
        settings: &Settings,
        notify: Notify<'_>,
    ) -> Result<ForkPreflight, Failure> {
        let slug = &self.from.slug;
        let record = record(host, slug).await?;
        let live = shared(&record)?;
        let host = Host { cwd: record.start_directory(), ..host.clone() };
        let selection = Selection { agent: record.agent.clone(), bottles: record.bottles.clone() };
        let resolved = resolve(&selection, &manifests(&host))?;
        let plans = self.plans(&host, settings, &resolved, &record)?;
        let anew = self.plan(&host, settings, &resolved, &record, None, false)?.agent.argv;
        let plan = plans[0].clone();
        let backend = backend_of(&host, &record)?;
        backend::require(&*backend, &plan).await?;
        engines::require(&*backend, &Store::of(&host).directory(slug), &record).await?;
        require_host_keys(&plan)?;
        require_unspent(&host, settings, &plan, |text| notify(Notice::Warning(text)))?;
        plans.iter().try_for_each(|plan| require_free_slug(&host, plan))?;
        let preview = backend.preview(&plan).await?;
        let changes = changes(&host, slug, &plan);
        let is_live = live.is_some();
        let launch = Preflight {
            resolved,
            plan,
            preview,
            backend,
            // The snapshot that replaces this origin is made after the user has confirmed the fork.
            origin: Origin::New,
            resumed: Some(Resumed { anew, give_back: false }),
            files: Some(format!("a copy of the files of {}", self.from)),
            copied: Vec::new(),
            live: live
                .into_iter()
                .map(|path| format!("{path} is its workspace (`--cwd=live`), and is copied as it is now"))
                .collect(),
        };
        Ok(ForkPreflight {
            launch,
            changes,
            host,
            from: self.from.clone(),
            record,
            plans,
            is_live,
            unsaved: true,
        })
    }

    /// Returns the plans of the new bottles. There is at least one.
    fn plans(
        &self,
        host: &Host,
        settings: &Settings,
        resolved: &Resolved,
        record: &Record,
    ) -> Result<Vec<Plan>, Failure> {
        let label = |number: u16| match (&self.label, self.count) {
            (Some(label), 2..) => Some(format!("{label}-{number}")),
            (label, _) => label.clone(),
        };
        (1..=self.count.max(1))
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
    ) -> Result<Plan, Failure> {
        let flags = Flags {
            label,
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
            detached: true,
            stdin: false,
            ..self.flags.clone().with_settings(settings)
        };
        let mut rng = rand::rng();
        bottle_plan::build(host, &resolved.manifest, &flags, &mut |bytes| rng.fill(bytes))
            .map_err(Failure::from)
    }
}

/// Returns the path, as text, of the host directory that is mounted as the bottle's workspace. `None` if no directory
/// is mounted.
///
/// # Errors
/// When another directory has replaced the mounted directory since the start.
fn shared(record: &Record) -> Result<Option<String>, Failure> {
    let Some(live) = record.live() else { return Ok(None) };
    let path = shown(&live.path);
    match identify_again(live) {
        Ok(_) => Ok(Some(path)),
        Err(changed) => Err(Failure::state(format!("cannot copy {path}: {changed}"))
            .about(&record.slug)
            .hint("`bottle start --cwd` starts a new bottle with a copy of a directory")),
    }
}

impl ForkPreflight {
    /// Finds the snapshot from which the new bottles start, or prepares a new snapshot.
    ///
    /// # Errors
    /// When the snapshot does not exist, or when no snapshot of the bottle can be made.
    pub async fn snapshot(&mut self, notify: Notify<'_>) -> Result<Found, Failure> {
        self.unsaved = self.has_unsaved_work().await;
        let host = &self.host;
        let temporary = temporary_name(&self.plans)?;
        ForkPoint::find(host, &*self.launch.backend, &self.record, &self.from, temporary, notify).await
    }

    /// Converts the preflight to a confirmed fork that starts from `point`. Call [`Self::snapshot`] first.
    pub fn fork(self, point: ForkPoint) -> Fork {
        let Self { launch, record, plans, is_live, unsaved, .. } = self;
        let forked = Forked {
            from: record.slug,
            repositories: record.repositories,
            copied_cwd: record.copied_cwd,
            copied_all: record.copied_all || is_live,
            image: record.image,
            unsaved,
        };
        let origin = Origin::Snapshot(point.snapshot.clone());
        let confirmed = Preflight { origin, ..launch }.confirmed();
        Fork { confirmed, orders: ForkOrders { plans, forked }, point }
    }

    /// Whether the copied files contain unsaved work. The files of a named snapshot are saved work. If the search has
    /// no result, the files are treated as unsaved work.
    async fn has_unsaved_work(&self) -> bool {
        let (host, backend, record) = (&self.host, &*self.launch.backend, &self.record);
        if self.from.name.is_some() {
            return false;
        }
        let store = Store::of(host);
        if matches!(store.state(&record.slug), Some(State::Kept(_))) {
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

/// Returns the name of the temporary snapshot for these new bottles. The name is unique, because it contains the slug
/// of the first new bottle.
fn temporary_name(plans: &[Plan]) -> Result<Name, Failure> {
    let first = plans.first().map_or("", |plan| plan.identity.slug.as_str());
    format!("fork-{first}").parse().map_err(|error| Failure::cannot("name a snapshot", error))
}
