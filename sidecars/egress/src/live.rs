//! Holds the current routes and the one-time grants.
//!
//! A new revision replaces all routes. A request keeps the routes that were current when the proxy decided on the
//! request. The proxy rejects new routes that would move a credential to another host or header.
//!
//! A one-time grant allows a single request that the routes deny.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bottle_policy::credential::{self, Binding, Moved};
use bottle_policy::proposal::{self, ProposalError};
use bottle_policy::route::{Route, RouteTable};
use bottle_protocol::queue::Id;
use bottle_protocol::session::bundle::{self, BundleEvent, Routes};

use crate::upstream::Target;

/// The routes of one revision.
#[derive(Debug)]
pub(crate) struct CurrentRoutes {
    /// The revision that the keeper assigned.
    pub(crate) revision: u64,
    /// The routes in this revision.
    pub(crate) table: RouteTable,
    /// One-time grants, oldest first.
    pub(crate) grants: Vec<Arc<OneTimeGrant>>,
}

/// The user's permission for a single request.
#[derive(Debug)]
pub(crate) struct OneTimeGrant {
    proposal: Id,
    table: RouteTable,
    /// Whether a request has claimed or used the grant. All revisions that contain the grant share this flag.
    spent: Arc<AtomicBool>,
}

/// One request's claim on a [`OneTimeGrant`]. If the claim is dropped before it is spent, another request can claim the
/// grant.
#[derive(Debug)]
pub(crate) struct GrantClaim {
    grant: Arc<OneTimeGrant>,
    spent: AtomicBool,
}

impl OneTimeGrant {
    /// The current routes merged with the routes of the grant.
    pub(crate) fn table(&self) -> &RouteTable {
        &self.table
    }

    /// Claims the grant for one request. Returns `None` if another request has claimed or used it.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<GrantClaim> {
        (!self.spent.swap(true, Ordering::AcqRel))
            .then(|| GrantClaim { grant: Arc::clone(self), spent: AtomicBool::new(false) })
    }
}

impl GrantClaim {
    /// The routes by which the proxy decides on the request with this claim.
    pub(crate) fn table(&self) -> &RouteTable {
        self.grant.table()
    }

    /// Spends the grant permanently. Returns the id of the proposal whose approval created the grant.
    pub(crate) fn spend(&self) -> Id {
        self.spent.store(true, Ordering::Relaxed);
        self.grant.proposal.clone()
    }
}

impl Drop for GrantClaim {
    fn drop(&mut self) {
        if !*self.spent.get_mut() {
            self.grant.spent.store(false, Ordering::Release);
        }
    }
}

/// Why new routes were rejected. The current routes still apply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoutesRejected {
    #[error(transparent)]
    Moved(#[from] Moved),
    #[error(transparent)]
    Grant(#[from] ProposalError),
    #[error("revision {new} is not newer than {live}, which is live")]
    Stale { new: u64, live: u64 },
}

/// The current routes, and the bindings of the credentials. The bindings never change.
pub(crate) struct Live {
    current: RwLock<Arc<CurrentRoutes>>,
    bindings: Vec<Binding>,
}

impl Live {
    /// Creates the state with the provisioned routes.
    ///
    /// # Errors
    /// [`RoutesRejected`] if the routes are not valid.
    pub(crate) fn new(routes: &Routes, bindings: Vec<Binding>) -> Result<Self, RoutesRejected> {
        let current = RwLock::new(Arc::new(parse(routes, &bindings, &[])?));
        Ok(Self { current, bindings })
    }

    /// The routes for the next request.
    pub(crate) fn current(&self) -> Arc<CurrentRoutes> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The revision of the current routes.
    pub(crate) fn revision(&self) -> u64 {
        self.current().revision
    }

    /// Replaces the routes. Rejects routes whose revision is not newer than the current one, because their message is
    /// out of date.
    ///
    /// # Errors
    /// [`RoutesRejected`]; the current routes still apply.
    pub(crate) fn replace(&self, routes: &Routes) -> Result<BundleEvent, RoutesRejected> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let new = parse(routes, &self.bindings, &current.grants)?;
        if new.revision <= current.revision {
            return Err(RoutesRejected::Stale { new: new.revision, live: current.revision });
        }
        let revision = new.revision;
        *current = Arc::new(new);
        Ok(BundleEvent::Live { revision })
    }
}

/// Returns the upstream target of a request for `host` and `port` on `route`.
pub(crate) fn target(route: &Route, host: &str, port: u16, tls: bool) -> Target {
    let connect_to = route.connect_to.as_ref().map(|to| (to.host.clone(), to.port));
    Target { host: host.to_owned(), port, tls, private: route.private, connect_to }
}

fn parse(
    routes: &Routes,
    bindings: &[Binding],
    previous: &[Arc<OneTimeGrant>],
) -> Result<CurrentRoutes, RoutesRejected> {
    let table = routes.table.clone();
    credential::check_moves(bindings, &table)?;
    let grants =
        routes.once.iter().map(|once| parse_grant(once, &table, previous)).collect::<Result<_, _>>()?;
    Ok(CurrentRoutes { revision: routes.revision, table, grants })
}

/// Parses a one-time grant. A grant that was spent in an earlier revision stays spent.
fn parse_grant(
    once: &bundle::OneTimeGrant,
    table: &RouteTable,
    previous: &[Arc<OneTimeGrant>],
) -> Result<Arc<OneTimeGrant>, ProposalError> {
    let routes = proposal::parse(&once.routes)?;
    let table = proposal::merge(table, &routes)?;
    let earlier = previous.iter().find(|earlier| earlier.proposal == once.proposal);
    let spent = earlier.map(|earlier| Arc::clone(&earlier.spent)).unwrap_or_default();
    Ok(Arc::new(OneTimeGrant { proposal: once.proposal.clone(), table, spent }))
}
