//! Saves a snapshot of a running or kept bottle.

use bottle_backend::{Backend, ProgressSink};
use bottle_channel::Channel;
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_instance::snapshots::{self, CommitOptions};
use bottle_instance::{Claim, State, Store, engines};
use bottle_keeper::protocol::{Committed, KeeperEvent, KeeperRequest, LaunchFailureKind};
use bottle_policy::names::Slug;

use super::connect::{connect, keeper_lost, unavailable, unexpected_answer};
use super::failure::{Failure, Kind};
use super::notice::{Notice, Notify};
use super::record::{backend_of, claim_failed};
use super::report;
use super::snapshots::freeze_failed;
use super::text::shown;

/// A snapshot that is about to be saved.
pub struct Saving {
    /// Whether the bottle runs. The keeper of a running bottle saves the snapshot even if the future of [`Self::run`]
    /// is dropped.
    pub is_running: bool,
    /// Whether the bottle's programs pause until the snapshot is complete.
    pub pauses: bool,
    options: CommitOptions,
    by: By,
}

/// The process that saves the snapshot.
enum By {
    Keeper(Channel),
    /// A kept bottle has no keeper, so this process claims the bottle while it saves the snapshot.
    Claim(Box<Claim>, Box<dyn Backend>),
}

impl Saving {
    /// Connects to a running bottle, or claims a kept bottle. Warns about the parts of the bottle that the snapshot
    /// will not contain.
    ///
    /// # Errors
    /// When the bottle has no files that can be saved.
    pub async fn begin(
        host: &Host,
        slug: &Slug,
        options: CommitOptions,
        notify: Notify<'_>,
    ) -> Result<Self, Failure> {
        match Store::of(host).state(slug) {
            Some(State::Kept(record)) => Self::of_kept(host, &record, options, notify).await,
            Some(State::Alive(record) | State::Dead(record)) => {
                let channel = connect(host, slug).await?;
                let backend = backend_of(host, &record)?;
                warn_omissions(&*backend, &record, notify).await;
                let pauses = backend.capabilities().commit_pauses;
                Ok(Self { is_running: true, pauses, options, by: By::Keeper(channel) })
            }
            _ => Err(unavailable(host, slug).await),
        }
    }

    async fn of_kept(
        host: &Host,
        record: &Record,
        options: CommitOptions,
        notify: Notify<'_>,
    ) -> Result<Self, Failure> {
        let slug = &record.slug;
        if record.has_only_conversation() {
            return Err(Failure::state(format!("cannot commit {slug}: only its conversation is left")).hint(
                format!("`bottle resume {slug}` makes its files anew and continues the conversation"),
            ));
        }
        if !record.kept {
            return Err(Failure::state(format!("cannot commit {slug}: only its snapshot is left"))
                .hint(format!("`bottle resume {slug}` starts from it")));
        }
        let backend = backend_of(host, record)?;
        let claim = Store::of(host).adopt_idle(slug).map_err(claim_failed)?;
        engines::require(&*backend, claim.directory(), record).await?;
        warn_omissions(&*backend, record, notify).await;
        Ok(Self { is_running: false, pauses: false, options, by: By::Claim(Box::new(claim), backend) })
    }

    /// Saves the snapshot.
    ///
    /// # Errors
    /// When the snapshot cannot be saved.
    pub async fn run(self, progress: ProgressSink) -> Result<Committed, Failure> {
        match self.by {
            By::Keeper(channel) => by_keeper(&channel, self.options, &progress).await,
            By::Claim(claim, backend) => {
                let saved = snapshots::commit(&*backend, &claim, self.options, progress).await;
                let saved = saved.map_err(freeze_failed)?;
                Ok(Committed { snapshot: saved.snapshot, notes: saved.notes })
            }
        }
    }
}

/// Returns the output document about a snapshot that was saved.
pub fn document(host: &Host, committed: Committed) -> report::Committed {
    let Committed { snapshot, notes } = committed;
    let slug = &snapshot.slug;
    let (resume, export) = match &snapshot.name {
        Some(name) => (format!("bottle resume {slug} --snapshot {name}"), format!("{slug}@{name}")),
        None => (format!("bottle resume {slug}"), slug.to_string()),
    };
    let moved_by = exports(host, slug).then(|| format!("bottle export {export} -o FILE"));
    report::Committed { snapshot, notes, resume, moved_by }
}

/// Whether `bottle export` can export the bottle.
fn exports(host: &Host, slug: &Slug) -> bool {
    match Store::of(host).state(slug) {
        Some(State::Alive(record) | State::Dead(record) | State::Kept(record)) => record.live().is_none(),
        _ => false,
    }
}

async fn by_keeper(
    channel: &Channel,
    options: CommitOptions,
    progress: &ProgressSink,
) -> Result<Committed, Failure> {
    let request = match options {
        CommitOptions { name: None, .. } => KeeperRequest::Commit,
        named => KeeperRequest::CommitAs(named),
    };
    let mut stream = channel.open(&request).await.map_err(keeper_lost)?;
    loop {
        match stream.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
            KeeperEvent::Copied(copied) => progress.report(copied),
            KeeperEvent::Committed(committed) => return Ok(committed),
            KeeperEvent::Failed(failure) => {
                let kind = match failure.kind {
                    LaunchFailureKind::Backend => Kind::EngineUnavailable,
                    _ => Kind::Failed,
                };
                return Err(Failure::from_launch(kind, failure));
            }
            KeeperEvent::Refused(why) => return Err(Failure::state(why)),
            _ => return Err(unexpected_answer()),
        }
    }
}

async fn warn_omissions(backend: &dyn Backend, record: &Record, notify: Notify<'_>) {
    let warn = |left: &str| notify(Notice::Warning(format!("not in the snapshot: {left}")));
    if let Some(live) = record.live() {
        warn(&format!("the files in {} (`--cwd=live`)", shown(&live.path)));
    }
    match backend.snapshot_exclusions(&record.slug).await {
        Ok(left) => left.iter().for_each(|left| warn(left)),
        Err(error) => {
            notify(Notice::Warning(format!("cannot list what the snapshot omits: {error}")));
        }
    }
}
