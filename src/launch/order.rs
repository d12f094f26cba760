//! The inputs of a launch: the plan, the program or image that the backend prepared, and the secrets.

use std::collections::BTreeMap;

use bottle_contract::session::guest::SecretText;
use serde::{Deserialize, Serialize};

use crate::backend::{EngineIdentity, Origin, Prepared};
use crate::plan::{Plan, PlanError};

/// The inputs of a launch, including the secrets. They are never written to disk: they exist only in memory and on the
/// socket that the keeper inherits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOrder {
    /// The plan of the bottle.
    pub plan: Plan,
    /// The inputs that the backend prepared for the plan.
    pub prepared: Prepared,
    /// The engine on which the inputs were prepared.
    #[serde(default)]
    pub engine: Option<EngineIdentity>,
    /// The values of [`Plan::secrets`], by id. For a route whose secret is missing, the proxy answers
    /// `credential-missing`.
    pub secrets: BTreeMap<String, SecretText>,
    /// The values of sensitive environment variables that the plan does not use. The proxy blocks requests that contain
    /// one ([`crate::plan::sensitive_env`]).
    #[serde(default)]
    pub marked: Vec<SecretText>,
    /// Where the bottle's files come from.
    #[serde(default)]
    pub origin: Origin,
    /// Set when the launch resumes the preserved bottle of its slug.
    #[serde(default)]
    pub resumed: Option<Resumed>,
}

/// How a launch resumes a preserved bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The command that starts the agent when it has no conversation to resume.
    pub anew: Vec<String>,
    /// Whether the launch must restore the saved conversations, because the bottle's files are new.
    pub give_back: bool,
}

impl LaunchOrder {
    /// Creates the launch order of a new bottle after its secrets are resolved.
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
            engine: None,
            secrets,
            marked: Vec::new(),
            origin: Origin::New,
            resumed: None,
        })
    }
}
