//! Holds the credentials for upstreams, and passes them to git.
//!
//! A private key is loaded into a dedicated `ssh-agent` through the standard input of `ssh-add`. A token is passed to
//! git's credential helper through a pipe. Keys and tokens are never on a command line, in an environment variable or
//! in a file. ssh reads no configuration file, never prompts, and trusts only the host keys in the configuration of the
//! repository.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bottle_daemon::remove_if_present;
use bottle_policy::names::Name;
use bottle_policy::secret::Secret;
use bottle_protocol::session::git_gate::{GateKey, GateRepo};
use bottle_scan::{Redactor, TooLarge};

use crate::git::{self, Git, GitError, ReservedFds, Running};
use crate::ssh_control_master::ControlMaster;

/// The time limit for an ssh-agent to start and load a key, which usually takes a few milliseconds. When the limit is
/// reached, opening the repository fails.
const AGENT_WITHIN: Duration = Duration::from_secs(10);

/// The exit code of `ssh-add` if it cannot reach its ssh-agent.
const NO_AGENT: i32 = 2;

/// The user name that git sends to the upstream together with a token.
const USER: &str = "x-access-token";

/// The reason why the credentials of an upstream cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthError {
    #[error("the roots")]
    Roots(#[source] io::Error),
    #[error("the host keys")]
    HostKeys(#[source] io::Error),
    #[error("ssh-agent")]
    Socket(#[source] io::Error),
    #[error("ssh-agent did not start in time")]
    Agent,
    #[error("cannot read the private key; it must have no passphrase")]
    Key,
    #[error(transparent)]
    Token(#[from] TooLarge),
    #[error(transparent)]
    Git(#[from] GitError),
}

/// The credentials of one upstream.
pub(crate) enum UpstreamAuth {
    /// The credentials for ssh: the ssh-agent that holds the key, and the shared connection.
    Ssh { options: Vec<String>, master: Option<Arc<ControlMaster>>, _agent: Box<Running> },
    /// The credentials for https: the token, and a redactor that removes the token from text.
    Token { token: Secret, roots: String, redactor: Box<Redactor> },
}

/// The credentials for one git command.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) env: Vec<(String, String)>,
    /// A pipe that contains the token. git inherits it at a reserved descriptor.
    pub(crate) secret: Option<OwnedFd>,
    /// The lease that keeps the shared connection open until git exits.
    _lease: Option<Arc<()>>,
}

impl Access {
    /// Returns the arguments that make git read the token from the first descriptor in `fds`.
    pub(crate) fn configuration(&self, fds: &[i32]) -> Vec<String> {
        let (Some(_), Some(fd)) = (&self.secret, fds.first()) else { return Vec::new() };
        // The helper can print the token only once. Printing the token once suffices, because git asks once for each
        // host, and a repository has only one host.
        let helper = format!("credential.helper=!f() {{ test \"$1\" = get && cat <&{fd}; }}; f");
        ["-c", "credential.helper=", "-c", &helper].map(str::to_owned).into()
    }
}

impl UpstreamAuth {
    /// Prepares the credentials of a repository. For https, writes the file with the trust roots. For ssh, writes the
    /// file with the host keys and starts an ssh-agent.
    pub(crate) async fn prepare(
        directory: &Path,
        mirror: &Git,
        repo: &GateRepo,
        roots: &str,
        fds: &ReservedFds,
    ) -> Result<Self, AuthError> {
        let name = &repo.name;
        match &repo.key {
            GateKey::Token { token } => {
                let path = directory.join("roots.pem");
                write(&path, roots.as_bytes()).map_err(AuthError::Roots)?;
                let token = token.0.clone();
                // The redactor removes both the token and `USER:TOKEN`, the form in which git sends the token, because
                // an upstream may echo the credentials that it receives.
                let sent = Secret::new(format!("{USER}:{}", token.expose()));
                let redactor = Redactor::new([&sent, &token])?.into();
                Ok(Self::Token { token, roots: "../roots.pem".to_owned(), redactor })
            }
            GateKey::Ssh { private, known_hosts } => {
                let known = directory.join(format!("{name}.known_hosts"));
                write(&known, known_hosts.as_bytes()).map_err(AuthError::HostKeys)?;
                let agent = agent(directory, name, &private.0, fds).await?;
                let options = ssh_options(name);
                let master = ControlMaster::for_url(&repo.url, mirror.clone(), name, &options);
                Ok(Self::Ssh { options, master, _agent: Box::new(agent) })
            }
        }
    }

    /// Removes the token from an upstream's output.
    pub(crate) fn redact(&self, text: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Token { redactor, .. } => redactor.redact_bytes(&text).into_owned(),
            Self::Ssh { .. } => text,
        }
    }

    /// Returns whether the shared connection was lost. A connection may be dead long before git uses it.
    pub(crate) async fn has_lost_connection(&self) -> bool {
        match self {
            Self::Ssh { master: Some(master), .. } => master.is_lost().await,
            _ => false,
        }
    }

    /// Returns the credentials for one git command.
    pub(crate) async fn access(&self, fds: &ReservedFds) -> io::Result<Access> {
        Ok(match self {
            Self::Ssh { options, master, .. } => {
                let (lease, path) = match master {
                    Some(master) => (master.acquire(fds).await, master.option()),
                    None => (None, String::new()),
                };
                let path = if lease.is_some() { &path } else { "ControlPath=none" };
                let env =
                    [("GIT_SSH_COMMAND", command(options, path)), ("GIT_SSH_VARIANT", "ssh".to_owned())];
                let env = env.map(|(name, value)| (name.to_owned(), value)).into();
                Access { env, secret: None, _lease: lease }
            }
            Self::Token { token, roots, .. } => {
                let text = format!("username={USER}\npassword={}\n", token.expose());
                let secret = Some(git::secret_pipe(text.as_bytes())?);
                Access { env: vec![("GIT_SSL_CAINFO".to_owned(), roots.clone())], secret, _lease: None }
            }
        })
    }
}

/// Returns the options of every ssh command for a repository. The paths are relative, because ssh runs in the mirror's
/// directory.
fn ssh_options(name: &Name) -> Vec<String> {
    let options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        &format!("UserKnownHostsFile=../{name}.known_hosts"),
        "GlobalKnownHostsFile=/dev/null",
        "UpdateHostKeys=no",
        &format!("IdentityAgent=../{name}.agent"),
        "IdentityFile=none",
        "PreferredAuthentications=publickey",
        "ForwardAgent=no",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "ConnectTimeout=15",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
    ];
    options.map(str::to_owned).into()
}

/// Returns the ssh command that git runs. `path` is the ssh option with the control socket. The command uses an
/// existing control socket and never creates a control socket.
fn command(options: &[String], path: &str) -> String {
    let options = options.iter().map(String::as_str).chain(["ControlMaster=no", path]);
    let options: Vec<String> = options.map(|option| format!("-o {option}")).collect();
    format!("ssh -F /dev/null {}", options.join(" "))
}

/// Starts an ssh-agent and loads one key into it.
async fn agent(directory: &Path, name: &Name, key: &Secret, fds: &ReservedFds) -> Result<Running, AuthError> {
    let socket = format!("{name}.agent");
    remove_if_present(&directory.join(&socket)).map_err(AuthError::Socket)?;
    let git = Git::new(directory);
    let agent = fds.spawn(&[], |_| {
        // The ssh-agent holds a key, so the kernel kills it when this process exits for any reason.
        let mut command = git.command("setpriv");
        command.args(["--pdeathsig", "KILL", "ssh-agent", "-D", "-a", &socket]);
        command
    });
    let agent = Running::new(agent.map_err(|error| GitError::Run("ssh-agent".to_owned(), error))?);
    // A private key must end with a newline. Some editors and secret stores drop this newline.
    let text = format!("{}\n", key.expose().trim_end());
    let until = tokio::time::Instant::now() + AGENT_WITHIN;
    loop {
        let adding = fds.spawn(&[], |_| {
            let mut command = git.command("ssh-add");
            command.args(["-q", "-"]).env("SSH_AUTH_SOCK", &socket);
            command.stdin(Stdio::piped()).stderr(Stdio::piped());
            command
        });
        let adding = Running::new(adding.map_err(|error| GitError::Run("ssh-add".to_owned(), error))?);
        let output = git::finish(adding, "ssh-add", text.as_bytes(), AGENT_WITHIN).await?;
        match output.code {
            _ if output.success => return Ok(agent),
            // The ssh-agent is not listening yet.
            Some(NO_AGENT) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Some(NO_AGENT) => return Err(AuthError::Agent),
            _ => return Err(AuthError::Key),
        }
    }
}

/// Replaces a file with `content`. Only the gate can read the new file.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    remove_if_present(path)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)
}
