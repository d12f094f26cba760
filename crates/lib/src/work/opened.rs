//! Opens a bottle's work for a comparison with the user's repository.

use std::path::Path;

use bottle_channel::Channel;
use bottle_host::Host;
use bottle_instance::Store;
use bottle_repository::Given;

use super::bottle_git::BottleGit;
use super::merge::Merge;
use super::scratch::{Base, Compared, Form, Scratch, Tip};
use super::start::Began;
use super::{LeftOut, ObjectId, Repository, Root};
use crate::failure::Failure;
use crate::notice::{Notice, Notify};
use crate::text::{inert, shown};

/// A bottle's history and the user's history, together in a temporary repository.
pub struct Work<'a> {
    /// The root of the workspace that contains the work.
    pub root: Root,
    /// The user's repository: either the repository from which the workspace was copied, or a repository that the user
    /// named.
    pub own: Option<Repository>,
    /// The user's last commit.
    pub head: Option<ObjectId>,
    /// The bottle's last commit.
    pub tip: Option<ObjectId>,
    /// The git directory in which both sides are compared.
    pub scratch: Scratch<'a>,
    /// The base with which the work is compared.
    pub base: Base,
    /// The files at the start of the bottle.
    pub(super) began: Began,
    /// The tree of the files that `bottle apply` last applied.
    pub(super) applied: Option<ObjectId>,
}

impl<'a> Work<'a> {
    /// Fetches the bottle's history. If the history cannot be fetched, but the files can be compared without it, warns
    /// the user.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub async fn open(
        host: &'a Host,
        root: Root,
        channel: &Channel,
        notify: Notify<'_>,
    ) -> Result<Self, Failure> {
        let own = root.repository()?;
        let given = root.given_files(host, own.as_ref())?;
        if own.is_none()
            && let Some(given) = given
        {
            return Self::of_directory(host, root, given).await;
        }
        // Without a repository and a record of the start, the base is the bottle's last commit.
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
                let cause = inert(&error.message);
                notify(Notice::Warning(format!("{label}the bottle's history is ignored: {cause}")));
                None
            }
            // The user has no repository, so only the bottle's repository or a record of the start could be the base,
            // and both are missing.
            Err(error) if root.is_copy && own.is_none() => return Err(not_recorded(host, &root, error)),
            Err(error) => return Err(error),
        };
        if let Some(own) = &own {
            scratch.lend(own, tip.as_ref())?;
        }
        let tip = tip.map(|Tip { commit, .. }| commit);
        let copied = own.as_ref().filter(|_| root.is_copy);
        let mut base = scratch.base(head.as_ref(), tip.as_ref(), copied).await?;
        let began = scratch.began(given, own.as_ref(), &base).await?;
        if began.is_recorded() && !base.is_own {
            // If no commit of the user is the base, all of the agent's work is compared with the files that the bottle
            // received at its start. This includes work that the agent committed.
            base = scratch.empty_base().await?;
        }
        if let Some(own) = own.as_ref().filter(|own| !own.data().has_working_tree()) {
            let (label, top) = (root.label(), shown(own.directory()));
            notify(Notice::Warning(format!(
                "{label}{top} is no working tree, so work in the worktrees of its repository is not compared; a bottle \
                 that starts in one of them is"
            )));
        }
        Ok(Self { root, own, head, tip, scratch, base, began, applied: None })
    }

    /// Opens the work in a copy of a directory without a repository. A repository that the agent created in the copy is
    /// not part of the work.
    async fn of_directory(host: &'a Host, root: Root, given: Given) -> Result<Self, Failure> {
        let scratch = Scratch::create(host, None, None)?;
        let base = scratch.empty_base().await?;
        let began = scratch.began(Some(given), None, &base).await?;
        Ok(Self { root, own: None, head: None, tip: None, scratch, base, began, applied: None })
    }

    /// Whether the files were copied from a directory without a repository.
    pub fn is_of_directory(&self) -> bool {
        self.began.is_without_repository()
    }

    /// Replaces a base that is not a commit of the user with an empty base, because the user's repository contains none
    /// of the bottle's commits.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub async fn use_own_base(&mut self) -> Result<(), Failure> {
        if !self.base.is_own {
            self.base = self.scratch.empty_base().await?;
        }
        Ok(())
    }

    /// Whether the state of the copied directory's files at the start is unknown, because no commit of the user
    /// contains these files.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub async fn lacks_directory(&self) -> Result<bool, Failure> {
        if self.began.is_recorded() {
            return Ok(false);
        }
        let Base { commit, tree, prefix, .. } = &self.base;
        Ok(commit.is_none() || (!prefix.is_empty() && *tree == self.scratch.tree_of(None).await?))
    }

    /// Compares the workspace with the base, as [`Scratch::compare`] does.
    ///
    /// # Errors
    /// Returns the errors of [`Scratch::compare`].
    pub async fn compare(
        &mut self,
        channel: &Channel,
        form: (Form, Option<&str>),
    ) -> Result<Compared, Failure> {
        let mut left_out = self.import(channel).await?;
        self.began.name_unknown(&mut left_out, &self.root);
        let start = (&self.base, &self.began);
        self.scratch.compare(self.own.as_ref(), start, self.tip.as_ref(), form, left_out).await
    }

    /// Returns a notice about the base commit of the comparison, if the base is not the user's last commit.
    pub fn base_notice(&self) -> Option<Notice> {
        let Self { root, base, head, .. } = self;
        let commit = base.commit.as_ref().filter(|_| base.is_own && base.commit != *head)?;
        let (label, commit) = (root.label(), commit.short());
        let shared = "the last commit shared with your repository";
        Some(Notice::Note(format!("{label}compared with {commit}, {shared}")))
    }

    /// Whether the paths of the comparison are relative to the root of the user's repository.
    pub fn is_of_whole_repository(&self) -> bool {
        self.base.is_own && self.base.prefix.is_empty()
    }

    /// Imports the workspace's files.
    ///
    /// # Errors
    /// Returns an error if the import or git fails.
    pub async fn import(&mut self, channel: &Channel) -> Result<LeftOut, Failure> {
        let Self { root, own, tip, scratch, base, began, applied, .. } = self;
        let left_out =
            scratch.import_beside((channel, root), own.as_ref(), (base, began), tip.as_ref()).await?;
        scratch.find_contents(began, applied.as_ref(), &root.directory).await?;
        Ok(left_out)
    }

    /// Merges the imported workspace with the files of `directory`, as [`Scratch::merge`] does.
    ///
    /// # Errors
    /// Returns the errors of [`Scratch::merge`].
    pub async fn merge(&self, directory: &Path, markers: bool) -> Result<Merge, Failure> {
        let start = (&self.base, &self.began);
        let (tip, applied) = (self.tip.as_ref(), self.applied.as_ref());
        let mut merge = self.scratch.merge(start, tip, applied, directory, markers).await?;
        merge.deletions.tracked = match &self.head {
            Some(_) if !self.base.prefix.is_empty() => self.scratch.listed(&self.base.tree).await?.len(),
            Some(head) => self.scratch.listed(head).await?.len(),
            None => self.began.start.files.values().filter(|started| started.is_given).count(),
        };
        Ok(merge)
    }
}

/// Returns the error for a copied or mounted directory without a repository, if its files at the start were not
/// recorded. `unread` says why the bottle's repository cannot be used either.
fn not_recorded(host: &Host, root: &Root, unread: Failure) -> Failure {
    let road = match root.is_live {
        true => format!("its files are in {}", shown(&root.directory)),
        false => format!("`bottle cp {} DIRECTORY` copies it out", root.source()),
    };
    let log = Store::of(host).directory(&root.slug).join("logs/keeper.log");
    let message = format!("cannot compare {root}: its files at the start were not recorded");
    unread.reworded(|_| message).hint(format!("{road}; the reason may be in {}", log.display()))
}
