//! What a bottle's containers are made of, found or built.

use super::images::Images;
use crate::backend::image::config::variables;
use crate::backend::{BackendError, Contained, Inside, Prepared, ProgressSink, Step};
use crate::plan::Plan;

/// See [`crate::backend::Backend::prepare`].
pub(super) async fn prepare(
    images: &Images,
    plan: &Plan,
    told: &ProgressSink<Step>,
) -> Result<Prepared, BackendError> {
    // The program is in both, so it is found once.
    let (agent, sidecars, program) =
        tokio::try_join!(images.agent(plan, told), images.sidecars(told), images.program())?;
    if images.made_any() {
        // What builds leave, and what these images take the place of. That it fails is no failure of a start.
        let _ = images.sweep().await;
    }
    let notes = agent.notes();
    let inside = Inside {
        image: agent.id,
        uid: agent.account.uid,
        gid: agent.account.gid,
        user: agent.account.name,
        home: agent.account.home,
        env: variables(&agent.env),
    };
    let contained = Contained { sidecars, program };
    Ok(Prepared { inside: Some(inside), contained: Some(contained), notes, ..Prepared::default() })
}
