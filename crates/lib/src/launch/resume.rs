//! Resumes a kept bottle, with the same slug and agent, and by default with the same bottle manifests.
//!
//! ```text
//! record ─► origin: kept files │ snapshot │ new, with a warning ─► plan ─► changed manifests ─► launch
//! ```
//! A resumed bottle gets a new certificate authority and a new proxy, and its secrets are read again, because all of
//! this belongs to a single launch.

use std::path::Path;

use bottle_backend::{Backend, Origin, Snapshot};
use bottle_host::git_user::HostGitUser;
use bottle_host::{Host, Settings};
use bottle_instance::record::Record;
use bottle_instance::{Store, engines};
use bottle_keeper::launch::order::Resumed;
use bottle_manifest::resolve::{Resolved, Selection, resolve};
use bottle_plan::{Flags, GitDirectory, Workspace};
use bottle_policy::names::{Name, Slug};

use super::backend;
use super::changed_manifests::changes;
use super::checks::require_host_keys;
use super::live_directory::{self, Live};
use super::preflight::{Preflight, sources};
use crate::budget::require_unspent;
use crate::failure::Failure;
use crate::manifests::manifests;
use crate::notice::{Notice, Notify};
use crate::record::{backend_of, kept};
use crate::snapshot_selector::SnapshotSelector;

/// A request to resume a kept bottle.
#[derive(Debug)]
pub struct ResumeOrder {
    /// The bottle to resume.
    pub slug: Slug,
    /// The snapshot to start from. `Some(None)` means the newest snapshot, and `None` means the kept files.
    pub snapshot: Option<Option<Name>>,
    /// The bottle manifests, in order. Empty for the manifests of the last start.
    pub bottles: Vec<Name>,
    /// The task, the terminal and similar flags. Flags that the bottle or the settings decide are ignored.
    pub flags: Flags,
}

/// The bottle to resume, and the files from which it starts.
pub struct Resuming {
    record: Record,
    /// The host with the working directory of the first start. The working directory decides which project's agents are
    /// found, and is copied if the workspace has to be created again.
    host: Host,
    backend: Box<dyn Backend>,
    start_point: StartPoint,
    resolved: Resolved,
    live: Option<Live>,
}

/// The files from which the bottle starts.
struct StartPoint {
    origin: Origin,
    /// Whether starting from `origin` discards kept files.
    discards: bool,
}

/// A resume that the user has not confirmed yet.
pub struct ResumePreflight {
    /// The launch of the resumed bottle.
    pub launch: Preflight,
    /// How the manifests changed since the last start, as a unified diff. `None` if the manifests did not change.
    pub changes: Option<String>,
    /// Whether the resume discards kept files.
    pub discards: bool,
}

impl ResumeOrder {
    /// Finds the bottle's files and manifests.
    ///
    /// # Errors
    /// When the bottle cannot be resumed.
    pub async fn begin(&self, host: &Host, notify: Notify<'_>) -> Result<Resuming, Failure> {
        let record = kept(host, &self.slug).await?;
        let host = Host { cwd: record.start_directory(), ..host.clone() };
        let backend = backend_of(&host, &record)?;
        let start_point = self.start_point(&host, &*backend, &record, notify).await?;
        let bottles = if self.bottles.is_empty() { &record.bottles } else { &self.bottles };
        let selection = Selection { agent: record.agent.clone(), bottles: bottles.clone() };
        let resolved = resolve(&selection, &manifests(&host))?;
        let live =
            record.live().map(|live| live_directory::check_again(&host, &self.slug, live)).transpose()?;
        Ok(Resuming { record, host, backend, start_point, resolved, live })
    }

    /// Chooses the files from which the bottle starts: the kept files, which are newer than the snapshots, unless the
    /// user asks for a snapshot. Without kept files, chooses the newest snapshot.
    async fn start_point(
        &self,
        host: &Host,
        backend: &dyn Backend,
        record: &Record,
        notify: Notify<'_>,
    ) -> Result<StartPoint, Failure> {
        let (store, slug) = (Store::of(host), &record.slug);
        let directory = store.directory(slug);
        let layers = async { Ok(record.kept && engines::has_layers(backend, record).await?) };
        // Both requests go to the engine concurrently. The result of `layers` is used only if this is the engine of the
        // bottle's record.
        let (right, kept) = tokio::join!(engines::require(backend, &directory, record), layers);
        let kept = right.and(kept)?;
        let list = store.snapshots(slug).map_err(|error| Failure::state(error.to_string()))?;
        if kept && self.snapshot.is_none() {
            return Ok(StartPoint { origin: Origin::Kept, discards: false });
        }
        let there = backend.snapshots().await?;
        let mut newest_first = list.snapshots.iter().map(|entry| &entry.snapshot).rev();
        let exists = |own: &&Snapshot| there.iter().any(|found| found.is_same(own));
        let start_from = |snapshot: &Snapshot| {
            Ok(StartPoint { origin: Origin::Snapshot(snapshot.clone()), discards: kept })
        };
        match &self.snapshot {
            Some(name) => {
                let found = match name {
                    Some(_) => list.find(name.as_ref()).filter(exists),
                    None => newest_first.find(exists),
                };
                let was_deleted = match name {
                    Some(_) => list.find(name.as_ref()).is_some(),
                    None => !list.snapshots.is_empty(),
                };
                found.map_or_else(|| Err(no_snapshot(slug, name.as_ref(), was_deleted, kept)), start_from)
            }
            None => {
                let newest = newest_first.clone().next();
                if newest.is_none() && record.has_only_conversation() {
                    notify(Notice::Note(format!("{slug} is made anew and continues its conversation")));
                    return Ok(StartPoint { origin: Origin::New, discards: false });
                }
                let Some(found) = newest_first.find(exists) else {
                    let reason =
                        if newest.is_some() { "its snapshot was deleted" } else { "its files are missing" };
                    notify(Notice::Warning(format!("{slug}: {reason}, so it is built anew")));
                    return Ok(StartPoint { origin: Origin::New, discards: false });
                };
                if record.kept {
                    let why = "its kept files were removed by something else";
                    notify(Notice::Warning(format!("{slug}: {why}, so it starts from its snapshot")));
                }
                if newest != Some(found) {
                    let older = SnapshotSelector::of(found);
                    notify(Notice::Warning(format!(
                        "{slug}: its newest snapshot was deleted, so it starts from {older}"
                    )));
                }
                start_from(found)
            }
        }
    }
}

impl Resuming {
    /// Returns the directories that are copied into the workspace again.
    pub fn copied(&self) -> Vec<&Path> {
        let record = &self.record;
        if self.workspace() == Workspace::Empty {
            return Vec::new();
        }
        let one = record.directories.is_empty().then_some(record.cwd.as_path());
        record.directories.iter().map(|directory| directory.path.as_path()).chain(one).collect()
    }

    /// The host, with the working directory of the first start.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Determines what the resume would start. `git_directories` contains the git directories that the user confirmed.
    ///
    /// # Errors
    /// When the bottle cannot be started.
    pub async fn preflight(
        self,
        order: &ResumeOrder,
        settings: &Settings,
        git_directories: Vec<GitDirectory>,
        notify: Notify<'_>,
    ) -> Result<ResumePreflight, Failure> {
        let flags = self.flags(&order.flags, settings, git_directories);
        let Self { record, host, backend, start_point, resolved, live } = self;
        // The flags contain the slug, so the plan needs no random bytes.
        let build = |flags: &Flags| bottle_plan::build(&host, &resolved.manifest, flags, &mut |_| {});
        let plan = build(&flags)?;
        let anew = build(&Flags { resumed: false, ..flags })?.agent.argv;
        backend::require(&*backend, &plan).await?;
        require_host_keys(&plan)?;
        require_unspent(&host, settings, &plan, |text| notify(Notice::Warning(text)))?;
        let preview = backend.preview(&plan).await?;
        let changes = changes(&host, &record.slug, &plan);
        let StartPoint { origin, discards } = start_point;
        let (files, copied) = match &origin {
            Origin::New => (None, sources(&plan, &preview).await?),
            Origin::Kept => (Some("its kept files".to_owned()), Vec::new()),
            Origin::Snapshot(snapshot) => {
                (Some(format!("the snapshot {}", SnapshotSelector::of(snapshot))), Vec::new())
            }
        };
        let resumed = Some(Resumed { anew, give_back: origin == Origin::New });
        let live = live.map(|live| live.warnings).unwrap_or_default();
        let launch = Preflight { resolved, plan, preview, backend, origin, resumed, files, copied, live };
        Ok(ResumePreflight { launch, changes, discards })
    }

    fn workspace(&self) -> Workspace {
        match (&self.start_point.origin, self.record.copied_cwd, self.record.copied_all) {
            (Origin::New, true, _) if self.live.is_some() => Workspace::Repository,
            (Origin::New, true, true) => Workspace::CopyAll,
            (Origin::New, true, false) => Workspace::Copy,
            _ => Workspace::Empty,
        }
    }

    fn flags(&self, flags: &Flags, settings: &Settings, git_directories: Vec<GitDirectory>) -> Flags {
        let Self { record, .. } = self;
        Flags {
            slug: Some(record.slug.clone()),
            label: record.label.clone(),
            color: flags.color.clone().or_else(|| record.color.clone()),
            workspace: self.workspace(),
            live: self.live.as_ref().map(|live| live.directory.clone()),
            repository: record.repository(),
            directories: record.directories.clone(),
            git_directories,
            backend: record.backend.clone(),
            resumed: true,
            image: match self.start_point.origin {
                // The bottle is created again from its manifest.
                Origin::New => None,
                _ => record.image.clone(),
            },
            git_user: if record.copied_cwd {
                HostGitUser::of(&self.host, &record.cwd)
            } else {
                HostGitUser::default()
            },
            ..flags.clone().with_settings(settings)
        }
    }
}

/// Returns the error for `--snapshot` if the snapshot does not exist. `was_deleted` says whether the snapshot existed
/// before.
fn no_snapshot(slug: &Slug, name: Option<&Name>, was_deleted: bool, kept: bool) -> Failure {
    let snapshot = match name {
        Some(name) => format!("the snapshot {slug}@{name}"),
        None => format!("the snapshot of {slug}"),
    };
    let error = match (was_deleted, name) {
        (true, _) => {
            let alternative = if kept { "starts from its kept files" } else { "starts without it" };
            Failure::state(format!("{snapshot} was deleted"))
                .hint(format!("`bottle resume {slug}` {alternative}"))
        }
        (false, Some(name)) => Failure::state(format!("there is no snapshot {slug}@{name}"))
            .hint("`bottle snapshots` shows all snapshots"),
        (false, None) => Failure::state(format!("there is no snapshot of {slug}"))
            .hint("`bottle snapshots` shows all snapshots"),
    };
    error.about("--snapshot")
}
