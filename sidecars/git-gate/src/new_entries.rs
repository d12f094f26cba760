//! Lists the entries that the commits of a push add. A commit adds an entry if no parent of the commit has the same
//! object and type at the same path. An entry is new even if the upstream has its object under another path.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::new_objects::Kind;
use crate::push_limits::{LISTED_WITHIN, LONGEST_PATH, MOST_ENTRIES};
use crate::push_reader::Reader;
use crate::read_error::ReadError;
use crate::refs::Update;
use crate::tree_index::{EntryKind, Id, id_from_hex};

/// The maximum length in bytes of a line that git prints. A line contains a path and its prefix, or the modes and ids
/// of a merge.
const LONGEST_LINE: u64 = 64 << 10;

/// The number of commit ids that are written to git in one step.
const IDS_AT_ONCE: usize = 1000;

/// An entry that a commit adds, other than a tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewEntry {
    /// The commit. `None` if the push contains the tree without a commit.
    pub(crate) commit: Option<Arc<str>>,
    pub(crate) kind: EntryKind,
    pub(crate) id: Id,
    /// The path from the root of the tree.
    pub(crate) path: Vec<u8>,
}

impl Reader<'_> {
    /// Calls `each` for all entries that the commits in `new` add, and for all entries of trees that `updates` name
    /// without a commit.
    pub(crate) async fn new_entries(
        &self,
        new: &[(Kind, String)],
        updates: &[Update],
        mut each: impl FnMut(NewEntry) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut count = 0;
        let mut counted = |entry: NewEntry| {
            count += 1;
            match entry {
                _ if count > MOST_ENTRIES => Err(ReadError::Entries),
                NewEntry { ref path, .. } if path.len() > LONGEST_PATH => Err(ReadError::LongPath),
                entry => each(entry),
            }
        };
        let commits: Vec<&str> =
            new.iter().filter(|(kind, _)| *kind == Kind::Commit).map(|(_, id)| id.as_str()).collect();
        let listed = async {
            self.changes(&commits, &mut counted).await?;
            for tree in self.bare_trees(new, updates).await? {
                self.tree_entries(&tree, &mut counted).await?;
            }
            Ok(())
        };
        tokio::time::timeout(LISTED_WITHIN, listed).await.map_err(|_| ReadError::Timeout)?
    }

    /// Lists the changes of commits. For a merge, lists only the entries that differ from all parents, because the
    /// other entries are already in another commit of the push or in the upstream.
    async fn changes(
        &self,
        commits: &[&str],
        each: &mut impl FnMut(NewEntry) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let arguments = ["diff-tree", "--stdin", "-r", "-c", "--root", "-z", "--raw", "--no-renames"];
        let mut running = self.with_quarantine().spawn(self.fds, &arguments, true)?;
        let (Some(mut stdin), Some(stdout)) = (running.child.stdin.take(), running.child.stdout.take())
        else {
            return Err(ReadError::Output(LIST));
        };
        let feed = async {
            for ids in commits.chunks(IDS_AT_ONCE) {
                let lines: String = ids.iter().flat_map(|id| [id, "\n"]).collect();
                // The error is ignored: if git does not read all of its input, its exit code gives the reason.
                let _ = stdin.write_all(lines.as_bytes()).await;
            }
            drop(stdin);
            Ok::<_, ReadError>(())
        };
        let mut stdout = BufReader::new(stdout);
        let read = async {
            let mut commit = None;
            while let Some(line) = token(&mut stdout).await? {
                if !line.starts_with(b":") {
                    commit = Some(Arc::from(String::from_utf8_lossy(&line)));
                    continue;
                }
                let path = token(&mut stdout).await?.ok_or(ReadError::Output(LIST))?;
                let Some((mode, id)) = change(&line).ok_or(ReadError::Output(LIST))? else { continue };
                let kind = EntryKind::parse(mode).ok_or_else(|| ReadError::mode(mode, &path))?;
                each(NewEntry { commit: commit.clone(), kind, id, path })?;
            }
            Ok(())
        };
        // `try_join!` ends both futures at the first error: if nobody reads git's output, git stops reading its input.
        tokio::try_join!(feed, read)?;
        if running.child.wait().await?.success() { Ok(()) } else { Err(ReadError::Output(LIST)) }
    }

    /// Returns the trees that `updates` name without a commit, directly or through tags.
    async fn bare_trees(&self, new: &[(Kind, String)], updates: &[Update]) -> Result<Vec<String>, ReadError> {
        let commits: HashSet<&str> =
            new.iter().filter(|(kind, _)| *kind == Kind::Commit).map(|(_, id)| id.as_str()).collect();
        let others = updates.iter().filter(|update| !update.deletes());
        let others = others.filter(|update| !commits.contains(update.new.as_str()));
        let peeled: Vec<String> = others.map(|update| format!("{}^{{}}", update.new)).collect();
        if peeled.is_empty() {
            return Ok(Vec::new());
        }
        let peeled: HashSet<&str> = peeled.iter().map(String::as_str).collect();
        let listed = self.existing(&self.with_quarantine(), &peeled).await?;
        Ok(listed.into_iter().filter(|(kind, _)| *kind == Kind::Tree).map(|(_, id)| id).collect())
    }

    /// Lists all entries of a tree.
    async fn tree_entries(
        &self,
        tree: &str,
        each: &mut impl FnMut(NewEntry) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut running =
            self.with_quarantine().spawn(self.fds, &["ls-tree", "-r", "-z", "--full-tree", tree], false)?;
        let stdout = running.child.stdout.take().ok_or(ReadError::Output(LIST))?;
        let mut stdout = BufReader::new(stdout);
        while let Some(line) = token(&mut stdout).await? {
            let tab = line.iter().position(|byte| *byte == b'\t').ok_or(ReadError::Output(LIST))?;
            let (head, path) = (&line[..tab], &line[tab + 1..]);
            let mut words = head.split(|byte| *byte == b' ');
            let (mode, id) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
            let id = std::str::from_utf8(id).ok().and_then(id_from_hex).ok_or(ReadError::Output(LIST))?;
            let kind = EntryKind::parse(mode).ok_or_else(|| ReadError::mode(mode, path))?;
            each(NewEntry { commit: None, kind, id, path: path.to_vec() })?;
        }
        if running.child.wait().await?.success() { Ok(()) } else { Err(ReadError::Output(LIST)) }
    }
}

const LIST: &str = "list the files of the push";

/// Reads up to the next zero byte. Returns `None` at the end of the output.
async fn token(stdout: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Vec<u8>>, ReadError> {
    let mut line = Vec::new();
    stdout.take(LONGEST_LINE).read_until(0, &mut line).await?;
    match line.pop() {
        None => Ok(None),
        Some(0) => Ok(Some(line)),
        Some(_) if line.len() as u64 + 1 >= LONGEST_LINE => Err(ReadError::LongPath),
        Some(_) => Err(ReadError::Output(LIST)),
    }
}

/// Parses a line of git's raw format (git-diff-tree(1), "raw output format"): one colon, mode and id for each parent,
/// then the mode and the id of the commit. The outer `None` means a malformed line, and the inner `None` a deletion.
#[allow(clippy::option_option, reason = "malformed, deleted or present")]
fn change(line: &[u8]) -> Option<Option<(&[u8], Id)>> {
    let parents = line.iter().take_while(|byte| **byte == b':').count();
    let mut words = line.get(parents..)?.split(|byte| *byte == b' ');
    let mode = words.nth(parents)?;
    let id = id_from_hex(std::str::from_utf8(words.nth(parents)?).ok()?)?;
    Some((mode != b"000000").then_some((mode, id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_changes_of_commits_and_merges() {
        let (zero, one, two) = ("0".repeat(40), "1".repeat(40), "2".repeat(40));
        let parsed = |line: String| {
            change(line.as_bytes()).map(|change| change.map(|(mode, id)| (mode.to_vec(), id[0])))
        };
        let file = Some(Some((b"100644".to_vec(), 0x22)));
        assert_eq!(parsed(format!(":000000 100644 {zero} {two} A")), file);
        assert_eq!(parsed(format!("::100644 120000 100644 {one} {zero} {two} MM")), file);
        assert_eq!(parsed(format!(":100644 000000 {one} {zero} D")), Some(None));
        for line in ["", ":", "::100644", ":100644 100644 zz zz M"] {
            assert_eq!(parsed(line.to_owned()), None, "{line}");
        }
    }
}
