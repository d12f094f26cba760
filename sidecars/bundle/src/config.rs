//! What the backend says at start, on the command line. Nothing in it is secret.

use std::path::{Path, PathBuf};

use bottle_egress::door::listen::Door;
use bottle_harden::identity::Identity;
use serde::{Deserialize, Serialize};

/// The argument of `__bundle`, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleConfig {
    /// How the bottle reaches the daemons. A folder must exist and be writable for [`Self::identity`].
    pub door: Door,
    /// The socket on which keepers are listened to; a stale one is replaced. Only peers of the user that
    /// started the bundle are heard.
    pub control: PathBuf,
    /// An existing folder for the daemons' logs, writable for [`Self::identity`].
    pub logs: PathBuf,
    /// Whom bundle and daemons become. For a backend that runs as root; anyone else may not.
    #[serde(default)]
    pub identity: Option<Identity>,
}

impl BundleConfig {
    /// The command-line argument.
    ///
    /// # Errors
    /// When a path is not UTF-8.
    pub fn to_argument(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The folder of the door's sockets, where there is one.
    pub(crate) fn door_folder(&self) -> Option<&Path> {
        match &self.door {
            Door::Socket { folder } => Some(folder),
            Door::Network { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_is_read_back_and_unknown_words_are_errors() {
        let config = BundleConfig {
            door: Door::Socket { folder: "/run/x/door".into() },
            control: "/run/x/bundle.sock".into(),
            logs: "/state/x/logs".into(),
            identity: Some(Identity { uid: 4000, gid: 4000 }),
        };
        let argument = config.to_argument().expect("argument");
        assert_eq!(serde_json::from_str::<BundleConfig>(&argument).expect("read"), config);
        let unknown = argument.replacen('{', "{\"secret\":1,", 1);
        assert!(serde_json::from_str::<BundleConfig>(&unknown).is_err());
    }
}
