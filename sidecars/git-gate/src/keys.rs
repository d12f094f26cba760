//! What opens an upstream, and how git gets to use it.
//!
//! A private key is given to an `ssh-agent` of its own on that one's standard input and is nowhere else; a
//! token goes through a pipe to git's credential helper. Neither is on a command line, in an environment or in
//! a file. ssh reads no configuration, asks nobody, and trusts the host keys it is given and no others.

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
use bottle_scan::Redactor;

use crate::git::{self, Git, Passage, Running};
use crate::ssh_control_master::Line;

/// An agent starts and takes a key in a few milliseconds.
const AGENT_WITHIN: Duration = Duration::from_secs(10);

/// What `ssh-add` ends with when it cannot reach its agent.
const NO_AGENT: i32 = 2;

/// The user as whom a token goes upstream.
const USER: &str = "x-access-token";

/// What opens one upstream.
pub(crate) enum Opener {
    /// ssh, with the agent that has the key, and the way that is kept open.
    Ssh { options: Vec<String>, line: Option<Arc<Line>>, _agent: Box<Running> },
    /// https, with the token, and what takes it out of a text.
    Token { token: Secret, roots: String, redactor: Box<Redactor> },
}

/// What a git that goes upstream is given.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) env: Vec<(String, String)>,
    /// Passed to it at a reserved place.
    pub(crate) secret: Option<OwnedFd>,
    /// Held for as long as it runs.
    _line: Option<Arc<()>>,
}

impl Access {
    /// The configuration that makes git read the secret at this place.
    pub(crate) fn configuration(&self, places: &[i32]) -> Vec<String> {
        let (Some(_), Some(place)) = (&self.secret, places.first()) else { return Vec::new() };
        // Read once and given for the one host of the repository.
        let helper = format!("credential.helper=!f() {{ test \"$1\" = get && cat <&{place}; }}; f");
        ["-c", "credential.helper=", "-c", &helper].map(str::to_owned).into()
    }
}

impl Opener {
    /// Makes ready what opens a repository's upstream.
    ///
    /// # Errors
    /// A lower-case fragment that names what is wrong with the key.
    pub(crate) async fn ready(
        folder: &Path,
        mirror: &Git,
        repo: &GateRepo,
        roots: &str,
        passage: &Passage,
    ) -> Result<Self, String> {
        let name = &repo.name;
        match &repo.key {
            GateKey::Token { token } => {
                let path = folder.join("roots.pem");
                write(&path, roots.as_bytes()).map_err(|error| format!("the roots: {error}"))?;
                let token = token.0.clone();
                // Alone, and as it goes upstream: an upstream that repeats what it was sent repeats that.
                let sent = Secret::new(format!("{USER}:{}", token.expose()));
                let redactor = Redactor::new([&sent, &token]).map_err(|error| error.to_string())?.into();
                Ok(Self::Token { token, roots: "../roots.pem".to_owned(), redactor })
            }
            GateKey::Ssh { private, known_hosts } => {
                let known = folder.join(format!("{name}.known_hosts"));
                write(&known, known_hosts.as_bytes()).map_err(|error| format!("the host keys: {error}"))?;
                let agent = agent(folder, name, &private.0, passage).await?;
                let options = options(name);
                let line = Line::to(&repo.url, mirror.clone(), name, &options);
                Ok(Self::Ssh { options, line, _agent: Box::new(agent) })
            }
        }
    }

    /// A text that upstream may have written, without the token.
    pub(crate) fn redact(&self, text: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Token { redactor, .. } => redactor.redact_bytes(&text).into_owned(),
            Self::Ssh { .. } => text,
        }
    }

    /// Whether the way that was kept open has gone: dead for a while, maybe, and found so only by who used it.
    pub(crate) async fn lost_its_way(&self) -> bool {
        match self {
            Self::Ssh { line: Some(line), .. } => line.is_lost().await,
            _ => false,
        }
    }

    /// For one run of git.
    pub(crate) async fn access(&self, passage: &Passage) -> io::Result<Access> {
        Ok(match self {
            Self::Ssh { options, line, .. } => {
                let (held, way) = match line {
                    Some(line) => (line.hold(passage).await, line.option()),
                    None => (None, String::new()),
                };
                let way = if held.is_some() { &way } else { "ControlPath=none" };
                let env = [("GIT_SSH_COMMAND", command(options, way)), ("GIT_SSH_VARIANT", "ssh".to_owned())];
                let env = env.map(|(name, value)| (name.to_owned(), value)).into();
                Access { env, secret: None, _line: held }
            }
            Self::Token { token, roots, .. } => {
                let text = format!("username={USER}\npassword={}\n", token.expose());
                let secret = Some(git::sealed(text.as_bytes())?);
                Access { env: vec![("GIT_SSL_CAINFO".to_owned(), roots.clone())], secret, _line: None }
            }
        })
    }
}

/// What every ssh of a repository is told, in the mirror's folder.
fn options(name: &Name) -> Vec<String> {
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

/// ssh as git calls it, which goes this way and opens none for others.
fn command(options: &[String], way: &str) -> String {
    let options = options.iter().map(String::as_str).chain(["ControlMaster=no", way]);
    let options: Vec<String> = options.map(|option| format!("-o {option}")).collect();
    format!("ssh -F /dev/null {}", options.join(" "))
}

/// An agent that has this one key.
async fn agent(folder: &Path, name: &Name, key: &Secret, passage: &Passage) -> Result<Running, String> {
    let socket = format!("{name}.agent");
    match fs::remove_file(folder.join(&socket)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(format!("ssh-agent: {error}")),
        _ => {}
    }
    let place = Git::of(folder);
    let agent = passage.spawn(&[], |_| {
        // It holds a key: it ends with this process, however that ends.
        let mut command = place.command("setpriv");
        command.args(["--pdeathsig", "KILL", "ssh-agent", "-D", "-a", &socket]);
        command
    });
    let agent = Running::new(agent.map_err(|error| format!("ssh-agent could not be run: {error}"))?);
    // Editors and secret stores lose the last line's end, without which it is no key.
    let text = format!("{}\n", key.expose().trim_end());
    let until = tokio::time::Instant::now() + AGENT_WITHIN;
    loop {
        let adding = passage.spawn(&[], |_| {
            let mut command = place.command("ssh-add");
            command.args(["-q", "-"]).env("SSH_AUTH_SOCK", &socket);
            command.stdin(Stdio::piped()).stderr(Stdio::piped());
            command
        });
        let adding = Running::new(adding.map_err(|error| format!("ssh-add could not be run: {error}"))?);
        match git::finish(adding, "ssh-add", text.as_bytes(), AGENT_WITHIN).await {
            Ok(ended) if ended.good => return Ok(agent),
            // Nobody listens yet.
            Ok(ended) if ended.code == Some(NO_AGENT) && tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(ended) if ended.code == Some(NO_AGENT) => {
                return Err("ssh-agent did not start in time".to_owned());
            }
            Ok(_) => {
                return Err("the private key cannot be read; it must be one without a passphrase".to_owned());
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// A file of the gate's own, whole.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)
}
