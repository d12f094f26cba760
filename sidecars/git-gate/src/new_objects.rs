//! Lists the objects of a push that the upstream does not have yet.
//!
//! The upstream has all objects in the mirror's packs, because fetches and accepted pushes write packs. A
//! loose object in the mirror counts as new, because a client can make receive-pack write loose objects.

use std::collections::HashSet;

use crate::git::{Git, finish};
use crate::push_limits::{LISTED_WITHIN, MOST_OBJECTS};
use crate::push_reader::Reader;
use crate::read_error::ReadError;
use crate::refs::Update;

/// The name of an object directory in the mirror. The directory contains the mirror's packs and no loose objects, and
/// therefore only objects that the upstream has.
pub(crate) const KNOWN: &str = "known";

/// The type of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Commit,
    Tag,
    Tree,
    Blob,
}

impl Kind {
    /// Parses a line of the form `id kind`.
    fn parse_line(line: &str) -> Option<(Self, String)> {
        let (id, kind) = line.split_once(' ')?;
        let kind = match kind {
            "commit" => Self::Commit,
            "tag" => Self::Tag,
            "tree" => Self::Tree,
            "blob" => Self::Blob,
            _ => return None,
        };
        Some((kind, id.to_owned()))
    }
}

impl Reader<'_> {
    /// Lists the pushed objects that are not in the mirror's packs. Commits come first. Refuses objects that no pushed
    /// ref reaches, because the upstream would store these objects without showing them to anyone.
    pub(crate) async fn new_objects(&self, updates: &[Update]) -> Result<Vec<(Kind, String)>, ReadError> {
        let (quarantined, reachable) = tokio::try_join!(
            self.quarantined(),
            self.reachable(&["--objects", "--no-object-names"], updates)
        )?;
        let all: HashSet<&str> =
            quarantined.iter().map(|(_, id)| id.as_str()).chain(reachable.lines()).collect();
        let known = self.existing(&self.upstream_git(), &all).await?;
        let known: HashSet<&str> = known.iter().map(|(_, id)| id.as_str()).collect();
        let reachable: HashSet<&str> = reachable.lines().filter(|id| !known.contains(id)).collect();
        let mut new: Vec<(Kind, String)> =
            quarantined.into_iter().filter(|(_, id)| !known.contains(id.as_str())).collect();
        if let Some((_, id)) = new.iter().find(|(_, id)| !reachable.contains(id.as_str())) {
            return Err(ReadError::Unreachable(id.clone()));
        }
        if new.len() < reachable.len() {
            let listed: HashSet<&str> = new.iter().map(|(_, id)| id.as_str()).collect();
            let loose: HashSet<&str> = reachable.difference(&listed).copied().collect();
            let loose = self.existing(&self.with_quarantine(), &loose).await?;
            new.extend(loose);
        }
        // A stable sort keeps objects of one kind in the order of the pack. A delta and its base are therefore close
        // together, so git unpacks each base only once.
        new.sort_by_key(|(kind, _)| *kind);
        Ok(new)
    }

    /// Lists all objects in the quarantine in the order of the pack.
    async fn quarantined(&self) -> Result<Vec<(Kind, String)>, ReadError> {
        let alone = self.mirror.with_env([("GIT_OBJECT_DIRECTORY".to_owned(), self.quarantine.to_owned())]);
        let check = "--batch-check=%(objectname) %(objecttype)";
        let listed = alone
            .run(self.fds, &["cat-file", "--batch-all-objects", "--unordered", check], LISTED_WITHIN)
            .await?;
        if !listed.success {
            return Err(ReadError::Output("list the objects of the push"));
        }
        let mut all = Vec::new();
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            all.push(Kind::parse_line(line).ok_or(ReadError::UnknownType)?);
            if all.len() > MOST_OBJECTS as usize {
                return Err(ReadError::Objects);
            }
        }
        Ok(all)
    }

    /// Runs `rev-list` with `options` on the objects that the pushed refs reach, except the objects that the upstream's
    /// refs reach.
    pub(crate) async fn reachable(&self, options: &[&str], updates: &[Update]) -> Result<String, ReadError> {
        let mut arguments = [&["rev-list"], options].concat();
        arguments.extend(updates.iter().filter(|update| !update.deletes()).map(|update| update.new.as_str()));
        arguments.extend(["--not", "--all"]);
        let listed = self.with_quarantine().run(self.fds, &arguments, LISTED_WITHIN).await?;
        let text = String::from_utf8(listed.stdout).ok().filter(|_| listed.success);
        text.ok_or(ReadError::Output("list the objects that the push reaches"))
    }

    /// Returns a [`Git`] that sees only the objects of the upstream.
    fn upstream_git(&self) -> Git {
        let packed = self.mirror.mirror.join(KNOWN).to_string_lossy().into_owned();
        self.mirror.with_env([("GIT_OBJECT_DIRECTORY".to_owned(), packed)])
    }

    /// Returns the ids in `ids` for which an object exists, with the types of the objects.
    pub(crate) async fn existing(
        &self,
        git: &Git,
        ids: &HashSet<&str>,
    ) -> Result<Vec<(Kind, String)>, ReadError> {
        let input: String = ids.iter().flat_map(|id| [*id, "\n"]).collect();
        let arguments = ["cat-file", "--batch-check=%(objectname) %(objecttype)", "--buffer"];
        let running = git.spawn(self.fds, &arguments, true)?;
        let output = finish(running, "git cat-file", input.as_bytes(), LISTED_WITHIN).await?;
        if !output.success {
            return Err(ReadError::Output("look up objects in the mirror"));
        }
        // A line that cannot be parsed reports a missing object.
        Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(Kind::parse_line).collect())
    }
}
