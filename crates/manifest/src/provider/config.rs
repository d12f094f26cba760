//! The key `agent_provider` of a resolved manifest.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bottle_policy::route::Narrowing;
use bottle_policy::secret::Secret;
use serde::{Serialize, Serializer};

use crate::agent_provider::{Image, Template};
use crate::origin::Traced;
use crate::secret_ref::SecretRef;

/// The key `agent_provider`. All its values come from the same layer.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ProviderConfig {
    /// The key `template`.
    pub template: Traced<Template>,
    /// The key `dockerfile`, relative to `$BOTTLE_HOME`. If absent, the provider's stage of `Dockerfile.agent` is
    /// built.
    pub dockerfile: Option<Traced<PathBuf>>,
    /// The key `build_args`: the arguments of the Dockerfile's build, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_args: Option<Traced<BTreeMap<String, String>>>,
    /// The key `build_secrets`: the secrets of the Dockerfile's build, by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_secrets: Option<Traced<BTreeMap<String, SecretRef>>>,
    /// The key `image`. If absent, an image is built.
    pub image: Option<Traced<Image>>,
    /// The key `command`: the agent's argv. Present only for [`Template::Command`], and not empty.
    pub command: Option<Traced<Vec<String>>>,
    /// The key `auth_token`.
    pub auth_token: Option<Traced<SecretRef>>,
    /// The key `forward_host_credentials`.
    pub forward_host_credentials: Traced<bool>,
    /// The key `route`: narrows the requests of the provider route, and sets its `connect_to` and `dlp`. The changed
    /// route is already in `egress.routes`.
    pub route: Option<Traced<Narrowing>>,
    /// The key `settings`.
    pub settings: ProviderSettings,
}

/// The key `agent_provider.settings`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ProviderSettings {
    /// Arguments that are added after those of the template.
    pub startup_args: Traced<Vec<String>>,
    /// The name of the model provider in pi's settings.
    pub provider: Option<Traced<String>>,
    /// The URL of the model API.
    pub base_url: Option<Traced<String>>,
    /// The wire format of the model API, for example `anthropic-messages`.
    pub api: Option<Traced<String>>,
    /// The API key that pi gets in the bottle. The key is not serialised.
    #[serde(serialize_with = "hidden")]
    pub api_key: Option<Traced<Secret>>,
    /// The environment variable from which pi reads its API key in the bottle.
    pub api_key_env: Option<Traced<String>>,
    /// The ids of the models. Pi uses the first model of the list.
    pub models: Traced<Vec<String>>,
    /// The name of the request field that limits the output tokens.
    pub max_tokens_field: Option<Traced<String>>,
    /// Whether the API accepts the message role `developer`. `None` means that pi decides.
    pub supports_developer_role: Option<Traced<bool>>,
    /// Whether the API accepts the field `reasoning_effort`. `None` means that pi decides.
    pub supports_reasoning_effort: Option<Traced<bool>>,
}

fn hidden<S: Serializer>(secret: &Option<Traced<Secret>>, serializer: S) -> Result<S::Ok, S::Error> {
    let shown = secret.as_ref().map(|secret| Traced { value: "[hidden]", origin: secret.origin.clone() });
    shown.serialize(serializer)
}
