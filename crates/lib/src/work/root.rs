//! The roots of a bottle's workspace, on which `diff`, `apply`, `pull` and `fs reset` work. If several directories were
//! copied into the workspace, each of them is a root. Otherwise, the workspace itself is the only root.

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

/// The workspace of a bottle or one of its directories, and the corresponding directory on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The bottle's slug.
    pub slug: Slug,
    /// The path of the directory in the workspace. Empty for the workspace itself.
    pub name: String,
    /// The host directory that was copied. If no directory was copied, the working directory.
    pub directory: PathBuf,
    /// The host directory in which the user's repository is found: the copied directory, or the directory that the user
    /// confirmed. `None` if there is neither.
    repository: Option<PathBuf>,
    /// The repository that was copied, from the bottle's record. `None` if the record does not describe it.
    known: Option<CopiedRepository>,
    /// The identity of the repository that the user has confirmed instead of the copied repository.
    confirmed: Option<FileId>,
    /// The git objects that the bottle received at its start. `None` if they are unknown.
    pub(super) given: Option<Given>,
    /// The origin of the files that the bottle received at its start, from the record of these files. `None` without a
    /// record.
    origin: Option<Origin>,
    /// Whether the workspace's files were copied from `directory`, or are the files of `directory` itself.
    pub is_copy: bool,
    /// Whether `directory` itself is the workspace (`--cwd=live`).
    pub is_live: bool,
    /// The branch into which `pull` fetches, without `refs/heads/`.
    pub branch: String,
}

impl Root {
    /// Returns the roots of a bottle's workspace. If several `--cwd` flags copied directories, these directories are
    /// the roots. Otherwise, the workspace is the only root. With `chosen`, returns only the root of this directory of
    /// the workspace. If this directory was not copied, its work is compared with the working directory.
    ///
    /// # Errors
    /// Returns an error if the workspace has no directory `chosen`.
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

    /// Whether the user has a repository into which the work of at least one root can be pulled.
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

    /// Whether the files at the start came from a directory without a repository, and the user has not confirmed a
    /// repository since then.
    pub fn is_without_repository(&self) -> bool {
        self.origin == Some(Origin::Directory) && self.confirmed.is_none()
    }

    /// Returns the record of the files that the bottle received at its start. `None` if there is no record, or if the
    /// record does not belong to the user's repository `own`.
    ///
    /// # Errors
    /// When the record cannot be read.
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

    /// Returns the user's repository. `None` if the files at the start did not come from a repository.
    ///
    /// # Errors
    /// When the repository cannot be read, or when it is neither the copied repository nor confirmed by the user.
    pub fn repository(&self) -> Result<Option<Repository>, Failure> {
        // A repository that the user created in the directory after the start has no information about the files at the
        // start.
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

    /// Returns the root of the submodule at `path` in this root. `None` if the user's repository has no usable
    /// submodule at this path.
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
        // Real paths are compared, because the path of a git directory can contain `..`.
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

    /// Uses the repository that contains the directory `chosen`, instead of the copied repository.
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

    /// Returns the repository that the user has to confirm before it is used, because it is not known to be the copied
    /// repository. If no directory was copied, proposes the repository that contains the directory `instead`. `None` if
    /// no repository has to be confirmed.
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

    /// Refuses roots whose repository the user would have to confirm. For callers that cannot ask the user.
    ///
    /// # Errors
    /// When the user would have to confirm the repository of a root.
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

    /// Whether this root is a directory in the workspace, and not the workspace itself.
    pub fn is_directory(&self) -> bool {
        !self.name.is_empty()
    }

    /// The path of the root in the bottle.
    pub fn path(&self) -> String {
        if self.is_directory() { format!("{WORKSPACE}/{}", self.name) } else { WORKSPACE.to_owned() }
    }

    /// The prefix of a message about this root. Empty for the workspace itself.
    pub fn label(&self) -> String {
        if self.is_directory() { format!("{}: ", one_line(&self.name)) } else { String::new() }
    }

    /// The argument of `bottle cp` for this root, quoted for a shell.
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

/// Refuses an operation that needs a workspace that is a copy. `what` describes the operation in the message.
///
/// # Errors
/// When the workspace of the bottle is a directory of the user.
pub fn require_copy(record: &Record, what: &str, hint: impl Into<String>) -> Result<(), Failure> {
    let Some(live) = record.live() else { return Ok(()) };
    let path = shown(&live.path);
    let why = format!("cannot {what}: its workspace is {path} itself (`--cwd=live`)");
    Err(Failure::state(why).about(&record.slug).hint(hint))
}

/// Returns the results of the roots that could be compared. If `skipped` returns true for the error of a root, and
/// another root could be compared, this error only causes a warning.
///
/// # Errors
/// Returns the first error that is not skipped.
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

/// Whether the error says that neither the bottle nor the user has a repository of a directory.
pub(super) fn is_without_repository(error: &Failure) -> bool {
    error.kind == failure::Kind::NothingCommitted
}

/// Returns the origin of the files that the bottle received at its start, for the directory `name`, or for the
/// workspace if `name` is empty.
fn origin(host: &Host, record: &Record, name: &str) -> Option<Origin> {
    GivenRecord::origin(&given::record(&Store::of(host).directory(&record.slug), name)).ok().flatten()
}

/// Returns the record's entry for the repository of the directory `name`, or of the workspace if `name` is empty.
fn known(record: &Record, name: &str) -> Option<CopiedRepository> {
    record.repositories.iter().find(|known| known.name == name).cloned()
}

/// A repository that is used only if the user confirms it.
pub struct Unconfirmed {
    /// The prefix of a message about the root.
    label: String,
    is_copy: bool,
    /// The directory from which the repository was found.
    directory: PathBuf,
    found: Repository,
}

impl Unconfirmed {
    /// Returns the question to the user whether to use the repository.
    pub fn question(&self) -> String {
        let question = match self.is_copy {
            true => "It is not known to be the one that was copied. Use the repository",
            false => "No repository was copied. Use the repository",
        };
        format!("{}{question} {}?", self.label, self.found.described())
    }

    /// The failure if there is no terminal to ask the user.
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

    /// The failure if the user does not confirm the repository.
    pub fn denied() -> Failure {
        Failure::state("the repository was not confirmed; nothing was changed")
            .hint("`--repository PATH` names another one")
    }
}

/// The git objects that a bottle received at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// The directory with the objects, to which no process in the bottle can write.
    objects: PathBuf,
    /// The commit from which the bottle started, if it is known. A fetch offers this commit, so that the bottle does
    /// not send the commit's history again.
    pub(super) commit: Option<ObjectId>,
}

impl Given {
    /// Finds the git objects that the bottle received for the directory `name`, or for the workspace if `name` is
    /// `None`.
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
        // For a directory without a repository, the bottle received no objects.
        objects.symlink_metadata().ok().filter(Metadata::is_dir)?;
        Some(Self { objects, commit: known.and_then(CopiedRepository::head) })
    }

    /// Opens the objects.
    ///
    /// # Errors
    /// When the objects cannot be read.
    pub(super) fn open(&self) -> Result<Objects, Failure> {
        let failed = |error| Failure::path("read", &self.objects, error);
        let directory = Directory::open_without_link(&self.objects).map_err(failed)?;
        Objects::open(&directory, &[]).map_err(|error| Failure::cannot("read the bottle's objects", error))
    }
}

/// Returns the branch of each directory: `bottle/SLUG`, or `bottle/SLUG.NAME` if another directory has the same
/// repository. No slug contains a dot, so no other bottle uses this branch.
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
