//! The git server of the fake forge: an OpenSSH server on which keys, not users, decide about access.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use super::REPOSITORY;
use crate::sshd::{Sshd, make_key, seed, user};

/// The command that sshd forces for a key. The command allows fetches, and allows pushes if the key is not read-only.
const SERVE: &str = r#"#!/bin/sh
program=${SSH_ORIGINAL_COMMAND%% *}
place=${SSH_ORIGINAL_COMMAND#* }
place=${place#\'} place=${place%\'}
case "$1 $program" in
*' git-upload-pack' | 'write git-receive-pack') ;;
'read git-receive-pack') echo 'this key may only read' >&2 && exit 1 ;;
*) echo 'no shell here' >&2 && exit 1 ;;
esac
case $place in *..*) exit 1 ;; esac
exec "$program" "${0%/*}/repositories$place"
"#;

/// A running git server. Dropping the value stops the server and removes its repositories.
pub struct GitHost {
    directory: tempfile::TempDir,
    address: IpAddr,
    user: String,
    sshd: Sshd,
}

impl GitHost {
    /// Returns why this machine cannot run a git server; `None` if it can.
    #[must_use]
    pub fn missing() -> Option<String> {
        Sshd::missing()
    }

    /// Starts a server with the repository [`REPOSITORY`], which has one commit on `main`. No key has access
    /// yet.
    ///
    /// # Errors
    /// Returns an error if a program is missing or fails.
    pub fn start() -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into())
    }

    /// Like [`GitHost::start`], at another address of this machine.
    ///
    /// # Errors
    /// Returns an error if a program is missing or fails.
    pub fn start_at(address: IpAddr) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("forge-").tempdir()?;
        let at = |name: &str| directory.path().join(name);
        fs::write(at("authorized"), "")?;
        fs::write(at("serve"), SERVE)?;
        fs::set_permissions(at("serve"), fs::Permissions::from_mode(0o755))?;
        let sshd = Sshd::start(directory.path(), address, "")?;
        let host = Self { directory, address, user: user()?, sshd };
        seed(host.directory.path(), &host.repository())?;
        Ok(host)
    }

    /// Returns the repository's URL for a manifest.
    #[must_use]
    pub fn url(&self) -> String {
        format!("ssh://{}@{}:{}/{REPOSITORY}.git", self.user, self.address, self.port())
    }

    /// Gives a new key access for fetches and pushes. Returns the path of the private key.
    ///
    /// # Errors
    /// Returns an error if a program is missing or fails.
    pub fn admit(&self) -> Result<PathBuf> {
        let key = self.directory.path().join("user");
        make_key(&key)?;
        let public = fs::read_to_string(key.with_extension("pub"))?;
        fs::write(self.authorized(), format!("command=\"{} write\" {public}", self.serve().display()))?;
        Ok(key)
    }

    /// Returns the server's host key, for `host_key` in a manifest.
    ///
    /// # Errors
    /// Returns an error if the file of the host key cannot be read.
    pub fn host_key(&self) -> Result<String> {
        let line = fs::read_to_string(self.directory.path().join("host.pub"))?;
        Ok(line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
    }

    /// Returns the port on which the server listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.sshd.port()
    }

    /// Returns the path of the bare repository.
    #[must_use]
    pub fn repository(&self) -> PathBuf {
        self.directory.path().join("repositories").join(format!("{REPOSITORY}.git"))
    }

    /// Returns the `git log` of a ref.
    ///
    /// # Errors
    /// Returns an error if the ref does not exist.
    pub fn log(&self, name: &str) -> Result<String> {
        let output =
            Command::new("git").args(["log", "--format=%s", name]).current_dir(self.repository()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    pub(super) fn authorized(&self) -> PathBuf {
        self.directory.path().join("authorized")
    }

    pub(super) fn serve(&self) -> PathBuf {
        self.directory.path().join("serve")
    }
}
