//! `agent_provider` as a resolved manifest has it.

use std::path::PathBuf;

use bottle_contract::route::Narrowing;
use bottle_contract::secret::Secret;
use serde::{Serialize, Serializer};

use crate::manifest::origin::Traced;
use crate::manifest::provider::{Image, Template};
use crate::manifest::secret_ref::SecretRef;

/// `agent_provider`, all of it from one layer.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ProviderConfig {
    /// `template`.
    pub template: Traced<Template>,
    /// `dockerfile`, relative to `$BOTTLE_HOME`; none: the provider's stage of `Dockerfile.agent`.
    pub dockerfile: Option<Traced<PathBuf>>,
    /// `image`: none means one is built.
    pub image: Option<Traced<Image>>,
    /// `command`: the agent's argv, for [`Template::Command`] only and never empty there.
    pub command: Option<Traced<Vec<String>>>,
    /// `auth_token`.
    pub auth_token: Option<Traced<SecretRef>>,
    /// `forward_host_credentials`.
    pub forward_host_credentials: Traced<bool>,
    /// `route`: restricts the provider route; `egress.routes` has the result.
    pub route: Option<Traced<Narrowing>>,
    /// `settings`.
    pub settings: ProviderSettings,
}

/// `agent_provider.settings`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ProviderSettings {
    /// Arguments after the template's.
    pub startup_args: Traced<Vec<String>>,
    /// The name of the model provider in pi's settings.
    pub provider: Option<Traced<String>>,
    /// The model API's address.
    pub base_url: Option<Traced<String>>,
    /// The API's kind.
    pub api: Option<Traced<String>>,
    /// Pi's key in the bottle; never serialised.
    #[serde(serialize_with = "hidden")]
    pub api_key: Option<Traced<Secret>>,
    /// The variable in the bottle from which pi reads its key.
    pub api_key_env: Option<Traced<String>>,
    /// Model ids.
    pub models: Traced<Vec<String>>,
    /// The request field that limits output tokens.
    pub max_tokens_field: Option<Traced<String>>,
    /// Whether the API supports the developer role; none leaves it to pi.
    pub supports_developer_role: Option<Traced<bool>>,
    /// Whether the API supports reasoning effort; none leaves it to pi.
    pub supports_reasoning_effort: Option<Traced<bool>>,
}

fn hidden<S: Serializer>(secret: &Option<Traced<Secret>>, serializer: S) -> Result<S::Ok, S::Error> {
    let shown = secret.as_ref().map(|secret| Traced { value: "[hidden]", origin: secret.origin.clone() });
    shown.serialize(serializer)
}
