//! Replaces many paths of one folder by that folder.

use std::collections::BTreeMap;

/// The result of [`fold`]: folders that replace paths, and the paths that no folder replaces.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Folded {
    /// Folders that do not overlap, without a trailing slash, each with the number of paths that it replaces.
    pub(super) folders: Vec<(String, usize)>,
    /// The paths outside these folders.
    pub(super) paths: Vec<String>,
}

/// Replaces paths by the folder that contains them, if the folder contains more than `few` of the paths. The
/// deepest folders are replaced first. Never uses the root as a folder, because it would allow every path of
/// the host.
pub(super) fn fold(paths: &[&str], few: usize) -> Folded {
    let mut folded = Folded { folders: Vec::new(), paths: paths.iter().map(ToString::to_string).collect() };
    while let Some(folder) = deepest(&folded.paths, few) {
        let inside = |path: &String| is_inside(path, &folder);
        let count = folded.paths.iter().filter(|path| inside(path)).count();
        folded.paths.retain(|path| !inside(path));
        folded.folders.push((folder, count));
    }
    // Removes folders that are inside another folder of the result.
    let all = folded.folders.clone();
    folded.folders.retain(|(folder, _)| !all.iter().any(|(above, _)| is_inside(folder, above)));
    folded.folders.sort();
    folded
}

fn is_inside(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns one of the deepest folders that contain more than `few` paths.
fn deepest(paths: &[String], few: usize) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for path in paths {
        let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
        for end in ends {
            *counts.entry(&path[..end]).or_default() += 1;
        }
    }
    let depth = |folder: &str| folder.matches('/').count();
    let many = counts.into_iter().filter(|(_, count)| *count > few);
    many.map(|(folder, _)| folder).max_by_key(|folder| depth(folder)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn folds_many_paths_into_the_deepest_folder() {
        let users: Vec<String> = (0..4).map(|n| format!("/v1/users/{n}/keys")).collect();
        let files: Vec<String> = (0..4).map(|n| format!("/v1/files/{n}")).collect();
        let mut paths: Vec<&str> = users.iter().chain(&files).map(String::as_str).collect();
        paths.push("/health");
        let folders = |few| fold(&paths, few).folders;
        assert_eq!(folders(3), [("/v1/files".to_owned(), 4), ("/v1/users".to_owned(), 4)]);
        assert_eq!(folders(5), [("/v1".to_owned(), 8)]);
        assert_eq!(fold(&paths, 5).paths, ["/health"]);
        assert_eq!(folders(8), []);
        let top: Vec<String> = (0..20).map(|n| format!("/{n}")).collect();
        let top: Vec<&str> = top.iter().map(String::as_str).collect();
        assert_eq!(fold(&top, 2).folders, []);
    }

    proptest! {
        #[test]
        fn every_path_remains_or_is_in_one_folder(
            paths in proptest::collection::btree_set("(/[ab]{1,2}){1,4}/?", 0..40), few in 0usize..6,
        ) {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let folded = fold(&paths, few);
            for path in &paths {
                let kept = folded.paths.iter().filter(|kept| kept == path).count();
                let inside = folded.folders.iter().filter(|(folder, _)| is_inside(path, folder)).count();
                prop_assert_eq!(kept + inside, 1, "{}", path);
            }
        }
    }
}
