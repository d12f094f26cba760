//! What a bottle's containers are made of, found or built.

use std::collections::BTreeMap;

use super::images::Images;
use crate::backend::{BackendError, Contained, Prepared, Step, Told};
use crate::plan::Plan;

/// See [`crate::backend::Backend::prepare`].
pub(super) async fn prepare(
    images: &Images,
    plan: &Plan,
    told: &Told<Step>,
) -> Result<Prepared, BackendError> {
    // The program is in both, so it is found once.
    let (agent, sidecars, program) =
        tokio::try_join!(images.agent(plan, told), images.sidecars(told), images.program())?;
    if images.made_any() {
        // What builds leave, and what these images take the place of. That it fails is no failure of a start.
        let _ = images.sweep().await;
    }
    let notes = agent.notes();
    let contained = Contained {
        image: agent.id,
        uid: agent.account.uid,
        gid: agent.account.gid,
        user: agent.account.name,
        home: agent.account.home,
        env: variables(&agent.env),
        sidecars,
        program,
    };
    Ok(Prepared { contained: Some(contained), notes, ..Prepared::default() })
}

/// `NAME=value`, as an image has them.
fn variables(env: &[String]) -> BTreeMap<String, String> {
    let pairs = env.iter().filter_map(|variable| variable.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
