//! The git gate's daemon: what it gives up, is provisioned with and asked.
//!
//! It runs git and ssh, so its filter of system calls lets programs run, from the system's folders alone; files
//! it has in its own folder and nowhere else.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use bottle_channel::Stream;
use bottle_contract::names::{GATE_PORTS, GIT_GATE_PORT};
use bottle_contract::session::Role;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use bottle_contract::session::gate::GateProvision;
use bottle_daemon::{Confinement, Listener, ListenerConfig, Lockout, Serve};
use bottle_harden::files::Files;
use bottle_harden::identity::Identity;
use bottle_harden::reach::Held;
use bottle_harden::syscalls;
use bottle_queue::Questions;
use bottle_scan::{KnownSecrets, Redactor, RuleFiles, Scanner};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::git::Passage;
use crate::http;
use crate::private_root;
use crate::repo::Repo;

/// Its name in health answers and events.
pub const NAME: &str = "git-gate";

/// One reads a push while the other answers.
const WORKERS: usize = 2;

/// Connections of the bottle at once; the rest waits.
const CONNECTIONS: usize = 128;

/// Exchanges with git at once.
const GITS: usize = 16;

/// What the bundle tells the daemon on its command line. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateConfig {
    /// How the bottle reaches it.
    pub proxy: ListenerConfig,
    /// An existing folder for mirrors.
    pub folder: PathBuf,
    /// Whom to become, when started as root. ListenerConfig and folder must be writable for it.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Seconds that an upstream may take for a push.
    pub forward_seconds: u64,
    /// Hits after which the bottle is locked ([`bottle_contract::lock_out::HITS`]); none: it never is.
    pub lock_after: Option<usize>,
}

/// [`GateConfig::forward_seconds`] of every bottle.
pub const FORWARD_SECONDS: u64 = 900;

/// What the gate works with.
pub(crate) struct Gate {
    repos: BTreeMap<String, Arc<Repo>>,
    pub(crate) scanner: Scanner,
    pub(crate) passage: Arc<Passage>,
    pub(crate) questions: Questions,
    pub(crate) lockout: Arc<Lockout>,
    /// How many of the known secrets, from the first on, are credentials that the agent does not hold.
    pub(crate) guarded: usize,
    /// How long a push waits for a user; none: nobody is asked.
    pub(crate) ask: Option<Duration>,
    /// How long an upstream may take for a push.
    pub(crate) forward: Duration,
    pub(crate) gits: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn repo(&self, name: &str) -> Option<Arc<Repo>> {
        self.repos.get(name).cloned()
    }

    /// What there is, for whoever asks for something else.
    pub(crate) fn list(&self) -> String {
        let names: Vec<&str> = self.repos.keys().map(String::as_str).collect();
        format!(
            "there is no such repository; this bottle has: {} (declared by the user under `git-gate.repos`)",
            names.join(", ")
        )
    }
}

/// The role `__git-gate HOME SLUG CONFIG`: runs until the bundle goes away.
pub fn run() -> ExitCode {
    bottle_daemon::run("__git-gate", start)
}

fn start(mut config: GateConfig) -> anyhow::Result<()> {
    let passage = Passage::reserve().context("descriptors")?;
    let _reach = hold(&mut config)?;
    let confined = Confinement {
        identity: config.identity,
        descriptors: None,
        files: files(&config),
        calls: syscalls::restrict_but_programs,
    }
    .apply()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let proxy = config.proxy.clone();
    runtime.block_on(bottle_daemon::serve(confined, &proxy, GateDaemon::new(config, passage)))
}

/// Keeps what it needs within reach of the user that it will be.
fn hold(config: &mut GateConfig) -> anyhow::Result<Option<Held>> {
    let Some(identity) = config.identity else { return Ok(None) };
    let proxy = config.proxy.hold().context("proxy")?;
    config.folder =
        private_root::of_its_own(&config.folder, identity).context("a view of the files of its own")?;
    Ok(proxy)
}

/// Programs and what they read of the system; nobody's home, nothing of other processes.
fn files(config: &GateConfig) -> Files {
    let programs = ["/usr", "/bin", "/lib", "/lib64", "/nix/store"];
    // All of it: a file there is replaced rather than written to, and one by one what replaces it would be closed.
    // Started by root it is an `/etc` of the gate's own with little in it (see `place`).
    let read = ["/etc", "/run/systemd/resolve"];
    Files {
        read: read.map(PathBuf::from).into(),
        programs: programs.map(PathBuf::from).into(),
        trees: vec![config.folder.clone(), "/dev/null".into()],
        ..config.proxy.files()
    }
}

/// What the daemon is, between requests of its parent.
struct GateDaemon {
    config: GateConfig,
    passage: Arc<Passage>,
    questions: Questions,
    lockout: Arc<Lockout>,
    gate: OnceLock<Arc<Gate>>,
}

impl Serve for GateDaemon {
    const NAME: &'static str = NAME;
    const ROLE: Role = Role::Gate;
    const PORTS: &'static [u16] = &GATE_PORTS;

    async fn answer(&self, asked: BundleRequest) -> Result<BundleEvent, String> {
        match asked {
            BundleRequest::Gate(provision) => self.provision(*provision).await,
            _ => Err("this is nothing for the git gate".to_owned()),
        }
    }

    fn events(&self, listener: Stream) -> impl Future<Output = ()> + Send + 'static {
        stay_silent(listener)
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

/// Everything that happens here is told to who pushes.
async fn stay_silent(mut listener: Stream) {
    while listener.next().await.is_some() {}
}

impl GateDaemon {
    fn new(config: GateConfig, passage: Passage) -> Self {
        let (questions, gate) = (Questions::default(), OnceLock::new());
        let lockout = Arc::new(Lockout::new(NAME, config.lock_after));
        Self { config, passage: Arc::new(passage), questions, lockout, gate }
    }

    async fn provision(&self, provision: GateProvision) -> Result<BundleEvent, String> {
        if self.gate.get().is_some() {
            return Err("the git gate is provisioned already".to_owned());
        }
        let known = provision.credentials.iter().chain(&provision.known_secrets);
        let secrets: Vec<_> = known.map(|secret| &secret.0).collect();
        let known = KnownSecrets::new(secrets.iter().copied()).map_err(|error| error.to_string())?;
        let redactor = Redactor::new(secrets.iter().copied()).map_err(|error| error.to_string())?;
        let rules = provision.rules.iter().map(|file| (file.name.as_str(), file.text.as_str()));
        let rules = RuleFiles::parse(rules).map_err(|error| format!("rules: {error}"))?;
        bottle_sidecar_log::redact_with(move |line| redactor.redact(line).into_owned());
        let mut repos = BTreeMap::new();
        for repo in provision.repos {
            let name = repo.name.to_string();
            let ready =
                Repo::ready(&self.config.folder, repo, &provision.upstream_roots, &self.passage).await?;
            repos.insert(name, Arc::new(ready));
        }
        let gate = Arc::new(Gate {
            repos,
            scanner: Scanner::outbound(Arc::new(known))
                .with_rules(Arc::new(rules))
                .with_placeholders(&provision.placeholders),
            passage: Arc::clone(&self.passage),
            questions: self.questions.clone(),
            lockout: Arc::clone(&self.lockout),
            guarded: provision.credentials.len(),
            ask: provision.ask_seconds.map(Duration::from_secs),
            forward: Duration::from_secs(self.config.forward_seconds),
            gits: Arc::new(Semaphore::new(GITS)),
        });
        let listener = Listener::bind(&self.config.proxy, GIT_GATE_PORT).await;
        let listener = listener.map_err(|error| format!("the git gate's {error}"))?;
        tokio::spawn(listen(Arc::clone(&gate), listener));
        // Requests of the parent come one after the other, so that nobody can have been faster.
        let _ = self.gate.set(gate);
        Ok(BundleEvent::GateOpen)
    }
}

/// Accepts for as long as the process lives.
async fn listen(gate: Arc<Gate>, listener: Listener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    while let Some((socket, place)) = listener.accept(&places).await {
        tokio::spawn(http::connection(Arc::clone(&gate), socket, place));
    }
}
