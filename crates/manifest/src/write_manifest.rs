//! Writes manifests atomically to `$BOTTLE_HOME`. An existing file is replaced only on request.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_host::{disk, files};
use bottle_policy::names::Name;

use super::source::Kind;

/// Writes a new manifest. Returns false if the file exists.
///
/// # Errors
/// Returns an error if the directory or file cannot be written. No partial file remains in this case.
pub fn write_new_manifest(home: &Path, kind: Kind, name: &Name, text: &str) -> io::Result<bool> {
    let path = path_of(home, kind, name);
    match write_temporary(&path, text)?.persist_noclobber(&path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}

/// Writes a manifest, and replaces an existing file.
///
/// # Errors
/// Returns the same errors as [`write_new_manifest`]. After an error, the old file is unchanged.
pub fn write_manifest(home: &Path, kind: Kind, name: &Name, text: &str) -> io::Result<()> {
    let path = path_of(home, kind, name);
    // If the file is a link, for example into a dotfiles repository, the target of the link is replaced and
    // the link remains.
    let path = path.canonicalize().unwrap_or(path);
    write_temporary(&path, text)?.persist(&path).map(drop).map_err(|error| error.error)
}

/// Returns the path of a manifest in this home directory.
#[must_use]
pub fn path_of(home: &Path, kind: Kind, name: &Name) -> PathBuf {
    home.join(kind.directory()).join(format!("{name}.md"))
}

/// Writes the text to a temporary file in the directory of the manifest. Only the user can access the temporary file.
fn write_temporary(path: &Path, text: &str) -> io::Result<tempfile::NamedTempFile> {
    let directory = path.parent().ok_or_else(|| io::Error::other("it has no directory"))?;
    files::create_private_directory(directory)?;
    // The name is hidden, so that an incomplete file is not listed as a manifest.
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(directory).map_err(disk::plain)?;
    file.as_file_mut().write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_a_file_only_on_request() {
        let home = tempfile::tempdir().expect("directory");
        let name: Name = "one".parse().expect("name");
        assert!(write_new_manifest(home.path(), Kind::Agent, &name, "first").expect("written"));
        assert!(!write_new_manifest(home.path(), Kind::Agent, &name, "second").expect("exists"));
        let path = home.path().join("agents/one.md");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "first");
        write_manifest(home.path(), Kind::Agent, &name, "third").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "third");
        let names: Vec<_> = std::fs::read_dir(home.path().join("agents")).expect("directory").collect();
        assert_eq!(names.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn writes_through_a_link() {
        let home = tempfile::tempdir().expect("directory");
        let name: Name = "one".parse().expect("name");
        std::fs::create_dir(home.path().join("bottles")).expect("made");
        std::fs::write(home.path().join("elsewhere.md"), "old").expect("written");
        std::os::unix::fs::symlink("../elsewhere.md", home.path().join("bottles/one.md")).expect("link");
        write_manifest(home.path(), Kind::Bottle, &name, "new").expect("written");
        assert!(home.path().join("bottles/one.md").is_symlink());
        assert_eq!(std::fs::read_to_string(home.path().join("elsewhere.md")).expect("read"), "new");
    }
}
