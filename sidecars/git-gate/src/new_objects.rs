//! Which objects of a push are new to the upstream.
//!
//! Upstream is known to have what is in the mirror's packs: whatever came from it, or went there, is packed. A
//! loose object is not believed to be from there; receive-pack itself writes such ones for who pushes.

use std::collections::HashSet;
use std::process::Stdio;

use crate::git::{Git, Running, finish};
use crate::read::{LISTED_WITHIN, Reader};
use crate::refs::Update;

/// A folder of objects in the mirror that has its packs and no loose object: what came from upstream, or went
/// there.
pub(crate) const KNOWN: &str = "known";

/// New objects of one push.
const MOST_OBJECTS: usize = 1_000_000;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Commit,
    Tag,
    Tree,
    Blob,
}

impl Kind {
    /// Reads `id kind`.
    fn line(line: &str) -> Option<(Self, String)> {
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
    /// Everything that is pushed and that upstream is not known to have, commits first. What no pushed ref
    /// reaches would be stored upstream unseen by anybody: it is refused.
    pub(crate) async fn new_objects(&self, updates: &[Update]) -> Result<Vec<(Kind, String)>, String> {
        let (came, reached) =
            tokio::try_join!(self.came(), self.reached(&["--objects", "--no-object-names"], updates))?;
        let all: HashSet<&str> = came.iter().map(|(_, id)| id.as_str()).chain(reached.lines()).collect();
        let known = self.checked(&self.upstreams(), &all).await?;
        let known: HashSet<&str> = known.iter().map(|(_, id)| id.as_str()).collect();
        let reached: HashSet<&str> = reached.lines().filter(|id| !known.contains(id)).collect();
        let mut new: Vec<(Kind, String)> =
            came.into_iter().filter(|(_, id)| !known.contains(id.as_str())).collect();
        if let Some((_, id)) = new.iter().find(|(_, id)| !reached.contains(id.as_str())) {
            return Err(format!(
                "the push holds objects that none of its refs reaches, such as {id}; push without them \
                 (`git gc` and push again)"
            ));
        }
        if new.len() < reached.len() {
            let came: HashSet<&str> = new.iter().map(|(_, id)| id.as_str()).collect();
            let loose: HashSet<&str> = reached.difference(&came).copied().collect();
            let loose = self.checked(&self.both(), &loose).await?;
            new.extend(loose);
        }
        // Of each kind as they lie in their pack: those that are made of one another are near, and made once.
        new.sort_by_key(|(kind, _)| *kind);
        Ok(new)
    }

    /// Everything in the quarantine, in the order of its pack.
    async fn came(&self) -> Result<Vec<(Kind, String)>, String> {
        let alone = self.mirror.with([("GIT_OBJECT_DIRECTORY".to_owned(), self.quarantine.to_owned())]);
        let check = "--batch-check=%(objectname) %(objecttype)";
        let listed = alone
            .plain(self.passage, &["cat-file", "--batch-all-objects", "--unordered", check], LISTED_WITHIN)
            .await
            .map_err(|error| error.to_string())?;
        if !listed.good {
            return Err("the objects of the push cannot be listed".to_owned());
        }
        let mut all = Vec::new();
        for line in String::from_utf8_lossy(&listed.output).lines() {
            all.push(Kind::line(line).ok_or("the push holds an object of no known kind")?);
            if all.len() > MOST_OBJECTS {
                return Err(format!("the push holds more than {MOST_OBJECTS} objects; push less at once"));
            }
        }
        Ok(all)
    }

    /// What `rev-list` with these options says of what the pushed refs reach and those of the upstream do not.
    pub(crate) async fn reached(&self, options: &[&str], updates: &[Update]) -> Result<String, String> {
        let mut arguments = [&["rev-list"], options].concat();
        arguments.extend(updates.iter().filter(|update| !update.deletes()).map(|update| update.new.as_str()));
        arguments.extend(["--not", "--all"]);
        let reached = self
            .both()
            .plain(self.passage, &arguments, LISTED_WITHIN)
            .await
            .map_err(|error| error.to_string())?;
        if !reached.good {
            return Err("what the push reaches cannot be listed".to_owned());
        }
        String::from_utf8(reached.output).map_err(|_| "what the push reaches cannot be listed".to_owned())
    }

    /// Git that sees the objects of upstream alone.
    fn upstreams(&self) -> Git {
        let packed = self.mirror.mirror.join(KNOWN).to_string_lossy().into_owned();
        self.mirror.with([("GIT_OBJECT_DIRECTORY".to_owned(), packed)])
    }

    /// Which of these are there, and of which kind.
    async fn checked(&self, git: &Git, ids: &HashSet<&str>) -> Result<Vec<(Kind, String)>, String> {
        let input: String = ids.iter().flat_map(|id| [*id, "\n"]).collect();
        let asked = self.passage.spawn(&[], |_| {
            let mut command = git.command("git");
            command.args(["cat-file", "--batch-check=%(objectname) %(objecttype)", "--buffer"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command
        });
        let asked = Running::new(asked.map_err(|error| error.to_string())?);
        let there = finish(asked, "git cat-file", input.as_bytes(), LISTED_WITHIN)
            .await
            .map_err(|error| error.to_string())?;
        if !there.good {
            return Err("the mirror cannot be asked what it has".to_owned());
        }
        // A line of another form says that it is missing.
        Ok(String::from_utf8_lossy(&there.output).lines().filter_map(Kind::line).collect())
    }
}
