//! A change of routes that the user types on the screen, in the words of `bottle allow` and `bottle deny`.

use bottle_host::Host;
use bottle_host::account;
use bottle_keeper::protocol::{Consent, RouteChange, RouteReport, RouteRequest};
use bottle_lib::connect::connect;
use bottle_lib::routes::change_routes;
use bottle_policy::names::Slug;
use bottle_policy::route::edit::Action;

use crate::console::error::CliError;
use crate::console::runtime::block_on;

/// A change of the routes of a bottle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TypedChange {
    pub(crate) slug: Slug,
    pub(crate) change: RouteChange,
}

/// Parses the words of a change. The error says in words why they are not valid. The command line defines the grammar.
pub(crate) type ParseChange = fn(Action, &str) -> Result<TypedChange, String>;

impl TypedChange {
    /// Sends the change to the bottle's keeper.
    ///
    /// # Errors
    /// Returns an error if nothing was changed.
    pub(super) fn send(&self, host: &Host, weaken: Consent) -> Result<RouteReport, CliError> {
        let request = RouteRequest { change: self.change.clone(), by: account::own_name(), weaken };
        block_on(async { Ok(change_routes(&connect(host, &self.slug).await?, &self.slug, request).await?) })
    }
}
