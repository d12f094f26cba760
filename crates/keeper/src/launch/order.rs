//! The inputs of a launch: the plan, the program or image that the backend prepared, and the secrets.

use std::collections::BTreeMap;

use bottle_backend::{EngineIdentity, Origin, Prepared};
use bottle_instance::repositories::CopiedRepository;
use bottle_plan::{ImageSource, Plan, PlanError};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::SecretText;
use serde::{Deserialize, Serialize};

/// The inputs of a launch, including the secrets. The launch order is never written to disk. It exists only in memory
/// and on the socket that the keeper inherits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOrder {
    /// The plan of the bottle.
    pub plan: Plan,
    /// The image or program that the backend prepared for the plan.
    pub prepared: Prepared,
    /// The container engine on which the image or program was prepared.
    #[serde(default)]
    pub engine: Option<EngineIdentity>,
    /// The values of [`Plan::secrets`], by id. If the secret of a route is missing, the proxy answers requests of this
    /// route with `credential-missing`.
    pub secrets: BTreeMap<String, SecretText>,
    /// The values of sensitive environment variables that the plan does not use. The proxy blocks requests that contain
    /// such a value ([`bottle_plan::sensitive_env`]).
    #[serde(default)]
    pub marked: Vec<SecretText>,
    /// The origin of the bottle's files.
    #[serde(default)]
    pub origin: Origin,
    /// Set if the agent continues a conversation. If [`LaunchOrder::forked`] is not set too, the launch resumes the
    /// kept bottle with the plan's slug.
    #[serde(default)]
    pub resumed: Option<Resumed>,
    /// Set if the launch makes a new bottle from the files of another bottle.
    #[serde(default)]
    pub forked: Option<Forked>,
}

/// The facts that a forked bottle takes from the bottle from which it was forked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The slug of the bottle from which the new bottle was forked.
    pub from: Slug,
    /// See [`bottle_instance::record::Record::repositories`].
    #[serde(default)]
    pub repositories: Vec<CopiedRepository>,
    /// See [`bottle_instance::record::Record::copied_cwd`].
    pub copied_cwd: bool,
    /// See [`bottle_instance::record::Record::copied_all`].
    pub copied_all: bool,
    /// See [`bottle_instance::record::Record::image`].
    #[serde(default)]
    pub image: Option<ImageSource>,
    /// Whether the copied workspace contains unsaved work. If so, this work is unsaved in the new bottle too.
    pub unsaved: bool,
}

/// How a launch continues the conversation of an earlier launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The command that starts the agent when it has no conversation to resume.
    pub anew: Vec<String>,
    /// Whether the launch must restore the saved conversations, because the bottle's files are new.
    pub give_back: bool,
}

impl LaunchOrder {
    /// Whether the launch resumes a kept bottle. If so, the bottle's directory exists.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.resumed.is_some() && self.forked.is_none()
    }

    /// Whether the bottle's record already contains the time at which the workspace was ready. Later changes in the
    /// workspace are unsaved work.
    #[must_use]
    pub fn has_ready_time(&self) -> bool {
        self.origin == Origin::Kept || self.forked.as_ref().is_some_and(|forked| forked.unsaved)
    }

    /// Creates the launch order of a new bottle after its secrets are resolved.
    ///
    /// # Errors
    /// The errors of [`Plan::settle`].
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
            forked: None,
        })
    }
}
