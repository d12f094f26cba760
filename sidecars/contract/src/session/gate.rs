//! What the keeper gives the git gate, once, before anything runs in the bottle.

use serde::{Deserialize, Serialize};

use super::bundle::RuleFile;
use super::guest::SecretText;
use crate::names::{Name, Slug};

/// See [`super::bundle::BundleRequest::Gate`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateProvision {
    /// The bottle's slug, for messages.
    pub slug: Slug,
    /// The only repositories there are.
    pub repos: Vec<GateRepo>,
    /// Credentials of the launch that the agent does not hold. None ever leaves in a push, and who tries again and
    /// again is locked out ([`crate::lock_out`]).
    #[serde(default)]
    pub credentials: Vec<SecretText>,
    /// Every other secret of the launch: they never leave in a push either.
    pub known_secrets: Vec<SecretText>,
    /// See [`super::bundle::Provision::rules`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleFile>,
    /// What the agent holds in place of credentials: it opens nothing and is never a finding by its shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<String>,
    /// Roots trusted for https upstreams, PEM.
    pub upstream_roots: String,
    /// Seconds that a push waits for a user; absent when nobody is to be asked.
    pub ask_seconds: Option<u64>,
}

/// One repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRepo {
    /// Its name in the manifest, and in the gate's address.
    pub name: Name,
    /// The upstream's address, as written.
    pub url: String,
    /// What opens it.
    pub key: GateKey,
    /// What may move.
    pub refs: GateRefs,
    /// Whether a user is asked about what is found; else it is refused.
    pub supervise: bool,
    /// Whether the mirror is served when the upstream cannot be reached.
    pub stale_ok: bool,
}

/// What opens an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GateKey {
    /// A private key, in a format that `ssh-add` reads, and the upstream's keys as `known_hosts` has them.
    Ssh {
        /// The private key.
        private: SecretText,
        /// Lines of `known_hosts`; a host that is not in them is not trusted.
        known_hosts: String,
    },
    /// A token, sent as the password of https.
    Token {
        /// The token.
        token: SecretText,
    },
}

/// `refs`: globs over full names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRefs {
    /// What may move; absent: any branch but the upstream's default one.
    pub allow: Option<Vec<String>>,
    /// Taken away from that.
    pub deny: Vec<String>,
    /// Whether a branch may move other than forward.
    pub force: bool,
    /// Whether a ref may go.
    pub delete: bool,
    /// Whether tags may come.
    pub tags: bool,
}
