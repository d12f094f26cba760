//! Uncommitted work of a bottle: how much there is, and a commit of it for `pull --uncommitted`.

use std::process::Output;

use super::host::{Fetched, Repository, run, stderr_tail};
use super::scratch::{Base, FILES, Known, Scratch, expect};
use super::workspace::{self, LeftOut};
use super::{ObjectId, Root};
use crate::cli::error::CliError;
use bottle_channel::Channel;

/// The reference of the scratch repository for a commit that the user's repository fetches.
const PULLED: &str = "refs/bottle/pulled";

/// The committer of a commit of uncommitted work. The next pull replaces such a commit. After the user amends it,
/// it has another committer, and counts as the user's.
const COMMITTER: (&str, &str) = ("bottle", "uncommitted@bottle.invalid");

/// The author of a commit.
pub(crate) struct Author {
    pub(crate) name: String,
    pub(crate) email: String,
}

/// The uncommitted files of a workspace.
#[derive(Default)]
pub(crate) struct Uncommitted {
    /// The number of files that differ from the bottle's last commit. Without one, from the commit that the workspace
    /// was copied from.
    pub(crate) files: usize,
    pub(crate) left_out: LeftOut,
}

impl Scratch<'_> {
    /// Imports the workspace, and counts its uncommitted files. Their content is compared on the host, because the
    /// agent controls the git in the bottle, which could hide changes that would be lost with the bottle.
    ///
    /// # Errors
    /// Returns an error if the import or git fails.
    pub(crate) async fn uncommitted(
        &self,
        bottle: (&Channel, &Root),
        own: &Repository<'_>,
        base: &Base,
        tip: Option<&ObjectId>,
    ) -> Result<Uncommitted, CliError> {
        let known = Known { trees: [tip, Some(&base.tree)], rules: base.rules(), own: Some(own) };
        let left_out = self.import(bottle, FILES, known).await?;
        let from = tip.unwrap_or(&base.tree);
        Ok(Uncommitted { files: self.changed(from.as_str(), FILES).await?.len(), left_out })
    }

    /// Fetches the bottle's commit `tip` into the branch of `root` in the user's repository.
    ///
    /// # Errors
    /// Returns an error if the fetch fails. The error has a hint.
    pub(crate) async fn pull(
        &self,
        own: &Repository<'_>,
        root: &Root,
        tip: &ObjectId,
    ) -> Result<Fetched, CliError> {
        expect(&self.repository, &["update-ref", PULLED, tip.as_str()]).await?;
        own.take(root, &self.repository, PULLED).await
    }

    /// Commits the imported workspace on top of the bottle's last commit `tip`. Without one, on top of the base, if
    /// this is a commit of the user. If the branch of `root` in the user's repository already is this commit,
    /// returns it.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub(crate) async fn commit(
        &self,
        own: &Repository<'_>,
        root: &Root,
        base: &Base,
        tip: Option<&ObjectId>,
        author: &Author,
    ) -> Result<ObjectId, CliError> {
        let parent = tip.or_else(|| base.commit.as_ref().filter(|_| base.is_own));
        let mut tree = self.tree_of_reference(FILES).await?;
        if tip.is_none()
            && let Some(parent) = parent
        {
            workspace::commit_folder(self.repository.command(), PULLED, parent, (&base.prefix, &tree))
                .map_err(|error| CliError::cannot("commit the files", error))?;
            tree = self.tree_of_reference(PULLED).await?;
        }
        if let Some(before) = own.resolve(&format!("refs/heads/{}", root.branch)).await?
            && self.repository.is_replaceable(&before).await?
            && self.tree_of_reference(before.as_str()).await? == tree
            && self.repository.parent(&before).await?.as_ref() == parent
        {
            return Ok(before);
        }
        let mut command = self.repository.command();
        command.env("GIT_AUTHOR_NAME", &author.name).env("GIT_AUTHOR_EMAIL", &author.email);
        command.env("GIT_COMMITTER_NAME", COMMITTER.0).env("GIT_COMMITTER_EMAIL", COMMITTER.1);
        let message = format!("Uncommitted work of {}\n\nMade by `bottle pull --uncommitted`.", root.slug);
        command.args(["commit-tree", tree.as_str(), "-m", &message]);
        if let Some(parent) = parent {
            command.args(["-p", parent.as_str()]);
        }
        id_of(&run(command).await?)
    }
}

/// Returns the id that git printed.
fn id_of(output: &Output) -> Result<ObjectId, CliError> {
    ObjectId::parse(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| CliError::failed(format!("git cannot commit the files: {}", stderr_tail(output))))
}

impl Repository<'_> {
    /// Whether this is a commit of uncommitted work, which [`Scratch::commit`] made.
    pub(super) async fn is_replaceable(&self, commit: &ObjectId) -> Result<bool, CliError> {
        let shown = self.git(&["cat-file", "commit", commit.as_str()]).await?;
        let committer = format!("committer {} <{}> ", COMMITTER.0, COMMITTER.1);
        let mut headers = shown.stdout.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
        Ok(headers.any(|line| line.starts_with(committer.as_bytes())))
    }

    /// The first parent of a commit; none for the first commit of a history.
    pub(super) async fn parent(&self, commit: &ObjectId) -> Result<Option<ObjectId>, CliError> {
        self.resolve(&format!("{}^", commit.as_str())).await
    }
}
