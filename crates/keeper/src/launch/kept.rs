//! Opens the files of a kept bottle: starts only pid 1 with these files, without an agent, sidecars, secrets or a
//! network.

use std::collections::BTreeSet;

use bottle_backend::{Access, Backend, KeptFiles, Sandbox};
use bottle_channel::Channel;
use bottle_host::Host;
use bottle_instance::Claim;
use bottle_protocol::session::guest::{GuestRequest, Provision};

use super::connection::{connect, done, open};
use super::environment;
use super::error::{LaunchError, Peer};

/// Starts pid 1 with the kept files, and sends it an environment, so that it can run programs.
///
/// # Errors
/// [`LaunchError`]. After an error, the caller must call [`super::remove_launch`].
pub async fn open_kept(
    host: &Host,
    backend: &dyn Backend,
    claim: &Claim,
    sandbox: &Sandbox,
    access: Access,
) -> Result<Channel, LaunchError> {
    let slug = claim.record().slug;
    let kept = KeptFiles { slug: &slug, state: claim.directory(), resources: claim, sandbox, access };
    backend.open_kept(&kept).await?;
    let guest = connect(backend, &slug, Peer::Guest).await?;
    let env = environment::of_kept(host, &slug, &sandbox.prepared);
    let request = GuestRequest::Provision(Provision {
        env,
        secret: BTreeSet::new(),
        files: Vec::new(),
        work: None,
        processes: None,
    });
    done(&mut open(&guest, &request).await?).await?;
    Ok(guest)
}
