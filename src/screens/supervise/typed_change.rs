//! A change of routes that the user types on the screen, with the arguments of `bottle allow` or `bottle deny`.

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

/// A function that parses a typed change. The error is a message that says why the arguments are not valid. The command
/// line defines the grammar of the arguments.
pub(crate) type ParseChange = fn(Action, &str) -> Result<TypedChange, String>;

impl TypedChange {
    /// Sends the change to the bottle's keeper.
    ///
    /// # Errors
    /// Returns an error if the routes were not changed.
    pub(super) fn send(&self, host: &Host, weaken: Consent) -> Result<RouteReport, CliError> {
        let request = RouteRequest { change: self.change.clone(), by: account::own_name(), weaken };
        block_on(async { Ok(change_routes(&connect(host, &self.slug).await?, &self.slug, request).await?) })
    }
}
