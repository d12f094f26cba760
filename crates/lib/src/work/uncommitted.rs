//! Finds the uncommitted work of a bottle, and commits it for `pull --uncommitted`.

use std::io;

use bottle_channel::Channel;
use bottle_repository::FastImport;

use super::directory::path_of;
use super::host::{Fetched, Repository, branch_of, git_failed, store_failed};
use super::scratch::{Base, FILES, Known, Scratch};
use super::start::{Committed, Purpose};
use super::workspace::LeftOut;
use super::{ObjectId, Root};
use crate::failure::Failure;

/// The reference for the commit of uncommitted work that is pulled.
const PULLED: &str = "refs/bottle/pulled";

/// The committer of a commit of uncommitted work. The next pull replaces a commit with this committer. When the user
/// amends such a commit, its committer changes, so that a pull does not replace it.
const COMMITTER: (&str, &str) = ("bottle", "uncommitted@bottle.invalid");

/// The author of a commit.
pub struct Author {
    /// The name, as git writes it.
    pub name: String,
    /// The address, as git writes it.
    pub email: String,
}

/// The uncommitted files of a workspace.
#[derive(Default)]
pub struct Uncommitted {
    /// The number of files that differ from the bottle's last commit. Without a last commit, the number of files that
    /// differ from the commit from which the workspace was copied.
    pub files: usize,
    /// The files that were not compared.
    pub left_out: LeftOut,
    work: Committed,
}

impl Scratch<'_> {
    /// Imports the workspace, and finds its uncommitted files. The files are compared on the host, because the agent
    /// controls the git in the bottle. That git could hide changes, which would then be lost with the bottle.
    ///
    /// # Errors
    /// Returns an error if the import or git fails.
    pub async fn uncommitted(
        &self,
        (channel, root): (&Channel, &Root),
        own: &Repository,
        base: &Base,
        tip: Option<&ObjectId>,
    ) -> Result<Uncommitted, Failure> {
        // If the workspace is a directory of the user, all files of this directory are committed, except the files that
        // git does not compare. The user already has those files.
        let given = root.given_files(self.host, Some(own))?.filter(|given| !root.is_live || given.is_partial);
        let mut began = self.began(given, Some(own), base).await?;
        let trees = [tip, Some(&base.tree)];
        let known = Known { trees, rules: base.rules(), own: Some(own), began: Some(&began) };
        let mut left_out = self.import((channel, root), FILES, known).await?;
        self.find_contents(&mut began, None, &root.directory).await?;
        began.name_unknown(&mut left_out, root);
        let files = self.listed(tip.unwrap_or(&base.tree)).await?;
        let mut work = self.committed_work(&began, Some(own), base, &files, Purpose::Committed).await?;
        // A commit cannot delete a file of the user that no commit contains.
        work.changes.retain(|(path, _, after)| after.as_ref() != files.get(path));
        for (path, _, _, why) in &work.unconverted {
            left_out.add(path_of(path.clone()), format!("{why}; `bottle apply {}` brings it", root.slug));
        }
        Ok(Uncommitted { files: work.changes.len(), left_out, work })
    }

    /// Adds the contents of new Git LFS files to the user's repository. Files whose content cannot be added are left
    /// out.
    ///
    /// # Errors
    /// When a file of the bottle cannot be read.
    pub fn add_contents(
        &self,
        own: &Repository,
        root: &Root,
        uncommitted: &mut Uncommitted,
    ) -> Result<(), Failure> {
        let left = self.add_lfs_contents(own, &uncommitted.work.contents)?;
        uncommitted.work.changes.retain(|(path, ..)| !left.contains(path));
        uncommitted.files = uncommitted.work.changes.len();
        for path in left {
            let why = format!(
                "its content cannot be added where Git LFS keeps it; `bottle apply {}` brings it",
                root.slug
            );
            uncommitted.left_out.add(path_of(path), why);
        }
        Ok(())
    }

    /// Points the branch of `root` in the user's repository at the bottle's commit `tip`, and adds all objects of this
    /// commit. Updates no other branch. Replaces an earlier commit of uncommitted work, but fails if the branch has
    /// other commits that the bottle does not have.
    ///
    /// # Errors
    /// When the branch has other commits, is checked out, or cannot be written. The error has a hint.
    pub async fn pull(&self, own: &Repository, root: &Root, tip: &ObjectId) -> Result<Fetched, Failure> {
        let (branch, name) = (root.branch.clone(), branch_of(root));
        own.require_not_checked_out(root, &name)?;
        let before = own.branch(&name)?;
        let mut replaced = None;
        if let Some(before) = before.as_ref().filter(|before| *before != tip)
            && !self.is_ancestor(before, tip).await?
        {
            if !self.is_replaced(before, tip).await? {
                return Err(Failure::state(format!("{branch} has commits that are not in the bottle")).hint(
                    format!(
                        "keep them under another name with `git branch -m {branch} NAME`, then pull again"
                    ),
                ));
            }
            replaced = Some(before.clone());
        }
        let head = own.head()?;
        if before.as_ref() != Some(tip) {
            own.write(root, (&name, before.as_ref()), tip, &self.store).await?;
        }
        let commits = self.count(tip, head.as_ref()).await?;
        Ok(Fetched { branch, before, replaced, after: tip.clone(), commits })
    }

    /// Whether a pull may replace `before`, the last commit of the branch. `before` must be a commit of earlier
    /// uncommitted work, and its parent, if any, must be in the history of `tip`.
    async fn is_replaced(&self, before: &ObjectId, tip: &ObjectId) -> Result<bool, Failure> {
        if !self.is_replaceable(before).await? {
            return Ok(false);
        }
        match self.parent(before).await? {
            Some(parent) => self.is_ancestor(&parent, tip).await,
            None => Ok(true),
        }
    }

    async fn is_ancestor(&self, commit: &ObjectId, of: &ObjectId) -> Result<bool, Failure> {
        Ok(self.git(&["merge-base", "--is-ancestor", commit.as_str(), of.as_str()]).await?.succeeded())
    }

    /// The number of commits that are in the history of `tip` but not in the history of `head`.
    async fn count(&self, tip: &ObjectId, head: Option<&ObjectId>) -> Result<u64, Failure> {
        let mut arguments = vec!["rev-list", "--count", tip.as_str()];
        if let Some(head) = head {
            arguments.extend(["--not", head.as_str()]);
        }
        arguments.push("--");
        let counted = self.expect(&arguments).await?;
        let counted = String::from_utf8_lossy(&counted.stdout.bytes).trim().parse();
        counted.map_err(|_| Failure::failed("git cannot count commits"))
    }

    /// Commits the uncommitted work on top of the bottle's last commit `tip`. Without `tip`, commits it on top of the
    /// base, if the base is a commit of the user. If the branch of `root` in the user's repository already points to a
    /// commit with the same files and the same parent, returns that commit.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub async fn commit(
        &self,
        own: &Repository,
        root: &Root,
        (base, tip): (&Base, Option<&ObjectId>),
        uncommitted: &Uncommitted,
        author: &Author,
    ) -> Result<ObjectId, Failure> {
        let parent = tip.or_else(|| base.commit.as_ref().filter(|_| base.is_own));
        let prefix = if tip.is_some() { "" } else { base.prefix.as_str() };
        self.write_changes(parent, prefix, &uncommitted.work)
            .map_err(|error| Failure::cannot("commit the files", error))?;
        let tree = self.tree_of_reference(PULLED).await?;
        if let Some(before) = own.branch(&branch_of(root))?
            && self.is_replaceable(&before).await?
            && self.tree_of_reference(before.as_str()).await? == tree
            && self.parent(&before).await?.as_ref() == parent
        {
            return Ok(before);
        }
        let mut command = self.store.git().command();
        command.env("GIT_AUTHOR_NAME", &author.name).env("GIT_AUTHOR_EMAIL", &author.email);
        command.env("GIT_COMMITTER_NAME", COMMITTER.0).env("GIT_COMMITTER_EMAIL", COMMITTER.1);
        let message = format!("Uncommitted work of {}\n\nMade by `bottle pull --uncommitted`.", root.slug);
        command.args(["commit-tree", tree.as_str(), "-m", &message]);
        if let Some(parent) = parent {
            command.args(["-p", parent.as_str()]);
        }
        let made = self.store.git().run_command(command, &[], None, 100).await.map_err(git_failed)?;
        ObjectId::from_bytes(&made.stdout.bytes).ok_or_else(|| git_failed(made.failed("commit-tree")))
    }

    /// Points [`PULLED`] at a commit with the files of `parent`, in which the changes of `work` are made below the
    /// directory `prefix`.
    fn write_changes(&self, parent: Option<&ObjectId>, prefix: &str, work: &Committed) -> io::Result<()> {
        let mut import = FastImport::start(self.store.git().command(), PULLED)?;
        parent.into_iter().try_for_each(|parent| import.from(parent))?;
        let path = |path: &[u8]| [prefix.as_bytes(), path].concat();
        // Deletions come first, because a new file can have the path of a deleted directory.
        for (name, ..) in work.changes.iter().filter(|(_, _, after)| after.is_none()) {
            import.delete(&path(name))?;
        }
        for (name, _, after) in &work.changes {
            after.iter().try_for_each(|after| import.link(&path(name), after))?;
        }
        import.end()
    }

    /// Whether [`Scratch::commit`] made this commit, so that it contains uncommitted work.
    async fn is_replaceable(&self, commit: &ObjectId) -> Result<bool, Failure> {
        let shown = self.git(&["cat-file", "commit", commit.as_str()]).await?.stdout.bytes;
        let committer = format!("committer {} <{}> ", COMMITTER.0, COMMITTER.1);
        let mut headers = shown.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
        Ok(headers.any(|line| line.starts_with(committer.as_bytes())))
    }

    /// The first parent of a commit. `None` for the first commit of a history.
    async fn parent(&self, commit: &ObjectId) -> Result<Option<ObjectId>, Failure> {
        self.commit_of(&format!("{}^", commit.as_str())).await
    }

    /// The number of these commits that are neither in the user's repository nor were pulled.
    ///
    /// # Errors
    /// When git fails.
    pub async fn count_missing(&self, commits: &[ObjectId]) -> Result<usize, Failure> {
        let present = self.store.present(commits).await.map_err(store_failed)?;
        Ok(commits.iter().filter(|commit| !present.contains(commit)).count())
    }
}
