//! The host machine: environment, folders and settings as one value that tests replace.
//!
//! Everything before a launch reads the machine through this value and is otherwise deterministic.

pub mod addresses;
pub mod byte_size;
pub mod clock;
pub mod disk;
pub mod docker_settings;
pub mod files;
pub mod known_hosts;
pub(crate) mod plain_file;
pub mod process;
pub mod process_host;
pub mod roots;
pub mod rules;
pub mod settings;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

pub use process_host::HostError;
pub use rules::{OwnRules, OwnRulesError};
pub use settings::{Settings, SettingsError};

/// The user's machine.
#[derive(Clone)]
pub struct Host {
    /// Environment variables.
    pub env: BTreeMap<OsString, OsString>,
    /// The working directory.
    pub cwd: PathBuf,
    /// `$BOTTLE_HOME`, absolute.
    pub home: PathBuf,
    /// The user's home directory.
    pub user_home: PathBuf,
    /// The folder for sockets of running bottles: private to this user and this `$BOTTLE_HOME`, with a short path.
    pub runtime: PathBuf,
    /// The path of this program.
    pub program: PathBuf,
}

impl Host {
    /// `$BOTTLE_HOME/state`.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.home.join("state")
    }

    /// The value of a variable; none if it is unset, empty or not UTF-8.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(std::ffi::OsStr::new(name)).and_then(|v| v.to_str()).filter(|v| !v.is_empty())
    }

    /// Eight hex digits that distinguish this home from others on the same machine.
    #[must_use]
    pub fn home_hash(&self) -> String {
        home_hash(&self.home)
    }
}

/// Omits the environment, which contains secrets.
impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("home", &self.home).field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// The hash of a home's path, as in [`Host::home_hash`].
#[must_use]
pub fn home_hash(home: &Path) -> String {
    use sha2::Digest;
    use std::os::unix::ffi::OsStrExt;
    hex::encode(&sha2::Sha256::digest(home.as_os_str().as_bytes())[..4])
}
