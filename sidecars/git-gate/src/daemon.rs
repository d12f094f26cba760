//! The git gate's process: started by the bundle and spoken to by it alone.
//!
//! ```text
//! started ─► own view of the files (root) ─► hardened ─► hello ─► (Gate) ─► listening ─► (Stop | parent gone) ─► exit
//! ```
//! It runs git and ssh, so its filter of system calls lets programs run, from the system's folders alone; files
//! it has in its own folder and nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use bottle_channel::{Channel, Request, Side};
use bottle_contract::names::{GATE_DOOR_PORTS, GIT_GATE_PORT};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Daemon};
use bottle_contract::session::gate::GateProvision;
use bottle_contract::session::{Hello, Role};
use bottle_egress::door::listen::Door;
use bottle_harden::files::Files;
use bottle_harden::identity::Identity;
use bottle_harden::reach::Held;
use bottle_harden::{Weaker, process, syscalls};
use bottle_queue::Questions;
use bottle_scan::{KnownSecrets, Redactor, Scanner};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::git::Passage;
use crate::http;
use crate::place;
use crate::repo::Repo;

/// Its name in health answers and events.
pub const NAME: &str = "git-gate";

/// One reads a push while the other answers.
const WORKERS: usize = 2;

/// Connections of the bottle at once; the rest waits.
const CONNECTIONS: usize = 128;

/// Exchanges with git at once.
const GITS: usize = 16;

/// How long accepting rests when the process is out of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What the bundle tells the daemon on its command line. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateConfig {
    /// How the bottle reaches it.
    pub door: Door,
    /// An existing folder for mirrors.
    pub folder: PathBuf,
    /// Whom to become, when started as root. Door and folder must be writable for it.
    #[serde(default)]
    pub identity: Option<Identity>,
}

/// What the gate works with.
pub(crate) struct Gate {
    repos: BTreeMap<String, Arc<Repo>>,
    pub(crate) scanner: Scanner,
    pub(crate) passage: Arc<Passage>,
    pub(crate) questions: Questions,
    /// How long a push waits for a person; none: nobody is asked.
    pub(crate) ask: Option<Duration>,
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
            "there is no such repository; this bottle has: {} (declared by the person under `git-gate.repos`)",
            names.join(", ")
        )
    }
}

/// The role `__git-gate HOME SLUG CONFIG`: runs until the bundle goes away.
pub fn run() -> ExitCode {
    bottle_remarks::start();
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<()> {
    let passage = Passage::reserve().context("descriptors")?;
    let argument = std::env::args().nth(4).context("__git-gate needs its configuration")?;
    let mut config: GateConfig = serde_json::from_str(&argument).context("__git-gate configuration")?;
    let parent = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let _reach = hold(&mut config)?;
    let weaker = harden(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(serve_parent(parent, DaemonState::new(config, passage, weaker)))
}

/// Keeps what it needs within reach of the user that it will be.
fn hold(config: &mut GateConfig) -> anyhow::Result<Option<Held>> {
    let Some(identity) = config.identity else { return Ok(None) };
    let door = config.door.hold().context("door")?;
    config.folder = place::of_its_own(&config.folder, identity).context("a view of the files of its own")?;
    Ok(door)
}

/// Gives up every right that is not needed; see [`bottle_harden`] for the order.
fn harden(config: &GateConfig) -> anyhow::Result<Vec<Weaker>> {
    if let Some(identity) = config.identity {
        identity.assume()?;
    }
    process::die_with_parent()?;
    process::seal()?;
    process::drop_capabilities()?;
    let weaker = [files(config).restrict()?, syscalls::restrict_but_programs()?];
    Ok(weaker.into_iter().flatten().collect())
}

/// Programs and what they read of the system; nobody's home, nothing of other processes.
fn files(config: &GateConfig) -> Files {
    let sockets = match &config.door {
        Door::Socket { folder } => vec![folder.clone()],
        Door::Network { .. } => vec![],
    };
    let programs = ["/usr", "/bin", "/lib", "/lib64", "/nix/store"];
    let read = [
        "/etc/resolv.conf",
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/gai.conf",
        "/etc/nsswitch.conf",
        "/etc/passwd",
        "/etc/group",
        "/etc/services",
        "/etc/localtime",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/alternatives",
        "/etc/ssl/openssl.cnf",
        "/etc/gnutls",
        "/etc/crypto-policies",
        "/run/systemd/resolve",
    ];
    Files {
        read: read.map(PathBuf::from).into(),
        programs: programs.map(PathBuf::from).into(),
        trees: vec![config.folder.clone(), "/dev/null".into()],
        bind_tcp: sockets.is_empty(),
        sockets,
        ..Files::default()
    }
}

/// What the daemon is, between requests of its parent.
struct DaemonState {
    config: GateConfig,
    passage: Arc<Passage>,
    weaker: Vec<Weaker>,
    questions: Questions,
    gate: OnceLock<Arc<Gate>>,
}

async fn serve_parent(parent: StdUnixStream, state: DaemonState) -> anyhow::Result<()> {
    parent.set_nonblocking(true)?;
    let io = UnixStream::from_std(parent)?;
    let (channel, mut incoming, hello) =
        Channel::establish(io, Side::Accepted, Hello::of(Role::Gate)).await?;
    anyhow::ensure!(hello.role == Role::Bundle, "the parent is no bundle");
    while let Some(request) = incoming.next().await {
        match request.parse::<BundleRequest>() {
            Ok(BundleRequest::Stop) => {
                let _ = request.accept().message(&BundleEvent::Stopped).await;
                channel.flush().await;
                break;
            }
            Ok(BundleRequest::Question) => {
                let questions = state.questions.clone();
                tokio::spawn(async move { questions.serve(request.accept()).await });
            }
            // Everything that happens here is told to who pushes.
            Ok(BundleRequest::Events) => {
                tokio::spawn(async move {
                    let mut stream = request.accept();
                    while stream.next().await.is_some() {}
                });
            }
            Ok(asked) => state.answer(request, asked).await,
            Err(error) => request.refuse(&error.to_string()).await,
        }
    }
    if let Err(error) = state.config.door.close(&GATE_DOOR_PORTS) {
        tracing::warn!(%error, "the door's socket could not be removed");
    }
    Ok(())
}

impl DaemonState {
    fn new(config: GateConfig, passage: Passage, weaker: Vec<Weaker>) -> Self {
        let (questions, gate) = (Questions::default(), OnceLock::new());
        Self { config, passage: Arc::new(passage), weaker, questions, gate }
    }

    async fn answer(&self, request: Request, asked: BundleRequest) {
        let event = match asked {
            BundleRequest::Gate(provision) => self.provision(*provision).await,
            BundleRequest::Health => Ok(self.health()),
            _ => Err("this is nothing for the git gate".to_owned()),
        };
        let event = event.unwrap_or_else(|message| BundleEvent::Rejected { message });
        let stream = request.accept();
        if stream.message(&event).await.is_ok() {
            let _ = stream.end().await;
        }
    }

    async fn provision(&self, provision: GateProvision) -> Result<BundleEvent, String> {
        if self.gate.get().is_some() {
            return Err("the git gate is provisioned already".to_owned());
        }
        let secrets: Vec<_> = provision.known_secrets.iter().map(|secret| &secret.0).collect();
        let known = KnownSecrets::new(secrets.iter().copied()).map_err(|error| error.to_string())?;
        let redactor = Redactor::new(secrets.iter().copied()).map_err(|error| error.to_string())?;
        bottle_remarks::redact_with(move |line| redactor.redact(line).into_owned());
        let mut repos = BTreeMap::new();
        for repo in provision.repos {
            let name = repo.name.to_string();
            let ready =
                Repo::ready(&self.config.folder, repo, &provision.upstream_roots, &self.passage).await?;
            repos.insert(name, Arc::new(ready));
        }
        let gate = Arc::new(Gate {
            repos,
            scanner: Scanner::outbound(Arc::new(known)),
            passage: Arc::clone(&self.passage),
            questions: self.questions.clone(),
            ask: provision.ask_seconds.map(Duration::from_secs),
            gits: Arc::new(Semaphore::new(GITS)),
        });
        open(&gate, &self.config.door).await.map_err(|error| format!("the git gate's door: {error}"))?;
        // Requests of the parent come one after the other, so that nobody can have been faster.
        let _ = self.gate.set(gate);
        Ok(BundleEvent::GateOpen)
    }

    fn health(&self) -> BundleEvent {
        let daemon = Daemon {
            name: NAME.to_owned(),
            up: self.gate.get().is_some(),
            revision: None,
            resident: None,
            weaker: self.weaker.iter().map(|weaker| weaker.0.clone()).collect(),
        };
        BundleEvent::Health { daemons: vec![daemon] }
    }
}

/// The gate's part of the door.
enum Listener {
    Unix(UnixListener),
    Tcp { listener: TcpListener, bottle: Ipv4Addr },
}

/// Opens it.
async fn open(gate: &Arc<Gate>, door: &Door) -> io::Result<()> {
    let listener = match door {
        Door::Socket { folder } => {
            let path = folder.join(GIT_GATE_PORT.to_string());
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&path)?;
            // Everyone inside may connect; the folder around it keeps everyone else out.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
            Listener::Unix(listener)
        }
        Door::Network { address, bottle } => {
            let listener = TcpListener::bind((*address, GIT_GATE_PORT)).await?;
            Listener::Tcp { listener, bottle: *bottle }
        }
    };
    tokio::spawn(listen(Arc::clone(gate), listener));
    Ok(())
}

async fn listen(gate: Arc<Gate>, listener: Listener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let gate = Arc::clone(&gate);
        let accepted = match &listener {
            Listener::Unix(listener) => listener.accept().await.map(|(socket, _)| {
                tokio::spawn(http::connection(gate, socket, place));
            }),
            Listener::Tcp { listener, bottle } => listener.accept().await.map(|(socket, peer)| {
                // Nobody but the bottle is served.
                if peer.ip() == *bottle {
                    let _ = socket.set_nodelay(true);
                    tokio::spawn(http::connection(gate, socket, place));
                }
            }),
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "the git gate could not accept");
            tokio::time::sleep(ACCEPT_REST).await;
        }
    }
}
