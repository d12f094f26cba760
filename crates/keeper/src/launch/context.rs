//! The inputs of every launch phase.

use std::collections::BTreeMap;

use bottle_backend::{Backend, Launch, ProgressSink};
use bottle_host::Host;
use bottle_instance::Claim;
use bottle_policy::names::Name;
use bottle_protocol::session::guest::SecretText;

use super::canary::Canary;
use super::order::LaunchOrder;

/// The inputs of every phase.
pub struct LaunchContext<'a> {
    /// The machine on which the launch runs.
    pub host: &'a Host,
    /// The backend that runs the bottle.
    pub backend: &'a dyn Backend,
    /// The plan, the prepared image or program, and the secrets.
    pub order: &'a LaunchOrder,
    /// The bottle's directory, lock and resource log.
    pub claim: &'a Claim,
    /// Receives the progress of the copy of the working directory, or of kept files.
    pub progress: ProgressSink,
    /// The canary: a worthless secret in the agent's environment. A request that contains it shows that the agent sends
    /// secrets out.
    pub canary: Canary,
    /// The canaries of earlier launches, and of the bottle that this one was forked from. The bottle's files can
    /// contain them.
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
