//! The git gate's configuration, sent once before anything runs in the bottle.

use serde::{Deserialize, Serialize};

use super::bundle::RuleFile;
use super::guest::SecretText;
use crate::names::{Name, Slug};

/// The git gate's configuration ([`super::bundle::BundleRequest::Gate`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateProvision {
    /// The bottle's slug, for messages.
    pub slug: Slug,
    /// The repositories that the gate serves.
    pub repos: Vec<GateRepo>,
    /// The launch's credentials that the agent does not hold. The gate blocks every push that contains one;
    /// repeated attempts lock the bottle ([`crate::lock_out`]).
    #[serde(default)]
    pub credentials: Vec<SecretText>,
    /// Every other secret of the launch; blocked in pushes too.
    pub known_secrets: Vec<SecretText>,
    /// The user's own scan rules; see [`super::bundle::Provision::rules`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleFile>,
    /// Values that the agent holds in place of credentials. They grant no access and are never a finding by
    /// pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<String>,
    /// Root certificates for https upstreams, PEM.
    pub upstream_roots: String,
    /// How long a push waits for an approval, in seconds; absent if no user can be asked.
    pub ask_seconds: Option<u64>,
}

/// One repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRepo {
    /// The name in the manifest and in the gate's URL.
    pub name: Name,
    /// The upstream's URL, as written.
    pub url: String,
    /// The credential for the upstream.
    pub key: GateKey,
    /// The rules for ref updates.
    pub refs: GateRefs,
    /// Whether findings need an approval; otherwise they are denied.
    pub supervise: bool,
    /// Whether the gate serves its mirror while the upstream is unreachable.
    pub stale_ok: bool,
}

/// The credential for an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GateKey {
    /// A private key in a format that `ssh-add` reads, with the upstream's host keys as in `known_hosts`.
    Ssh {
        /// The private key.
        private: SecretText,
        /// Lines of `known_hosts`; other hosts are not trusted.
        known_hosts: String,
    },
    /// A token, sent as the https password.
    Token {
        /// The token.
        token: SecretText,
    },
}

/// `refs`: globs over full ref names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRefs {
    /// Refs that may be updated; absent means every branch except the upstream's default branch.
    pub allow: Option<Vec<String>>,
    /// Exceptions to `allow`.
    pub deny: Vec<String>,
    /// Whether non-fast-forward updates are allowed.
    pub force: bool,
    /// Whether refs may be deleted.
    pub delete: bool,
    /// Whether tags may be pushed.
    pub tags: bool,
}
