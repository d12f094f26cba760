//! Copies the git directory of a folder whose `.git` is a file: of a linked worktree, a submodule, or a repository
//! with a separate git directory.
//!
//! Such a file names a path of the host. In the bottle, the git directory is an ordinary folder `.git` instead.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bottle_repository::{Directory, Walk};

use super::workspace_files::{Objects, append};

/// The maximum length of a file that names a git directory, and of a configuration file that is changed, in bytes. A
/// longer file is copied as it is.
const MAX_FILE: u64 = 1 << 20;

/// The folder of the objects in a git directory.
const OBJECTS: &str = "objects";

/// Files of a worktree's git directory that only its main repository needs.
const LINKS: [&str; 3] = ["commondir", "gitdir", "locked"];

/// Parts of the main repository that belong to its own worktree, or to other worktrees.
const OF_OTHERS: [&str; 9] = [
    "worktrees",
    "HEAD",
    "index",
    "config.worktree",
    "ORIG_HEAD",
    "FETCH_HEAD",
    "MERGE_HEAD",
    "logs/HEAD",
    "info/sparse-checkout",
];

/// A git directory outside of its working tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LinkedGitDir {
    /// The git directory of this working tree.
    folder: PathBuf,
    /// The git directory with the objects and branches, if it is another one.
    main: Option<PathBuf>,
}

impl LinkedGitDir {
    /// Finds the git directory that the file `.git` of this folder names. Returns `None` if `.git` is a folder, is
    /// missing, or names no git directory.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read.
    pub(super) fn find(folder: &Path) -> io::Result<Option<Self>> {
        let Some(named) = path_in(&folder.join(".git"), "gitdir: ")? else { return Ok(None) };
        let found = folder.join(named);
        if !found.join("HEAD").is_file() {
            return Ok(None);
        }
        let main = path_in(&found.join("commondir"), "")?.map(|main| found.join(main));
        Ok(Some(Self { folder: found, main }))
    }

    /// The folder of the objects, which all worktrees of a repository share.
    pub(super) fn objects(&self) -> PathBuf {
        self.main.as_ref().unwrap_or(&self.folder).join(OBJECTS)
    }

    /// Adds the git directory to an archive, as the folder `.git`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or the archive cannot be written.
    pub(super) fn append(
        &self,
        archive: &mut tar::Builder<&mut dyn Write>,
        objects: Objects,
    ) -> io::Result<()> {
        let is_separate = |path: &Path| objects == Objects::Separate && path.starts_with(OBJECTS);
        let is_link = |path: &Path| LINKS.iter().any(|name| path == Path::new(name));
        let is_of_others = |path: &Path| OF_OTHERS.iter().any(|name| path.starts_with(name));
        let mut done = HashSet::new();
        append_all(archive, &self.folder, |path| !is_link(path) && !is_separate(path), &mut done)?;
        let Some(main) = &self.main else { return Ok(()) };
        append_all(archive, main, |path| !is_of_others(path) && !is_separate(path), &mut done)
    }
}

/// Adds the files of a git directory that `wanted` selects and that are not yet `done`.
fn append_all(
    archive: &mut tar::Builder<&mut dyn Write>,
    folder: &Path,
    wanted: impl Fn(&Path) -> bool,
    done: &mut HashSet<PathBuf>,
) -> io::Result<()> {
    // The path may end in `..`.
    let folder = folder.canonicalize()?;
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else { return Ok(()) };
    for entry in Walk::entry(Directory::open(parent)?, name) {
        let entry = entry?;
        let inside = entry.path().strip_prefix(name).unwrap_or(entry.path());
        if !wanted(inside) || !done.insert(inside.to_owned()) {
            continue;
        }
        let target: PathBuf = Path::new(".git").join(inside).components().collect();
        if inside == Path::new("config")
            && let Some(text) = text_of(&entry.whole_path())?
        {
            let text = without_worktree(&text);
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(text.len() as u64);
            archive.append_data(&mut header, &target, text.as_bytes())?;
        } else {
            append(archive, &entry, &target)?;
        }
    }
    Ok(())
}

/// A configuration without `core.worktree`, which names a path of the host.
fn without_worktree(config: &str) -> String {
    let is_worktree = |line: &str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        key.eq_ignore_ascii_case("worktree")
    };
    config.split_inclusive('\n').filter(|line| !is_worktree(line)).collect()
}

/// The path in a file, after `prefix`; none if the file is missing or has another form.
fn path_in(file: &Path, prefix: &str) -> io::Result<Option<PathBuf>> {
    let text = text_of(file)?;
    let path = text.as_deref().and_then(|text| text.trim_end_matches(['\n', '\r']).strip_prefix(prefix));
    Ok(path.filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// The text of a regular file; none if it is no such file, too long, or not UTF-8.
fn text_of(file: &Path) -> io::Result<Option<String>> {
    match file.symlink_metadata() {
        Ok(metadata) if metadata.is_file() && metadata.len() <= MAX_FILE => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => return Ok(None),
    }
    let mut bytes = Vec::new();
    fs::File::open(file)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_the_worktree_from_a_configuration() {
        let config =
            "[core]\n\tbare = false\n\tWorktree = ../../x\n[remote \"worktree\"]\n\turl = worktree\n";
        let expected = "[core]\n\tbare = false\n[remote \"worktree\"]\n\turl = worktree\n";
        assert_eq!(without_worktree(config), expected);
    }

    #[test]
    fn finds_the_git_directory_that_a_file_names() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folder");
            fs::write(path, text).expect("written");
        };
        write("main/.git/worktrees/one/HEAD", "ref: refs/heads/one\n");
        write("main/.git/worktrees/one/commondir", "../..\n");
        write("one/.git", "gitdir: ../main/.git/worktrees/one\n");
        write("bad/.git", "gitdir: ../nowhere\n");
        let found = LinkedGitDir::find(&root.path().join("one")).expect("readable").expect("found");
        assert!(found.folder.ends_with("main/.git/worktrees/one"), "{found:?}");
        assert!(found.objects().ends_with("worktrees/one/../../objects"), "{found:?}");
        write("apart/HEAD", "ref: refs/heads/two\n");
        write("two/.git", "gitdir: ../apart\n");
        let found = LinkedGitDir::find(&root.path().join("two")).expect("readable").expect("found");
        assert!(found.objects().ends_with("two/../apart/objects"), "{found:?}");
        for folder in ["main", "bad", "none"] {
            assert_eq!(LinkedGitDir::find(&root.path().join(folder)).expect("readable"), None, "{folder}");
        }
    }
}
