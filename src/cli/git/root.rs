//! The parts of a bottle's workspace that `diff`, `apply`, `pull` and `fs reset` work on: the workspace itself, or its
//! folders if several directories were copied into it.

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};

use bottle_contract::names::{GIT_OBJECTS_OF_SEVERAL, Slug, WORKSPACE};
use bottle_contract::session::files::FilePath;
use bottle_repository::{Directory, FileId, Objects};

use super::{ObjectId, Repository};
use crate::backend::shared_objects;
use crate::cli::error::{CliError, require_answer};
use crate::cli::output::{Output, one_line};
use crate::cli::terminal::{TerminalUser, interactive};
use crate::host::Host;
use crate::instance::Store;
use crate::instance::record::Record;
use crate::instance::repositories::CopiedRepository;
use crate::plan::CopiedFolder;

/// The workspace of a bottle or a folder of it, and the directory on the host that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    /// The bottle's slug.
    pub(crate) slug: Slug,
    /// The path of the folder in the workspace; empty for the workspace itself.
    pub(crate) name: String,
    /// The directory that was copied, otherwise the working directory.
    pub(crate) directory: PathBuf,
    /// The directory whose repository is the user's: the one that was copied. `None` if there is none.
    repository: Option<PathBuf>,
    /// The repository that was copied. `None` if nothing is known about it.
    known: Option<CopiedRepository>,
    /// The repository that the user has confirmed instead.
    confirmed: Option<FileId>,
    /// What the bottle was given of a repository. `None` if nothing is known about it.
    pub(super) given: Option<Given>,
    /// Whether the files were copied from this directory.
    pub(crate) is_copy: bool,
    /// The branch into which `pull` fetches, without `refs/heads/`.
    pub(crate) branch: String,
}

impl Root {
    /// Returns the folders that several `--cwd` copied, otherwise the workspace. With `folder`, returns only this
    /// folder of the workspace. It belongs to the working directory if it was not copied.
    ///
    /// # Errors
    /// Returns an error if there is no such folder.
    pub(crate) fn of(host: &Host, record: &Record, folder: Option<&str>) -> Result<Vec<Self>, CliError> {
        let Some(folder) = folder else {
            return if record.folders.is_empty() {
                Ok(vec![Self::workspace(host, record)])
            } else {
                Ok(Self::folders(host, record))
            };
        };
        let path = FilePath::from(folder).in_workspace().filter(|path| !path.as_os_str().is_empty());
        let name = path.as_deref().and_then(Path::to_str);
        let name = name.ok_or_else(|| no_folder(record, folder, "it is not a folder of the workspace"))?;
        if record.folders.is_empty() {
            let workspace = Self::workspace(host, record);
            return Ok(vec![Self {
                name: name.to_owned(),
                directory: host.cwd.clone(),
                repository: None,
                known: None,
                is_copy: false,
                given: None,
                ..workspace
            }]);
        }
        let mut found = Self::folders(host, record);
        found.retain(|root| root.name == name);
        if found.is_empty() { Err(no_folder(record, folder, "it was not copied")) } else { Ok(found) }
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
            is_copy,
            branch: format!("bottle/{}", record.slug),
        }
    }

    fn folders(host: &Host, record: &Record) -> Vec<Self> {
        let repository = |folder: &CopiedFolder| {
            let repository = Repository::containing(&folder.path).ok().flatten();
            repository.and_then(|repository| repository.data().located().common.id().ok())
        };
        let repositories: Vec<Option<FileId>> = record.folders.iter().map(repository).collect();
        let names: Vec<&str> = record.folders.iter().map(|folder| folder.name.as_str()).collect();
        let root = |(folder, branch): (&CopiedFolder, String)| {
            let known = known(record, &folder.name);
            Self {
                slug: record.slug.clone(),
                name: folder.name.clone(),
                directory: folder.path.clone(),
                repository: Some(folder.path.clone()),
                given: Given::find(host, record, Some(&folder.name), known.as_ref()),
                known,
                confirmed: None,
                is_copy: true,
                branch,
            }
        };
        let branches = branches(&record.slug, &names, &repositories);
        record.folders.iter().zip(branches).map(root).collect()
    }

    /// The user's repository. `None` if the files were not copied from one.
    ///
    /// # Errors
    /// When it cannot be read, or it is not the one that was copied and the user has not confirmed it.
    pub(crate) fn repository(&self) -> Result<Option<Repository>, CliError> {
        let Some(directory) = &self.repository else { return Ok(None) };
        let Some(found) = Repository::containing(directory)? else { return Ok(None) };
        if let Some(known) = self.known.as_ref().filter(|known| known.is(found.data())) {
            return Ok(Some(found.with_lenders(known.lenders.clone())));
        }
        if self.confirmed.is_some() && self.confirmed == found.id() {
            let lenders = found.lenders()?;
            return Ok(Some(found.with_lenders(lenders)));
        }
        Err(CliError::state(format!(
            "{}the repository {} is not known to be the one that was copied",
            self.label(),
            found.described()
        ))
        .about("--repository")
        .hint("`--repository PATH` confirms it, or names another one"))
    }

    /// Asks once for each repository that is not known to be the one that was copied. `chosen` answers: it names the
    /// repository of the only root. Without it and without a copy, the repository of the directory `instead` is
    /// proposed, if there is one.
    ///
    /// # Errors
    /// When the user does not confirm it, or there is no terminal to ask.
    pub(crate) fn confirm_repositories(
        roots: &mut [Self],
        chosen: Option<&Path>,
        instead: Option<&Path>,
        output: &Output,
    ) -> Result<(), CliError> {
        if let Some(chosen) = chosen {
            let [root] = roots else {
                return Err(CliError::usage("cannot use one repository for several folders")
                    .about("--repository")
                    .hint("`--folder FOLDER` selects one of them"));
            };
            let found = Repository::containing(chosen)?.ok_or_else(|| {
                CliError::usage(format!("{} is in no git repository", shown(chosen))).about("--repository")
            })?;
            root.confirm(&found);
            return Ok(());
        }
        for root in roots {
            let Some(directory) = root.repository.clone().or_else(|| instead.map(Path::to_owned)) else {
                continue;
            };
            let Some(found) = Repository::containing(&directory).ok().flatten() else { continue };
            if root.known.as_ref().is_some_and(|known| known.is(found.data())) {
                continue;
            }
            let question = match root.is_copy {
                true => "It is not known to be the one that was copied. Use the repository",
                false => "No repository was copied. Use the repository",
            };
            let question = format!("{}{question} {}?", root.label(), found.described());
            if !interactive() || output.json {
                return Err(CliError::usage(format!(
                    "{}cannot ask whether to use the repository {}: there is no terminal",
                    root.label(),
                    found.described()
                ))
                .about("--repository")
                .hint(format!("`--repository {}` confirms it", quoted(&directory.display().to_string()))));
            }
            let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
            if !require_answer(asked, "nothing was changed")? {
                return Err(CliError::state("the repository was not confirmed; nothing was changed")
                    .hint("`--repository PATH` names another one"));
            }
            root.confirm(&found);
        }
        Ok(())
    }

    fn confirm(&mut self, found: &Repository) {
        self.repository = Some(found.folder().to_owned());
        found.folder().clone_into(&mut self.directory);
        self.known = None;
        self.confirmed = found.id();
    }

    /// Whether this is one of several folders, and not the workspace.
    pub(crate) fn is_folder(&self) -> bool {
        !self.name.is_empty()
    }

    /// The path in the bottle.
    pub(crate) fn path(&self) -> String {
        if self.is_folder() { format!("{WORKSPACE}/{}", self.name) } else { WORKSPACE.to_owned() }
    }

    /// The beginning of a line about this folder; empty for the workspace.
    pub(crate) fn label(&self) -> String {
        if self.is_folder() { format!("{}: ", one_line(&self.name)) } else { String::new() }
    }

    /// The path in the bottle, for `bottle cp` in a shell.
    pub(crate) fn source(&self) -> String {
        quoted(&format!("{}:{}", self.slug, if self.is_folder() { &self.name } else { "." }))
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_folder() {
            write!(f, "the folder {} of {}", one_line(&self.name), self.slug)
        } else {
            write!(f, "the workspace of {}", self.slug)
        }
    }
}

/// What the record knows about the repository of a folder, or of the workspace with an empty name.
fn known(record: &Record, folder: &str) -> Option<CopiedRepository> {
    record.repositories.iter().find(|known| known.folder == folder).cloned()
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
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
    /// Finds what the bottle was given: for the folder `name`, or for the workspace.
    fn find(
        host: &Host,
        record: &Record,
        name: Option<&str>,
        known: Option<&CopiedRepository>,
    ) -> Option<Self> {
        let state = Store::of(host).folder(&record.slug);
        let objects = shared_objects(&state)?;
        let objects = match name {
            Some(name) => objects.join(GIT_OBJECTS_OF_SEVERAL).join(name),
            None => objects,
        };
        // Nothing was given of a directory without a repository.
        objects.symlink_metadata().ok().filter(Metadata::is_dir)?;
        Some(Self { objects, commit: known.and_then(CopiedRepository::head) })
    }

    /// Opens the objects.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn open(&self) -> Result<Objects, CliError> {
        let failed = |error| CliError::path("read", &self.objects, error);
        let directory = Directory::open_without_link(&self.objects).map_err(failed)?;
        Objects::open(&directory, &[]).map_err(|error| CliError::cannot("read the bottle's objects", error))
    }
}

/// The branch of each folder: `bottle/SLUG`, or `bottle/SLUG.NAME` if another folder has the same repository. No slug
/// contains a dot, so this is the branch of no other bottle.
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

/// A word of a shell's command, in one line.
pub(crate) fn quoted(word: &str) -> String {
    let word = one_line(word);
    shlex::try_quote(&word).map(Into::into).unwrap_or(word)
}

fn no_folder(record: &Record, folder: &str, why: &str) -> CliError {
    let names: Vec<String> = record.folders.iter().map(|folder| one_line(&folder.name)).collect();
    let hint = match names.is_empty() {
        true => format!("`bottle fs ls {}` shows the folders of the workspace", record.slug),
        false => format!("the folders of {} are {}", record.slug, names.join(", ")),
    };
    CliError::usage(format!("cannot use the folder {}: {why}", one_line(folder))).about("--folder").hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_one_repository_have_different_branches() {
        let slug: Slug = "one".parse().expect("a slug");
        for (folders, expected) in [
            (
                &[("api", "/a"), ("web", "/b"), ("plain", ""), ("other", "")][..],
                &["one", "one", "one", "one"][..],
            ),
            (&[("api", "/a"), ("my web", "/a"), ("x", "/b")], &["one.api", "one.my-web", "one"]),
            (&[("a b", "/a"), ("a.b", "/a")], &["one.a-b.1", "one.a-b.2"]),
        ] {
            let (names, repositories): (Vec<&str>, Vec<_>) = folders.iter().copied().unzip();
            let repositories: Vec<Option<PathBuf>> =
                repositories.into_iter().map(|path| (!path.is_empty()).then(|| path.into())).collect();
            let expected: Vec<String> = expected.iter().map(|name| format!("bottle/{name}")).collect();
            assert_eq!(branches(&slug, &names, &repositories), expected, "{names:?}");
        }
    }
}
