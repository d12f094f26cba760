//! The inputs that every phase of a launch needs.

use std::collections::BTreeMap;

use bottle_backend::{Backend, Launch, ProgressSink};
use bottle_host::Host;
use bottle_instance::Claim;
use bottle_policy::names::Name;
use bottle_protocol::session::guest::SecretText;

use super::canary::Canary;
use super::order::LaunchOrder;

/// The inputs that every phase of a launch needs.
pub struct LaunchContext<'a> {
    /// The machine on which the launch runs.
    pub host: &'a Host,
    /// The backend that runs the bottle.
    pub backend: &'a dyn Backend,
    /// The plan, the prepared image or program, and the secrets.
    pub order: &'a LaunchOrder,
    /// The bottle's directory, lock and resource log.
    pub claim: &'a Claim,
    /// Receives the progress of copying the working directory or the bottle's files.
    pub progress: ProgressSink,
    /// The canary: a worthless secret in the agent's environment. A request that contains the canary shows that the
    /// agent sends secrets out of the bottle.
    pub canary: Canary,
    /// The canaries of earlier launches, and the canaries of the bottle from which this bottle was forked. The bottle's
    /// files may contain these canaries.
    pub earlier_canaries: Vec<SecretText>,
    /// The private deploy keys of this launch, by repository name.
    pub deploy_keys: BTreeMap<Name, SecretText>,
}

impl LaunchContext<'_> {
    pub(super) fn launch(&self) -> Launch<'_> {
        Launch {
            plan: &self.order.plan,
            state: self.claim.directory(),
            resources: self.claim,
            origin: &self.order.origin,
            progress: &self.progress,
        }
    }
}

/// The certificates that programs in the bottle trust, as PEM.
pub(super) struct Trust {
    /// The certificate of the proxy's certificate authority.
    pub(super) authority: String,
    /// The root certificates that this machine trusts.
    pub(super) roots: String,
}
