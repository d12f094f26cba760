//! The parts of the screen besides the list: the view, windows above it, messages, and the effect of a proposal.

use bottle_lib::proposals::route_change::RouteChange;
use bottle_lib::proposals::scope::{GrantScope, RequestedScope};
use bottle_policy::names::Name;
use bottle_policy::proposal::ProposalError;
use bottle_policy::route::edit::Action;
use bottle_protocol::queue::Id;
use bottle_queue::Pending;

use super::line::TypedLine;
use super::typed_change::TypedChange;

/// The current view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum View {
    /// The list, with a preview of the selected proposal.
    #[default]
    List,
    /// The full text of the selected proposal.
    Detail {
        /// The number of lines above the visible part.
        scroll: usize,
    },
}

/// A window above the view.
#[derive(Debug)]
pub(super) enum Overlay {
    /// The key help.
    Help,
    /// The input line for the reason of an answer.
    Reason {
        /// The proposals to answer.
        ids: Vec<Id>,
        /// Whether the answer approves the proposals. Otherwise the answer rejects them.
        yes: bool,
        line: TypedLine,
    },
    /// The input line for a change of a bottle's routes, as arguments of `bottle allow` or `bottle deny`.
    Routes { action: Action, line: TypedLine },
    /// The question whether a change may weaken the protection.
    Weaken {
        change: TypedChange,
        /// The revision of the routes that the effect was computed for.
        revision: u64,
    },
}

/// A message to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) words: String,
    pub(super) tone: Tone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    /// The message reports a success.
    Good,
    Plain,
    /// The message reports a failure.
    Bad,
}

/// The last computed effect of the selected proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownEffect {
    pub(super) id: Id,
    /// The routes that an approval would apply.
    pub(super) text: String,
    /// The scope that the user requested.
    pub(super) wanted: RequestedScope,
    /// The prepared scope, or the reason why the requested scope cannot be used.
    pub(super) grant: Result<GrantScope, String>,
    /// The user's bottle manifests to which the routes can be saved.
    pub(super) files: Vec<Name>,
    /// The change of the current routes. `None` if the current routes are unknown.
    pub(super) route_change: Option<Result<RouteChange, ProposalError>>,
    /// The requests that became allowed since the proposal was made, or the reason why they are unknown. `None` if
    /// nothing became allowed.
    pub(super) since: Option<Result<Vec<String>, String>>,
}

/// The input from which [`KnownEffect`] is computed.
pub(super) struct EffectInput<'a> {
    pub(super) pending: &'a Pending,
    /// The routes that an approval would apply.
    pub(super) text: &'a str,
    pub(super) scope: RequestedScope,
}

/// The replacement routes that the user wrote for a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    /// The text as the user wrote it.
    pub(super) text: String,
    /// The routes in their canonical form, or the error in the text.
    pub(super) checked: Result<String, ProposalError>,
}
