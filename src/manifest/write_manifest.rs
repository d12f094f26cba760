//! Writing manifests into the user's home: whole or not at all, and never over what is there unasked.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bottle_contract::names::Name;

use super::source::Kind;
use crate::host::disk;

/// Writes a manifest that is not there yet; false when something has its place.
///
/// # Errors
/// When the folder cannot be made or the file not be written; nothing half-written is left then.
pub fn write_new_manifest(home: &Path, kind: Kind, name: &Name, text: &str) -> io::Result<bool> {
    let path = path_of(home, kind, name);
    match written(&path, text)?.persist_noclobber(&path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}

/// Writes a manifest in the place of the one that is there, if there is one.
///
/// # Errors
/// As [`write_new_manifest`]; what was there stays then.
pub fn write_manifest(home: &Path, kind: Kind, name: &Name, text: &str) -> io::Result<()> {
    let path = path_of(home, kind, name);
    // Where the file is a link into a user's own repository, the link stays and its target changes.
    let path = path.canonicalize().unwrap_or(path);
    written(&path, text)?.persist(&path).map(drop).map_err(|error| error.error)
}

/// Where a home has the manifest of this name.
#[must_use]
pub fn path_of(home: &Path, kind: Kind, name: &Name) -> PathBuf {
    home.join(kind.folder()).join(format!("{name}.md"))
}

/// The text in a file beside its place, which is for the user alone.
fn written(path: &Path, text: &str) -> io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().ok_or_else(|| io::Error::other("it has no folder"))?;
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Hidden until it is whole, so that no listing meets it.
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder).map_err(disk::plain)?;
    file.as_file_mut().write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_unless_it_is_meant() {
        let home = tempfile::tempdir().expect("folder");
        let name: Name = "one".parse().expect("name");
        assert!(write_new_manifest(home.path(), Kind::Agent, &name, "first").expect("written"));
        assert!(!write_new_manifest(home.path(), Kind::Agent, &name, "second").expect("there"));
        let path = home.path().join("agents/one.md");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "first");
        write_manifest(home.path(), Kind::Agent, &name, "third").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "third");
        let names: Vec<_> = std::fs::read_dir(home.path().join("agents")).expect("folder").collect();
        assert_eq!(names.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_link_of_the_users_stays_a_link() {
        let home = tempfile::tempdir().expect("folder");
        let name: Name = "one".parse().expect("name");
        std::fs::create_dir(home.path().join("bottles")).expect("made");
        std::fs::write(home.path().join("elsewhere.md"), "old").expect("written");
        std::os::unix::fs::symlink("../elsewhere.md", home.path().join("bottles/one.md")).expect("link");
        write_manifest(home.path(), Kind::Bottle, &name, "new").expect("written");
        assert!(home.path().join("bottles/one.md").is_symlink());
        assert_eq!(std::fs::read_to_string(home.path().join("elsewhere.md")).expect("read"), "new");
    }
}
