//! Which new tree holds which new object, so that a blob has a path and a commit.

use std::collections::HashMap;

use bottle_scan::Finding;

/// The longest way from a commit's root that is followed.
const DEEPEST: usize = 512;

/// The name of an object, with zeros behind it where it is short.
pub(crate) type Id = [u8; 32];

/// Who is in whom, of new trees.
#[derive(Default)]
pub(crate) struct Family {
    pub(crate) parents: HashMap<Id, (Id, Box<[u8]>)>,
    pub(crate) roots: HashMap<Id, Id>,
    /// Names in which something was found, each with a tree that has it.
    pub(crate) named: HashMap<Box<[u8]>, (Id, Finding)>,
    /// Bytes of an id.
    pub(crate) width: usize,
}

impl Family {
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

/// Names and objects of a tree. What does not parse was refused by git's own check.
pub(crate) fn entries(mut bytes: &[u8], width: usize) -> Vec<(&[u8], Id)> {
    let mut found = Vec::new();
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let rest = &bytes[space + 1..];
        let Some(end) = rest.iter().position(|byte| *byte == 0) else { break };
        let Some(object) = rest.get(end + 1..end + 1 + width) else { break };
        let mut id = [0; 32];
        id[..width].copy_from_slice(object);
        found.push((&rest[..end], id));
        bytes = &rest[end + 1 + width..];
    }
    found
}
