//! Masks the secrets of a bottle in texts that the keeper shows or stores.

use std::fmt;
use std::sync::Arc;

use bottle_policy::secret::Secret;
use bottle_scan::Redactor;

/// The text that replaces a text that cannot be redacted.
const UNREDACTED: &str = "[not shown: it cannot be redacted]";

/// Masks the secrets that the keeper knows. Clones share the search tables.
#[derive(Clone)]
pub(super) struct Mask(Option<Arc<Redactor>>);

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mask").finish_non_exhaustive()
    }
}

impl Mask {
    /// Prepares the mask for `secrets`. If their search tables would be too large, the mask replaces every text.
    pub(super) fn new(secrets: &[Secret]) -> Self {
        Self(Redactor::new(secrets).ok().map(Arc::new))
    }

    /// Replaces every secret in `text`.
    pub(super) fn text(&self, text: &str) -> String {
        match &self.0 {
            Some(redactor) => redactor.redact(text).into_owned(),
            None => UNREDACTED.to_owned(),
        }
    }

    /// Replaces every secret in each of the `texts`.
    pub(super) fn texts(&self, texts: &[String]) -> Vec<String> {
        texts.iter().map(|text| self.text(text)).collect()
    }
}
