//! Upstream credentials, and how git uses them.
//!
//! A private key goes to a dedicated `ssh-agent` over `ssh-add`'s standard input. A token goes through a
//! pipe to git's credential helper. Neither is ever on a command line, in an environment or in a file.
//! ssh reads no configuration, never prompts, and trusts only the given host keys.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::Name;
use bottle_contract::secret::Secret;
use bottle_contract::session::gate::{GateKey, GateRepo};
use bottle_daemon::remove_if_present;
use bottle_scan::{Redactor, TooLarge};

use crate::git::{self, Git, GitError, ReservedFds, Running};
use crate::ssh_control_master::ControlMaster;

/// Time limit for an ssh-agent to start and load a key, which takes a few milliseconds.
const AGENT_WITHIN: Duration = Duration::from_secs(10);

/// Exit code of `ssh-add` if it cannot reach its agent.
const NO_AGENT: i32 = 2;

/// The user name for token authentication.
const USER: &str = "x-access-token";

/// The credentials of an upstream cannot be prepared.
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

/// Credentials of one upstream.
pub(crate) enum UpstreamAuth {
    /// ssh, with the agent that has the key, and the shared connection.
    Ssh { options: Vec<String>, master: Option<Arc<ControlMaster>>, _agent: Box<Running> },
    /// https, with the token, and a redactor that removes it from text.
    Token { token: Secret, roots: String, redactor: Box<Redactor> },
}

/// The credentials for one run of git.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) env: Vec<(String, String)>,
    /// A pipe with the token, which git inherits at a reserved descriptor.
    pub(crate) secret: Option<OwnedFd>,
    /// Keeps the shared connection open for as long as git runs.
    _lease: Option<Arc<()>>,
}

impl Access {
    /// The configuration that makes git read the token from the first of these descriptors.
    pub(crate) fn configuration(&self, fds: &[i32]) -> Vec<String> {
        let (Some(_), Some(fd)) = (&self.secret, fds.first()) else { return Vec::new() };
        // git reads it once, for the one host of the repository.
        let helper = format!("credential.helper=!f() {{ test \"$1\" = get && cat <&{fd}; }}; f");
        ["-c", "credential.helper=", "-c", &helper].map(str::to_owned).into()
    }
}

impl UpstreamAuth {
    /// Prepares the credentials of a repository: writes trust roots or host keys, starts an ssh-agent.
    pub(crate) async fn prepare(
        folder: &Path,
        mirror: &Git,
        repo: &GateRepo,
        roots: &str,
        fds: &ReservedFds,
    ) -> Result<Self, AuthError> {
        let name = &repo.name;
        match &repo.key {
            GateKey::Token { token } => {
                let path = folder.join("roots.pem");
                write(&path, roots.as_bytes()).map_err(AuthError::Roots)?;
                let token = token.0.clone();
                // Alone, and in the form that is sent: an upstream may echo its input.
                let sent = Secret::new(format!("{USER}:{}", token.expose()));
                let redactor = Redactor::new([&sent, &token])?.into();
                Ok(Self::Token { token, roots: "../roots.pem".to_owned(), redactor })
            }
            GateKey::Ssh { private, known_hosts } => {
                let known = folder.join(format!("{name}.known_hosts"));
                write(&known, known_hosts.as_bytes()).map_err(AuthError::HostKeys)?;
                let agent = agent(folder, name, &private.0, fds).await?;
                let options = ssh_options(name);
                let master = ControlMaster::for_url(&repo.url, mirror.clone(), name, &options);
                Ok(Self::Ssh { options, master, _agent: Box::new(agent) })
            }
        }
    }

    /// Removes the token from output of the upstream.
    pub(crate) fn redact(&self, text: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Token { redactor, .. } => redactor.redact_bytes(&text).into_owned(),
            Self::Ssh { .. } => text,
        }
    }

    /// Whether the shared connection has ended. It may have been dead for a while before a git used it.
    pub(crate) async fn has_lost_connection(&self) -> bool {
        match self {
            Self::Ssh { master: Some(master), .. } => master.is_lost().await,
            _ => false,
        }
    }

    /// Returns the credentials for one run of git.
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

/// Options of every ssh of a repository, which runs in the mirror's folder.
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

/// The ssh command for git. It uses the control socket `path` and never creates one.
fn command(options: &[String], path: &str) -> String {
    let options = options.iter().map(String::as_str).chain(["ControlMaster=no", path]);
    let options: Vec<String> = options.map(|option| format!("-o {option}")).collect();
    format!("ssh -F /dev/null {}", options.join(" "))
}

/// Starts an ssh-agent and loads one key.
async fn agent(folder: &Path, name: &Name, key: &Secret, fds: &ReservedFds) -> Result<Running, AuthError> {
    let socket = format!("{name}.agent");
    remove_if_present(&folder.join(&socket)).map_err(AuthError::Socket)?;
    let git = Git::new(folder);
    let agent = fds.spawn(&[], |_| {
        // The agent has a key, so it dies with this process in any case.
        let mut command = git.command("setpriv");
        command.args(["--pdeathsig", "KILL", "ssh-agent", "-D", "-a", &socket]);
        command
    });
    let agent = Running::new(agent.map_err(|error| GitError::Run("ssh-agent".to_owned(), error))?);
    // Editors and secret stores drop the last newline, which a key needs.
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
            // The agent does not listen yet.
            Some(NO_AGENT) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Some(NO_AGENT) => return Err(AuthError::Agent),
            _ => return Err(AuthError::Key),
        }
    }
}

/// Replaces a file with `content`, readable only by the gate.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    remove_if_present(path)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)
}
