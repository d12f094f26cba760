//! The routes that requests are decided by, right now.
//!
//! Replaced as a whole: a request takes the state that is current when it is decided and keeps it to its
//! end, the next one takes the next. Routes that cannot be read, or that would move a credential, change
//! nothing.

use std::sync::{Arc, PoisonError, RwLock};

use bottle_contract::credential::{self, Binding};
use bottle_contract::route::{Form, Route, RouteTable, parse_routes};
use bottle_contract::session::bundle::{BundleEvent, Routes};

use crate::upstream::Target;

/// Routes under their number.
#[derive(Debug)]
pub(crate) struct Current {
    /// The number that the keeper gave them.
    pub(crate) revision: u64,
    /// The routes.
    pub(crate) table: RouteTable,
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
        let current = RwLock::new(Arc::new(read(routes, &bindings)?));
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
        let new = read(routes, &self.bindings)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
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

fn read(routes: &Routes, bindings: &[Binding]) -> Result<Current, String> {
    let table = parse_routes(&routes.yaml, Form::Runtime).map_err(|error| error.to_string())?;
    credential::check_moves(bindings, &table).map_err(|error| error.to_string())?;
    Ok(Current { revision: routes.revision, table })
}
