//! The parts of a bottle's workspace that `diff`, `apply`, `pull` and `fs reset` work on: the workspace itself, or its
//! folders if several directories were copied into it.

use std::fmt;
use std::path::{Path, PathBuf};

use bottle_contract::names::{Slug, WORKSPACE};
use bottle_contract::session::files::FilePath;

use super::Repository;
use crate::cli::error::CliError;
use crate::cli::output::one_line;
use crate::host::Host;
use crate::instance::record::Record;
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
    /// Returns an error if there is no such folder, or git is not installed.
    pub(crate) async fn of(
        host: &Host,
        record: &Record,
        folder: Option<&str>,
    ) -> Result<Vec<Self>, CliError> {
        let Some(folder) = folder else {
            return if record.folders.is_empty() {
                Ok(vec![Self::workspace(host, record)])
            } else {
                Self::folders(host, record).await
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
                is_copy: false,
                ..workspace
            }]);
        }
        let mut found = Self::folders(host, record).await?;
        found.retain(|root| root.name == name);
        if found.is_empty() { Err(no_folder(record, folder, "it was not copied")) } else { Ok(found) }
    }

    fn workspace(host: &Host, record: &Record) -> Self {
        let is_copy = record.copied_cwd;
        Self {
            slug: record.slug.clone(),
            name: String::new(),
            directory: if is_copy { &record.cwd } else { &host.cwd }.clone(),
            is_copy,
            branch: format!("bottle/{}", record.slug),
        }
    }

    async fn folders(host: &Host, record: &Record) -> Result<Vec<Self>, CliError> {
        let mut repositories = Vec::new();
        for CopiedFolder { path, .. } in &record.folders {
            let repository = Repository::containing(host, path).await.ok().flatten();
            repositories.push(match repository {
                Some(repository) => {
                    let objects = repository.git_path("objects").await?;
                    Some(objects.canonicalize().unwrap_or(objects))
                }
                None => None,
            });
        }
        let names: Vec<&str> = record.folders.iter().map(|folder| folder.name.as_str()).collect();
        let root = |(folder, branch): (&CopiedFolder, String)| Self {
            slug: record.slug.clone(),
            name: folder.name.clone(),
            directory: folder.path.clone(),
            is_copy: true,
            branch,
        };
        let branches = branches(&record.slug, &names, &repositories);
        Ok(record.folders.iter().zip(branches).map(root).collect())
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

/// The branch of each folder: `bottle/SLUG`, or `bottle/SLUG.NAME` if another folder has the same repository. No slug
/// contains a dot, so this is the branch of no other bottle.
fn branches(slug: &Slug, names: &[&str], repositories: &[Option<PathBuf>]) -> Vec<String> {
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
