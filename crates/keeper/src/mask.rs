//! Masks the secrets of a bottle in texts that the keeper shows or stores.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use bottle_policy::secret::Secret;
use bottle_scan::{Redactor, TooLarge};

/// The text that replaces a text that cannot be redacted.
const UNREDACTED: &str = "[not shown: it cannot be redacted]";

/// Masks the secrets that the keeper knows. Clones share the secrets, which can change while the bottle runs.
#[derive(Clone)]
pub(super) struct Mask(Arc<RwLock<Option<Arc<Redactor>>>>);

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mask").finish_non_exhaustive()
    }
}

impl Mask {
    /// Prepares the mask for `secrets`. If their search tables would be too large, the mask replaces every text.
    pub(super) fn new(secrets: &[Secret]) -> Self {
        Self(Arc::new(RwLock::new(Redactor::new(secrets).ok().map(Arc::new))))
    }

    /// Replaces the secrets of this mask and all its clones.
    ///
    /// # Errors
    /// [`TooLarge`] if the search tables would be too large. The mask is then unchanged.
    pub(super) fn set(&self, secrets: &[Secret]) -> Result<(), TooLarge> {
        let redactor = Redactor::new(secrets)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(redactor));
        Ok(())
    }

    /// The search for the current secrets. `None` if its tables would be too large.
    pub(super) fn redactor(&self) -> Option<Arc<Redactor>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces every secret in `text`.
    pub(super) fn text(&self, text: &str) -> String {
        match self.redactor() {
            Some(redactor) => redactor.redact(text).into_owned(),
            None => UNREDACTED.to_owned(),
        }
    }

    /// Replaces every secret in each of the `texts`.
    pub(super) fn texts(&self, texts: &[String]) -> Vec<String> {
        texts.iter().map(|text| self.text(text)).collect()
    }
}
