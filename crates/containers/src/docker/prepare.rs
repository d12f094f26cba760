//! Prepares the images and the program volume of a bottle's containers.

use std::collections::BTreeMap;

use bottle_backend::image::config::variables;
use bottle_backend::{BackendError, ImageInfo, Prepared, ProgressSink, RoleInputs, Step};
use bottle_plan::Plan;
use bottle_protocol::session::guest::SecretText;

use super::images::Images;

/// Implements [`bottle_backend::Images::prepare`].
pub(super) async fn prepare(
    images: &Images,
    plan: &Plan,
    secrets: &BTreeMap<String, SecretText>,
    progress: &ProgressSink<Step>,
) -> Result<Prepared, BackendError> {
    // Several of these calls need the program. The first call finds the program, and the others reuse it.
    let (agent, sidecars, program) =
        tokio::try_join!(images.agent(plan, secrets, progress), images.sidecars(progress), images.program())?;
    if images.made_any() {
        // Removes images that were replaced, and leftovers of builds. The start continues even if the removal fails.
        let _ = images.sweep().await;
    }
    let notes = agent.notes();
    let inside = ImageInfo {
        image: agent.id,
        uid: agent.account.uid,
        gid: agent.account.gid,
        user: agent.account.name,
        home: agent.account.home,
        env: variables(&agent.env),
        volumes: agent.volumes,
    };
    let roles = RoleInputs { sidecars, program };
    Ok(Prepared { inside: Some(inside), roles: Some(roles), notes, ..Prepared::default() })
}
