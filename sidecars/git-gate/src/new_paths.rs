//! Checks the paths of the entries that a push adds, and records the paths with which the contents of the files are
//! scanned.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bottle_protocol::secret_files::{is_secret_file, normalized};
use bottle_scan::Scanner;

use crate::archives::split;
use crate::findings::{Found, Location, PushFindings};
use crate::new_entries::NewEntry;
use crate::push_limits::{MOST_NAMED, MOST_PATH_BYTES};
use crate::read_error::{ReadError, blocking, display_path};
use crate::tree_index::{EntryKind, Id, Seen};

/// The maximum number of additional paths of files in one push. A file is scanned once more for each additional path. A
/// push with more paths is refused.
const MOST_AGAIN: usize = 100_000;

/// The number of bytes of paths that are scanned together.
const PATHS_AT_ONCE: usize = 64 << 10;

/// The commit and the path of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The commit that added the path. `None` if the push contains the tree without a commit.
    pub(crate) commit: Option<Arc<str>>,
    pub(crate) path: Box<[u8]>,
}

impl Place {
    /// Returns the location of a finding in the object. `id` is the id of the object. `inside` is appended to the path.
    pub(crate) fn location(&self, id: &str, inside: &str) -> Location {
        let commit = self.commit.as_deref().map(str::to_owned);
        Location::new(commit, format!("{}{inside}", display_path(&self.path, id)))
    }
}

/// A file with a name that indicates secrets: the directory, the file name, and the id of the object.
pub(crate) type SecretFile = (Box<[u8]>, Box<[u8]>, Id);

/// The paths that a push adds.
pub(crate) struct NewPaths<'r> {
    scanner: &'r Scanner,
    /// Whether the user has rules, which can depend on the path of a file.
    has_rules: bool,
    /// The ids of all new objects.
    new: &'r HashSet<Id>,
    /// The number of bytes in an object id.
    width: usize,
    /// The first path of each new file.
    pub(crate) first: HashMap<Id, Place>,
    /// Further paths of new files, and new paths of files that the upstream already has. Different user-defined rules
    /// may apply to these paths.
    pub(crate) again: Vec<(Id, Place)>,
    /// The files with names that indicate secrets.
    pub(crate) secret_files: HashMap<SecretFile, Place>,
    /// The files that git reads as `.gitmodules`.
    pub(crate) gitmodules: HashSet<Id>,
    /// The total length in bytes of all paths in `first` and `again`.
    kept: usize,
    /// The paths that are not scanned yet, one path on each line. Paths with only one component are left out.
    text: Vec<u8>,
    /// The end of each line in `text`, and the commit of the path on the line.
    lines: Vec<(u64, Option<Arc<str>>)>,
    /// The entries that have already been passed to `add`.
    seen: Seen,
}

impl<'r> NewPaths<'r> {
    pub(crate) fn new(scanner: &'r Scanner, has_rules: bool, new: &'r HashSet<Id>, width: usize) -> Self {
        Self {
            scanner,
            has_rules,
            new,
            width,
            first: HashMap::new(),
            again: Vec::new(),
            secret_files: HashMap::new(),
            gitmodules: HashSet::new(),
            kept: 0,
            text: Vec::new(),
            lines: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Checks and records one entry.
    pub(crate) fn add(&mut self, entry: NewEntry, findings: &mut PushFindings) -> Result<(), ReadError> {
        let NewEntry { commit, kind, id, path } = entry;
        if !self.seen.is_first((kind, &path, id)) {
            return Ok(());
        }
        let place = Place { commit, path: path.into() };
        let (directory, name) = split(&place.path);
        if is_secret_file(directory, name) {
            self.secret_files.entry((directory.into(), name.into(), id)).or_insert_with(|| place.clone());
            if self.secret_files.len() > MOST_NAMED {
                return Err(ReadError::SecretFiles);
            }
        }
        self.apply_name_rules(&place, &id, findings);
        if !directory.is_empty() {
            self.text.extend_from_slice(&place.path);
            self.text.push(b'\n');
            self.lines.push((self.text.len() as u64, place.commit.clone()));
            if self.text.len() > PATHS_AT_ONCE {
                self.scan_paths(findings)?;
            }
        }
        if kind != EntryKind::File {
            return Ok(());
        }
        let is_gitmodules = normalized(name) == ".gitmodules";
        if is_gitmodules {
            self.gitmodules.insert(id);
        }
        let is_first = self.new.contains(&id) && !self.first.contains_key(&id);
        if !is_first && !self.has_rules && !is_gitmodules {
            return Ok(());
        }
        self.kept += place.path.len();
        if self.kept > MOST_PATH_BYTES {
            return Err(ReadError::PathBytes);
        }
        if is_first {
            self.first.insert(id, place);
            return Ok(());
        }
        self.again.push((id, place));
        if self.again.len() > MOST_AGAIN { Err(ReadError::Paths) } else { Ok(()) }
    }

    /// Scans the paths that are not scanned yet. Only findings that contain a slash are reported, because the single
    /// names are scanned with the trees. Many credentials contain slashes.
    pub(crate) fn scan_paths(&mut self, findings: &mut PushFindings) -> Result<(), ReadError> {
        let (text, lines) = (std::mem::take(&mut self.text), std::mem::take(&mut self.lines));
        let what = "the path of a file";
        for finding in blocking(self.scanner.scan(&text), what)? {
            let value = &text[finding.span.within(text.len())];
            if value.contains(&b'/') {
                let line = lines.partition_point(|(end, _)| *end <= finding.span.start);
                let commit = lines.get(line).and_then(|(_, commit)| commit.as_deref());
                let location = Location::new(commit.map(str::to_owned), what.to_owned());
                findings.add(Found::from_scan(&finding, location, value));
            }
        }
        Ok(())
    }

    /// Applies the user-defined rules that check only file names.
    fn apply_name_rules(&self, place: &Place, id: &Id, findings: &mut PushFindings) {
        if !self.has_rules {
            return;
        }
        let id = hex::encode(&id[..self.width]);
        for (rule, _) in self.scanner.of_name(&String::from_utf8_lossy(&place.path)) {
            let words = format!("a file whose name matches your rule `{rule}`");
            findings.add(Found::from_name(rule, &words, place.location(&id, ""), id.as_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use bottle_scan::KnownSecrets;

    use super::*;
    use crate::push_limits::LONGEST_PATH;
    use crate::tree_index::id_from_bytes;

    #[test]
    fn the_paths_that_are_kept_have_a_bound() {
        let scanner = Scanner::outbound(Arc::new(KnownSecrets::new([]).expect("secrets")));
        let most = 10;
        let id = |number: usize| id_from_bytes(&number.to_be_bytes());
        let new: HashSet<Id> = (0..=most).map(id).collect();
        let kept = MOST_PATH_BYTES - most * LONGEST_PATH;
        let mut paths = NewPaths { kept, ..NewPaths::new(&scanner, false, &new, 20) };
        let mut add = |number: usize| {
            let entry = NewEntry {
                commit: None,
                kind: EntryKind::File,
                id: id(number),
                path: vec![b'a'; LONGEST_PATH],
            };
            paths.add(entry, &mut PushFindings::default())
        };
        for number in 0..most {
            add(number).expect("within the bound");
        }
        // A path that was already added, and a path of a file that is not new, do not count.
        for number in [0, most + 1] {
            add(number).expect("nothing more");
        }
        let refused = add(most);
        assert!(matches!(refused, Err(ReadError::PathBytes)), "{refused:?}");
    }
}
