//! Replaces the values of credentials while the bottle runs.
//!
//! ```text
//! client ─► audit log ─► masks, watcher ─► bundle: git gate searches, proxy uses ─► audit log
//! ```
//! The keeper masks a new value before the proxy uses it. The earlier values stay masked, because they may still be
//! valid.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bottle_instance::audit::Entry;
use bottle_policy::secret::Secret;
use bottle_protocol::queue::Id;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_protocol::session::guest::SecretText;

use super::decisions::Decisions;
use super::protocol::{Inherited, NewSecrets};
use super::shared::Shared;

/// The maximum number of credentials in one request.
const VALUES_MAX: usize = 64;

/// The maximum length of a slot's name in bytes. The name is a host pattern.
const SLOT_MAX: usize = 300;

/// The maximum length of a value in bytes, as at the launch.
const VALUE_MAX: usize = 64 << 10;

/// How long the bundle may take to replace the values. The bundle waits up to eight seconds for each of two sidecars.
const REPLACED_WITHIN: Duration = Duration::from_secs(20);

impl NewSecrets {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.values.is_empty(), "no credential is named");
        ensure!(self.values.len() <= VALUES_MAX, "at most {VALUES_MAX} credentials can be replaced at once");
        for (slot, SecretText(value)) in &self.values {
            let named = slot.len() <= SLOT_MAX && !slot.chars().any(char::is_control);
            ensure!(named, "a credential's name is too long or has control characters");
            let length = value.expose().len();
            ensure!(length <= VALUE_MAX, "the value for {slot} is longer than {} KiB", VALUE_MAX >> 10);
        }
        Ok(())
    }
}

impl Inherited {
    /// All values that are masked.
    pub(super) fn masked(&self) -> Vec<Secret> {
        self.secrets.iter().chain(self.replaced.values()).map(|text| text.0.clone()).collect()
    }
}

impl Shared {
    /// Replaces the values of credentials, or changes nothing.
    ///
    /// # Errors
    /// If the bottle has no such credential, if a value cannot be used, or if the change cannot be recorded. If the
    /// sidecars do not answer, it is unknown whether the proxy uses the new values.
    pub(super) async fn replace_secrets(&self, new: NewSecrets) -> anyhow::Result<()> {
        new.check()?;
        // Requests of several clients are carried out one after another.
        let _turn = self.replacing.lock().await;
        let change = self.decisions.begin_secrets(&new).await?;
        let before = self.inherited.borrow().clone();
        let mut after = before.clone();
        after.replaced.add(&new.values);
        self.mask.set(&after.masked())?;
        self.inherited.send_replace(after);
        let sent = send(&self.decisions, new.values).await;
        if let Ok(Some(_)) = &sent {
            // The values were rejected, so they are not secrets of this bottle.
            self.mask.set(&before.masked())?;
            self.inherited.send_replace(before);
        }
        let result = match sent {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(anyhow::anyhow!(why)),
            Err(error) => Err(error.context("it is unknown whether the proxy uses the new values")),
        };
        self.decisions.end_secrets(change, result.as_ref().err()).await;
        result
    }
}

/// Sends the values to the bundle. Returns the reason if the bundle rejects them.
async fn send(decisions: &Decisions, values: BTreeMap<String, SecretText>) -> anyhow::Result<Option<String>> {
    let replaced = async {
        let mut stream = decisions.bundle().open(&BundleRequest::Secrets { values }).await?;
        stream.receive().await
    };
    let answer = tokio::time::timeout(REPLACED_WITHIN, replaced).await;
    match answer.context("the sidecars did not answer in time")?? {
        BundleEvent::Replaced => Ok(None),
        BundleEvent::Rejected { message } => Ok(Some(message)),
        _ => bail!("the sidecars sent an unexpected message"),
    }
}

impl Decisions {
    /// Records that the user replaces credentials. Returns the id of the change.
    async fn begin_secrets(&self, new: &NewSecrets) -> anyhow::Result<Id> {
        let change = Id::from_random(rand::random());
        let slots = new.values.keys().cloned().collect();
        self.record(&new.by, Entry::ReplacesSecrets { change: change.clone(), slots }).await?;
        Ok(change)
    }

    /// Records whether the proxy uses the new values.
    async fn end_secrets(&self, change: Id, failure: Option<&anyhow::Error>) {
        let failure = failure.map(|error| self.masked(&format!("{error:#}")));
        if let Err(error) = self.record("keeper", Entry::ReplacedSecrets { change, failure }).await {
            tracing::warn!("cannot record the replacement of credentials: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded() {
        let long = "x".repeat(VALUE_MAX + 1);
        let many: Vec<String> = (0..=VALUES_MAX).map(|number| format!("{number}.example")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|slot| (slot.as_str(), "x")).collect();
        for (pairs, why) in [
            (&[][..], "no credential"),
            (&many, "at most 64"),
            (&[("a\nb", "x")], "control characters"),
            (&[("a.example", long.as_str())], "the value for a.example is longer than 64 KiB"),
        ] {
            let values = pairs.iter().map(|(slot, value)| ((*slot).to_owned(), (*value).into())).collect();
            let error = NewSecrets { values, by: "me".to_owned() }.check().expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
