//! The content of `bottle/digests`: the digest of each entry of an archive, in a form that is signed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::backend::image::saved::Digest;

/// The digests of an archive's entries, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Digests(BTreeMap<String, Digest>);

impl Digests {
    /// Adds an entry. Returns false if it was added before.
    pub(super) fn add(&mut self, name: &str, digest: Digest) -> bool {
        self.0.insert(name.to_owned(), digest).is_none()
    }

    /// The text of the file: a line for each entry, sorted by name, as `sha256sum` writes it.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (name, digest) in &self.0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}  {name}", digest.digits());
        }
        text
    }

    /// The digests, by name.
    pub(super) fn entries(&self) -> &BTreeMap<String, Digest> {
        &self.0
    }
}
