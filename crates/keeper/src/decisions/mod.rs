//! Applies the user's answers to proposals, and changes of the routes that the user requests. Writes an audit entry for
//! each answer and change, and sends changed routes to the proxy.
//!
//! ```text
//! answer, change ─► merged, checked ─► audit: intent ─► routes.json ─► bundle ─► confirmed ─► audit: live ─► reported
//!                              on any failure: routes.json restored, audit: failed, the answer is withdrawn
//! ```
//! Changes are applied one at a time. The routes that allowed a request stay in force for this request. The proxy
//! applies the new routes to the next request.
//!
//! Applying an answer twice is harmless, because adding an existing permission changes nothing.
//!
//! A one-time grant is stored next to the routes and is not merged into them. The grant stays until the proxy reports
//! that a request used it.

mod change;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bottle_channel::Channel;
use bottle_host::files::FileError;
use bottle_instance::audit::{Entry, Trail};
use bottle_instance::audited_routes::AuditedChange;
use bottle_instance::routes::{self, Replaced};
use bottle_policy::lock_out::LockOut;
use bottle_policy::route::RouteTable;
use bottle_policy::route::edit::RouteEdit;
use bottle_policy::route::follow;
use bottle_protocol::queue::{Id, Proposal, Response, Scope, Status};
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Routes};
use bottle_queue::{AnswerError, Decide, Outcome};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

pub use self::change::gains;
use self::change::{Change, UserChange, diff, is_narrower, losses};
use super::mask::Mask;
use super::protocol::{BudgetChange, ParentChange, RouteChange, RouteReport, RouteRequest};

/// How long the bundle may take to confirm new routes before the approval fails. The bundle gives its sidecars eight
/// seconds to confirm.
const LIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the bundle may take to lock the bottle. The bundle waits up to eight seconds for each sidecar, and kills a
/// sidecar that does not answer.
const LOCKED_WITHIN: Duration = Duration::from_secs(30);

/// Applies the user's decisions for one bottle.
#[derive(Debug, Clone)]
pub(super) struct Decisions(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    trail: Trail,
    /// The bottle's directory.
    directory: PathBuf,
    bundle: std::sync::Mutex<Channel>,
    live: Mutex<Live>,
    /// Masks secrets in the routes that the audit log records.
    mask: Mask,
}

/// The routes that the proxy currently uses.
#[derive(Debug)]
struct Live {
    /// `None` if the routes are unknown, because an older version started the bottle or the routes file is damaged.
    routes: Option<Routes>,
    /// The last revision that was sent to the proxy. The proxy may not have activated this revision.
    sent: u64,
}

impl Decisions {
    /// Creates the state for the bottle in `directory`. `routes` are the routes that the bottle's proxy uses. `mask`
    /// masks secrets in the audit log.
    pub(super) fn new(
        trail: Trail,
        directory: PathBuf,
        bundle: Channel,
        routes: Option<Routes>,
        mask: Mask,
    ) -> Self {
        let sent = routes.as_ref().map_or(0, |routes| routes.revision);
        let live = Mutex::new(Live { routes, sent });
        let bundle = std::sync::Mutex::new(bundle);
        Self(Arc::new(Inner { trail, directory, bundle, live, mask }))
    }

    /// Replaces the channel to the bundle after the previous channel was closed.
    pub(super) fn reconnect(&self, bundle: Channel) {
        *self.0.bundle.lock().unwrap_or_else(PoisonError::into_inner) = bundle;
    }

    /// The channel to the bundle.
    pub(super) fn bundle(&self) -> Channel {
        self.0.bundle()
    }

    /// Writes an entry into the audit log.
    pub(super) async fn record(&self, by: &str, entry: Entry) -> anyhow::Result<()> {
        self.0.write(by, entry).await
    }

    /// Masks the bottle's secrets in a text.
    pub(super) fn masked(&self, text: &str) -> String {
        self.0.mask.text(text)
    }

    /// Sends the routes to the proxy if the proxy has an older revision than the stored routes. This happens if the
    /// previous keeper was killed after it wrote the routes and before it sent them. The audit log already contains
    /// this change. `live` is the revision that the proxy uses.
    pub(super) async fn resend(&self, live: Option<u64>) {
        let state = self.0.live.lock().await;
        let (Some(routes), Some(revision)) = (&state.routes, live) else { return };
        if routes.revision > revision
            && let Err(why) = self.0.send(routes.clone()).await
        {
            tracing::warn!("cannot apply the routes of revision {}: {why:#}", routes.revision);
        }
    }

    /// Writes an audit entry about the lock-out of the bottle.
    pub(super) async fn locked_out(&self, why: LockOut) {
        let by = why.daemon.clone();
        if let Err(error) = self.0.write(&by, Entry::LockedOut(why)).await {
            tracing::warn!("cannot record the lock-out: {error:#}");
        }
    }

    /// Writes an audit entry about the user's order to stop the bottle's requests to models, or to allow them again.
    pub(super) async fn budget_changed(&self, by: &str, change: BudgetChange) {
        let action = match change {
            BudgetChange::Stop(policy) => policy.name(),
            BudgetChange::Continue => "continue",
        };
        let why = "the user ordered it".to_owned();
        let entry = Entry::Enforced { budget: None, action: action.to_owned(), why };
        if let Err(error) = self.0.write(by, entry).await {
            tracing::warn!("cannot record a budget change of the user: {error:#}");
        }
    }

    /// Removes the one-time grant of `proposal` after a request used it. The proxy has already removed
    /// its own copy of the grant.
    pub(super) async fn spent(&self, proposal: Id) {
        let mut state = self.0.live.lock().await;
        let Some(routes) = &mut state.routes else { return };
        let before = routes.once.len();
        routes.once.retain(|once| once.proposal != proposal);
        if routes.once.len() == before {
            return;
        }
        let saved = self.0.save(routes.clone()).await;
        let recorded = self.0.write("egress", Entry::Spent { proposal }).await;
        for why in [saved, recorded].into_iter().filter_map(Result::err) {
            tracing::warn!("cannot record the use of a one-time grant: {why:#}");
        }
    }
}

impl Decisions {
    /// Applies a change of the routes that the user requests. If the change weakens the protection and the user has not
    /// agreed, reports the effect and changes nothing.
    ///
    /// # Errors
    /// If the change is not valid, or cannot be recorded or activated. In this case, the previous routes still apply.
    ///
    /// If the routes became narrower, also returns the change for the children of this bottle.
    pub(super) async fn change_routes(
        &self,
        request: RouteRequest,
    ) -> anyhow::Result<(RouteReport, Option<ParentChange>)> {
        let mut live = self.0.live.lock().await;
        let before = live.routes.as_ref().map(|routes| routes.table.clone());
        let (edit, by) = (edit_of(&request.change), request.by.clone());
        let report = self.0.change_routes(&mut live, request).await?;
        let after = live.routes.as_ref().map(|routes| routes.table.clone());
        let narrowed = before.zip(after).filter(|(before, after)| is_narrower(before, after));
        let of_parent = narrowed.map(|(before, after)| ParentChange::Routes { edit, before, after, by });
        Ok((report, of_parent))
    }

    /// Removes the permissions from the routes that the parent of this bottle has lost.
    ///
    /// # Errors
    /// If the change cannot be recorded or activated. In this case, the previous routes still apply.
    pub(super) async fn follow(
        &self,
        before: &RouteTable,
        after: &RouteTable,
        edit: Option<RouteEdit>,
        by: &str,
    ) -> anyhow::Result<()> {
        let mut live = self.0.live.lock().await;
        let now = live.routes.clone().context("this bottle's routes are unknown")?;
        let table = follow(&now.table, before, after, edit.as_ref())?;
        if table == now.table {
            return Ok(());
        }
        let host = edit.as_ref().map_or_else(String::new, |edit| edit.host.clone());
        self.0.replace(&mut live, &now, table, Edited { edit, host, by: by.to_owned() }).await.map(drop)
    }

    /// Locks the bottle until it ends.
    ///
    /// # Errors
    /// If the sidecars do not confirm the lock.
    pub(super) async fn lock(&self, why: LockOut) -> anyhow::Result<()> {
        let locked = async {
            let mut stream = self.bundle().open(&BundleRequest::Lock(why)).await?;
            stream.receive().await
        };
        match tokio::time::timeout(LOCKED_WITHIN, locked)
            .await
            .context("the sidecars did not answer in time")??
        {
            BundleEvent::Locked => Ok(()),
            _ => bail!("the sidecars sent an unexpected message"),
        }
    }
}

/// Returns the edit of a change. An undo has no edit.
fn edit_of(change: &RouteChange) -> Option<RouteEdit> {
    match change {
        RouteChange::Edit(edit) => Some(edit.clone()),
        RouteChange::Undo { .. } => None,
    }
}

impl Decide for Decisions {
    fn decided(
        &self,
        proposal: Proposal,
        response: Response,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            if !change::is_applied(proposal.tool, response.status) {
                return inner.record(&proposal, &response).await.map_err(AnswerError::decide);
            }
            // The lock ensures that answers are applied one at a time, because each answer is merged into the routes
            // that result from the previous answer.
            let mut live = inner.live.lock().await;
            inner.apply(&mut live, &proposal, &response).await.map_err(AnswerError::decide)
        })
    }
}

/// Describes a change of the routes: the edit, the host, and the user who made the change.
struct Edited {
    /// The edit of the routes. `None` if the user, or the user of the parent, undid an earlier change.
    edit: Option<RouteEdit>,
    host: String,
    by: String,
}

impl Inner {
    /// Records an answer that does not change the routes. Only the process that asked the question uses this answer.
    async fn record(&self, proposal: &Proposal, response: &Response) -> anyhow::Result<Vec<String>> {
        let entry = Entry::Decided {
            proposal: proposal.id.clone(),
            tool: proposal.tool,
            status: response.status,
            reason: response.notes.clone(),
            payload: hex::encode(Sha256::digest(proposal.proposed_file.as_bytes())),
        };
        match self.write(&response.decided_by, entry).await {
            Ok(()) => Ok(Vec::new()),
            // A rejection takes effect even if its audit entry cannot be written.
            Err(why) if response.status == Status::Rejected => {
                tracing::warn!("cannot record a rejection: {why:#}");
                Ok(Vec::new())
            }
            Err(why) => Err(why),
        }
    }

    async fn apply(
        &self,
        live: &mut Live,
        proposal: &Proposal,
        response: &Response,
    ) -> anyhow::Result<Vec<String>> {
        let text = response.final_file.as_deref().unwrap_or(&proposal.proposed_file);
        if response.scope == Scope::Once && self.was_spent(&proposal.id).await? {
            // The same answer arrived twice, and a request used the one-time grant before the second answer.
            return Ok(Vec::new());
        }
        let now = live.routes.as_ref().context("this bottle's routes are unknown")?;
        let change = Change::new(now, live.sent, text, &proposal.id, response.scope)?;
        let (revision, id) = (change.next.revision, proposal.id.clone());
        let intent = change.intent(now, proposal, response, &self.mask);
        self.write(&response.decided_by, intent).await?;
        if change.changes {
            self.activate(live, &change.next, id).await?;
        } else {
            self.record_live(id, revision).await;
        }
        let none = || vec!["no change: all of it was allowed already".to_owned()];
        Ok(if change.gains.is_empty() { none() } else { change.gains })
    }

    async fn change_routes(&self, live: &mut Live, request: RouteRequest) -> anyhow::Result<RouteReport> {
        let now = live.routes.clone().context("this bottle's routes are unknown")?;
        let mut undo = self.replaced().await?;
        let by = request.by.clone();
        let UserChange { mut report, table, edit, applies } = UserChange::new(&now, request, &mut undo)?;
        if !applies {
            return Ok(report);
        }
        let edited = Edited { edit, host: report.host.clone(), by };
        let revision = self.replace(live, &now, table, edited).await?;
        if let Err(why) = self.save_replaced(undo).await {
            tracing::warn!("this change of the routes cannot be undone: {why:#}");
        }
        (report.live, report.revision) = (true, revision);
        Ok(report)
    }

    /// Records a change of the routes in the audit log and makes the new routes live. Returns the new revision.
    async fn replace(
        &self,
        live: &mut Live,
        now: &Routes,
        table: RouteTable,
        edited: Edited,
    ) -> anyhow::Result<u64> {
        let Edited { edit, host, by } = edited;
        let next = change::replaced(now, live.sent, table);
        let (change, revision) = (Id::from_random(rand::random()), next.revision);
        let intent = Entry::Change {
            change: change.clone(),
            edit,
            host,
            revision,
            gains: self.mask.texts(&gains(&now.table, &next.table)),
            losses: self.mask.texts(&losses(&now.table, &next.table)),
            diff: self.mask.text(&diff(&now.table, &next.table)),
            effective: Some(Box::new(AuditedChange::new(now, &next, |text| self.mask.text(text)))),
        };
        self.write(&by, intent).await?;
        self.activate(live, &next, change).await?;
        Ok(revision)
    }

    async fn replaced(&self) -> anyhow::Result<Vec<Replaced>> {
        let directory = self.directory.clone();
        let read = spawn_blocking(move || routes::read_replaced(&directory)).await?;
        Ok(read.unwrap_or_else(|error| {
            tracing::warn!("earlier changes of the routes cannot be undone: {error}");
            Vec::new()
        }))
    }

    async fn save_replaced(&self, changes: Vec<Replaced>) -> anyhow::Result<()> {
        let directory = self.directory.clone();
        let path = routes::replaced_path(&directory);
        let written = spawn_blocking(move || routes::write_replaced(&directory, &changes)).await?;
        Ok(written.map_err(|error| FileError::write(&path, error))?)
    }

    /// Makes the routes live. Records in the audit log whether this succeeded.
    async fn activate(&self, live: &mut Live, next: &Routes, id: Id) -> anyhow::Result<()> {
        let revision = next.revision;
        if let Err(why) = self.make_live(live, next).await {
            let failed = Entry::Failed { proposal: id, revision, why: format!("{why:#}") };
            if let Err(error) = self.write("keeper", failed).await {
                tracing::warn!("cannot record that the routes failed: {error:#}");
            }
            return Err(why);
        }
        self.record_live(id, revision).await;
        Ok(())
    }

    async fn record_live(&self, proposal: Id, revision: u64) {
        if let Err(error) = self.write("keeper", Entry::Live { proposal, revision }).await {
            // The error is only logged, because the audit log already contains the intent.
            tracing::warn!("cannot record that the routes are live: {error:#}");
        }
    }

    /// Writes the routes to disk and sends them to the proxy, which activates them.
    async fn make_live(&self, live: &mut Live, next: &Routes) -> anyhow::Result<()> {
        self.save(next.clone()).await?;
        live.sent = next.revision;
        let sent = self.send(next.clone()).await;
        if sent.is_ok() {
            live.routes = Some(next.clone());
        } else if let Some(before) = live.routes.clone() {
            // The proxy may have received the new routes. The earlier routes are saved again, and the next change
            // starts from them with a higher revision.
            self.save(before).await?;
        }
        sent
    }

    fn bundle(&self) -> Channel {
        self.bundle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn send(&self, next: Routes) -> anyhow::Result<()> {
        let revision = next.revision;
        let exchange = async {
            let mut stream = self.bundle().open(&BundleRequest::Routes(next)).await?;
            stream.receive().await
        };
        let answer = tokio::time::timeout(LIVE_TIMEOUT, exchange).await;
        let answer = answer.ok().context("the sidecars did not confirm the routes in time")?;
        match answer.context("the sidecars do not answer")? {
            BundleEvent::Live { revision: live } if live == revision => Ok(()),
            BundleEvent::Rejected { message } => bail!("the proxy refused the routes: {message}"),
            _ => bail!("the sidecars sent an unexpected message"),
        }
    }

    async fn save(&self, next: Routes) -> anyhow::Result<()> {
        let directory = self.directory.clone();
        let path = routes::path(&directory);
        let written = spawn_blocking(move || routes::write(&directory, &next)).await?;
        Ok(written.map_err(|error| FileError::write(&path, error))?)
    }

    /// Whether a request has used the one-time grant of `proposal`.
    async fn was_spent(&self, proposal: &Id) -> anyhow::Result<bool> {
        let trail = self.trail.clone();
        let read = spawn_blocking(move || trail.read()).await?;
        let (records, _) = read.context("cannot read the audit log")?;
        let spent = Entry::Spent { proposal: proposal.clone() };
        Ok(records.iter().any(|record| record.entry == spent))
    }

    async fn write(&self, by: &str, entry: Entry) -> anyhow::Result<()> {
        let (trail, by) = (self.trail.clone(), by.to_owned());
        spawn_blocking(move || trail.append(&by, &entry)).await?.context("cannot write the audit log")
    }
}
