//! Checks several directories that are copied into one workspace.

use std::path::Path;

use bottle_plan::CopiedDirectory;

use crate::failure::Failure;
use crate::text::{one_line, shown};
use crate::work::is_inside;

/// Returns a directory to copy, with the name that it gets in the workspace.
///
/// # Errors
/// When the directory does not exist, or when a workspace cannot contain a directory of this name.
pub fn named(path: &Path, all: bool) -> Result<CopiedDirectory, Failure> {
    let path = path.canonicalize().map_err(|error| Failure::path("copy", path, error))?;
    let unnamed = |why: &str, hint: &str| {
        Err(Failure::usage(format!("cannot copy {} beside others: {why}", shown(&path)))
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

/// Refuses the directories if two of them are the same, contain each other, or have the same name.
///
/// # Errors
/// Returns a [`Failure`] of kind usage for the first two directories in conflict.
pub fn require_different(directories: &[CopiedDirectory]) -> Result<(), Failure> {
    for (index, one) in directories.iter().enumerate() {
        for other in &directories[index + 1..] {
            if one.path == other.path {
                return Err(Failure::usage(format!("cannot copy {} twice", shown(&one.path)))
                    .about("--cwd")
                    .hint("name it once; with `--repository`, name one directory of each repository"));
            }
            if let Some((why, hint)) = conflict(one, other) {
                let both = format!("{} and {}", shown(&one.path), shown(&other.path));
                return Err(Failure::usage(format!("cannot copy {both}: {why}")).about("--cwd").hint(hint));
            }
        }
    }
    Ok(())
}

/// Returns why these two directories cannot be in one workspace, and a hint. `None` if there is no conflict.
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
