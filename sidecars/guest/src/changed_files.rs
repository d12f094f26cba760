//! Searches a workspace for unsaved work, as [`bottle_repository::unsaved`] defines it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_protocol::session::files::FilePath;
use bottle_protocol::session::guest::{Changed, Changes, GivenDirectory, RuleFile, SuspectDirectory};
use bottle_repository::unsaved::{self, Search};
use bottle_repository::{Directory, GivenRules, RuleText, Stop, Walk};
use jiff::Timestamp;
use rustix::fs::FileType;

/// The time limit for a search. The host waits a little longer.
pub const SEARCH_WITHIN: Duration = Duration::from_secs(20);

/// The maximum number of entries of a workspace that consists of several directories. If there are more entries, the
/// workspace counts as having unsaved work.
const MAX_BESIDE: usize = 1_000;

/// Searches a workspace for unsaved work: first the copied directories that `request` lists, then the other entries of
/// the workspace. If `request` lists no copied directories, searches `directories` instead.
///
/// # Errors
/// Fails if a part of the workspace cannot be read.
pub fn search(workspace: &Path, directories: &[PathBuf], request: &Changed) -> io::Result<Changes> {
    let stop = Stop::after(SEARCH_WITHIN);
    if request.given.is_empty() {
        return search_directories(directories, request.since, &stop);
    }
    let top = Directory::open_without_link(workspace)?;
    let search = Search {
        since: request.since.as_nanosecond(),
        ignored_since: request.ignored_since.unwrap_or(request.since).as_nanosecond(),
    };
    let mut changes = Changes::default();
    for (index, given) in request.given.iter().enumerate() {
        match top.directory(Path::new(&given.name))? {
            Some(directory) => {
                let found = unsaved::find(directory, &search, &rules(given), stop.clone())?;
                add(&mut changes, index, given, found);
            }
            // The agent removed the directory.
            None => changes.work = true,
        }
    }
    if request.given.iter().all(|given| !given.name.is_empty()) {
        changes.work = changes.work || has_changes_beside(&top, request, &stop)?;
    }
    Ok(changes)
}

fn search_directories(directories: &[PathBuf], since: Timestamp, stop: &Stop) -> io::Result<Changes> {
    let mut changes = Changes::default();
    for path in directories {
        if changes.work || changes.unfinished {
            break;
        }
        let directory = Directory::open_without_link(path)?;
        match unsaved::has_changes(directory, since.as_nanosecond(), stop.clone()) {
            Ok(work) => changes.work = work,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => changes.unfinished = true,
            Err(error) => return Err(error),
        }
    }
    Ok(changes)
}

fn add(changes: &mut Changes, index: usize, given: &GivenDirectory, found: unsaved::Unsaved) {
    changes.work |= found.work;
    changes.unfinished |= found.unfinished;
    changes.ignored += found.ignored;
    let named = found.named.into_iter().map(|path| Path::new(&given.name).join(path));
    changes.named.extend(named.map(|path| FilePath::from(&path)));
    changes.suspects.extend(found.suspects.into_iter().map(|found| SuspectDirectory {
        given: index,
        path: FilePath::from(&found.path),
        files: found.files,
        directories: found.directories,
    }));
}

/// Returns whether there is a change outside of the copied directories. No ignore rules apply there.
fn has_changes_beside(top: &Directory, request: &Changed, stop: &Stop) -> io::Result<bool> {
    let is_given = |name: &OsStr| request.given.iter().any(|given| given.name.as_str() == name);
    let (names, more) = top.names(MAX_BESIDE)?;
    if more {
        return Ok(true);
    }
    for name in names.iter().filter(|name| !is_given(name)) {
        for entry in Walk::entry(top.try_clone()?, name).until(stop.clone()) {
            let entry = entry?;
            let is_file = entry.kind() != FileType::Directory;
            if is_file && unsaved::is_newer(entry.status(), request.since.as_nanosecond()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn rules(given: &GivenDirectory) -> GivenRules {
    let text = |rule: &RuleFile| RuleText {
        base: rule.base.as_path().to_owned(),
        text: rule.text.clone().into_bytes(),
    };
    GivenRules {
        below: given.below.as_path().to_owned(),
        texts: given.rules.iter().map(text).collect(),
        tracked: given.tracked.iter().map(|path| path.as_path().to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::file_clock;

    fn looked(directory: &Path, since: Timestamp) -> io::Result<bool> {
        search(directory, &[directory.to_owned()], &Changed::since(since)).map(|changes| changes.work)
    }

    #[tokio::test]
    async fn detects_existing_entries_that_are_newer() {
        let directory = tempfile::tempdir().expect("directory");
        fs::create_dir(directory.path().join("src")).expect("made");
        fs::write(directory.path().join("src/old"), "x").expect("written");
        let ready = file_clock::between().await;
        assert!(!looked(directory.path(), ready).expect("looked"));
        fs::create_dir(directory.path().join("src/empty")).expect("made");
        fs::remove_dir(directory.path().join("src/empty")).expect("removed");
        assert!(looked(directory.path(), ready).expect("looked"), "a directory that is not empty changed");

        let directory = tempfile::tempdir().expect("directory");
        let ready = file_clock::between().await;
        fs::write(directory.path().join("scratch"), "x").expect("written");
        assert!(looked(directory.path(), ready).expect("looked"));
        fs::remove_file(directory.path().join("scratch")).expect("removed");
        assert!(!looked(directory.path(), ready).expect("looked"), "nothing is left of it");
        assert!(looked(&directory.path().join("absent"), ready).is_err());
    }

    #[tokio::test]
    async fn each_copied_directory_has_its_rules_and_the_rest_has_none() {
        let top = tempfile::tempdir().expect("directory");
        for directory in ["one", "two", "beside"] {
            fs::create_dir(top.path().join(directory)).expect("made");
        }
        let ready = file_clock::between().await;
        let path = |path: &str| FilePath::from(path);
        let given = |name: &str, text: &str| GivenDirectory {
            name: name.to_owned(),
            below: path(""),
            rules: vec![RuleFile { base: path(""), text: text.to_owned() }],
            tracked: Vec::new(),
        };
        let given = vec![given("one", "*.log\ntarget\n"), given("two", "")];
        let request = Changed { given, ..Changed::since(ready) };
        let search = || search(top.path(), &[], &request).expect("searched");
        fs::write(top.path().join("one/a.log"), "x").expect("written");
        fs::create_dir(top.path().join("one/target")).expect("made");
        let found = search();
        assert_eq!((found.work, found.ignored, found.named), (false, 1, vec![path("one/a.log")]));
        assert_eq!(found.suspects.len(), 1, "{:?}", found.suspects);
        fs::write(top.path().join("beside/a.log"), "x").expect("written");
        assert!(search().work);
        fs::remove_file(top.path().join("beside/a.log")).expect("removed");
        fs::remove_dir(top.path().join("two")).expect("removed");
        assert!(search().work, "a copied directory is gone");
    }
}
