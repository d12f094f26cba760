//! Indexes new trees, so that the path and the commit of a new blob can be found.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use bottle_scan::Finding;

/// The maximum depth of a path below a commit's root tree. Of a deeper path, only the last components are
/// reported.
const DEEPEST: usize = 512;

/// The maximum number of tree entries that are remembered as scanned. Any further entry is scanned again in
/// each tree that contains it.
const MOST_SEEN: usize = 1 << 20;

/// An object id, padded with zeros to 32 bytes.
pub(crate) type Id = [u8; 32];

/// A tree entry: its folder if a rule depends on the folder, its name, and its object id.
pub(crate) type Entry = (Box<[u8]>, Box<[u8]>, Id);

/// Maps new objects to the trees and commits that contain them, and collects entries with findings.
#[derive(Default)]
pub(crate) struct TreeIndex {
    /// For each new object: a tree that contains it, and its name there.
    pub(crate) parents: HashMap<Id, (Id, Box<[u8]>)>,
    /// For each root tree: its commit.
    pub(crate) roots: HashMap<Id, Id>,
    /// The names with a finding, each with a tree that contains the name.
    pub(crate) flagged_names: HashMap<Box<[u8]>, (Id, Finding)>,
    /// The entries whose names indicate secrets, each with a tree that contains the entry.
    pub(crate) secret_files: HashMap<Entry, Id>,
    /// The folders to which a rule for names applies, each with a tree that contains the folder.
    pub(crate) secret_folders: HashMap<(Box<[u8]>, Id), Id>,
    /// The number of bytes in an object id.
    pub(crate) width: usize,
    /// Hashes of scanned entries. The hash has a random key, so an attacker cannot produce collisions.
    seen: HashSet<u64>,
    hashes: RandomState,
}

impl TreeIndex {
    /// Whether no earlier tree contained this entry. Most entries of a tree are also in its previous version.
    pub(crate) fn is_first_seen(&mut self, name: &[u8], child: &[u8]) -> bool {
        let hash = self.hashes.hash_one((name, child));
        if self.seen.len() < MOST_SEEN { self.seen.insert(hash) } else { !self.seen.contains(&hash) }
    }

    /// The commit of a new object, and its path in that commit.
    pub(crate) fn path(&self, id: &Id) -> (Option<String>, Vec<u8>) {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = *id;
        while let Some((parent, name)) = self.parents.get(&at) {
            names.push(name);
            at = *parent;
            if names.len() > DEEPEST {
                break;
            }
        }
        names.reverse();
        (self.commit(&at), names.join(&b'/'))
    }

    pub(crate) fn commit(&self, tree: &Id) -> Option<String> {
        let mut at = *tree;
        for _ in 0..DEEPEST {
            if let Some(commit) = self.roots.get(&at) {
                return Some(hex::encode(&commit[..self.width.clamp(20, 32)]));
            }
            at = self.parents.get(&at)?.0;
        }
        None
    }
}

/// Parses an object id from hexadecimal digits.
pub(crate) fn id_from_hex(hex: &str) -> Option<Id> {
    let mut id = [0; 32];
    hex::decode_to_slice(hex, id.get_mut(..hex.len() / 2)?).ok()?;
    Some(id)
}

/// Converts the bytes of an object id.
pub(crate) fn id_from_bytes(bytes: &[u8]) -> Id {
    let mut id = [0; 32];
    for (to, from) in id.iter_mut().zip(bytes) {
        *to = *from;
    }
    id
}

/// Parses a tree. Each entry has a name, an object id, and whether it is a folder. git's fsck has already
/// refused malformed trees.
pub(crate) fn entries(mut bytes: &[u8], width: usize) -> impl Iterator<Item = (&[u8], &[u8], bool)> {
    std::iter::from_fn(move || {
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        let is_folder = is_folder(&bytes[..space]);
        let rest = &bytes[space + 1..];
        let end = rest.iter().position(|byte| *byte == 0)?;
        let object = rest.get(end + 1..end + 1 + width)?;
        bytes = &rest[end + 1 + width..];
        Some((&rest[..end], object, is_folder))
    })
}

/// Whether git treats a mode as that of a folder. git parses octal digits and compares only the type bits
/// (`40755` is a folder).
fn is_folder(mode: &[u8]) -> bool {
    let digit = |mode: u32, byte: &u8| (mode << 3).wrapping_add(u32::from(byte.wrapping_sub(b'0')));
    mode.iter().fold(0, digit) & 0o170_000 == 0o40_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_entries_and_skips_seen_ones() {
        let entry = |name: &str, byte: u8| [format!("100644 {name}\0").as_bytes(), &[byte; 20]].concat();
        let tree = [entry("a", 1), entry("b c", 2)].concat();
        let mut index = TreeIndex::default();
        let mut new = |tree: &[u8]| -> Vec<String> {
            let all: Vec<_> = entries(tree, 20).collect();
            let new = all.into_iter().filter(|(name, child, _)| index.is_first_seen(name, child));
            new.map(|(name, child, _)| {
                format!("{} {}", String::from_utf8_lossy(name), id_from_bytes(child)[0])
            })
            .collect()
        };
        assert_eq!(new(&tree), ["a 1", "b c 2"]);
        assert_eq!(new(&[tree.clone(), entry("a", 3), entry("d", 1)].concat()), ["a 3", "d 1"]);
        for cut in 1..tree.len() {
            assert!(new(&tree[..cut]).is_empty(), "{cut}");
        }
    }

    #[test]
    fn detects_folder_modes_as_git_does() {
        for (mode, folder) in [
            ("40000", true),
            ("040000", true),
            ("40755", true),
            ("240000", true),
            ("100644", false),
            ("120000", false),
            ("160000", false),
            ("140000", false),
            ("", false),
            ("7777777777777777", false),
        ] {
            assert_eq!(is_folder(mode.as_bytes()), folder, "{mode}");
        }
    }
}
