//! The side of a forge where git knocks: an OpenSSH server on loopback that knows keys and no users.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::REPOSITORY;

const SSHD: &str = "/usr/sbin/sshd";

/// How long it may take to listen.
const UP_WITHIN: Duration = Duration::from_secs(20);

/// What a key may do: it reads, and writes if it was registered for that.
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

/// See the module. Ends, and its repositories go, when it is dropped.
pub struct GitHost {
    folder: tempfile::TempDir,
    address: IpAddr,
    port: u16,
    user: String,
    sshd: Child,
}

impl GitHost {
    /// Why there can be none on this machine.
    #[must_use]
    pub fn missing() -> Option<String> {
        (!Path::new(SSHD).exists()).then(|| "there is no OpenSSH server on this machine".to_owned())
    }

    /// One with the repository [`REPOSITORY`], which has one commit on `main`. Nobody is let in yet.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn start() -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into())
    }

    /// The same at another address of this machine.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn start_at(address: IpAddr) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("forge-").tempdir()?;
        let at = |name: &str| folder.path().join(name);
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at("host")))?;
        fs::write(at("authorized"), "")?;
        fs::write(at("serve"), SERVE)?;
        fs::set_permissions(at("serve"), fs::Permissions::from_mode(0o755))?;
        let port = TcpListener::bind((address, 0))?.local_addr()?.port();
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nStrictModes no\nUsePAM no\nPidFile none\n",
            at("host").display(),
            at("authorized").display()
        );
        fs::write(at("sshd"), config)?;
        // Where it separates its privileges, when root starts it.
        let _ = fs::create_dir_all("/run/sshd");
        let mut sshd = Command::new(SSHD);
        let sshd = sshd.arg("-D").arg("-f").arg(at("sshd")).stderr(Stdio::null()).spawn().context("sshd")?;
        let user = String::from_utf8(Command::new("id").arg("-un").output()?.stdout)?.trim().to_owned();
        let host = Self { folder, address, port, user, sshd };
        host.seed()?;
        let end = Instant::now() + UP_WITHIN;
        while TcpStream::connect_timeout(&(address, port).into(), UP_WITHIN).is_err() {
            ensure!(Instant::now() < end, "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(host)
    }

    fn seed(&self) -> Result<()> {
        let script = "git init -q --bare -b main \"$1\" && git init -q -b main seed && cd seed && echo one >one \
             && git add . && git commit -qm one && git push -q \"$1\" main";
        let mut command = Command::new("sh");
        command.args(["-ec", script, "seed"]).arg(self.repository()).current_dir(self.folder.path());
        command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")]);
        command.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Ann")));
        run(command.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "ann@example.com"))))
    }

    /// The repository's address, as a manifest has it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("ssh://{}@{}:{}/{REPOSITORY}.git", self.user, self.address, self.port)
    }

    /// A private key of a person who may read and write.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn admit(&self) -> Result<PathBuf> {
        let key = self.folder.path().join("person");
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
        let public = fs::read_to_string(key.with_extension("pub"))?;
        fs::write(self.authorized(), format!("command=\"{} write\" {public}", self.serve().display()))?;
        Ok(key)
    }

    /// Its `host_key`.
    ///
    /// # Errors
    /// When it is gone.
    pub fn host_key(&self) -> Result<String> {
        let line = fs::read_to_string(self.folder.path().join("host.pub"))?;
        Ok(line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The bare repository.
    #[must_use]
    pub fn repository(&self) -> PathBuf {
        self.folder.path().join("repositories").join(format!("{REPOSITORY}.git"))
    }

    /// What a ref of the repository points to, in git's own words.
    ///
    /// # Errors
    /// When there is no such ref.
    pub fn log(&self, name: &str) -> Result<String> {
        let output =
            Command::new("git").args(["log", "--format=%s", name]).current_dir(self.repository()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    pub(super) fn authorized(&self) -> PathBuf {
        self.folder.path().join("authorized")
    }

    pub(super) fn serve(&self) -> PathBuf {
        self.folder.path().join("serve")
    }
}

impl Drop for GitHost {
    fn drop(&mut self) {
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
