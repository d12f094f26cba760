//! The content of `bottle/digests`: the digest of each entry of an archive, as the text that is signed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bottle_backend::portable_image::Digest;

use super::bad_archive::shortened;

/// The digests of an archive's entries, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Digests(BTreeMap<String, Digest>);

impl Digests {
    /// Adds an entry. Returns false if it was added before.
    pub(super) fn add(&mut self, name: &str, digest: Digest) -> bool {
        self.0.insert(name.to_owned(), digest).is_none()
    }

    /// Returns the text of the file: a line for each entry, sorted by name, in the format of `sha256sum`.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (name, digest) in &self.0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}  {name}", digest.digits());
        }
        text
    }

    /// Describes the first difference between these digests and the content of a file `bottle/digests`. `None` if the
    /// content is equal to the text of these digests.
    pub(super) fn difference(&self, list: &[u8]) -> Option<String> {
        if self.text().as_bytes() == list {
            return None;
        }
        let list = String::from_utf8_lossy(list);
        let listed: BTreeMap<&str, &str> = list
            .lines()
            .filter_map(|line| line.split_once("  "))
            .map(|(digits, name)| (name, digits))
            .collect();
        for (name, digest) in &self.0 {
            match listed.get(&**name) {
                Some(digits) if *digits == digest.digits() => {}
                Some(_) => return Some(format!("its entry {name:?} does not match its list of digests")),
                None => return Some(format!("its entry {name:?} is not in its list of digests")),
            }
        }
        Some(match listed.keys().find(|name| !self.0.contains_key(**name)) {
            Some(name) => format!("its list of digests names {:?}, which is missing", shortened(name)),
            None => "its list of digests is damaged".to_owned(),
        })
    }

    /// Returns the digests, by name.
    pub(super) fn entries(&self) -> &BTreeMap<String, Digest> {
        &self.0
    }
}
