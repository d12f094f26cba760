//! The parts of a bottle's workspace that `diff`, `apply`, `pull` and `fs reset` work on: the workspace itself, or its
//! directories if several directories were copied into it.

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};

use bottle_backend::shared_objects;
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_instance::repositories::CopiedRepository;
use bottle_instance::{Store, given};
use bottle_plan::CopiedDirectory;
use bottle_policy::names::{GIT_OBJECTS_OF_SEVERAL, Slug, WORKSPACE};
use bottle_protocol::session::files::FilePath;
use bottle_repository::locate::Kind;
use bottle_repository::{Directory, FileId, Given as GivenRecord, Objects, Origin};

use super::{ObjectId, Repository, is_inside};
use crate::failure::{self, Failure};
use crate::notice::{Notice, Notify};
use crate::text::{inert, one_line, quoted, shown};

/// The workspace of a bottle or a directory of it, and the directory on the host that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The bottle's slug.
    pub slug: Slug,
    /// The path of the directory in the workspace; empty for the workspace itself.
    pub name: String,
    /// The directory that was copied, otherwise the working directory.
    pub directory: PathBuf,
    /// The copied directory. Its repository is the user's repository. `None` if no directory was copied.
    repository: Option<PathBuf>,
    /// The repository that was copied. `None` if nothing is known about it.
    known: Option<CopiedRepository>,
    /// The repository that the user has confirmed in place of the copied one.
    confirmed: Option<FileId>,
    /// The objects of a repository that the bottle was given. `None` if nothing is known about them.
    pub(super) given: Option<Given>,
    /// The origin of the given files, as their record says. `None` without a record.
    origin: Option<Origin>,
    /// Whether the files were copied from this directory, or are the files in it.
    pub is_copy: bool,
    /// Whether the directory itself is the workspace.
    pub is_live: bool,
    /// The branch into which `pull` fetches, without `refs/heads/`.
    pub branch: String,
}

impl Root {
    /// If several `--cwd` flags copied directories, returns these directories, otherwise the workspace. With `chosen`,
    /// returns only this directory of the workspace. If `chosen` was not copied, it belongs to the working directory.
    ///
    /// # Errors
    /// Returns an error if there is no such directory.
    pub fn of(host: &Host, record: &Record, chosen: Option<&str>) -> Result<Vec<Self>, Failure> {
        let Some(chosen) = chosen else {
            return if record.directories.is_empty() {
                Ok(vec![Self::workspace(host, record)])
            } else {
                Ok(Self::directories(host, record))
            };
        };
        let path = FilePath::from(chosen).in_workspace().filter(|path| !path.as_os_str().is_empty());
        let name = path.as_deref().and_then(Path::to_str);
        let name =
            name.ok_or_else(|| no_directory(record, chosen, "it is not a directory of the workspace"))?;
        if record.directories.is_empty() {
            let workspace = Self::workspace(host, record);
            if let Some(submodule) = workspace.submodule(Path::new(name))? {
                return Ok(vec![submodule]);
            }
            return Ok(vec![Self {
                name: name.to_owned(),
                directory: host.cwd.clone(),
                repository: None,
                known: None,
                is_copy: false,
                is_live: false,
                given: None,
                origin: None,
                ..workspace
            }]);
        }
        let mut found = Self::directories(host, record);
        found.retain(|root| root.name == name);
        if found.is_empty() { Err(no_directory(record, chosen, "it was not copied")) } else { Ok(found) }
    }

    /// Whether the user has a repository that can take the work of a root.
    pub fn any_has_repository(host: &Host, record: &Record) -> bool {
        let is_usable = |root: &Self| matches!(root.repository(), Ok(Some(_)));
        Self::of(host, record, None).is_ok_and(|roots| roots.iter().any(is_usable))
    }

    fn workspace(host: &Host, record: &Record) -> Self {
        let is_copy = record.copied_cwd;
        let known = known(record, "");
        Self {
            slug: record.slug.clone(),
            name: String::new(),
            directory: if is_copy { &record.cwd } else { &host.cwd }.clone(),
            repository: is_copy.then(|| record.cwd.clone()),
            given: Given::find(host, record, None, known.as_ref()),
            known,
            confirmed: None,
            origin: origin(host, record, ""),
            is_copy,
            is_live: record.live().is_some(),
            branch: format!("bottle/{}", record.slug),
        }
    }

    fn directories(host: &Host, record: &Record) -> Vec<Self> {
        let repository = |copied: &CopiedDirectory| {
            let repository = Repository::containing(&copied.path).ok().flatten();
            repository.and_then(|repository| repository.data().located().common.id().ok())
        };
        let repositories: Vec<Option<FileId>> = record.directories.iter().map(repository).collect();
        let names: Vec<&str> = record.directories.iter().map(|copied| copied.name.as_str()).collect();
        let root = |(copied, branch): (&CopiedDirectory, String)| {
            let known = known(record, &copied.name);
            Self {
                slug: record.slug.clone(),
                name: copied.name.clone(),
                directory: copied.path.clone(),
                repository: Some(copied.path.clone()),
                given: Given::find(host, record, Some(&copied.name), known.as_ref()),
                known,
                confirmed: None,
                origin: origin(host, record, &copied.name),
                is_copy: true,
                is_live: false,
                branch,
            }
        };
        let branches = branches(&record.slug, &names, &repositories);
        record.directories.iter().zip(branches).map(root).collect()
    }

    /// Whether the files were given from a directory without a repository, and the user has not named one since.
    pub fn is_without_repository(&self) -> bool {
        self.origin == Some(Origin::Directory) && self.confirmed.is_none()
    }

    /// The record of the given files. `None` if there is none, or it does not belong to the user's repository `own`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn given_files(
        &self,
        host: &Host,
        own: Option<&Repository>,
    ) -> Result<Option<GivenRecord>, Failure> {
        if !self.is_copy || own.is_none() != self.is_without_repository() {
            return Ok(None);
        }
        let record = given::record(&Store::of(host).directory(&self.slug), &self.name);
        GivenRecord::read(&record).map_err(|error| Failure::path("read", &record, error))
    }

    /// The user's repository. `None` if the files were not given from one.
    ///
    /// # Errors
    /// When the repository cannot be read, or when it is neither the copied repository nor confirmed by the user.
    pub fn repository(&self) -> Result<Option<Repository>, Failure> {
        // A repository that the user made there after the start has no information about the files of the start.
        if self.is_without_repository() {
            return Ok(None);
        }
        let Some(directory) = &self.repository else { return Ok(None) };
        let Some(found) = Repository::containing(directory)? else { return Ok(None) };
        if let Some(known) = self.known.as_ref().filter(|known| known.is(found.data())) {
            return Ok(Some(found.with_lenders(known.lenders.clone())));
        }
        if self.confirmed.is_some() && self.confirmed == found.id() {
            let lenders = found.lenders()?;
            return Ok(Some(found.with_lenders(lenders)));
        }
        Err(Failure::state(format!(
            "{}the repository {} is not known to be the one that was copied",
            self.label(),
            found.described()
        ))
        .about("--repository")
        .hint("`--repository PATH` confirms it, or names another one"))
    }

    /// The submodule at this path of the workspace or directory. `None` if the user has no repository there that
    /// belongs to the copied one.
    ///
    /// # Errors
    /// When a repository cannot be read.
    pub fn submodule(&self, path: &Path) -> Result<Option<Self>, Failure> {
        let is_known = |own: &Repository| self.known.as_ref().is_some_and(|known| known.is(own.data()));
        let is_usable = is_inside(path) && self.repository.is_some();
        let Some(name) = path.to_str().filter(|_| is_usable) else { return Ok(None) };
        let Some(own) = self.repository()?.filter(|own| is_known(own) || self.confirmed.is_some()) else {
            return Ok(None);
        };
        let directory = self.directory.join(path);
        let Some(found) = Repository::containing(&directory)? else { return Ok(None) };
        let (own, located) = (own.data().located(), found.data().located());
        // The path of a git directory can contain `..`.
        let real = |directory: &Directory| directory.path().canonicalize().ok();
        let is_below = real(&located.git)
            .is_some_and(|git| real(&own.common).is_some_and(|common| git.starts_with(common)));
        let is_submodule =
            located.kind == Kind::Submodule && is_below && located.top.path() == found.directory();
        Ok(is_submodule.then(|| Self {
            name: if self.is_directory() { format!("{}/{name}", self.name) } else { name.to_owned() },
            repository: Some(directory.clone()),
            directory,
            known: None,
            confirmed: found.id(),
            given: None,
            origin: None,
            branch: format!("bottle/{}", self.slug),
            ..self.clone()
        }))
    }

    /// Uses the repository that contains the directory `chosen`, instead of the one that was copied.
    ///
    /// # Errors
    /// When there are several roots, or no repository contains the directory.
    pub fn choose_repository(roots: &mut [Self], chosen: &Path) -> Result<(), Failure> {
        let [root] = roots else {
            return Err(Failure::usage("cannot use one repository for several directories")
                .about("--repository")
                .hint("`--directory DIRECTORY` selects one of them"));
        };
        let found = Repository::containing(chosen)?.ok_or_else(|| {
            Failure::usage(format!("{} is in no git repository", shown(chosen))).about("--repository")
        })?;
        root.confirm(&found);
        Ok(())
    }

    /// The repository that the user has to confirm before it is used, because it is not known to be the one that was
    /// copied. Without a copy, the repository of the directory `instead` is proposed. `None` if there is nothing to
    /// confirm.
    pub fn unconfirmed(&self, instead: Option<&Path>) -> Option<Unconfirmed> {
        if self.is_without_repository() && instead.is_none() {
            return None;
        }
        let directory = self.repository.clone().or_else(|| instead.map(Path::to_owned))?;
        let found = Repository::containing(&directory).ok().flatten()?;
        let is_confirmed = self.confirmed.is_some() && self.confirmed == found.id();
        let is_known = is_confirmed || self.known.as_ref().is_some_and(|known| known.is(found.data()));
        (!is_known).then(|| Unconfirmed { label: self.label(), is_copy: self.is_copy, directory, found })
    }

    /// Refuses roots whose repository the user would have to confirm. For callers that have no user to ask.
    ///
    /// # Errors
    /// When there is one.
    pub fn require_confirmed(roots: &[Self], instead: Option<&Path>) -> Result<(), Failure> {
        match roots.iter().find_map(|root| root.unconfirmed(instead)) {
            Some(unconfirmed) => Err(unconfirmed.not_asked()),
            None => Ok(()),
        }
    }

    /// Uses a repository that the user has confirmed.
    pub fn confirm_repository(&mut self, confirmed: &Unconfirmed) {
        self.confirm(&confirmed.found);
    }

    fn confirm(&mut self, found: &Repository) {
        self.repository = Some(found.directory().to_owned());
        found.directory().clone_into(&mut self.directory);
        self.known = None;
        self.confirmed = found.id();
    }

    /// Whether this is one of several directories, and not the workspace.
    pub fn is_directory(&self) -> bool {
        !self.name.is_empty()
    }

    /// The path in the bottle.
    pub fn path(&self) -> String {
        if self.is_directory() { format!("{WORKSPACE}/{}", self.name) } else { WORKSPACE.to_owned() }
    }

    /// The beginning of a line about this directory; empty for the workspace.
    pub fn label(&self) -> String {
        if self.is_directory() { format!("{}: ", one_line(&self.name)) } else { String::new() }
    }

    /// The path in the bottle, for `bottle cp` in a shell.
    pub fn source(&self) -> String {
        quoted(&format!("{}:{}", self.slug, if self.is_directory() { &self.name } else { "." }))
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_directory() {
            write!(f, "the directory {} of {}", one_line(&self.name), self.slug)
        } else {
            write!(f, "the workspace of {}", self.slug)
        }
    }
}

/// Refuses an operation that needs a copy of the directory. `what` is the action and its object.
///
/// # Errors
/// When the workspace of the bottle is a directory of the user.
pub fn require_copy(record: &Record, what: &str, hint: impl Into<String>) -> Result<(), Failure> {
    let Some(live) = record.live() else { return Ok(()) };
    let path = shown(&live.path);
    let why = format!("cannot {what}: its workspace is {path} itself (`--cwd=live`)");
    Err(Failure::state(why).about(&record.slug).hint(hint))
}

/// Returns the comparisons that succeeded. If `skipped` accepts the error of a directory, and another directory could
/// be compared, only notifies about this error.
///
/// # Errors
/// Returns the first other error.
pub(super) fn compared<T>(
    all: Vec<Result<T, (Root, Failure)>>,
    skipped: impl Fn(&Failure) -> bool,
    notify: Notify<'_>,
) -> Result<Vec<T>, Failure> {
    let (has_some, several) = (all.iter().any(Result::is_ok), all.len() > 1);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for result in all {
        match result {
            Ok(compared) => done.push(compared),
            Err((root, error)) if !has_some || !skipped(&error) => {
                let leave_out = || several.then(|| "name another directory to leave this one out".to_owned());
                let label = if several { root.label() } else { String::new() };
                let hint = error.hint.clone().or_else(leave_out);
                return Err(error.reworded(|message| format!("{label}{message}")).hint_if(hint));
            }
            Err(error) => failed.push(error),
        }
    }
    for (root, error) in failed {
        notify(Notice::Warning(format!(
            "{} was not compared: {}; `bottle cp {} DIRECTORY` copies it out",
            one_line(&root.name),
            inert(&error.message),
            root.source()
        )));
    }
    Ok(done)
}

/// Whether a directory cannot be compared because neither the bottle nor the user has a repository of it.
pub(super) fn is_without_repository(error: &Failure) -> bool {
    error.kind == failure::Kind::NothingCommitted
}

/// The origin of the given files of the directory `name`, or of the workspace if `name` is empty.
fn origin(host: &Host, record: &Record, name: &str) -> Option<Origin> {
    GivenRecord::origin(&given::record(&Store::of(host).directory(&record.slug), name)).ok().flatten()
}

/// The record's entry for the repository of the directory `name`, or of the workspace if `name` is empty.
fn known(record: &Record, name: &str) -> Option<CopiedRepository> {
    record.repositories.iter().find(|known| known.name == name).cloned()
}

/// A repository that is used only if the user confirms it.
pub struct Unconfirmed {
    /// The beginning of a line about the root.
    label: String,
    is_copy: bool,
    /// The directory from which the repository was found.
    directory: PathBuf,
    found: Repository,
}

impl Unconfirmed {
    /// The question to the user.
    pub fn question(&self) -> String {
        let question = match self.is_copy {
            true => "It is not known to be the one that was copied. Use the repository",
            false => "No repository was copied. Use the repository",
        };
        format!("{}{question} {}?", self.label, self.found.described())
    }

    /// The failure if there is nobody to ask.
    pub fn not_asked(&self) -> Failure {
        let directory = quoted(&self.directory.display().to_string());
        Failure::usage(format!(
            "{}cannot ask whether to use the repository {}: there is no terminal",
            self.label,
            self.found.described()
        ))
        .about("--repository")
        .hint(format!("`--repository {directory}` confirms it"))
    }

    /// The failure if the user does not confirm it.
    pub fn denied() -> Failure {
        Failure::state("the repository was not confirmed; nothing was changed")
            .hint("`--repository PATH` names another one")
    }
}

/// The objects of a repository that a bottle was given at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// The directory with the objects, to which no process in the bottle can write.
    objects: PathBuf,
    /// The commit with which the bottle began, if it is known. A fetch offers it, so that the bottle does not send its
    /// history again.
    pub(super) commit: Option<ObjectId>,
}

impl Given {
    /// Finds what the bottle was given: for the directory `name`, or for the workspace.
    fn find(
        host: &Host,
        record: &Record,
        name: Option<&str>,
        known: Option<&CopiedRepository>,
    ) -> Option<Self> {
        let state = Store::of(host).directory(&record.slug);
        let objects = shared_objects(&state)?;
        let objects = match name {
            Some(name) => objects.join(GIT_OBJECTS_OF_SEVERAL).join(name),
            None => objects,
        };
        // For a directory without a repository, the bottle was given no objects.
        objects.symlink_metadata().ok().filter(Metadata::is_dir)?;
        Some(Self { objects, commit: known.and_then(CopiedRepository::head) })
    }

    /// Opens the objects.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn open(&self) -> Result<Objects, Failure> {
        let failed = |error| Failure::path("read", &self.objects, error);
        let directory = Directory::open_without_link(&self.objects).map_err(failed)?;
        Objects::open(&directory, &[]).map_err(|error| Failure::cannot("read the bottle's objects", error))
    }
}

/// The branch of each directory: `bottle/SLUG`, or `bottle/SLUG.NAME` if another directory has the same repository. No
/// slug contains a dot, so no other bottle has this branch.
fn branches<R: PartialEq>(slug: &Slug, names: &[&str], repositories: &[Option<R>]) -> Vec<String> {
    let is_plain = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let plain = |name: &str| name.replace(|c| !is_plain(c), "-");
    let branch = |(index, name): (usize, &&str)| {
        let own = repositories[index].as_ref();
        let shares = own.is_some() && repositories.iter().filter(|other| other.as_ref() == own).count() > 1;
        let is_ambiguous = names.iter().filter(|other| plain(other) == plain(name)).count() > 1;
        match (shares, is_ambiguous) {
            (false, _) => format!("bottle/{slug}"),
            (true, false) => format!("bottle/{slug}.{}", plain(name)),
            (true, true) => format!("bottle/{slug}.{}.{}", plain(name), index + 1),
        }
    };
    names.iter().enumerate().map(branch).collect()
}

fn no_directory(record: &Record, directory: &str, why: &str) -> Failure {
    let names: Vec<String> = record.directories.iter().map(|directory| one_line(&directory.name)).collect();
    let hint = match names.is_empty() {
        true => format!("`bottle fs ls {}` shows the directories of the workspace", record.slug),
        false => format!("the directories of {} are {}", record.slug, names.join(", ")),
    };
    Failure::usage(format!("cannot use the directory {}: {why}", one_line(directory)))
        .about("--directory")
        .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_repository_have_different_branches() {
        let slug: Slug = "one".parse().expect("a slug");
        for (directories, expected) in [
            (
                &[("api", "/a"), ("web", "/b"), ("plain", ""), ("other", "")][..],
                &["one", "one", "one", "one"][..],
            ),
            (&[("api", "/a"), ("my web", "/a"), ("x", "/b")], &["one.api", "one.my-web", "one"]),
            (&[("a b", "/a"), ("a.b", "/a")], &["one.a-b.1", "one.a-b.2"]),
        ] {
            let (names, repositories): (Vec<&str>, Vec<_>) = directories.iter().copied().unzip();
            let repositories: Vec<Option<PathBuf>> =
                repositories.into_iter().map(|path| (!path.is_empty()).then(|| path.into())).collect();
            let expected: Vec<String> = expected.iter().map(|name| format!("bottle/{name}")).collect();
            assert_eq!(branches(&slug, &names, &repositories), expected, "{names:?}");
        }
    }
}
