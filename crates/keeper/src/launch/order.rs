//! The inputs of a launch: the plan, the program or image that the backend prepared, and the secrets.

use std::collections::BTreeMap;

use bottle_backend::{EngineIdentity, Origin, Prepared};
use bottle_instance::repositories::CopiedRepository;
use bottle_plan::{ImageSource, Plan, PlanError};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::SecretText;
use serde::{Deserialize, Serialize};

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
    /// one ([`bottle_plan::sensitive_env`]).
    #[serde(default)]
    pub marked: Vec<SecretText>,
    /// Where the bottle's files come from.
    #[serde(default)]
    pub origin: Origin,
    /// Set when the agent continues a conversation. Without [`LaunchOrder::forked`], the launch then resumes the
    /// kept bottle of its slug.
    #[serde(default)]
    pub resumed: Option<Resumed>,
    /// Set when the launch makes a new bottle from the files of another one.
    #[serde(default)]
    pub forked: Option<Forked>,
}

/// What a forked bottle has in common with the bottle that it was forked from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The bottle that it was forked from.
    pub from: Slug,
    /// As [`bottle_instance::record::Record::repositories`].
    #[serde(default)]
    pub repositories: Vec<CopiedRepository>,
    /// As [`bottle_instance::record::Record::copied_cwd`].
    pub copied_cwd: bool,
    /// As [`bottle_instance::record::Record::copied_all`].
    pub copied_all: bool,
    /// As [`bottle_instance::record::Record::image`].
    #[serde(default)]
    pub image: Option<ImageSource>,
    /// Whether the copied workspace contains unsaved work. All of it then counts as unsaved in the new bottle too.
    pub unsaved: bool,
}

/// How a launch continues the conversation of an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The command that starts the agent when it has no conversation to resume.
    pub anew: Vec<String>,
    /// Whether the launch must restore the saved conversations, because the bottle's files are new.
    pub give_back: bool,
}

impl LaunchOrder {
    /// Whether the launch resumes the kept bottle of its slug, so that the bottle's directory exists.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.resumed.is_some() && self.forked.is_none()
    }

    /// Whether the record already says which changes in the workspace are unsaved work.
    #[must_use]
    pub fn has_ready_time(&self) -> bool {
        self.origin == Origin::Kept || self.forked.as_ref().is_some_and(|forked| forked.unsaved)
    }

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
            forked: None,
        })
    }
}
