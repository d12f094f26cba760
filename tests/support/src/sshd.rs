//! Runs an OpenSSH server, and creates a git repository for it.

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::killed_on_drop::KilledOnDrop;

const PROGRAM: &str = "/usr/sbin/sshd";

/// The time limit for the server to start listening.
const UP_WITHIN: Duration = Duration::from_secs(60);

/// A running server that accepts the keys in the file `authorized` of its directory. Dropping the value stops
/// the server and its connections.
pub struct Sshd {
    port: u16,
    process: KilledOnDrop,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // Each connection has its own process, which does not end with the listening process.
        let connections = descendants(self.process.0.id());
        let _ = self.process.0.kill();
        for process in connections {
            signal(process, Signal::KILL);
        }
    }
}

/// Returns the descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    children.flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

impl Sshd {
    /// Returns why this machine cannot run an OpenSSH server; `None` if it can.
    #[must_use]
    pub fn missing() -> Option<String> {
        (!Path::new(PROGRAM).exists()).then(|| "there is no OpenSSH server on this machine".to_owned())
    }

    /// Starts a server on a free port of `address`. `lines` are added to its configuration. Its host key is
    /// the file `host` in `directory`, and the public key is in `host.pub`.
    ///
    /// # Errors
    /// Returns an error if a program is missing or fails, or the server does not listen within the time
    /// limit.
    pub fn start(directory: &Path, address: IpAddr, lines: &str) -> Result<Self> {
        let at = |name: &str| directory.join(name);
        make_key(&at("host"))?;
        let port = TcpListener::bind((address, 0))?.local_addr()?.port();
        // Without a home directory, the shell runs no startup files before git.
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nStrictModes no\nUsePAM no\nPidFile none\nSetEnv HOME=/nonexistent\n{lines}",
            at("host").display(),
            at("authorized").display()
        );
        fs::write(at("sshd"), config)?;
        // Creates the directory for privilege separation, which a server that root starts needs.
        let _ = fs::create_dir_all("/run/sshd");
        let mut process = Command::new(PROGRAM);
        let process = process.arg("-D").arg("-f").arg(at("sshd")).stderr(Stdio::null()).spawn();
        let process = KilledOnDrop(process.context(PROGRAM)?);
        let end = Instant::now() + UP_WITHIN;
        while TcpStream::connect_timeout(&(address, port).into(), UP_WITHIN).is_err() {
            ensure!(Instant::now() < end, "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { port, process })
    }

    /// Freezes every connection, as if the network was lost. New connections work.
    pub fn freeze(&self) {
        for process in descendants(self.process.0.id()) {
            signal(process, Signal::STOP);
        }
    }

    /// Returns the port on which the server listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Creates a key without a passphrase. The public key is written next to it.
///
/// # Errors
/// Returns an error if ssh-keygen is missing or fails.
pub fn make_key(path: &Path) -> Result<()> {
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path))
}

/// Creates the bare repository `bare` with one commit on `main`, and the clone `seed` in `directory` from which
/// the commit was pushed.
///
/// # Errors
/// Returns an error if git is missing or fails.
pub fn seed(directory: &Path, bare: &Path) -> Result<()> {
    let script = "git init -q --bare -b main \"$1\" && git init -q -b main seed && cd seed && echo one >one \
         && git add . && git commit -qm one && git push -q \"$1\" main";
    let mut command = Command::new("sh");
    command.args(["-ec", script, "seed"]).arg(bare).current_dir(directory);
    command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")]);
    command.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Ann")));
    run(command.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "ann@example.com"))))
}

/// Returns the name of the user that the server accepts, which is the current user.
///
/// # Errors
/// Returns an error if the name is unknown.
pub fn user() -> Result<String> {
    Ok(String::from_utf8(Command::new("id").arg("-un").output()?.stdout)?.trim().to_owned())
}

/// Runs a program, which must succeed.
///
/// # Errors
/// Returns an error if the program cannot be run or fails. The error contains its output.
pub fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
