//! What a bottle's containers are made of, found or built.

use std::collections::BTreeMap;

use super::engine::Engine;
use super::images::Images;
use crate::backend::{BackendError, Contained, Prepared};
use crate::host::Host;
use crate::plan::Plan;

/// See [`crate::backend::Backend::prepare`].
pub(super) async fn prepare(engine: &Engine, host: &Host, plan: &Plan) -> Result<Prepared, BackendError> {
    let images = Images::new(engine.docker(), host);
    let made = async {
        // The program is in both, so it is found once.
        tokio::try_join!(images.agent(plan, &|_| ()), images.sidecars(&|_| ()), images.program())
    };
    // What a start that was killed left is no failure of this one.
    let (made, _) = tokio::join!(made, images.sweep());
    let (agent, sidecars, program) = made?;
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
    Ok(Prepared { contained: Some(contained), ..Prepared::default() })
}

/// `NAME=value`, as an image has them.
fn variables(env: &[String]) -> BTreeMap<String, String> {
    let pairs = env.iter().filter_map(|variable| variable.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
