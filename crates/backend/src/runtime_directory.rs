//! Manages the bottle's private runtime directory with its sockets.
//!
//! ```text
//! <runtime>/<slug>/            0700, owned by the user
//!     bundle                   the bundle's channel, bound by the bundle
//!     guest                    pid 1's channel, bound here and inherited by it
//!     proxy/                   0755, owned by the sidecars: one socket per port; the only part visible in the bottle
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bottle_host::files;
use bottle_policy::names::Slug;

/// The [`crate::Resource::kind`] of the runtime directory.
pub const RUNTIME_DIRECTORY: &str = "runtime-folder";

/// The runtime directory of one bottle.
#[derive(Debug, Clone)]
pub struct RuntimeDirectory(PathBuf);

impl RuntimeDirectory {
    /// Returns the runtime directory of this bottle. The directory may not exist yet.
    pub fn new(runtime: &Path, slug: &Slug) -> Self {
        Self(runtime.join(slug.as_str()))
    }

    /// Returns the path of the directory.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Returns the directory of the proxy's sockets, which is visible in the bottle.
    pub fn proxy(&self) -> PathBuf {
        self.0.join("proxy")
    }

    /// Returns the path of the socket of the bundle's channel.
    pub fn bundle_socket(&self) -> PathBuf {
        self.0.join("bundle")
    }

    /// Returns the path of the socket of pid 1's channel.
    pub fn guest_socket(&self) -> PathBuf {
        self.0.join("guest")
    }

    /// Creates the runtime directory and the directory of the proxy's sockets. Reuses directories that a crashed launch
    /// left.
    ///
    /// # Errors
    /// When a directory cannot be created, or its mode cannot be set.
    pub fn make(&self) -> io::Result<()> {
        files::private_directory(&self.0)?;
        let proxy = self.proxy();
        files::create_private_directory(&proxy)?;
        fs::set_permissions(&proxy, fs::Permissions::from_mode(0o755))
    }

    /// Removes the directory. A missing directory is no error.
    ///
    /// # Errors
    /// When an entry of the directory cannot be removed.
    pub fn remove(path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Lists the subdirectories of `runtime` whose names are slugs, each with its slug. The function can also list other
/// directories whose subdirectories are named by slugs, such as `$BOTTLE_HOME/state`.
///
/// # Errors
/// When `runtime` exists but cannot be read.
pub fn find(runtime: &Path) -> io::Result<Vec<(Slug, PathBuf)>> {
    let entries = match fs::read_dir(runtime) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let slug = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(slug) = slug
            && entry.file_type()?.is_dir()
        {
            found.push((slug, entry.path()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creation_and_removal_can_be_repeated() {
        let runtime = tempfile::tempdir().expect("directory");
        let slug: Slug = "a-1".parse().expect("slug");
        let runtime_directory = RuntimeDirectory::new(runtime.path(), &slug);
        runtime_directory.make().expect("made");
        runtime_directory.make().expect("made again");
        fs::write(runtime.path().join("a-1.sock"), "").expect("a keeper's socket beside it");
        assert_eq!(find(runtime.path()).expect("found"), [(slug, runtime_directory.directory().to_owned())]);
        RuntimeDirectory::remove(runtime_directory.directory()).expect("removed");
        RuntimeDirectory::remove(runtime_directory.directory()).expect("removed again");
        assert_eq!(find(runtime.path()).expect("none"), []);
    }
}
