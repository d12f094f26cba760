//! Which new tree holds which new object, so that a blob has a path and a commit.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use bottle_scan::Finding;

/// The longest way from a commit's root that is followed.
const DEEPEST: usize = 512;

/// Entries that are known again. Past it they are looked at anew in each tree.
const MOST_SEEN: usize = 1 << 20;

/// The name of an object, with zeros behind it where it is short.
pub(crate) type Id = [u8; 32];

/// Something in a tree: the folder where it counts, its name, and what it is.
pub(crate) type Entry = (Box<[u8]>, Box<[u8]>, Id);

/// Who is in whom, of new trees.
#[derive(Default)]
pub(crate) struct Family {
    pub(crate) parents: HashMap<Id, (Id, Box<[u8]>)>,
    pub(crate) roots: HashMap<Id, Id>,
    /// Names in which something was found, each with a tree that has it.
    pub(crate) named: HashMap<Box<[u8]>, (Id, Finding)>,
    /// Entries that hold secrets by their name, with a tree that has them.
    pub(crate) files: HashMap<Entry, Id>,
    /// Folders whose files are judged by where they are, with a tree that has them.
    pub(crate) places: HashMap<(Box<[u8]>, Id), Id>,
    /// Bytes of an id.
    pub(crate) width: usize,
    /// Entries of trees, by a hash with a key of this process, so that nobody makes two of one.
    seen: HashSet<u64>,
    hashes: RandomState,
}

impl Family {
    /// Whether no tree had this entry before: most of a tree are those of the one that it came from.
    pub(crate) fn is_news(&mut self, name: &[u8], child: &[u8]) -> bool {
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

/// The name of an object from its hexadecimal digits.
pub(crate) fn id_of(hex: &str) -> Option<Id> {
    let mut id = [0; 32];
    hex::decode_to_slice(hex, id.get_mut(..hex.len() / 2)?).ok()?;
    Some(id)
}

/// The same from its bytes.
pub(crate) fn id_from(bytes: &[u8]) -> Id {
    let mut id = [0; 32];
    for (to, from) in id.iter_mut().zip(bytes) {
        *to = *from;
    }
    id
}

/// Names and objects of a tree, and whether each is a folder. What does not parse was refused by git's own check.
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

/// Whether a mode is a folder's to git, which reads octal digits, takes the bits of the kind and lets the others be what
/// they are (`40755`).
fn is_folder(mode: &[u8]) -> bool {
    let digit = |mode: u32, byte: &u8| (mode << 3).wrapping_add(u32::from(byte.wrapping_sub(b'0')));
    mode.iter().fold(0, digit) & 0o170_000 == 0o40_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_tree_and_which_of_them_are_news() {
        let entry = |name: &str, byte: u8| [format!("100644 {name}\0").as_bytes(), &[byte; 20]].concat();
        let tree = [entry("a", 1), entry("b c", 2)].concat();
        let mut family = Family::default();
        let mut news = |tree: &[u8]| -> Vec<String> {
            let all: Vec<_> = entries(tree, 20).collect();
            let news = all.into_iter().filter(|(name, child, _)| family.is_news(name, child));
            news.map(|(name, child, _)| format!("{} {}", String::from_utf8_lossy(name), id_from(child)[0]))
                .collect()
        };
        assert_eq!(news(&tree), ["a 1", "b c 2"]);
        assert_eq!(news(&[tree.clone(), entry("a", 3), entry("d", 1)].concat()), ["a 3", "d 1"]);
        for cut in 1..tree.len() {
            assert!(news(&tree[..cut]).is_empty(), "{cut}");
        }
    }

    #[test]
    fn folders_are_those_that_git_takes_for_one() {
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
