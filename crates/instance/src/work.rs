//! Finds the changes that would be lost if a workspace were removed.
//!
//! ```text
//! the record of the start: files, ignore rules ──► Changed ──► pid 1 or the backend searches ──► Changes
//!                                    └───────────────────────────────────────────────────────────► Unsaved
//! ```
//! The ignore rules at the bottle's start decide which files are ignored. The agent cannot change these rules.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bottle_backend::Backend;
use bottle_protocol::session::files::FilePath;
use bottle_protocol::session::guest::{Changed, Changes, GivenDirectory, RuleFile, SuspectDirectory};
use bottle_repository::{Given, GivenRules, IgnoredPaths, RuleError};
use tokio::task::spawn_blocking;

use super::record::Record;
pub use super::unsaved::Unsaved;
use super::{given, snapshots};

/// The maximum size of all ignore rules of a request in bytes. If the rules are larger, all files are treated as not
/// ignored.
const MAX_RULES: usize = 256 << 10;

/// Returns the request to search the workspace of a bottle for unsaved work. `None` if no agent ran in the workspace.
pub async fn search(backend: &dyn Backend, state: &Path, record: &Record) -> Option<Changed> {
    let since = snapshots::work_since(backend, state, record).await?;
    let (directory, copied) = (state.to_owned(), record.clone());
    let given = spawn_blocking(move || given_directories(&directory, &copied)).await.unwrap_or_default();
    Some(Changed { given, ignored_since: Some(since.ignored), ..Changed::since(since.work) })
}

/// Decides whether the changes that a search found are unsaved work.
pub async fn judge(state: &Path, request: &Changed, changes: Changes) -> Unsaved {
    let Changes { mut work, ignored, named, suspects, unfinished } = changes;
    let mut unknown = unfinished.then(|| "the search of its workspace took too long".to_owned());
    if !work && !suspects.is_empty() {
        let (state, given) = (state.to_owned(), request.given.clone());
        let lost = spawn_blocking(move || has_lost_files(&state, &given, &suspects)).await;
        match lost.map_err(io::Error::other).flatten() {
            Ok(lost) => work = lost,
            Err(error) => {
                unknown = Some(format!("the record of its files at the start is unreadable: {error}"))
            }
        }
    }
    let named = named.iter().map(|path| path.as_path().display().to_string()).collect();
    Unsaved { work, ignored, named, unknown }
}

/// Returns the directories of the workspace that were copied, with the ignore rules that applied to them. The list is
/// empty if these rules are unknown or too large.
fn given_directories(state: &Path, record: &Record) -> Vec<GivenDirectory> {
    let names: Vec<&str> = match &record.directories[..] {
        [] => vec![""],
        directories => directories.iter().map(|copied| copied.name.as_str()).collect(),
    };
    if record.live().is_some() {
        return Vec::new();
    }
    let rules = |name: &&str| GivenRules::read(&given::record(state, name));
    let Ok(all) = names.iter().map(rules).collect::<io::Result<Vec<_>>>() else { return Vec::new() };
    let texts = all.iter().flatten().flat_map(|rules| &rules.texts);
    if all.iter().all(Option::is_none) || texts.map(|rule| rule.text.len()).sum::<usize>() > MAX_RULES {
        return Vec::new();
    }
    let directory = |(name, rules): (&str, Option<GivenRules>)| {
        let GivenRules { below, texts, tracked } = rules.unwrap_or_default();
        GivenDirectory {
            name: name.to_owned(),
            below: FilePath::from(&below),
            rules: texts
                .iter()
                .map(|rule| RuleFile {
                    base: FilePath::from(&rule.base),
                    text: String::from_utf8_lossy(&rule.text).into_owned(),
                })
                .collect(),
            tracked: tracked.iter().map(FilePath::from).collect(),
        }
    };
    names.into_iter().zip(all).map(directory).collect()
}

/// Whether a directory that may have lost files has another number of files or subdirectories than at the bottle's
/// start.
fn has_lost_files(state: &Path, given: &[GivenDirectory], suspects: &[SuspectDirectory]) -> io::Result<bool> {
    for (index, given) in given.iter().enumerate() {
        let suspects: Vec<_> = suspects.iter().filter(|suspect| suspect.given == index).collect();
        if suspects.is_empty() {
            continue;
        }
        let record = given::record(state, &given.name);
        let (Some(files), Some(rules)) = (Given::read(&record)?, GivenRules::read(&record)?) else {
            // Nothing is recorded about directories outside of a repository. If such a directory is empty, it has no
            // unsaved work.
            if suspects.iter().any(|suspect| suspect.files + suspect.directories > 0) {
                return Ok(true);
            }
            continue;
        };
        let paths = suspects.iter().map(|suspect| suspect.path.as_path());
        let counts = counted(&files, &rules, paths).map_err(io::Error::other)?;
        let is_same = |suspect: &&SuspectDirectory| {
            counts.get(suspect.path.as_path()).is_some_and(|count| {
                (count.files, count.directories.len() as u64) == (suspect.files, suspect.directories)
            })
        };
        if !suspects.iter().all(is_same) {
            return Ok(true);
        }
    }
    Ok(suspects.iter().any(|suspect| suspect.given >= given.len()))
}

/// The number of entries of a directory that were not ignored at the bottle's start.
#[derive(Debug, Default)]
struct Count<'a> {
    files: u64,
    /// The subdirectories that contain files.
    directories: HashSet<&'a OsStr>,
}

fn counted<'a>(
    files: &'a Given,
    rules: &GivenRules,
    directories: impl Iterator<Item = &'a Path>,
) -> Result<HashMap<&'a Path, Count<'a>>, RuleError> {
    let mut counts: HashMap<&Path, Count<'_>> = directories.map(|path| (path, Count::default())).collect();
    let compiled = rules.compile()?;
    let mut ignored = IgnoredPaths::new(&compiled);
    let tracked: HashSet<&PathBuf> = rules.tracked.iter().collect();
    for path in files.files.keys().map(|path| Path::new(OsStr::from_bytes(path))) {
        if ignored.contains(path) && !tracked.contains(&path.to_owned()) {
            continue;
        }
        let mut below = path;
        for directory in path.ancestors().skip(1) {
            if let Some(count) = counts.get_mut(directory) {
                match below.file_name() {
                    Some(name) if below != path => _ = count.directories.insert(name),
                    _ => count.files += 1,
                }
            }
            below = directory;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use bottle_repository::{GivenFile, RuleText};

    use super::*;

    #[test]
    fn counts_what_a_directory_had_without_ignored_files() {
        let file = GivenFile { mode: "100644".to_owned(), blob: None, hash: None, content: None };
        let names = ["README", "src/one", "src/deep/two", "dist/page", "dist/made", "a.log", "target/x/y"];
        let mut files = Given::default();
        files.files = names.iter().map(|name| (name.as_bytes().to_owned(), file.clone())).collect();
        let rules = GivenRules {
            texts: vec![RuleText { base: PathBuf::new(), text: b"dist\n*.log\ntarget/\n".to_vec() }],
            tracked: vec!["dist/page".into()],
            ..GivenRules::default()
        };
        let directories = ["", "src", "dist", "lib"];
        let counts = counted(&files, &rules, directories.iter().map(Path::new)).expect("compiled");
        let of = |path: &str| (counts[Path::new(path)].files, counts[Path::new(path)].directories.len());
        assert_eq!([of(""), of("src"), of("dist"), of("lib")], [(1, 2), (1, 1), (1, 0), (0, 0)]);
    }
}
