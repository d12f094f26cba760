//! Runs the git gate as a daemon: confines the process, receives repositories from the parent process, and
//! serves the bottle.
//!
//! The gate runs git and ssh, so its system call filter allows executing programs, but only from system
//! directories. The gate can write only to its own directory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bottle_daemon::{Confinement, Listener, ListenerConfig, Lockout, Serve};
use bottle_harden::daemon_syscalls;
use bottle_harden::directory_access::Held;
use bottle_harden::identity::Identity;
use bottle_harden::landlock::Files;
use bottle_policy::names::{GATE_PORTS, GIT_GATE_PORT};
use bottle_protocol::session::Role;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_protocol::session::git_gate::GateProvision;
use bottle_queue::Questions;
use bottle_scan::RuleFiles;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::gate::Gate;
use crate::git::ReservedFds;
use crate::http;
use crate::private_root;
use crate::received::DiskSpace;
use crate::repo::Repo;
use crate::search::Searches;

/// The daemon's name in health reports and events.
pub const NAME: &str = "git-gate";

/// The number of worker threads. One thread can scan a push while the other thread serves requests.
const WORKERS: usize = 2;

/// The maximum number of concurrent connections from the bottle. Further connections wait.
const CONNECTIONS: usize = 128;

/// The maximum number of concurrent pushes. The gate unpacks pushes one after another, and each push may wait for the
/// user. A further push waits up to two minutes. After that, it is refused.
const PUSHES: usize = 16;

/// The maximum number of concurrent fetches. Each fetch needs memory for a git process. A further fetch waits up to ten
/// minutes. After that, it is refused.
const FETCHES: usize = 4;

/// The daemon's configuration. The configuration is passed on the command line, so it contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateConfig {
    /// The listener that the bottle connects to.
    pub proxy: ListenerConfig,
    /// An existing directory in which the gate keeps its mirrors.
    pub directory: PathBuf,
    /// The user to which the gate switches if root started it. This user needs write access to the listener's
    /// directory and to `directory`.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// The time limit in seconds for an upstream to accept a push. When the limit is reached, the push fails as
    /// unconfirmed.
    pub forward_seconds: u64,
    /// The number of different pieces of the gate's credentials that the agent may push before the bottle is locked
    /// ([`bottle_policy::lock_out::HITS`]). `None` disables the lock-out.
    pub lock_after: Option<usize>,
}

/// The default value of [`GateConfig::forward_seconds`].
pub const FORWARD_SECONDS: u64 = 900;

/// Runs the program as `__git-gate HOME SLUG CONFIG` until the bundle disconnects.
pub fn run() -> ExitCode {
    bottle_daemon::run("__git-gate", start)
}

fn start(mut config: GateConfig) -> anyhow::Result<()> {
    let fds = ReservedFds::reserve().context("descriptors")?;
    let _listener_directory = prepare_as_root(&mut config)?;
    let confined = Confinement {
        identity: config.identity,
        descriptors: None,
        files: files(&config),
        calls: daemon_syscalls::restrict_but_programs,
    }
    .apply()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let proxy = config.proxy.clone();
    runtime.block_on(bottle_daemon::serve(confined, &proxy, GateDaemon::new(config, fds)))
}

/// Opens the listener's directory, and mounts the mirrors' directory at a path that the unprivileged user can
/// reach.
fn prepare_as_root(config: &mut GateConfig) -> anyhow::Result<Option<Held>> {
    let Some(identity) = config.identity else { return Ok(None) };
    let listener_directory = config.proxy.hold().context("listener")?;
    config.directory = private_root::enter(&config.directory, identity).context("private mount namespace")?;
    Ok(listener_directory)
}

/// Returns the files that the gate may access: its own directory, programs, and the system files that programs read.
/// The gate may not access home directories or files of other processes.
fn files(config: &GateConfig) -> Files {
    let programs = ["/usr", "/bin", "/lib", "/lib64", "/nix/store"];
    // Access is granted to complete directories. Tools replace a file in these directories by renaming a new file, and
    // a rule for a single file would not cover the new file. If root started the gate, `/etc` is a private directory
    // with few files (see `private_root`).
    let read = ["/etc", "/run/systemd/resolve"];
    Files {
        read: read.map(PathBuf::from).into(),
        programs: programs.map(PathBuf::from).into(),
        trees: vec![config.directory.clone(), "/dev/null".into()],
        ..config.proxy.files()
    }
}

/// The daemon's state between requests of its parent process.
struct GateDaemon {
    config: GateConfig,
    fds: Arc<ReservedFds>,
    questions: Questions,
    lockout: Arc<Lockout>,
    gate: OnceLock<Arc<Gate>>,
}

impl Serve for GateDaemon {
    const NAME: &'static str = NAME;
    const ROLE: Role = Role::Gate;
    const PORTS: &'static [u16] = &GATE_PORTS;

    async fn answer(&self, asked: BundleRequest) -> anyhow::Result<BundleEvent> {
        match asked {
            BundleRequest::Gate(provision) => self.provision(*provision).await,
            BundleRequest::Secrets { values } => match self.gate.get() {
                Some(gate) => {
                    gate.searches.add(&values)?;
                    Ok(BundleEvent::Replaced)
                }
                None => bail!("the git gate is not provisioned yet"),
            },
            _ => bail!("this request is not for the git gate"),
        }
    }

    fn questions(&self) -> &Questions {
        &self.questions
    }

    fn lockout(&self) -> &Arc<Lockout> {
        &self.lockout
    }

    fn up(&self) -> bool {
        self.gate.get().is_some()
    }
}

impl GateDaemon {
    fn new(config: GateConfig, fds: ReservedFds) -> Self {
        let (questions, gate) = (Questions::default(), OnceLock::new());
        let lockout = Arc::new(Lockout::new(NAME, config.lock_after));
        Self { config, fds: Arc::new(fds), questions, lockout, gate }
    }

    async fn provision(&self, provision: GateProvision) -> anyhow::Result<BundleEvent> {
        ensure!(self.gate.get().is_none(), "the git gate is provisioned already");
        let rules = provision.rules.iter().map(|file| (file.name.as_str(), file.text.as_str()));
        let rules = RuleFiles::parse(rules).context("rules")?;
        let searches = Arc::new(Searches::new(&provision, rules)?);
        let search_of_log = Arc::clone(&searches);
        bottle_sidecar_log::redact_with(move |line| search_of_log.current().redact(line));
        let mut repos = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for repo in provision.repos {
            let name = repo.name.to_string();
            addresses.extend(repo.address.iter().map(|address| (address.clone(), name.clone())));
            let opened =
                Repo::open(&self.config.directory, repo, &provision.upstream_roots, &self.fds).await?;
            repos.insert(name, Arc::new(opened));
        }
        let gate = Arc::new(Gate {
            repos,
            addresses,
            searches,
            fds: Arc::clone(&self.fds),
            questions: self.questions.clone(),
            lockout: Arc::clone(&self.lockout),
            approval_timeout: provision.ask_seconds.map(Duration::from_secs),
            forward: Duration::from_secs(self.config.forward_seconds),
            pushes: Arc::new(Semaphore::new(PUSHES)),
            fetches: Arc::new(Semaphore::new(FETCHES)),
            unpacking: Arc::new(Semaphore::new(1)),
            disk_space: DiskSpace::default(),
        });
        let listener = Listener::bind(&self.config.proxy, GIT_GATE_PORT).await.context("the git gate")?;
        tokio::spawn(accept(Arc::clone(&gate), listener));
        // The parent process sends one request at a time, so no other request can have set `self.gate` in the meantime.
        let _ = self.gate.set(gate);
        Ok(BundleEvent::GateOpen)
    }
}

/// Accepts connections until the process exits.
async fn accept(gate: Arc<Gate>, listener: Listener) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    while let Some((socket, permit)) = listener.accept(&permits).await {
        tokio::spawn(http::connection(Arc::clone(&gate), socket, permit));
    }
}
