//! The repository that contains the working directory. A bottle gets the whole repository, or only the working
//! directory.

use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_plan::InRepository;

use super::Repository;
use crate::failure::Failure;

/// A repository that contains the working directory.
pub struct Enclosing {
    repository: Repository,
    /// The root of the repository's files.
    pub top: PathBuf,
    /// The working directory: `top`, or a directory below `top`.
    pub here: PathBuf,
}

impl Enclosing {
    /// Finds the repository that contains the working directory. `None` if no repository contains it.
    ///
    /// # Errors
    /// When the repository cannot be used.
    pub fn find(host: &Host) -> Result<Option<Self>, Failure> {
        let Some(repository) = Repository::containing(&host.cwd)? else { return Ok(None) };
        let top = repository.top()?;
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let (real_top, here) = (real(&top), real(&host.cwd));
        if !here.starts_with(&real_top) {
            return Ok(None);
        }
        // If the working directory's path contains no link, both paths stay as the user wrote them.
        let is_written = host.cwd.starts_with(&top);
        let (top, here) = if is_written { (top, host.cwd.clone()) } else { (real_top, here) };
        Ok(Some(Self { repository, top, here }))
    }

    /// Whether the working directory is the root of the repository's files.
    pub fn is_whole(&self) -> bool {
        self.top == self.here
    }

    /// Whether the ignore rules exclude the working directory, so that a copy without ignored files would not contain
    /// it.
    ///
    /// # Errors
    /// When the path of the working directory is not UTF-8.
    pub fn ignores_here(&self) -> Result<bool, Failure> {
        self.repository.ignores_own_directory()
    }

    /// The failure if the whole repository was chosen, and [`Self::ignores_here`] is true.
    pub fn ignored(&self) -> Failure {
        let here = self.here.display();
        Failure::usage(format!("cannot start in {here}: .gitignore excludes it")).about("--repository").hint(
            "`--cwd=all` copies ignored files too; without `--repository`, only this directory is copied",
        )
    }

    /// The path of the working directory in the repository.
    pub fn inside(&self) -> &Path {
        self.here.strip_prefix(&self.top).unwrap_or(&self.here)
    }

    /// Returns the option that gives the whole repository to a bottle.
    pub fn chosen(self) -> InRepository {
        let inside = self.inside().to_owned();
        InRepository { top: self.top, inside }
    }

    /// The failure if the whole repository was chosen, but no repository contains the working directory.
    pub fn missing(host: &Host) -> Failure {
        Failure::usage(format!("cannot copy the repository: {} is in none", host.cwd.display()))
            .about("--repository")
            .hint("`--cwd` alone copies the directory")
    }
}
