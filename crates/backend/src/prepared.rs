//! The results of a backend's preparation for the launch of a bottle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The result of [`super::Images::preview`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preview {
    /// Host paths that the bottle will see read-only, besides the system directories.
    pub exposed: Vec<Exposed>,
    /// The sockets and pipes of the host in the `exposed` paths, as sentence fragments. The agent can use these sockets
    /// and pipes.
    pub sockets: Vec<String>,
    /// Images to build, fetch or load, each with the reason, as sentence fragments.
    pub makes: Vec<String>,
    /// The changes to the image's source since the last build, as lines of a unified diff.
    pub changed: Vec<String>,
    /// Notes for the user, if the image already exists: the instructions that have no effect in a bottle, and the data
    /// that snapshots exclude.
    pub notes: Vec<String>,
    /// Resource limits that this machine enforces only approximately. Each item is a sentence.
    pub limits: Vec<String>,
    /// Whether [`super::Lifecycle::share_objects`] will probably share objects, so that a launch does not copy them.
    pub shares_objects: bool,
}

/// The result of [`super::Images::prepare`], which is an input of [`super::Lifecycle::start_guest`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Prepared {
    /// Host paths that the bottle sees read-only, besides the system directories.
    pub exposed: Vec<Exposed>,
    /// The same as [`Preview::sockets`].
    #[serde(default)]
    pub sockets: Vec<String>,
    /// The program's path inside the bottle, if the program was found on the host.
    pub program: Option<String>,
    /// Directories prepended to the bottle's `PATH`.
    pub path: Vec<PathBuf>,
    /// The agent's image, if the bottle runs from an image.
    #[serde(default)]
    pub inside: Option<ImageInfo>,
    /// The programs of the sidecars and of pid 1. `None` on a backend that runs this machine's programs as sidecars and
    /// pid 1.
    #[serde(default, rename = "contained")]
    pub roles: Option<RoleInputs>,
    /// The same notes as [`Preview::notes`], for the prepared image.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The agent's image, and the agent's user account in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// The backend's name for the image.
    pub image: String,
    /// The agent's user id in the image. Never 0.
    pub uid: u32,
    /// The agent's group id in the image.
    pub gid: u32,
    /// The agent's user name.
    pub user: String,
    /// The agent's home directory.
    pub home: String,
    /// The image's environment variables.
    pub env: BTreeMap<String, String>,
    /// Directories in the image whose content is in volumes. The paths are paths in the image.
    #[serde(default)]
    pub volumes: Vec<String>,
}

/// The inputs, besides the agent's image, from which the sidecars and pid 1 of a bottle run. Each field is a name that
/// the backend assigns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleInputs {
    /// The sidecars' image.
    pub sidecars: String,
    /// The location of pid 1's program.
    pub program: String,
}

/// A host path that the bottle sees read-only at the same path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposed {
    /// The path, which is the same on the host and in the bottle.
    pub path: PathBuf,
    /// Why the agent needs the path (`mini's virtual environment`).
    pub why: String,
}
