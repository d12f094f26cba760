//! Reads and writes a bottle's current routes: `state/<slug>/routes.json`.
//!
//! The keeper writes them before it sends them to the proxy, so that the next keeper knows at least as much.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_contract::session::bundle::Routes;

use crate::host::files;

/// The file in a bottle's folder.
#[must_use]
pub fn path(folder: &Path) -> PathBuf {
    folder.join("routes.json")
}

/// Reads the routes; none when a version that did not write them started the bottle.
///
/// # Errors
/// When the file cannot be read, or is not what [`write()`] writes.
pub fn read(folder: &Path) -> io::Result<Option<Routes>> {
    match std::fs::read(path(folder)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the routes durably.
///
/// # Errors
/// When they cannot be written; the old ones then stay.
pub fn write(folder: &Path, routes: &Routes) -> io::Result<()> {
    let text = serde_json::to_vec(routes)?;
    files::replace_durably(&path(folder), |file| file.write_all(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_routes_and_fails_on_a_damaged_file() {
        let folder = tempfile::tempdir().expect("folder");
        assert_eq!(read(folder.path()).expect("none yet"), None);
        let routes = Routes { revision: 3, ..Routes::first("routes: []\n".to_owned()) };
        write(folder.path(), &routes).expect("written");
        assert_eq!(read(folder.path()).expect("read"), Some(routes));
        std::fs::write(path(folder.path()), "{").expect("damaged");
        assert!(read(folder.path()).is_err());
    }
}
