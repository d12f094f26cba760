//! The host machine. [`Host`] contains the machine's environment and directories, as one value that tests can replace.
//! The submodules read the machine's settings, files, processes and addresses.

pub mod account;
pub mod addresses;
mod bot_bottle;
pub mod budget;
pub mod byte_size;
pub mod causes;
pub mod clock;
pub mod command_settings;
pub mod detach_keys;
pub mod directory_walk;
pub mod disk;
pub mod docker_settings;
pub mod environment_settings;
pub mod file_lock;
pub mod files;
pub mod git_user;
pub mod known_hosts;
mod pause;
pub mod plain_file;
mod private_home;
pub mod process;
pub mod process_host;
pub mod rates;
pub mod roots;
pub mod scanner_rules;
pub mod settings;
mod settings_file;
pub mod system;
pub mod temporary;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use bottle_policy::names::Slug;
use sha2::{Digest, Sha256};

pub use process_host::HostError;
pub use scanner_rules::{ScannerRules, ScannerRulesError};
pub use settings::{Settings, SettingsError};

/// The environment variable that names the client for which a command starts bottles. This client is the parent of the
/// bottles. `bottle mcp` sets the variable.
pub const PARENT: &str = "BOTTLE_PARENT";

/// The environment and the directories of the user's machine.
#[derive(Clone)]
pub struct Host {
    /// The environment variables of this process.
    pub env: BTreeMap<OsString, OsString>,
    /// The working directory of this process.
    pub cwd: PathBuf,
    /// The absolute path of `$BOTTLE_HOME`.
    pub home: PathBuf,
    /// The user's home directory.
    pub user_home: PathBuf,
    /// The directory for the sockets of running bottles. It is private to this user, specific to this
    /// `$BOTTLE_HOME`, and has a short path.
    pub runtime: PathBuf,
    /// The path of the running `bottle` program.
    pub program: PathBuf,
}

impl Host {
    /// Returns the client for which this process starts bottles ([`PARENT`]).
    #[must_use]
    pub fn parent(&self) -> Option<String> {
        self.env.get(OsStr::new(PARENT)).and_then(|parent| parent.to_str()).map(str::to_owned)
    }

    /// Returns the path of `$BOTTLE_HOME/state`.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.home.join("state")
    }

    /// Returns the value of an environment variable; `None` if it is not set, is empty or is not UTF-8.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(std::ffi::OsStr::new(name)).and_then(|v| v.to_str()).filter(|v| !v.is_empty())
    }

    /// Returns the path of the socket on which a bottle's keeper listens.
    #[must_use]
    pub fn keeper_socket(&self, slug: &Slug) -> PathBuf {
        self.runtime.join(format!("{slug}.sock"))
    }

    /// Returns the machine id of a bottle, as 32 hexadecimal digits. The machine id is the same at each launch of the
    /// bottle, and does not depend on the host's machine id.
    #[must_use]
    pub fn machine_id(&self, slug: &Slug) -> String {
        hex::encode(&Sha256::digest(format!("machine {}/{slug}", self.home_hash()))[..16])
    }

    /// Returns eight hexadecimal digits that distinguish this `$BOTTLE_HOME` from other `$BOTTLE_HOME`s on the same
    /// machine.
    #[must_use]
    pub fn home_hash(&self) -> String {
        home_hash(&self.home)
    }
}

/// The debug output omits the environment, because the environment contains secrets.
impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("home", &self.home).field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// Returns eight hexadecimal digits that distinguish the `$BOTTLE_HOME` at this path from other `$BOTTLE_HOME`s on the
/// same machine. The digits are the beginning of the path's SHA-256.
#[must_use]
pub fn home_hash(home: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    hex::encode(&Sha256::digest(home.as_os_str().as_bytes())[..4])
}
