//! Holds the current routes and the one-time grants.
//!
//! Routes are replaced as a whole: a request uses the routes that are current at its decision to its end. Routes that
//! would move a credential change nothing.
//!
//! A one-time grant lets a single request pass that the routes deny.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bottle_contract::credential::{self, Binding, Moved};
use bottle_contract::proposal::{self, ProposalError};
use bottle_contract::queue::Id;
use bottle_contract::route::{Route, RouteTable};
use bottle_contract::session::bundle::{self, BundleEvent, Routes};

use crate::upstream::Target;

/// The routes of one revision.
#[derive(Debug)]
pub(crate) struct CurrentRoutes {
    /// The revision that the keeper assigned.
    pub(crate) revision: u64,
    /// The routes.
    pub(crate) table: RouteTable,
    /// One-time grants, the oldest first.
    pub(crate) grants: Vec<Arc<OneTimeGrant>>,
}

/// A user's permission for a single request.
#[derive(Debug)]
pub(crate) struct OneTimeGrant {
    proposal: Id,
    table: RouteTable,
    /// Shared by every revision that contains this grant.
    spent: Arc<AtomicBool>,
}

/// One request's claim on a [`OneTimeGrant`]. Dropping it unspent releases the grant.
#[derive(Debug)]
pub(crate) struct GrantClaim {
    grant: Arc<OneTimeGrant>,
    spent: AtomicBool,
}

impl OneTimeGrant {
    /// The routes including the grant's.
    pub(crate) fn table(&self) -> &RouteTable {
        &self.table
    }

    /// Claims the grant for one request; `None` while another request has it.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<GrantClaim> {
        (!self.spent.swap(true, Ordering::AcqRel))
            .then(|| GrantClaim { grant: Arc::clone(self), spent: AtomicBool::new(false) })
    }
}

impl GrantClaim {
    /// The routes that this request is decided by.
    pub(crate) fn table(&self) -> &RouteTable {
        self.grant.table()
    }

    /// Uses the grant up. Returns the id of the proposal that it came from.
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

/// Routes that change nothing, and why.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoutesRejected {
    #[error(transparent)]
    Moved(#[from] Moved),
    #[error(transparent)]
    Grant(#[from] ProposalError),
    #[error("revision {new} is not newer than {live}, which is live")]
    Stale { new: u64, live: u64 },
}

/// The current routes, and the bindings of credentials, which never change.
pub(crate) struct Live {
    current: RwLock<Arc<CurrentRoutes>>,
    bindings: Vec<Binding>,
}

impl Live {
    /// Starts with the first routes.
    ///
    /// # Errors
    /// [`RoutesRejected`].
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

    /// Replaces the routes. A revision that is not newer is a stale message and is rejected.
    ///
    /// # Errors
    /// [`RoutesRejected`]: the current routes stay.
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

/// The upstream target of a request for `host` and `port` on `route`.
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

/// A grant that was spent in an earlier revision stays spent.
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
