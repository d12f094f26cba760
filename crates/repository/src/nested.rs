//! Recognises git directories among the files of a working tree.
//!
//! A git process in such a directory, or below it, obeys the directory's `config` and runs its hooks, although the
//! directory is not named `.git`.

use std::collections::BTreeSet;
use std::path::Path;

/// Whether git treats a directory with these entries as a git directory, like git's `is_git_directory`. `has` returns
/// whether an entry of a given name exists.
pub fn is_git_directory(has: impl Fn(&str) -> bool) -> bool {
    // If there is a `commondir`, the objects and references are in another directory.
    has("HEAD") && (has("commondir") || has("objects") && has("refs"))
}

/// Returns the first directory above one of these files that git treats as a git directory. `has` returns whether an
/// entry with a given path exists. Each directory is checked once.
pub fn first_git_directory<'a>(
    files: impl IntoIterator<Item = &'a Path>,
    has: impl Fn(&Path) -> bool,
) -> Option<&'a Path> {
    let places: BTreeSet<&Path> = files.into_iter().flat_map(|path| path.ancestors().skip(1)).collect();
    places.into_iter().find(|place| is_git_directory(|name| has(&place.join(name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(changed: &'a [&str], all: &[&str]) -> Option<&'a Path> {
        let has = |path: &Path| all.iter().any(|file| Path::new(file).starts_with(path));
        first_git_directory(changed.iter().map(Path::new), has)
    }

    #[test]
    fn recognises_what_git_recognises() {
        for (changed, all, place) in [
            (&["a/config"][..], &["a/HEAD", "a/objects/x", "a/refs/x"][..], Some("a")),
            (&["a/hooks/b/c"], &["a/HEAD", "a/objects/x", "a/refs/x"], Some("a")),
            (&["a/HEAD"], &["a/HEAD", "a/commondir"], Some("a")),
            (&["config"], &["HEAD", "objects/x", "refs/x"], Some("")),
            (&["a/config"], &["a/HEAD", "a/objects/x"], None),
            (&["a/config"], &["a/objects/x", "a/refs/x"], None),
            (&["b/config"], &["a/HEAD", "a/objects/x", "a/refs/x"], None),
            (&[], &["HEAD", "objects/x", "refs/x"], None),
        ] {
            assert_eq!(found(changed, all), place.map(Path::new), "{changed:?} in {all:?}");
        }
    }

    /// Git treats the same directories as git directories.
    #[test]
    fn git_agrees() {
        for (files, is_one) in [
            (&["HEAD", "objects/x", "refs/x"][..], true),
            (&["HEAD", "objects/x"], false),
            (&["HEAD", "commondir", "other/objects/x", "other/refs/x"], true),
        ] {
            let top = tempfile::tempdir().expect("a directory");
            for file in files {
                let path = top.path().join(file);
                std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
                let text = match *file {
                    "HEAD" => "ref: refs/heads/main\n",
                    "commondir" => "other\n",
                    _ => "",
                };
                std::fs::write(path, text).expect("written");
            }
            let mut git = std::process::Command::new("git");
            git.current_dir(top.path()).args(["rev-parse", "--git-dir"]);
            git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CEILING_DIRECTORIES", top.path());
            let output = git.output().expect("git");
            assert_eq!(output.status.success(), is_one, "{files:?}");
            assert_eq!(is_git_directory(|name| top.path().join(name).exists()), is_one, "{files:?}");
        }
    }
}
