//! The configuration of the git gate. The keeper sends it once, before any process runs in the bottle.

use serde::{Deserialize, Serialize};

use super::bundle::RuleFile;
use super::guest::SecretText;
use bottle_policy::names::{Name, Slug};

/// The configuration of the git gate ([`super::bundle::BundleRequest::Gate`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateProvision {
    /// The bottle's slug, for messages.
    pub slug: Slug,
    /// The repositories that the gate serves.
    pub repos: Vec<GateRepo>,
    /// The secrets of the launch that are not in the agent's environment. The gate blocks every push that contains such
    /// a secret or a part of it, and counts a hit. Repeated hits lock the bottle ([`bottle_policy::lock_out`]).
    #[serde(default)]
    pub credentials: Vec<SecretText>,
    /// The secrets and sensitive values of the launch's environment, and the canary. The gate blocks every
    /// push that contains one, without counting a hit.
    pub known_secrets: Vec<SecretText>,
    /// The user's scan rules; see [`super::bundle::Provision::rules`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleFile>,
    /// Values that the agent holds instead of credentials. Placeholders grant no access. A scan never reports them as
    /// findings, even if they match a token pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<String>,
    /// Root certificates for upstream repositories over https, PEM.
    pub upstream_roots: String,
    /// How long a push waits for an approval, in seconds; `None` if no user can be asked.
    pub ask_seconds: Option<u64>,
}

/// One repository that the gate serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRepo {
    /// The name in the manifest and in the gate's URL.
    pub name: Name,
    /// The URL of the upstream repository, as written in the manifest.
    pub url: String,
    /// `HOST/PATH` of the upstream repository, without `.git`. Requests can use this address instead of the name:
    /// either as the URL of a request to an HTTP proxy, or in the path of the gate's URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The credential for the upstream repository.
    pub key: GateKey,
    /// The rules for updates of refs.
    pub refs: GateRefs,
    /// Whether the user may approve findings. If false, the gate denies a push with findings.
    pub supervise: bool,
    /// Whether the gate serves its mirror while it cannot reach the upstream repository.
    pub stale_ok: bool,
}

/// The credential for an upstream repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GateKey {
    /// A private key in a format that `ssh-add` reads, and the host keys of the upstream server.
    Ssh {
        /// The private key for the upstream repository.
        private: SecretText,
        /// Lines in the format of `known_hosts`. Hosts that these lines do not contain are not trusted.
        known_hosts: String,
    },
    /// A token, which the gate sends as the password over https.
    Token {
        /// The token for the upstream repository.
        token: SecretText,
    },
}

/// The key `refs`: rules for refs, given as globs over full ref names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRefs {
    /// The refs that may be updated. If absent, the agent may update every branch except the default branch of the
    /// upstream repository.
    pub allow: Option<Vec<String>>,
    /// Refs that may not be updated even if `allow` contains them.
    pub deny: Vec<String>,
    /// Whether non-fast-forward updates are allowed.
    pub force: bool,
    /// Whether refs may be deleted.
    pub delete: bool,
    /// Whether tags may be pushed.
    pub tags: bool,
}
