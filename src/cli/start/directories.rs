//! The directories of several `--cwd`, each of which is copied into the workspace.

use std::path::Path;

use super::Start;
use super::cwd::{CopyIn, Cwd};
use super::repository;
use crate::cli::error::CliError;
use crate::cli::output::{Output, one_line};
use crate::cli::session::Signals;
use crate::host::Host;
use crate::library::work::is_inside;
use crate::plan::CopiedDirectory;

/// Returns the directories of several `--cwd`, of which `entered` are the hosts; none if `--cwd` was given at most
/// once.
///
/// # Errors
/// [`CliError`] of kind usage, if they cannot be in one workspace.
pub(super) fn of_flags(cwds: &[Cwd], entered: &[Host]) -> Result<Vec<CopiedDirectory>, CliError> {
    if cwds.len() < 2 {
        return Ok(Vec::new());
    }
    if cwds.iter().any(|cwd| cwd.mode() == CopyIn::Live) {
        return Err(CliError::usage(
            "cannot mount a directory beside others: it would be the whole workspace",
        )
        .about("--cwd=live")
        .hint("`--cwd=./live` copies a directory called live; or start a bottle for each directory"));
    }
    let each = cwds.iter().zip(entered);
    let directories = each
        .map(|(cwd, host)| directory(&host.cwd, cwd.mode() == CopyIn::All))
        .collect::<Result<Vec<_>, _>>()?;
    require_different(&directories).map(|()| directories)
}

/// Replaces directories by the repositories that contain them, with `--repository`.
///
/// # Errors
/// As [`of_flags`] and [`repository::choose`].
pub(super) async fn choose_repositories(
    start: &mut Start,
    host: &Host,
    signals: &mut Signals,
    output: &Output,
) -> Result<(), CliError> {
    let mut directories = start.directories.clone();
    for (index, at) in directories.iter_mut().enumerate() {
        let host = &Host { cwd: at.path.clone(), ..host.clone() };
        let mode = if at.all { CopyIn::All } else { CopyIn::Tracked };
        let Some(chosen) = repository::choose(start, host, mode, signals, output).await? else { continue };
        *at = directory(&chosen.top, at.all)?;
        if index == 0 {
            start.in_repository = Some(chosen);
        }
    }
    require_different(&directories)?;
    start.directories = directories;
    Ok(())
}

/// A directory with its name in the workspace.
fn directory(path: &Path, all: bool) -> Result<CopiedDirectory, CliError> {
    let path = path.canonicalize().map_err(|error| CliError::path("copy", path, error))?;
    let unnamed = |why: &str, hint: &str| {
        Err(CliError::usage(format!("cannot copy {} beside others: {why}", shown(&path)))
            .about("--cwd")
            .hint(hint))
    };
    if path.to_str().is_none() {
        return unnamed("its path is not UTF-8", "rename it");
    }
    match path.file_name().and_then(|name| name.to_str()) {
        None => unnamed("it has no name", "start in the directory of a project"),
        Some(name) if !is_inside(Path::new(name)) => {
            unnamed("a workspace cannot have a directory of this name", "copy the directory that contains it")
        }
        Some(name) => Ok(CopiedDirectory { name: name.to_owned(), path: path.clone(), all }),
    }
}

/// Refuses directories of which two are the same, contain each other, or have the same name.
fn require_different(directories: &[CopiedDirectory]) -> Result<(), CliError> {
    for (index, one) in directories.iter().enumerate() {
        for other in &directories[index + 1..] {
            if one.path == other.path {
                return Err(CliError::usage(format!("cannot copy {} twice", shown(&one.path)))
                    .about("--cwd")
                    .hint("name it once; with `--repository`, name one directory of each repository"));
            }
            if let Some((why, hint)) = conflict(one, other) {
                let both = format!("{} and {}", shown(&one.path), shown(&other.path));
                return Err(CliError::usage(format!("cannot copy {both}: {why}")).about("--cwd").hint(hint));
            }
        }
    }
    Ok(())
}

/// Why these different directories cannot be in one workspace, and the next step. `None` if they can.
fn conflict(one: &CopiedDirectory, other: &CopiedDirectory) -> Option<(String, String)> {
    let (outer, inner) = if other.path.starts_with(&one.path) { (one, other) } else { (other, one) };
    if inner.path.starts_with(&outer.path) {
        let hint = format!("omit {}, which the copy of {} contains", shown(&inner.path), shown(&outer.path));
        return Some(("one contains the other".to_owned(), hint));
    }
    (one.name == other.name).then(|| {
        let why = format!("both would be the directory {} of the workspace", one_line(&one.name));
        (why, "rename one, or copy it with `bottle cp` after the start".to_owned())
    })
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_directories_that_cannot_be_in_one_workspace() {
        let directory = |path: &str| CopiedDirectory {
            name: path.rsplit('/').next().unwrap_or_default().to_owned(),
            path: path.into(),
            all: false,
        };
        for (one, other, why) in [
            ("/p/api", "/p/web", None),
            ("/p/api", "/p/api2", None),
            ("/p", "/p/api", Some("one contains the other")),
            ("/p/api/src", "/p/api", Some("one contains the other")),
            ("/p/web", "/q/web", Some("both would be the directory web of the workspace")),
        ] {
            let found = conflict(&directory(one), &directory(other));
            assert_eq!(found.as_ref().map(|(why, _)| why.as_str()), why, "{one} {other}");
        }
    }
}
