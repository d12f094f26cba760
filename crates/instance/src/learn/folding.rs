//! Replaces many paths of one directory by that directory.

use std::collections::BTreeMap;

/// The result of [`fold`]: directories that replace paths, and the paths that no directory replaces.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Folded {
    /// Directories that do not overlap, without a trailing slash, each with the number of paths that it replaces.
    pub(super) directories: Vec<(String, usize)>,
    /// The paths outside of these directories.
    pub(super) paths: Vec<String>,
}

/// Replaces paths by the directory that contains them, if the directory contains more than `few` of the paths. The
/// deepest directories are used first. The root is never used, because it would allow every path of the host.
pub(super) fn fold(paths: &[&str], few: usize) -> Folded {
    let mut folded =
        Folded { directories: Vec::new(), paths: paths.iter().map(ToString::to_string).collect() };
    while let Some(directory) = deepest(&folded.paths, few) {
        let inside = |path: &String| is_inside(path, &directory);
        let count = folded.paths.iter().filter(|path| inside(path)).count();
        folded.paths.retain(|path| !inside(path));
        folded.directories.push((directory, count));
    }
    // Removes directories that are inside of another directory of the result.
    let all = folded.directories.clone();
    folded.directories.retain(|(directory, _)| !all.iter().any(|(above, _)| is_inside(directory, above)));
    folded.directories.sort();
    folded
}

fn is_inside(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns one of the deepest directories that contain more than `few` paths.
fn deepest(paths: &[String], few: usize) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for path in paths {
        let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
        for end in ends {
            *counts.entry(&path[..end]).or_default() += 1;
        }
    }
    let depth = |directory: &str| directory.matches('/').count();
    let many = counts.into_iter().filter(|(_, count)| *count > few);
    many.map(|(directory, _)| directory).max_by_key(|directory| depth(directory)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn folds_many_paths_into_the_deepest_directory() {
        let users: Vec<String> = (0..4).map(|n| format!("/v1/users/{n}/keys")).collect();
        let files: Vec<String> = (0..4).map(|n| format!("/v1/files/{n}")).collect();
        let mut paths: Vec<&str> = users.iter().chain(&files).map(String::as_str).collect();
        paths.push("/health");
        let directories = |few| fold(&paths, few).directories;
        assert_eq!(directories(3), [("/v1/files".to_owned(), 4), ("/v1/users".to_owned(), 4)]);
        assert_eq!(directories(5), [("/v1".to_owned(), 8)]);
        assert_eq!(fold(&paths, 5).paths, ["/health"]);
        assert_eq!(directories(8), []);
        let top: Vec<String> = (0..20).map(|n| format!("/{n}")).collect();
        let top: Vec<&str> = top.iter().map(String::as_str).collect();
        assert_eq!(fold(&top, 2).directories, []);
    }

    proptest! {
        #[test]
        fn every_path_remains_or_is_in_one_directory(
            paths in proptest::collection::btree_set("(/[ab]{1,2}){1,4}/?", 0..40), few in 0usize..6,
        ) {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let folded = fold(&paths, few);
            for path in &paths {
                let kept = folded.paths.iter().filter(|kept| kept == path).count();
                let inside = folded.directories.iter().filter(|(directory, _)| is_inside(path, directory)).count();
                prop_assert_eq!(kept + inside, 1, "{}", path);
            }
        }
    }
}
