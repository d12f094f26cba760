//! What a launch is given: the plan, what the backend found for it, and the secrets.

use std::collections::BTreeMap;

use bottle_contract::session::guest::SecretText;
use serde::{Deserialize, Serialize};

use crate::backend::{Origin, Prepared};
use crate::plan::{Plan, PlanError};

/// Everything a launch needs, the secrets included. Lives in memory and on the inherited socket only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOrder {
    /// What to launch.
    pub plan: Plan,
    /// What the backend prepared for it.
    pub prepared: Prepared,
    /// Values of [`Plan::secrets`], by id. A route whose secret is missing answers `credential-missing`.
    pub secrets: BTreeMap<String, SecretText>,
    /// Values of sensitive variables that the plan does not need but the proxy must block
    /// ([`crate::plan::sensitive_env`]).
    #[serde(default)]
    pub marked: Vec<SecretText>,
    /// The source of its files: new, preserved, or a snapshot.
    #[serde(default)]
    pub origin: Origin,
    /// Set when the launch resumes the preserved bottle of its slug.
    #[serde(default)]
    pub resumed: Option<Resumed>,
}

/// How a launch resumes a preserved bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The agent's program and arguments when there is no conversation to resume.
    pub anew: Vec<String>,
    /// Whether its conversations must be restored, because its files are built from scratch.
    pub give_back: bool,
}

impl LaunchOrder {
    /// The order for a new bottle, after its secrets are resolved.
    ///
    /// # Errors
    /// As [`Plan::settle`].
    pub fn new(
        plan: Plan,
        prepared: Prepared,
        secrets: BTreeMap<String, SecretText>,
    ) -> Result<Self, PlanError> {
        Ok(Self {
            plan: plan.settle(&secrets)?,
            prepared,
            secrets,
            marked: Vec::new(),
            origin: Origin::New,
            resumed: None,
        })
    }
}
