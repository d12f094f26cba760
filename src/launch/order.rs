//! What a launch is given: the plan, what the backend found for it, and the secrets.

use std::collections::BTreeMap;

use bottle_contract::session::guest::SecretText;
use serde::{Deserialize, Serialize};

use crate::backend::{Origin, Prepared};
use crate::plan::Plan;

/// Everything a launch needs, the secrets included. Lives in memory and on the inherited socket only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOrder {
    /// What to launch.
    pub plan: Plan,
    /// What the backend found for it.
    pub prepared: Prepared,
    /// Values of [`Plan::secrets`], by id. One that is missing leaves its route at `credential-missing`.
    pub secrets: BTreeMap<String, SecretText>,
    /// Values that nothing of the plan needs, and that must not leave all the same: see [`crate::host::marked`].
    #[serde(default)]
    pub marked: Vec<SecretText>,
    /// What its files are at the start.
    #[serde(default)]
    pub origin: Origin,
    /// It goes on with the bottle of its slug, which was preserved.
    #[serde(default)]
    pub resumed: Option<Resumed>,
}

/// See [`LaunchOrder::resumed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The agent's program and arguments for the case that there is no conversation to go on with.
    pub anew: Vec<String>,
    /// Whether its conversations have to be given back, because its files are built anew.
    pub give_back: bool,
}

impl LaunchOrder {
    /// The order for a bottle that begins anew, its secrets being known now.
    #[must_use]
    pub fn new(plan: Plan, prepared: Prepared, secrets: BTreeMap<String, SecretText>) -> Self {
        Self {
            plan: plan.settle(&secrets),
            prepared,
            secrets,
            marked: Vec::new(),
            origin: Origin::New,
            resumed: None,
        }
    }
}
