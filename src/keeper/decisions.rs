//! What a user's answer brings: a line of the audit, and for routes a new state of the proxy.
//!
//! ```text
//! answer ─► merged, checked ─► audit: intent ─► routes.json ─► bundle ─► its word ─► audit: live ─► told
//!                                 any of it fails: routes.json as before, audit: failed, the answer is taken back
//! ```
//! Everything is done again when an answer comes twice: what is allowed already changes nothing.
//!
//! A yes for one request is laid beside the routes, not over them, until the proxy says that the request passed.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bottle_channel::Channel;
use bottle_contract::authority;
use bottle_contract::lock_out::LockOut;
use bottle_contract::names::Slug;
use bottle_contract::proposal;
use bottle_contract::queue::{Id, Proposal, Response, Scope, Status};
use bottle_contract::route::{Form, RouteTable, parse_routes, render_routes};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, OneTimeGrant, Routes};
use bottle_queue::{Decide, Outcome};
use sha2::{Digest, Sha256};
use similar::TextDiff;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::instance::audit::{Entry, Trail};
use crate::instance::routes;

/// How long the bundle may take to say that routes are live; it gives its daemons eight seconds.
const LIVE_WITHIN: Duration = Duration::from_secs(10);

/// How much may wait for its one request. All of it goes to the proxy with every change, in one message.
const MOST_ONCE: usize = 8;

/// Decides for one bottle.
#[derive(Debug, Clone)]
pub(super) struct Decisions(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    trail: Trail,
    /// The bottle's folder.
    folder: PathBuf,
    bundle: Channel,
    live: Mutex<Live>,
}

/// What the proxy goes by.
#[derive(Debug)]
struct Live {
    /// None where it is not known: the bottle comes from an older version, or its file is damaged.
    routes: Option<Routes>,
    /// The last number that was sent; whether it became live may not be known.
    sent: u64,
}

impl Decisions {
    /// For the bottle in `folder`, whose proxy goes by `routes`.
    pub(super) fn new(
        home: &std::path::Path,
        slug: &Slug,
        folder: PathBuf,
        bundle: Channel,
        routes: Option<Routes>,
    ) -> Self {
        let sent = routes.as_ref().map_or(0, |routes| routes.revision);
        let live = Mutex::new(Live { routes, sent });
        Self(Arc::new(Inner { trail: Trail::of(home, slug), folder, bundle, live }))
    }

    /// After a keeper was killed its routes may have been written and not sent: the proxy gets them now. They stand
    /// in the audit already.
    pub(super) async fn send_again(&self, live: Option<u64>) {
        let held = self.0.live.lock().await;
        let (Some(routes), Some(revision)) = (&held.routes, live) else { return };
        if routes.revision > revision
            && let Err(why) = self.0.send(routes.clone()).await
        {
            tracing::warn!("the routes of revision {} are not live: {why}", routes.revision);
        }
    }

    /// The bottle was locked.
    pub(super) async fn locked_out(&self, why: LockOut) {
        let by = why.daemon.clone();
        if let Err(error) = self.0.write(&by, Entry::LockedOut(why)).await {
            tracing::warn!("that the bottle is locked is not in the audit: {error}");
        }
    }

    /// A request passed by what `proposal` allowed once. The proxy knows already.
    pub(super) async fn spent(&self, proposal: Id) {
        let mut held = self.0.live.lock().await;
        let Some(routes) = &mut held.routes else { return };
        let before = routes.once.len();
        routes.once.retain(|once| once.proposal != proposal);
        if routes.once.len() == before {
            return;
        }
        let kept = self.0.keep(routes.clone()).await;
        let noted = self.0.write("egress", Entry::Spent { proposal }).await;
        for why in [kept, noted].into_iter().filter_map(Result::err) {
            tracing::warn!("that a request passed by what was allowed once is not written down: {why}");
        }
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
            if proposal.tool.reports() || response.status == Status::Rejected {
                return inner.note(&proposal, &response).await;
            }
            // One after the other: each is laid over what the one before left.
            let mut live = inner.live.lock().await;
            inner.apply(&mut live, &proposal, &response).await
        })
    }
}

/// New routes that were checked, and what they come to.
struct Change {
    next: Routes,
    gains: Vec<String>,
    diff: String,
    /// Whether they allow anything new at all.
    any: bool,
}

impl Change {
    /// What a yes to `text`, in the vocabulary of proposals, makes of the routes of now.
    fn of(live: &Live, text: &str, id: &Id, scope: Scope) -> Result<Self, String> {
        let now = live.routes.as_ref().ok_or("the routes that this bottle goes by are not known")?;
        let proposed = proposal::parse(text).map_err(|error| error.to_string())?;
        let table = parse_routes(&now.yaml, Form::Runtime).map_err(|error| error.to_string())?;
        let merged = proposal::merge(&table, &proposed).map_err(|error| error.to_string())?;
        let waits = now.once.iter().any(|once| once.proposal == *id);
        let (any, yaml) = (merged != table && !waits, render_routes(&merged));
        let diff = TextDiff::from_lines(&now.yaml, &yaml).unified_diff().context_radius(2).to_string();
        let mut next = now.clone();
        match scope {
            _ if !any => {}
            Scope::Once => next.once.push(once(now, &proposed, id)?),
            Scope::Run | Scope::Saved => next.yaml = yaml,
        }
        if any {
            next.revision = now.revision.max(live.sent) + 1;
        }
        Ok(Self { next, gains: gains(&table, &merged), diff, any })
    }
}

/// What one request may pass by.
fn once(now: &Routes, proposed: &proposal::Proposal, id: &Id) -> Result<OneTimeGrant, String> {
    if proposed.routes().iter().any(|route| route.git_fetch) {
        return Err("a clone is several requests: allow it with the scope `run`".to_owned());
    }
    if now.once.len() >= MOST_ONCE {
        return Err(format!(
            "{MOST_ONCE} others wait for their one request already: allow it with the scope `run`"
        ));
    }
    Ok(OneTimeGrant { proposal: id.clone(), routes: proposed.render() })
}

/// What a change of routes allows, in words.
pub(crate) fn gains(old: &RouteTable, new: &RouteTable) -> Vec<String> {
    authority::gains(old, new).iter().map(ToString::to_string).collect()
}

impl Inner {
    /// An answer by which nothing changes here: it is the asker who goes by it.
    async fn note(&self, proposal: &Proposal, response: &Response) -> Outcome {
        let entry = Entry::Decided {
            proposal: proposal.id.clone(),
            tool: proposal.tool,
            status: response.status,
            reason: response.notes.clone(),
            payload: hex::encode(Sha256::digest(proposal.proposed_file.as_bytes())),
        };
        match self.write(&response.decided_by, entry).await {
            Ok(()) => Ok(Vec::new()),
            // A no needs nothing to be one.
            Err(why) if response.status == Status::Rejected => {
                tracing::warn!("a rejection is not in the audit: {why}");
                Ok(Vec::new())
            }
            Err(why) => Err(why),
        }
    }

    async fn apply(&self, live: &mut Live, proposal: &Proposal, response: &Response) -> Outcome {
        let text = response.final_file.as_deref().unwrap_or(&proposal.proposed_file);
        if response.scope == Scope::Once && self.was_spent(&proposal.id).await? {
            // The answer came twice, and the request was between.
            return Ok(Vec::new());
        }
        let change = Change::of(live, text, &proposal.id, response.scope)?;
        let (revision, id) = (change.next.revision, proposal.id.clone());
        let intent = Entry::Intent {
            proposal: id.clone(),
            tool: proposal.tool,
            status: response.status,
            scope: response.scope,
            reason: response.notes.clone(),
            revision,
            gains: change.gains.clone(),
            diff: change.diff,
        };
        self.write(&response.decided_by, intent).await?;
        if change.any
            && let Err(why) = self.make_live(live, &change.next).await
        {
            let failed = Entry::Failed { proposal: id, revision, why: why.clone() };
            if let Err(unwritten) = self.write("keeper", failed).await {
                tracing::warn!("that routes did not become live is not in the audit: {unwritten}");
            }
            return Err(why);
        }
        if let Err(unwritten) = self.write("keeper", Entry::Live { proposal: id, revision }).await {
            // That it was meant to be is there.
            tracing::warn!("that routes are live is not in the audit: {unwritten}");
        }
        let none = || vec!["no change: all of it was allowed already".to_owned()];
        Ok(if change.gains.is_empty() { none() } else { change.gains })
    }

    /// Writes routes down, and has the proxy go by them.
    async fn make_live(&self, live: &mut Live, next: &Routes) -> Result<(), String> {
        self.keep(next.clone()).await?;
        live.sent = next.revision;
        let sent = self.send(next.clone()).await;
        if sent.is_ok() {
            live.routes = Some(next.clone());
        } else if let Some(before) = live.routes.clone() {
            // Whatever became of the message: the next one has a higher number, and is laid over these.
            self.keep(before).await?;
        }
        sent
    }

    async fn send(&self, next: Routes) -> Result<(), String> {
        let revision = next.revision;
        let lost =
            |error: bottle_channel::ChannelError| format!("the proxy's guard does not answer: {error}");
        let exchange = async {
            let mut stream = self.bundle.open(&BundleRequest::Routes(next)).await.map_err(lost)?;
            match stream.receive().await.map_err(lost)? {
                BundleEvent::Live { revision: live } if live == revision => Ok(()),
                BundleEvent::Rejected { message } => Err(format!("the proxy refused the routes: {message}")),
                _ => Err("the proxy's guard answered out of turn".to_owned()),
            }
        };
        let late = || Err("the proxy's guard did not say in time that the routes are live".to_owned());
        tokio::time::timeout(LIVE_WITHIN, exchange).await.unwrap_or_else(|_| late())
    }

    async fn keep(&self, next: Routes) -> Result<(), String> {
        let folder = self.folder.clone();
        let path = routes::path(&folder);
        let written = spawn_blocking(move || routes::write(&folder, &next)).await;
        let written = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Whether a request passed by what `proposal` allowed once.
    async fn was_spent(&self, proposal: &Id) -> Result<bool, String> {
        let (trail, proposal) = (self.trail.clone(), proposal.clone());
        let read = spawn_blocking(move || {
            let (records, _) = trail.read().map_err(|error| format!("the audit cannot be read: {error}"))?;
            Ok(records.iter().any(|record| record.entry == Entry::Spent { proposal: proposal.clone() }))
        });
        read.await.map_err(|error| error.to_string())?
    }

    async fn write(&self, by: &str, entry: Entry) -> Result<(), String> {
        let (trail, by) = (self.trail.clone(), by.to_owned());
        let written = spawn_blocking(move || trail.append(&by, &entry)).await;
        match written {
            Ok(written) => written.map_err(|error| format!("the audit cannot be written: {error}")),
            Err(error) => Err(format!("the audit cannot be written: {error}")),
        }
    }
}
