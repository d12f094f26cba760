//! A repository of the user, which is read as data: no git runs in it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bottle_host::system::account;
use bottle_host::{Host, git_user};
use bottle_repository::changes::Version as Entry;
use bottle_repository::directory::Directory;
use bottle_repository::git::GitError;
use bottle_repository::ignore_rules::IGNORE_FILE;
use bottle_repository::ignored::{self, Rules};
use bottle_repository::locate::{self, Kind};
use bottle_repository::reflog::LogEntry;
use bottle_repository::refs::{BRANCHES, RefError};
use bottle_repository::repository::RepositoryError;
use bottle_repository::store::StoreError;
use bottle_repository::{FileId, Program, Store, StoreKind};
use jiff::Timestamp;

use super::{ObjectId, Root};
use crate::failure::Failure;
use crate::text::{inert, one_line, shown};

/// The name and the address in the reflog entry of a branch that a pull changed.
const NAME: &str = "bottle";
const EMAIL: &str = "pull@bottle.invalid";

/// The maximum length of an ignore file in bytes. The rules of a longer file are not applied, as in a diff.
const MAX_IGNORE_FILE: u64 = ignored::MAX_FILE as u64;

/// A repository of the user on the host.
#[derive(Debug)]
pub struct Repository {
    data: bottle_repository::Repository,
    /// The real path of the directory from which the repository was found. This directory is inside the repository.
    directory: PathBuf,
    /// The directories from which the repository may borrow objects.
    lenders: Vec<PathBuf>,
}

/// The result of a pull.
pub struct Fetched {
    /// The branch that was updated, without `refs/heads/`.
    pub branch: String,
    /// The commit that the branch pointed to before the pull.
    pub before: Option<ObjectId>,
    /// The commit of earlier uncommitted work that the pull removed from the branch.
    pub replaced: Option<ObjectId>,
    /// The commit that the branch points to after the pull.
    pub after: ObjectId,
    /// The number of fetched commits that are not reachable from the repository's `HEAD`.
    pub commits: u64,
}

impl Repository {
    /// Finds the repository that contains this directory. `None` if no repository contains it.
    ///
    /// # Errors
    /// When the repository is not the user's, does not belong to the directory, or cannot be read.
    pub fn containing(directory: &Path) -> Result<Option<Self>, Failure> {
        if !directory.is_dir() {
            return Ok(None);
        }
        let found = locate::locate(directory).map_err(|error| {
            let cause = inert(&error.to_string());
            Failure::state(format!("cannot use the repository of {}: {cause}", shown(directory)))
                .hint(inert(&error.next_step()))
        })?;
        let Some(located) = found else { return Ok(None) };
        let directory = directory.canonicalize().map_err(|error| Failure::path("read", directory, error))?;
        let data = bottle_repository::Repository::open(located).map_err(unusable)?;
        Ok(Some(Self { data, directory, lenders: Vec::new() }))
    }

    /// The real path of the directory from which the repository was found.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Lets the repository borrow objects from these directories.
    pub(super) fn with_lenders(self, lenders: Vec<PathBuf>) -> Self {
        Self { lenders, ..self }
    }

    /// The directories from which the repository borrows objects.
    ///
    /// # Errors
    /// When the list of these directories cannot be read.
    pub(super) fn lenders(&self) -> Result<Vec<PathBuf>, Failure> {
        self.data.lenders().map_err(unusable)
    }

    /// The file id of the repository's git directory. `None` if the git directory cannot be read.
    pub(super) fn id(&self) -> Option<FileId> {
        self.data.located().common.id().ok()
    }

    /// Describes the repository for a question: its path, its owner, and the directories from which it borrows objects.
    pub(super) fn described(&self) -> String {
        let located = self.data.located();
        let owner = account(located.owner);
        let owner = owner
            .map_or_else(|| format!("the user with id {}", located.owner), |owner| one_line(&owner.name));
        let mut text = format!("{} of {owner}", shown(located.top.path()));
        if located.is_outside() {
            text += &format!(" (its git directory is {})", shown(located.git.path()));
        }
        let lenders = self.lenders().unwrap_or_default();
        for (number, lender) in lenders.iter().enumerate() {
            text += if number == 0 { ", with objects in " } else { " and " };
            text += &shown(lender);
        }
        text
    }

    /// The repository's git directory, references and settings.
    pub fn data(&self) -> &bottle_repository::Repository {
        &self.data
    }

    /// The kind of a temporary git directory that can contain the same objects.
    pub(super) fn kind(&self) -> StoreKind {
        self.data.kind()
    }

    /// The path of `self.directory` in the repository, with a slash at the end. Empty for the root of the repository's
    /// files.
    ///
    /// # Errors
    /// When the path is not UTF-8.
    pub(super) fn prefix(&self) -> Result<String, Failure> {
        let top = self.data.located().top.path();
        let inside = self.directory.strip_prefix(top).unwrap_or(Path::new(""));
        let inside = inside.to_str();
        let inside = inside
            .ok_or_else(|| Failure::failed(format!("the path {} is not UTF-8", shown(&self.directory))))?;
        Ok(if inside.is_empty() { String::new() } else { format!("{inside}/") })
    }

    /// The root of the repository's files.
    ///
    /// # Errors
    /// When the repository is bare.
    pub fn top(&self) -> Result<PathBuf, Failure> {
        let located = self.data.located();
        if located.kind == Kind::Bare {
            return Err(Failure::state(format!(
                "{} has no files: it is a bare repository",
                shown(&self.directory)
            )));
        }
        Ok(located.top.path().to_owned())
    }

    /// Returns the content of a file in `self.directory`. `None` if `path` is not a readable file of at most `most`
    /// bytes.
    pub(super) fn file(&self, path: &Path, most: u64) -> Option<Vec<u8>> {
        Directory::open(&self.directory).ok()?.read(path, most).ok().flatten()
    }

    /// Whether ignore rules of the repository exclude `self.directory`.
    ///
    /// # Errors
    /// When the path of the directory is not UTF-8.
    pub fn ignores_own_directory(&self) -> Result<bool, Failure> {
        let prefix = self.prefix()?;
        let directory = Path::new(prefix.trim_end_matches('/'));
        let mut rules = Rules::default();
        let mut above: Vec<&Path> = directory.ancestors().skip(1).collect();
        above.reverse();
        for parent in above {
            let file = parent.join(IGNORE_FILE);
            let text = self.data.located().top.read(&file, MAX_IGNORE_FILE).ok().flatten();
            text.into_iter().for_each(|text| rules.add(parent, &String::from_utf8_lossy(&text)));
        }
        self.exclude().into_iter().for_each(|text| rules.add(Path::new(""), &text));
        Ok(rules.exclude_directory(directory))
    }

    /// The ignore rules of the repository's `info/exclude`, which are in no commit.
    pub(super) fn exclude(&self) -> Option<String> {
        self.data.exclude()
    }

    /// The tracked files that a sparse checkout leaves out of the working tree.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn left_out_by_sparse_checkout(
        &self,
        tracked: &HashMap<Vec<u8>, Entry>,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let left_out = self.data.left_out_by_sparse_checkout().map_err(unusable)?;
        let mut files = left_out.files;
        if !left_out.directories.is_empty() {
            let is_in =
                |path: &&Vec<u8>| left_out.directories.iter().any(|directory| path.starts_with(directory));
            files.extend(tracked.keys().filter(is_in).cloned());
        }
        Ok(files)
    }

    /// The commit that `HEAD` points to.
    ///
    /// # Errors
    /// When `HEAD` cannot be read.
    pub fn head(&self) -> Result<Option<ObjectId>, Failure> {
        self.data.head().map_err(unusable)
    }

    /// Lets git in `store` read the repository's objects. Marks the repository's shallow commits and `more` as shallow
    /// in `store`.
    ///
    /// # Errors
    /// When the objects cannot be read.
    pub(super) fn lend(&self, store: &Store, more: &[ObjectId]) -> Result<(), Failure> {
        store.borrow(self.data.objects(&self.lenders).map_err(unusable)?).map_err(store_failed)?;
        let own = self.data.shallow().map_err(unusable)?;
        store.set_shallow(own.iter().chain(more)).map_err(store_failed)
    }

    /// The commit of the branch with this full name.
    ///
    /// # Errors
    /// When the branch cannot be read.
    pub(super) fn branch(&self, name: &str) -> Result<Option<ObjectId>, Failure> {
        self.data.refs().find(name).map_err(|error| unusable(error.into()))
    }

    /// Fails if the branch `name` of `root` is checked out.
    pub(super) fn require_not_checked_out(&self, root: &Root, name: &str) -> Result<(), Failure> {
        match self.data.refs().checked_out(name).map_err(|error| unusable(error.into()))? {
            Some(_) => Err(checked_out(&root.branch)),
            None => Ok(()),
        }
    }

    /// Adds the objects that the commit `after` needs to the repository, and points the branch of `root` at this
    /// commit. `store` contains all of these objects, and can read the objects of this repository.
    ///
    /// # Errors
    /// When an object is missing, or the repository cannot be written.
    pub(super) async fn write(
        &self,
        root: &Root,
        (name, before): (&str, Option<&ObjectId>),
        after: &ObjectId,
        store: &Store,
    ) -> Result<(), Failure> {
        // `store` must have the same shallow commits as this repository. Otherwise the history of `after` could be
        // incomplete in this repository.
        store.set_shallow(&self.data.shallow().map_err(unusable)?).map_err(store_failed)?;
        let tips = self.data.refs().all().map_err(|error| unusable(error.into()))?;
        let tips = store.present(&tips).await.map_err(store_failed)?;
        if let Some(mut pack) = store.pack(after, &tips).await.map_err(store_failed)? {
            self.data.add_pack(&mut pack, &self.lenders).map_err(unusable)?;
        }
        let seconds = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
        let message = format!("bottle pull {}", root.slug);
        let log = LogEntry { name: NAME, email: EMAIL, seconds, message: &message };
        self.data.write_branch(name, before, after, log).map_err(|error| not_written(&root.branch, error))
    }
}

/// The full name of the branch of `root`.
pub(super) fn branch_of(root: &Root) -> String {
    format!("{BRANCHES}{}", root.branch)
}

/// Finds git on this machine.
///
/// # Errors
/// When git is not installed.
pub(super) fn program(host: &Host) -> Result<Program, Failure> {
    git_user::program(host).map_err(git_failed)
}

/// The error when git fails, or is missing. The text is escaped, because parts of it may come from a bottle.
pub(super) fn git_failed(error: GitError) -> Failure {
    let missing = matches!(error, GitError::Missing);
    Failure::failed(inert(&error.to_string())).hint_if(missing.then_some("install git on this machine"))
}

/// The error when an operation in a temporary git directory fails.
pub(super) fn store_failed(error: StoreError) -> Failure {
    match error {
        StoreError::Git(error) => git_failed(error),
        StoreError::Write { error, .. } => {
            let hint = bottle_host::disk::hint(&error);
            Failure::cannot("write a temporary git directory", error).hint(hint)
        }
    }
}

/// The error when a repository cannot be read.
fn unusable(error: RepositoryError) -> Failure {
    let hint = match &error {
        RepositoryError::Unsupported { .. } => Some("clone it again with the default formats of git"),
        RepositoryError::Read(_) => Some("replace it by a regular file"),
        _ => None,
    };
    Failure::state(format!("cannot use the repository: {}", inert(&error.to_string()))).hint_if(hint)
}

fn checked_out(branch: &str) -> Failure {
    Failure::state(format!("cannot update {branch}: it is checked out"))
        .hint("check another branch out first")
}

/// The error when a branch could not be written.
fn not_written(branch: &str, error: RepositoryError) -> Failure {
    let RepositoryError::Ref(error) = error else { return unusable(error) };
    let hint = match &error {
        RefError::CheckedOut(_) => return checked_out(branch),
        RefError::Changed => Some("pull again"),
        RefError::Locked(_) => Some("pull again when the other git has ended"),
        RefError::Conflict(_) => Some("rename the other branch with `git branch -m`, then pull again"),
        _ => None,
    };
    Failure::state(format!("cannot update {branch}: {}", inert(&error.to_string()))).hint_if(hint)
}
