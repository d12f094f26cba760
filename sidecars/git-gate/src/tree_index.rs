//! Indexes new trees, so that the scan can find the commit for a name in a new tree.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};

use bottle_scan::Finding;

use crate::push_limits::MOST_GITLINKS;
use crate::read_error::ReadError;

/// The maximum depth of a tree below the root tree of its commit. The commit of a deeper tree is not found.
const DEEPEST: usize = 512;

/// The maximum number of tree entries that the cache of scanned entries contains. Any further entry is scanned again in
/// each tree that contains it.
pub(crate) const MOST_SEEN: usize = 1 << 20;

/// An object id, padded with zeros to 32 bytes.
pub(crate) type Id = [u8; 32];

/// The type of a tree entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum EntryKind {
    Tree,
    /// A file or a symbolic link. Its content is a blob.
    File,
    /// A submodule. The object id is a commit that the repository does not contain.
    Gitlink,
}

impl EntryKind {
    /// Parses the mode of a tree entry, with or without leading zeros. Accepts the modes that git writes, and the mode
    /// that old versions wrote for group-writable files. Returns `None` for any other mode.
    pub(crate) fn parse(mode: &[u8]) -> Option<Self> {
        let begin = mode.iter().position(|digit| *digit != b'0')?;
        match &mode[begin..] {
            b"40000" => Some(Self::Tree),
            b"100644" | b"100755" | b"100664" | b"120000" => Some(Self::File),
            b"160000" => Some(Self::Gitlink),
            _ => None,
        }
    }
}

/// Maps new trees to the trees and commits that contain them. Also collects the names with findings and the commit ids
/// of submodules.
#[derive(Default)]
pub(crate) struct TreeIndex {
    /// Maps each new tree to a tree that contains it.
    pub(crate) parents: HashMap<Id, Id>,
    /// Maps each root tree to its commit.
    pub(crate) roots: HashMap<Id, Id>,
    /// The names with findings, each with a tree that contains the name.
    pub(crate) flagged_names: HashMap<Box<[u8]>, (Id, Vec<Finding>)>,
    /// The concatenated commit ids of submodules, in the order of the trees. The repository does not contain these
    /// commits, so the ids could be any bytes.
    gitlinks: Vec<u8>,
    /// The number of bytes in an object id.
    pub(crate) width: usize,
    /// The scanned entries except submodules.
    seen: Seen,
    /// The submodule entries. There are fewer than [`MOST_SEEN`] of them, so no entry is added to `gitlinks` twice.
    seen_gitlinks: Seen,
}

/// A cache of hashes of the first [`MOST_SEEN`] entries. The hash has a random key, so an attacker cannot produce
/// collisions.
#[derive(Default)]
pub(crate) struct Seen {
    hashes: HashSet<u64>,
    state: RandomState,
}

impl Seen {
    /// Adds an entry to the cache if the cache is not full. Returns whether the cache did not contain the entry.
    pub(crate) fn is_first(&mut self, entry: impl Hash) -> bool {
        let hash = self.state.hash_one(entry);
        if self.hashes.len() < MOST_SEEN { self.hashes.insert(hash) } else { !self.hashes.contains(&hash) }
    }
}

impl TreeIndex {
    /// Creates an empty index for a repository with object ids of `width` bytes.
    pub(crate) fn new(width: usize) -> Self {
        Self { width, ..Self::default() }
    }

    /// Returns whether no earlier tree contained this entry. Most entries of a tree are also in the previous version of
    /// the tree. If the entry is a submodule, adds its commit id to `gitlinks`.
    ///
    /// # Errors
    /// Fails with [`ReadError::Gitlinks`] if the push has more than [`MOST_GITLINKS`] submodule entries.
    pub(crate) fn is_first_seen(
        &mut self,
        kind: EntryKind,
        name: &[u8],
        child: &[u8],
    ) -> Result<bool, ReadError> {
        if kind != EntryKind::Gitlink {
            return Ok(self.seen.is_first((kind, name, child)));
        }
        if !self.seen_gitlinks.is_first((name, child)) {
            return Ok(false);
        }
        if self.gitlinks.len() >= MOST_GITLINKS * self.width {
            return Err(ReadError::Gitlinks);
        }
        self.gitlinks.extend_from_slice(child);
        Ok(true)
    }

    /// Adds a finding in a name. A further finding of the same rule and known secret only adds its pieces to the first
    /// finding.
    pub(crate) fn flag_name(&mut self, tree: Id, name: &[u8], finding: Finding) {
        let (_, flagged) = self.flagged_names.entry(name.into()).or_insert_with(|| (tree, Vec::new()));
        let same = |other: &&mut Finding| other.rule == finding.rule && other.secret == finding.secret;
        match flagged.iter_mut().find(same) {
            Some(other) => other.pieces.add(&finding.pieces),
            None => flagged.push(finding),
        }
    }

    /// Returns the concatenated commit ids of submodules.
    pub(crate) fn gitlinks(&self) -> &[u8] {
        &self.gitlinks
    }

    pub(crate) fn commit(&self, tree: &Id) -> Option<String> {
        let mut at = *tree;
        for _ in 0..DEEPEST {
            if let Some(commit) = self.roots.get(&at) {
                return Some(hex::encode(&commit[..self.width.clamp(20, 32)]));
            }
            at = *self.parents.get(&at)?;
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

/// Converts the bytes of an object id to an [`Id`].
pub(crate) fn id_from_bytes(bytes: &[u8]) -> Id {
    let mut id = [0; 32];
    for (to, from) in id.iter_mut().zip(bytes) {
        *to = *from;
    }
    id
}

/// Parses a tree. Each entry has a mode, a name, and an object id. git's fsck has already refused malformed trees.
pub(crate) fn entries(mut bytes: &[u8], width: usize) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        let mode = &bytes[..space];
        let rest = &bytes[space + 1..];
        let end = rest.iter().position(|byte| *byte == 0)?;
        let object = rest.get(end + 1..end + 1 + width)?;
        bytes = &rest[end + 1 + width..];
        Some((mode, &rest[..end], object))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_entries_and_skips_seen_ones() {
        let of =
            |mode: &str, name: &str, byte: u8| [format!("{mode} {name}\0").as_bytes(), &[byte; 20]].concat();
        let entry = |name: &str, byte: u8| of("100644", name, byte);
        let tree = [entry("a", 1), entry("b c", 2)].concat();
        let mut index = TreeIndex::new(20);
        let mut new = |tree: &[u8]| -> Vec<String> {
            let all: Vec<_> = entries(tree, 20).collect();
            let new = all.into_iter().filter(|(mode, name, child)| {
                index.is_first_seen(EntryKind::parse(mode).expect("a mode"), name, child).expect("few")
            });
            new.map(|(_, name, child)| {
                format!("{} {}", String::from_utf8_lossy(name), id_from_bytes(child)[0])
            })
            .collect()
        };
        assert_eq!(new(&tree), ["a 1", "b c 2"]);
        assert_eq!(new(&[tree.clone(), entry("a", 3), entry("d", 1)].concat()), ["a 3", "d 1"]);
        // A directory and a submodule with the same id are different entries.
        assert_eq!(new(&[of("160000", "e", 4), of("40000", "e", 4)].concat()), ["e 4", "e 4"]);
        for cut in 1..tree.len() {
            assert!(new(&tree[..cut]).is_empty(), "{cut}");
        }
    }

    #[test]
    fn the_ids_of_submodules_are_bounded() {
        let mut index = TreeIndex::new(20);
        let id = |number: usize| id_from_bytes(&number.to_be_bytes());
        for number in 0..=MOST_SEEN {
            index.is_first_seen(EntryKind::File, b"a", &id(number)[..20]).expect("a file");
        }
        // When the cache is full, files are scanned again, but the ids of submodules are not collected again.
        for _ in 0..2 {
            for number in 0..MOST_GITLINKS {
                index.is_first_seen(EntryKind::Gitlink, b"a", &id(number)[..20]).expect("a submodule");
            }
        }
        assert_eq!(index.gitlinks().len(), MOST_GITLINKS * 20);
        for name in [&b"b"[..], b"c"] {
            let refused = index.is_first_seen(EntryKind::Gitlink, name, &id(0)[..20]);
            assert!(matches!(refused, Err(ReadError::Gitlinks)), "{refused:?}");
        }
        assert_eq!(index.gitlinks().len(), MOST_GITLINKS * 20);
    }

    #[test]
    fn knows_the_modes_that_git_writes() {
        for (mode, kind) in [
            ("40000", Some(EntryKind::Tree)),
            ("040000", Some(EntryKind::Tree)),
            ("100644", Some(EntryKind::File)),
            ("0100755", Some(EntryKind::File)),
            ("100664", Some(EntryKind::File)),
            ("120000", Some(EntryKind::File)),
            ("160000", Some(EntryKind::Gitlink)),
            // git reads some of these modes as directories, files or submodules.
            ("40755", None),
            ("240000", None),
            ("100600", None),
            ("104755", None),
            ("140000", None),
            ("160644", None),
            ("0", None),
            ("", None),
            ("+40000", None),
            ("7777777777777777", None),
        ] {
            assert_eq!(EntryKind::parse(mode.as_bytes()), kind, "{mode}");
        }
    }
}
