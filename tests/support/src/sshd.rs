//! Runs an OpenSSH server, and creates a repository for it.

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = "/usr/sbin/sshd";

/// Time limit for the server to listen.
const UP_WITHIN: Duration = Duration::from_secs(60);

/// A process that is killed on drop.
pub struct Ends(pub Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running server that accepts the keys of the file `authorized` in its folder. Dropping it ends the server and its
/// connections.
pub struct Sshd {
    port: u16,
    process: Ends,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // Each connection has its own process, which outlives the listener's.
        let connections = descendants(self.process.0.id());
        let _ = self.process.0.kill();
        for process in connections {
            signal(process, Signal::KILL);
        }
    }
}

/// The descendants of a process.
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
    /// Why this machine cannot run one.
    #[must_use]
    pub fn missing() -> Option<String> {
        (!Path::new(PROGRAM).exists()).then(|| "there is no OpenSSH server on this machine".to_owned())
    }

    /// Starts a server on a free port of `address`, with additional configuration `lines`. Its host key is `host` in
    /// `folder`, with the public half in `host.pub`.
    ///
    /// # Errors
    /// When a program is missing or fails, or nobody listens in time.
    pub fn start(folder: &Path, address: IpAddr, lines: &str) -> Result<Self> {
        let at = |name: &str| folder.join(name);
        make_key(&at("host"))?;
        let port = TcpListener::bind((address, 0))?.local_addr()?.port();
        // Without a home, the shell runs no startup files before git.
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nStrictModes no\nUsePAM no\nPidFile none\nSetEnv HOME=/nonexistent\n{lines}",
            at("host").display(),
            at("authorized").display()
        );
        fs::write(at("sshd"), config)?;
        // The privilege separation folder, which a server started by root needs.
        let _ = fs::create_dir_all("/run/sshd");
        let mut process = Command::new(PROGRAM);
        let process = process.arg("-D").arg("-f").arg(at("sshd")).stderr(Stdio::null()).spawn();
        let process = Ends(process.context(PROGRAM)?);
        let end = Instant::now() + UP_WITHIN;
        while TcpStream::connect_timeout(&(address, port).into(), UP_WITHIN).is_err() {
            ensure!(Instant::now() < end, "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { port, process })
    }

    /// Freezes every connection, like a lost network. New connections still work.
    pub fn freeze(&self) {
        for process in descendants(self.process.0.id()) {
            signal(process, Signal::STOP);
        }
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Makes a key without a passphrase, with its public half beside it.
///
/// # Errors
/// When ssh-keygen is missing or fails.
pub fn make_key(path: &Path) -> Result<()> {
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path))
}

/// Creates the bare repository `bare` with one commit on `main`, and its source clone `seed` in `folder`.
///
/// # Errors
/// When git is missing or fails.
pub fn seed(folder: &Path, bare: &Path) -> Result<()> {
    let script = "git init -q --bare -b main \"$1\" && git init -q -b main seed && cd seed && echo one >one \
         && git add . && git commit -qm one && git push -q \"$1\" main";
    let mut command = Command::new("sh");
    command.args(["-ec", script, "seed"]).arg(bare).current_dir(folder);
    command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")]);
    command.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Ann")));
    run(command.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "ann@example.com"))))
}

/// The name of the user that the server accepts: the current one.
///
/// # Errors
/// When it is unknown.
pub fn user() -> Result<String> {
    Ok(String::from_utf8(Command::new("id").arg("-un").output()?.stdout)?.trim().to_owned())
}

/// Runs a program that must succeed.
///
/// # Errors
/// When it cannot be run or fails, with its output.
pub fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
