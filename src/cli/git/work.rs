//! Opens a bottle's work for a comparison with the user's repository.

use std::path::Path;

use bottle_channel::Channel;

use super::scratch::{Base, Scratch, Tip};
use super::{BottleGit, LeftOut, Merge, ObjectId, Repository, Root};
use crate::cli::error::CliError;
use crate::cli::output::{Output, inert};
use crate::host::Host;

/// A bottle's history beside the user's repository, in a temporary repository.
pub(crate) struct Work<'a> {
    /// The part of the workspace with the work.
    pub(crate) root: Root,
    /// The user's repository: the one that the workspace was copied from, or that the user named.
    pub(crate) own: Option<Repository>,
    /// The user's last commit.
    pub(crate) head: Option<ObjectId>,
    /// The bottle's last commit.
    pub(crate) tip: Option<ObjectId>,
    pub(crate) scratch: Scratch<'a>,
    pub(crate) base: Base,
    /// The tree of the files that `bottle apply` last applied.
    pub(super) applied: Option<ObjectId>,
}

impl<'a> Work<'a> {
    /// Fetches the bottle's history. Warns if it cannot be fetched, and the files can be compared without it.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub(crate) async fn open(
        host: &'a Host,
        root: Root,
        channel: &Channel,
        output: &Output,
    ) -> Result<Self, CliError> {
        // Without a repository on the host, the base is the bottle's last commit.
        let own = root.repository()?;
        let head = own.as_ref().map(Repository::head).transpose()?.flatten();
        let workspace = BottleGit { channel, root: &root }.workspace().await;
        let like = head.clone().or_else(|| workspace.as_ref().ok()?.head.clone());
        let scratch = Scratch::create(host, own.as_ref(), like.as_ref())?;
        let fetched = match workspace {
            Ok(_) => scratch.fetch((channel, &root)).await,
            Err(error) => Err(error),
        };
        let tip = match fetched {
            Ok(tip) => tip,
            // The workspace's files can be compared with the user's `HEAD` even without the bottle's history.
            Err(error) if root.is_copy && head.is_some() => {
                let label = root.label();
                output.warn(format!("{label}the bottle's history is ignored: {}", inert(&error.message)));
                None
            }
            // A pull needs a repository of the user.
            Err(error) if root.is_copy && own.is_none() => {
                return Err(error.hint(format!("`bottle cp {} FOLDER` copies it out", root.source())));
            }
            Err(error) => return Err(error),
        };
        if let Some(own) = &own {
            scratch.lend(own, tip.as_ref())?;
        }
        let tip = tip.map(|Tip { commit, .. }| commit);
        let copied = own.as_ref().filter(|_| root.is_copy);
        let base = scratch.base(head.as_ref(), tip.as_ref(), copied).await?;
        Ok(Self { root, own, head, tip, scratch, base, applied: None })
    }

    /// Replaces a base that is not the user's by an empty one, because the user has nothing of the bottle's commits.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub(crate) async fn use_own_base(&mut self) -> Result<(), CliError> {
        if !self.base.is_own {
            self.base.commit = None;
            self.base.tree = self.scratch.tree_of(None).await?;
        }
        Ok(())
    }

    /// Whether the user has no commit with the files of the copied folder, so that their state at the start is unknown.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub(crate) async fn lacks_folder(&self) -> Result<bool, CliError> {
        let Base { commit, tree, prefix, .. } = &self.base;
        Ok(commit.is_none() || (!prefix.is_empty() && *tree == self.scratch.tree_of(None).await?))
    }

    /// Whether the paths of the comparison begin at the root of the user's repository.
    pub(crate) fn is_of_whole_repository(&self) -> bool {
        self.base.is_own && self.base.prefix.is_empty()
    }

    /// Imports the workspace's files.
    ///
    /// # Errors
    /// Returns an error if the import or git fails.
    pub(crate) async fn import(&self, channel: &Channel) -> Result<LeftOut, CliError> {
        self.scratch
            .import_beside((channel, &self.root), self.own.as_ref(), &self.base, self.tip.as_ref())
            .await
    }

    /// Merges the imported workspace with the files of `folder`, as [`Scratch::merge`] does.
    ///
    /// # Errors
    /// As [`Scratch::merge`].
    pub(crate) async fn merge(&self, folder: &Path, markers: bool) -> Result<Merge, CliError> {
        self.scratch.merge(&self.base, self.tip.as_ref(), self.applied.as_ref(), folder, markers).await
    }
}
