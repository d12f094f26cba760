//! The deploy keys of a bottle, from before they exist until a forge has forgotten them.
//!
//! What stands in the record is enough to find and revoke a key from any later process: its public half, which
//! nobody else has, and where the token comes from. It stands there before the forge is asked, so whatever is
//! killed at whatever moment, no key is left that nobody knows of. The private half is in memory only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bottle_contract::names::Name;
use bottle_contract::session::guest::SecretText;
use serde::{Deserialize, Serialize};

use super::Claim;
use crate::forge::{Api, ForgeError, Keys, Named, SshKey, still_there};
use crate::host::{Host, roots};
use crate::plan::{Plan, PlannedKey, SecretNeed, SecretSource};
use crate::secrets;

/// A key that a forge was asked for and has not been heard to have forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployKey {
    /// The repository's name in the manifest.
    pub repo: Name,
    /// Where it was asked for.
    pub keys: Keys,
    /// Its title there.
    pub title: String,
    /// Its public half.
    pub public: String,
    /// What the forge calls it; absent until it has answered.
    pub id: Option<u64>,
    /// Where the token comes from.
    pub token: SecretSource,
    /// `egress.ca_bundle`.
    pub ca_bundle: Option<PathBuf>,
}

impl DeployKey {
    fn named(&self) -> Named<'_> {
        Named { title: &self.title, public: &self.public, id: self.id }
    }

    /// What it is, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("\"{}\" of {} at {}", self.title, self.keys.repository, self.keys.host())
    }
}

/// Why a launch has not all of its keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The forge did not give one.
    #[error(transparent)]
    Forge(#[from] ForgeError),
    /// Something of this machine.
    #[error("{0}")]
    Host(String),
}

/// Tokens that this process has been given, by where they come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens(Vec<(SecretSource, SecretText)>);

impl Tokens {
    /// Those of a launch's `values` with which it makes keys.
    #[must_use]
    pub fn of(plan: &Plan, values: &BTreeMap<String, SecretText>) -> Self {
        let ids = plan.repos.iter().filter_map(|repo| match &repo.key {
            PlannedKey::Deploy { token, .. } => Some(token),
            PlannedKey::Ssh { .. } | PlannedKey::Token { .. } => None,
        });
        Self(ids.filter_map(|id| Some((source(plan, id)?.clone(), values.get(id)?.clone()))).collect())
    }

    /// Those of these keys that can be read here and now, asking nobody.
    pub async fn of_this_machine(host: &Host, keys: &[DeployKey]) -> Self {
        let mut found = Self::default();
        for key in keys {
            if let Ok(token) = found.get(host, key).await {
                found.0.push((key.token.clone(), token));
            }
        }
        found
    }

    /// The one from this place: remembered, else read there again.
    async fn get(&self, host: &Host, key: &DeployKey) -> Result<SecretText, String> {
        if let Some((_, token)) = self.0.iter().find(|(source, _)| *source == key.token) {
            return Ok(token.clone());
        }
        let purpose = format!("the deploy key of {}", key.repo);
        let need = SecretNeed { id: String::new(), source: key.token.clone(), purpose };
        // Nobody is asked: who revokes may have no terminal.
        let found = secrets::resolve(host, &[need], None).await.map_err(|error| error.to_string())?;
        found.values.into_values().next().ok_or_else(|| "there is no token".to_owned())
    }
}

fn source<'a>(plan: &'a Plan, id: &str) -> Option<&'a SecretSource> {
    plan.secrets.iter().find(|need| need.id == id).map(|need| &need.source)
}

/// Makes and registers every key of the plan; the private halves, by the repositories' names. What an earlier
/// launch of the same bottle could not revoke is tried again first.
///
/// # Errors
/// [`KeyError`], the first; what had been asked for stands in the record, for [`revoke`].
pub async fn register(
    host: &Host,
    claim: &Claim,
    plan: &Plan,
    tokens: &Tokens,
) -> Result<BTreeMap<Name, SecretText>, KeyError> {
    for left in revoke(host, claim, tokens).await {
        tracing::warn!("not revoked: {left}");
    }
    if !plan.has_deploy_keys() {
        return Ok(BTreeMap::new());
    }
    let machine = machine_roots().await;
    let roots = with_own(&machine, plan.egress.ca_bundle.as_deref()).map_err(KeyError::Host)?;
    let made = plan.repos.iter().map(async |repo| {
        let PlannedKey::Deploy { token, keys, read_only, .. } = &repo.key else { return Ok(None) };
        let gone = || KeyError::Host(format!("the token for the deploy key of {} is missing", repo.name));
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
        let pair = SshKey::draw().map_err(KeyError::Host)?;
        let key = intent(&pair.public).ok_or_else(gone)?;
        let token = tokens.get(host, &key).await.map_err(|_| gone())?;
        register_one(claim, &key, &Api { keys, token: &token.0, roots: &roots }, *read_only).await?;
        Ok(Some((repo.name.clone(), pair.private)))
    });
    // All of them to their end: of one that is dropped half-way nothing would be known.
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
    let unwritten =
        |error: std::io::Error| KeyError::Host(format!("cannot write the bottle's record: {error}"));
    claim.update(|record| record.deploy_keys.push(key.clone())).map_err(unwritten)?;
    match api.register(key.named(), read_only).await {
        Ok(id) => claim
            .update(|record| {
                let own = record.deploy_keys.iter_mut().filter(|known| known.public == key.public);
                own.for_each(|known| known.id = Some(id));
            })
            .map_err(unwritten),
        Err(error) => {
            if !error.unsure {
                forget(claim, key).map_err(unwritten)?;
            }
            Err(error.into())
        }
    }
}

/// Revokes every key of the record, side by side, and forgets those that are gone. The answer is what could not
/// be revoked, a sentence fragment each, with what to do by hand; it still stands in the record, for a cleanup.
pub async fn revoke(host: &Host, claim: &Claim, tokens: &Tokens) -> Vec<String> {
    let keys = claim.record().deploy_keys;
    if keys.is_empty() {
        return Vec::new();
    }
    let machine = machine_roots().await;
    let each = keys.iter().map(async |key| {
        let revoked = revoke_one(host, key, tokens, &machine).await;
        let revoked = revoked.map_err(|error| format!("{error}; {}", error.hint));
        revoked.and_then(|()| {
            forget(claim, key)
                .map_err(|error| format!("the record of {} cannot be written: {error}", key.describe()))
        })
    });
    futures_util::future::join_all(each).await.into_iter().filter_map(Result::err).collect()
}

async fn revoke_one(host: &Host, key: &DeployKey, tokens: &Tokens, machine: &str) -> Result<(), ForgeError> {
    let failed = |why: String| still_there(&key.keys, key.named(), &why, false);
    let token = tokens.get(host, key).await.map_err(failed)?;
    let roots = with_own(machine, key.ca_bundle.as_deref()).map_err(failed)?;
    Api { keys: &key.keys, token: &token.0, roots: &roots }.revoke(key.named()).await
}

fn forget(claim: &Claim, key: &DeployKey) -> std::io::Result<()> {
    claim.update(|record| record.deploy_keys.retain(|known| known.public != key.public))
}

/// This machine's roots; many files on many machines.
async fn machine_roots() -> String {
    tokio::task::spawn_blocking(roots::of_this_machine).await.unwrap_or_default()
}

/// The machine's roots and the bottle's own.
fn with_own(machine: &str, ca_bundle: Option<&Path>) -> Result<String, String> {
    let own = ca_bundle.map(roots::bundle).transpose()?.unwrap_or_default();
    Ok(format!("{machine}{own}"))
}
