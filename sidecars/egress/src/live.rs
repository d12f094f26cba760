//! The routes that requests are decided by, right now.
//!
//! Replaced as a whole: a request takes the state that is current when it is decided and keeps it to its
//! end, the next one takes the next. Routes that cannot be read, or that would move a credential, change
//! nothing.
//!
//! What a user allowed for one request lies beside them: a request that the routes refuse may pass by it, and
//! then nothing else does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bottle_contract::credential::{self, Binding};
use bottle_contract::proposal;
use bottle_contract::queue::Id;
use bottle_contract::route::{Form, Route, RouteTable, parse_routes};
use bottle_contract::session::bundle::{self, BundleEvent, Routes};

use crate::upstream::Target;

/// Routes under their number.
#[derive(Debug)]
pub(crate) struct Current {
    /// The number that the keeper gave them.
    pub(crate) revision: u64,
    /// The routes.
    pub(crate) table: RouteTable,
    /// What may pass once beside them, the oldest first.
    pub(crate) once: Vec<Arc<OneTimeGrant>>,
}

/// What a user allowed for one request.
#[derive(Debug)]
pub(crate) struct OneTimeGrant {
    proposal: Id,
    table: RouteTable,
    /// Shared by every state of the routes that has it.
    spent: Arc<AtomicBool>,
}

/// The right of one request to pass by a [`OneTimeGrant`]. Dropped, another request has it again.
#[derive(Debug)]
pub(crate) struct Turn {
    once: Arc<OneTimeGrant>,
    passed: bool,
}

impl OneTimeGrant {
    /// The routes with what may pass once.
    pub(crate) fn table(&self) -> &RouteTable {
        &self.table
    }

    /// Takes it for one request; none when another one has it.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Turn> {
        (!self.spent.swap(true, Ordering::AcqRel)).then(|| Turn { once: Arc::clone(self), passed: false })
    }
}

impl Turn {
    /// The routes that the request goes by.
    pub(crate) fn table(&self) -> &RouteTable {
        self.once.table()
    }

    /// The request passes, and no other does. Names the question whose answer allowed it.
    pub(crate) fn spend(mut self) -> Id {
        self.passed = true;
        self.once.proposal.clone()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.passed {
            self.once.spent.store(false, Ordering::Release);
        }
    }
}

/// The current routes, and the places that credentials are bound to for good.
pub(crate) struct Live {
    current: RwLock<Arc<Current>>,
    bindings: Vec<Binding>,
}

impl Live {
    /// The first routes.
    ///
    /// # Errors
    /// A fragment saying what is wrong with them.
    pub(crate) fn new(routes: &Routes, bindings: Vec<Binding>) -> Result<Self, String> {
        let current = RwLock::new(Arc::new(read(routes, &bindings, &[])?));
        Ok(Self { current, bindings })
    }

    /// What the next request is decided by.
    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of the current routes.
    pub(crate) fn revision(&self) -> u64 {
        self.current().revision
    }

    /// Makes `routes` the current ones. The same number again is an older message and refused.
    ///
    /// # Errors
    /// A fragment saying why the ones before stay.
    pub(crate) fn replace(&self, routes: &Routes) -> Result<BundleEvent, String> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let new = read(routes, &self.bindings, &current.once)?;
        if new.revision <= current.revision {
            let (new, live) = (new.revision, current.revision);
            return Err(format!("revision {new} is not newer than {live}, which is live"));
        }
        let revision = new.revision;
        *current = Arc::new(new);
        Ok(BundleEvent::Live { revision })
    }
}

/// Where `route` leads a request for `host` and `port`.
pub(crate) fn target(route: &Route, host: &str, port: u16, tls: bool) -> Target {
    let connect_to = route.connect_to.as_ref().map(|to| (to.host.clone(), to.port));
    Target { host: host.to_owned(), port, tls, private: route.private, connect_to }
}

fn read(routes: &Routes, bindings: &[Binding], before: &[Arc<OneTimeGrant>]) -> Result<Current, String> {
    let table = parse_routes(&routes.yaml, Form::Runtime).map_err(|error| error.to_string())?;
    credential::check_moves(bindings, &table).map_err(|error| error.to_string())?;
    let once = routes.once.iter().map(|once| read_once(once, &table, before)).collect::<Result<_, _>>()?;
    Ok(Current { revision: routes.revision, table, once })
}

/// What was spent before stays so, however often it is sent.
fn read_once(
    once: &bundle::OneTimeGrant,
    table: &RouteTable,
    before: &[Arc<OneTimeGrant>],
) -> Result<Arc<OneTimeGrant>, String> {
    let routes = proposal::parse(&once.routes).map_err(|error| error.to_string())?;
    let table = proposal::merge(table, &routes).map_err(|error| error.to_string())?;
    let known = before.iter().find(|known| known.proposal == once.proposal);
    let spent = known.map(|known| Arc::clone(&known.spent)).unwrap_or_default();
    Ok(Arc::new(OneTimeGrant { proposal: once.proposal.clone(), table, spent }))
}
