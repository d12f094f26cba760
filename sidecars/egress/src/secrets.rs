//! The secrets of the bottle as one request uses them: the credentials, and everything that is derived from secrets.
//!
//! If the user replaces credentials, the proxy builds a new value for all further requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use bottle_policy::secret::Secret;
use bottle_protocol::session::bundle::Provision;
use bottle_protocol::session::guest::SecretText;
use bottle_scan::{KnownSecret, RuleFiles, TooLarge};

use crate::credential_store::{CredentialStore, NotReplaced};
use crate::egress::ProvisionError;
use crate::inspect::Inspector;
use crate::report::Redaction;

/// The credentials, and the scanners that search for all secrets.
pub(crate) struct Secrets {
    pub(crate) credential_store: CredentialStore,
    pub(crate) inspector: Inspector,
    /// Whether a known secret is a credential that the agent does not hold. The index is the number of the secret.
    pub(crate) lockout_secrets: Vec<bool>,
    fixed: Arc<Fixed>,
}

/// The secrets and rules that do not change after the launch.
struct Fixed {
    upstream_proxy: Option<Secret>,
    canaries: Vec<Secret>,
    /// The secrets in the agent's environment.
    of_agent: Vec<Secret>,
    sensitive: Vec<Secret>,
    rules: Arc<RuleFiles>,
    placeholders: Vec<String>,
}

/// Why new values of credentials do not apply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotApplied {
    #[error(transparent)]
    Value(#[from] NotReplaced),
    #[error(transparent)]
    Search(#[from] TooLarge),
}

impl Secrets {
    /// Takes the secrets of `provision`. Also returns the redaction of the secrets for reports.
    pub(crate) fn of(provision: &Provision) -> Result<(Self, Redaction), ProvisionError> {
        let list = |texts: &[SecretText]| texts.iter().map(|text| text.0.clone()).collect::<Vec<_>>();
        let rules = provision.rules.iter().map(|file| (file.name.as_str(), file.text.as_str()));
        let canaries = provision.canary.iter().chain(&provision.earlier_canaries);
        let fixed = Fixed {
            upstream_proxy: provision.upstream_proxy.as_ref().map(|url| url.0.clone()),
            canaries: canaries.map(|canary| canary.0.clone()).collect(),
            of_agent: list(&provision.known_secrets),
            sensitive: list(&provision.marked),
            rules: Arc::new(RuleFiles::parse(rules)?),
            placeholders: provision.placeholders.clone(),
        };
        let credential_store = CredentialStore::new(provision.credentials.clone())?;
        Ok(Self::new(credential_store, Arc::new(fixed))?)
    }

    /// Returns the secrets with new values for these credentials, and the redaction of the old and new values.
    ///
    /// # Errors
    /// [`NotApplied`] if one of the values cannot be used.
    pub(crate) fn with_credentials(
        &self,
        values: &BTreeMap<String, SecretText>,
    ) -> Result<(Self, Redaction), NotApplied> {
        let credential_store = self.credential_store.with_values(values)?;
        Ok(Self::new(credential_store, Arc::clone(&self.fixed))?)
    }

    fn new(credential_store: CredentialStore, fixed: Arc<Fixed>) -> Result<(Self, Redaction), TooLarge> {
        let Fixed { upstream_proxy: proxy, canaries, of_agent, sensitive, .. } = &*fixed;
        let passwords = credential_store.passwords();
        let credentials: Vec<&Secret> = credential_store.values().chain(proxy).collect();
        let lockout_secrets = credentials.iter().map(|secret| !of_agent.contains(secret)).collect();
        let in_store = credential_store.known().map(|(_, known)| known);
        let unapprovable: Vec<KnownSecret<'_>> =
            in_store.chain(proxy.iter().chain(canaries).map(KnownSecret::new)).collect();
        let known: Vec<KnownSecret<'_>> = of_agent.iter().chain(sensitive).map(KnownSecret::new).collect();
        let inspector = Inspector::new(&unapprovable, &known, &fixed.rules, &fixed.placeholders)?
            .with_credentials(credential_store.known())?;
        let others = passwords.iter().chain(canaries).chain(of_agent).chain(sensitive);
        let all: Vec<&Secret> = credentials.into_iter().chain(others).collect();
        let redaction = Redaction::new(&all)?;
        Ok((Self { credential_store, inspector, lockout_secrets, fixed }, redaction))
    }
}
