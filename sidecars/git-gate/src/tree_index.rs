//! Indexes new trees, to find the path and commit of a new blob.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use bottle_scan::Finding;

/// Most levels from a commit's root tree.
const DEEPEST: usize = 512;

/// Most entries in the cache of seen ones. Others are scanned again in each tree.
const MOST_SEEN: usize = 1 << 20;

/// An object id, padded with zeros to 32 bytes.
pub(crate) type Id = [u8; 32];

/// A tree entry: its folder if the rule depends on it, its name, and its object.
pub(crate) type Entry = (Box<[u8]>, Box<[u8]>, Id);

/// Parents of new objects, and entries with findings.
#[derive(Default)]
pub(crate) struct TreeIndex {
    /// Tree and name of each new object.
    pub(crate) parents: HashMap<Id, (Id, Box<[u8]>)>,
    /// Commit of each root tree.
    pub(crate) roots: HashMap<Id, Id>,
    /// Names with a finding, each with a tree that has it.
    pub(crate) flagged_names: HashMap<Box<[u8]>, (Id, Finding)>,
    /// Entries that hold secrets by their name, each with a tree that has it.
    pub(crate) secret_files: HashMap<Entry, Id>,
    /// Folders on whose name a rule depends, each with a tree that has it.
    pub(crate) secret_folders: HashMap<(Box<[u8]>, Id), Id>,
    /// Bytes of an id.
    pub(crate) width: usize,
    /// Seen entries, by a hash with a random key: an attacker cannot produce collisions.
    seen: HashSet<u64>,
    hashes: RandomState,
}

impl TreeIndex {
    /// Whether no earlier tree had this entry: a tree shares most entries with its previous version.
    pub(crate) fn is_first_seen(&mut self, name: &[u8], child: &[u8]) -> bool {
        let hash = self.hashes.hash_one((name, child));
        if self.seen.len() < MOST_SEEN { self.seen.insert(hash) } else { !self.seen.contains(&hash) }
    }

    /// The commit and path of a new object.
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

/// An object id from its bytes.
pub(crate) fn id_from_bytes(bytes: &[u8]) -> Id {
    let mut id = [0; 32];
    for (to, from) in id.iter_mut().zip(bytes) {
        *to = *from;
    }
    id
}

/// Parses a tree: name and object of each entry, and whether it is a folder. git's fsck has refused
/// malformed trees.
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

/// Whether git takes a mode for a folder. git parses octal digits and compares only the type bits
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
