//! Registers and revokes the deploy keys of a bottle.
//!
//! The bottle's record names each key by its public half, which is unique, and names the source of the forge token. Any
//! later process can therefore find and revoke the key. The record is written before the request to the forge, so that
//! a keeper killed at any moment leaves no unrecorded key. The private half exists only in memory.

use std::collections::BTreeMap;

use bottle_host::Host;
use bottle_host::causes;
use bottle_host::roots::{self, CaBundleError};
use bottle_plan::forge::{Api, Fault, ForgeError, KeyFault, SshKey};
use bottle_plan::secrets::{self, SecretError};
use bottle_plan::{Plan, PlannedKey, SecretNeed, SecretSource};
use bottle_policy::names::Name;
use bottle_protocol::session::guest::SecretText;
use serde::{Deserialize, Serialize};

use super::record::DeployKey;
use super::store::Claim;

/// Why a deploy key could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The forge did not register the key.
    #[error(transparent)]
    Forge(#[from] ForgeError),
    /// The root certificates that the bottle's manifest adds cannot be used.
    #[error(transparent)]
    CaBundle(#[from] CaBundleError),
    /// The forge token is not among the launch's secrets and cannot be read from its source.
    #[error("the token for the deploy key of {0} is missing")]
    NoToken(Name),
    /// The key pair could not be generated.
    #[error(transparent)]
    Generate(#[from] KeyFault),
    /// The bottle's record, which must name the key, cannot be written.
    #[error("cannot write the bottle's record")]
    Record(#[source] std::io::Error),
}

/// The forge tokens that this process has, by source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens(Vec<(SecretSource, SecretText)>);

impl Tokens {
    /// Selects from a launch's secret `values` the tokens that its deploy keys need.
    #[must_use]
    pub fn of(plan: &Plan, values: &BTreeMap<String, SecretText>) -> Self {
        let ids = plan.repos.iter().filter_map(|repo| match &repo.key {
            PlannedKey::Deploy { token, .. } => Some(token),
            PlannedKey::Ssh { .. } | PlannedKey::Token { .. } => None,
        });
        Self(ids.filter_map(|id| Some((source(plan, id)?.clone(), values.get(id)?.clone()))).collect())
    }

    /// Reads the tokens for these keys on this machine, except tokens that need a prompt.
    pub async fn of_this_machine(host: &Host, keys: &[DeployKey]) -> Self {
        let mut found = Self::default();
        for key in keys {
            if let Ok(token) = found.get(host, key).await {
                found.0.push((key.token.clone(), token));
            }
        }
        found
    }

    /// Returns the token for this key. If this process does not have the token, reads the token from its source.
    async fn get(&self, host: &Host, key: &DeployKey) -> Result<SecretText, SecretError> {
        if let Some((_, token)) = self.0.iter().find(|(source, _)| *source == key.token) {
            return Ok(token.clone());
        }
        let purpose = format!("the deploy key of {}", key.repo);
        let need = SecretNeed { id: String::new(), source: key.token.clone(), purpose, form: None };
        // The token is read without a prompt, because there may be no terminal.
        let found = secrets::resolve(host, std::slice::from_ref(&need), None).await?;
        found.values.into_values().next().ok_or_else(|| SecretError::Missing(vec![need]))
    }
}

fn source<'a>(plan: &'a Plan, id: &str) -> Option<&'a SecretSource> {
    plan.secrets.iter().find(|need| need.id == id).map(|need| &need.source)
}

/// First retries to revoke keys that an earlier launch of the same bottle could not revoke. Then creates and registers
/// every key of the plan. Returns the private halves by repository name.
///
/// # Errors
/// Returns the first [`KeyError`]. The record then names every key that the forge may have registered, so that
/// [`revoke`] can revoke it.
pub async fn register(
    host: &Host,
    claim: &Claim,
    plan: &Plan,
    tokens: &Tokens,
) -> Result<BTreeMap<Name, SecretText>, KeyError> {
    for left in revoke(host, claim, tokens).await {
        tracing::warn!("cannot revoke a deploy key: {left}");
    }
    if !plan.has_deploy_keys() {
        return Ok(BTreeMap::new());
    }
    let machine = machine_roots().await;
    let roots = roots::with_bundle(&machine, plan.egress.ca_bundle.as_deref())?;
    let made = plan.repos.iter().map(async |repo| {
        let PlannedKey::Deploy { token, keys, read_only, .. } = &repo.key else { return Ok(None) };
        let missing = || KeyError::NoToken(repo.name.clone());
        let intent = |public: &str| {
            Some(DeployKey {
                repo: repo.name.clone(),
                keys: keys.clone(),
                title: format!("bottle {}", plan.identity.slug),
                public: public.to_owned(),
                id: None,
                token: source(plan, token)?.clone(),
                ca_bundle: plan.egress.ca_bundle.clone(),
            })
        };
        let pair = SshKey::generate()?;
        let key = intent(&pair.public).ok_or_else(missing)?;
        let token = tokens.get(host, &key).await.map_err(|_| missing())?;
        register_one(claim, &key, &Api { keys, token: &token.0, roots: &roots }, *read_only).await?;
        Ok(Some((repo.name.clone(), pair.private)))
    });
    // Every request runs to completion. If a request were dropped, its result would be unknown.
    let made: Vec<Result<_, KeyError>> = futures_util::future::join_all(made).await;
    let mut private = BTreeMap::new();
    for one in made {
        private.extend(one?);
    }
    Ok(private)
}

async fn register_one(
    claim: &Claim,
    key: &DeployKey,
    api: &Api<'_>,
    read_only: bool,
) -> Result<(), KeyError> {
    claim.update(|record| record.deploy_keys.push(key.clone())).map_err(KeyError::Record)?;
    match api.register(key.named(), read_only).await {
        Ok(id) => claim
            .update(|record| {
                let own = record.deploy_keys.iter_mut().filter(|known| known.public == key.public);
                own.for_each(|known| known.id = Some(id));
            })
            .map_err(KeyError::Record),
        Err(error) => {
            if !error.is_unsure() {
                remove_from_record(claim, key).map_err(KeyError::Record)?;
            }
            Err(error.into())
        }
    }
}

/// Revokes every key in the record in parallel, and removes the revoked keys from the record. Returns the failures.
/// Each failure is a sentence fragment with the manual step to revoke the key. A key that could not be revoked stays in
/// the record, so that a cleanup can revoke it.
pub async fn revoke(host: &Host, claim: &Claim, tokens: &Tokens) -> Vec<String> {
    let keys = claim.record().deploy_keys;
    if keys.is_empty() {
        return Vec::new();
    }
    let machine = machine_roots().await;
    let each = keys.iter().map(async |key| {
        let revoked = revoke_one(host, key, tokens, &machine).await;
        let revoked = revoked.map_err(|error| format!("{}; {}", causes::one_line(&error), error.hint));
        revoked.and_then(|()| {
            remove_from_record(claim, key)
                .map_err(|error| format!("cannot write the record of {}: {error}", key.describe()))
        })
    });
    futures_util::future::join_all(each).await.into_iter().filter_map(Result::err).collect()
}

async fn revoke_one(host: &Host, key: &DeployKey, tokens: &Tokens, machine: &str) -> Result<(), ForgeError> {
    let failed = |cause| ForgeError::still_there(&key.keys, key.named(), Fault::Local(cause));
    let token = tokens.get(host, key).await.map_err(|error| failed(error.into()))?;
    let roots =
        roots::with_bundle(machine, key.ca_bundle.as_deref()).map_err(|error| failed(error.into()))?;
    Api { keys: &key.keys, token: &token.0, roots: &roots }.revoke(key.named()).await
}

fn remove_from_record(claim: &Claim, key: &DeployKey) -> std::io::Result<()> {
    claim.update(|record| record.deploy_keys.retain(|known| known.public != key.public))
}

/// Returns this machine's root certificates. They are read on a blocking thread, because there may be many files.
async fn machine_roots() -> String {
    tokio::task::spawn_blocking(roots::of_this_machine).await.unwrap_or_default()
}
