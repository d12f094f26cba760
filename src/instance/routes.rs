//! The routes that a bottle goes by now: `state/<slug>/routes.json`.
//!
//! Written before the proxy gets them, so that whoever takes the bottle over knows at least as much as the proxy.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_contract::session::bundle::Routes;

use crate::host::files;

/// Where they are in a bottle's folder.
#[must_use]
pub fn path(folder: &Path) -> PathBuf {
    folder.join("routes.json")
}

/// Reads them; none when the bottle was started by a version that did not write them.
///
/// # Errors
/// When the file cannot be read, or is not what [`write`] writes.
pub fn read(folder: &Path) -> io::Result<Option<Routes>> {
    match std::fs::read(path(folder)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces them. When it returns they are on the disk.
///
/// # Errors
/// When they cannot be written; then the ones before are still there.
pub fn write(folder: &Path, routes: &Routes) -> io::Result<()> {
    let text = serde_json::to_vec(routes)?;
    files::replace_durably(&path(folder), |file| file.write_all(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_back_and_a_damaged_file_is_no_absence() {
        let folder = tempfile::tempdir().expect("folder");
        assert_eq!(read(folder.path()).expect("none yet"), None);
        let routes = Routes { revision: 3, ..Routes::first("routes: []\n".to_owned()) };
        write(folder.path(), &routes).expect("written");
        assert_eq!(read(folder.path()).expect("read"), Some(routes));
        std::fs::write(path(folder.path()), "{").expect("damaged");
        assert!(read(folder.path()).is_err());
    }
}
