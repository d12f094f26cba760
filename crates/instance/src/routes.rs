//! Reads and writes the current routes of a bottle, `state/<slug>/routes.json`, and the routes that the user's own
//! changes replaced, `state/<slug>/routes-before.json`.
//!
//! The keeper writes the routes before it sends them to the proxy. A later keeper therefore knows every route that the
//! proxy may have.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_host::files;
use bottle_policy::route::RouteTable;
use bottle_protocol::session::bundle::{OneTimeGrant, Routes};
use serde::{Deserialize, Serialize};

/// Returns the path of the routes file in a bottle's directory.
#[must_use]
pub fn path(directory: &Path) -> PathBuf {
    directory.join("routes.json")
}

/// Reads the routes. `None` if the bottle was started by a version that did not write the file.
///
/// # Errors
/// Fails if the file cannot be read, or its content has neither the form that [`write()`] writes nor that of an earlier
/// version.
pub fn read(directory: &Path) -> io::Result<Option<Routes>> {
    match std::fs::read(path(directory)) {
        Ok(text) => parse(&text).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The routes file of an earlier version, which contained the routes as text.
#[derive(Deserialize)]
struct EarlierRoutes {
    revision: u64,
    yaml: String,
    #[serde(default)]
    once: Vec<OneTimeGrant>,
}

fn parse(text: &[u8]) -> io::Result<Routes> {
    let Ok(EarlierRoutes { revision, yaml, once }) = serde_json::from_slice(text) else {
        return Ok(serde_json::from_slice(text)?);
    };
    Ok(Routes { revision, table: yaml.parse().map_err(io::Error::other)?, once })
}

/// The maximum number of changes that can be undone. Older changes are not stored.
const MAX_UNDO: usize = 32;

/// A change of the routes that the user made, with the data to undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// The hosts that the user changed, in canonical form.
    pub host: String,
    /// The routes of these hosts before the change.
    pub before: RouteTable,
}

/// Returns the path of the file with the replaced routes in a bottle's directory.
#[must_use]
pub fn replaced_path(directory: &Path) -> PathBuf {
    directory.join("routes-before.json")
}

/// Reads the changes that can be undone, oldest first. The list is empty if the user made no change.
///
/// # Errors
/// Fails if the file cannot be read, or has another form than [`write_replaced`] writes.
pub fn read_replaced(directory: &Path) -> io::Result<Vec<Replaced>> {
    match std::fs::read(replaced_path(directory)) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Replaces the file with the changes that can be undone. Stores only the latest [`MAX_UNDO`] changes.
///
/// # Errors
/// Fails if the file cannot be written. The previous file then stays.
pub fn write_replaced(directory: &Path, changes: &[Replaced]) -> io::Result<()> {
    let text = serde_json::to_vec(&changes[changes.len().saturating_sub(MAX_UNDO)..])?;
    files::replace_durably(&replaced_path(directory), |file| file.write_all(&text))
}

/// Replaces the routes file durably.
///
/// # Errors
/// Fails if the file cannot be written. The previous file then stays.
pub fn write(directory: &Path, routes: &Routes) -> io::Result<()> {
    let text = serde_json::to_vec(routes)?;
    files::replace_durably(&path(directory), |file| file.write_all(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_routes_and_fails_on_a_damaged_file() {
        let directory = tempfile::tempdir().expect("directory");
        assert_eq!(read(directory.path()).expect("none yet"), None);
        let table: RouteTable = "routes: [{host: a.example}]".parse().expect("routes");
        let routes = Routes { revision: 3, ..Routes::first(table.clone()) };
        write(directory.path(), &routes).expect("written");
        assert_eq!(read(directory.path()).expect("read"), Some(routes));
        let earlier = r#"{"revision": 3, "yaml": "routes:\n- host: a.example\n"}"#;
        std::fs::write(path(directory.path()), earlier).expect("written");
        assert_eq!(read(directory.path()).expect("read").expect("routes").table, table);
        std::fs::write(path(directory.path()), "{").expect("damaged");
        assert!(read(directory.path()).is_err());
    }

    #[test]
    fn keeps_the_latest_replaced_routes() {
        let directory = tempfile::tempdir().expect("directory");
        assert_eq!(read_replaced(directory.path()).expect("none yet"), []);
        let before: RouteTable =
            "routes: [{host: a.example, auth: {scheme: Bearer, slot: s}}]".parse().expect("routes");
        let change = |number: usize| Replaced { host: format!("{number}.example"), before: before.clone() };
        let changes: Vec<Replaced> = (0..=MAX_UNDO).map(change).collect();
        write_replaced(directory.path(), &changes).expect("written");
        assert_eq!(read_replaced(directory.path()).expect("read"), changes[1..]);
        std::fs::write(replaced_path(directory.path()), "{").expect("damaged");
        assert!(read_replaced(directory.path()).is_err());
    }
}
