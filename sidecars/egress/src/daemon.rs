//! The egress daemon: a process of its own, started by the bundle and spoken to by it alone.
//!
//! ```text
//! started ─► hardened ─► hello ─► (Provision) ─► listening ─► (Stop | parent gone) ─► exit
//! ```
//! Its channel is the socket it inherits as standard input; the bundle forwards the keeper's requests to
//! it word by word. It holds the credentials and nobody else in the bundle does. When the channel ends
//! the process ends, and the kernel sees to it should it hang.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use bottle_channel::{Channel, Request, Side, Stream};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Daemon, Provision};
use bottle_contract::session::{Hello, Role};
use bottle_harden::files::Files;
use bottle_harden::identity::Identity;
use bottle_harden::reach::{self, Held};
use bottle_harden::{Weaker, process, syscalls};
use bottle_queue::Questions;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use crate::bounds;
use crate::door::listen::Door;
use crate::door::serve;
use crate::egress::Egress;
use crate::report::backlog::Backlog;

/// Its name in health answers and events.
pub const NAME: &str = "egress";

/// Worker threads. One core moves more than any agent asks for; the second keeps short requests short
/// while a big body passes.
const WORKERS: usize = 2;

/// What the bundle tells the daemon on its command line. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressConfig {
    /// How the bottle reaches it.
    pub door: Door,
    /// An existing folder for the log's ring of files.
    pub logs: PathBuf,
    /// Whom to become, when started as root. Door and logs must be writable for it, wherever they are.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Where the person's machine is, seen from here; none: this is it.
    #[serde(default)]
    pub machine: Option<IpAddr>,
}

/// The role `__egress HOME SLUG CONFIG`: runs until the bundle goes away. Home and slug are there for
/// whoever looks for the bottle's processes.
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
    let argument = std::env::args().nth(4).context("__egress needs its configuration")?;
    let mut config: EgressConfig = serde_json::from_str(&argument).context("__egress configuration")?;
    let parent = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let memory = File::open("/proc/self/statm").ok();
    let _reach = hold(&mut config)?;
    let weaker = harden(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(serve_parent(parent, DaemonState::new(config, memory, weaker)))
}

/// Keeps what it needs within reach of the user that it will be.
fn hold(config: &mut EgressConfig) -> anyhow::Result<Vec<Held>> {
    if config.identity.is_none() {
        return Ok(Vec::new());
    }
    let logs = reach::hold(&mut config.logs).context("logs")?;
    Ok(config.door.hold().context("door")?.into_iter().chain([logs]).collect())
}

/// Gives up every right that is not needed; see [`bottle_harden`] for the order.
fn harden(config: &EgressConfig) -> anyhow::Result<Vec<Weaker>> {
    if let Some(identity) = config.identity {
        identity.assume()?;
    }
    process::die_with_parent()?;
    process::seal()?;
    // Two sockets for each connection, and some for the rest.
    process::allow_files(2 * bounds::CONNECTIONS as u64 + 512)?;
    process::drop_capabilities()?;
    let weaker = [files(config).restrict()?, syscalls::restrict()?];
    Ok(weaker.into_iter().flatten().collect())
}

fn files(config: &EgressConfig) -> Files {
    let sockets = match &config.door {
        Door::Socket { folder } => vec![folder.clone()],
        Door::Network { .. } => vec![],
    };
    Files {
        read: [name_configuration("/etc/resolv.conf"), name_configuration("/etc/hosts")].concat(),
        write: vec![config.logs.clone()],
        bind_tcp: sockets.is_empty(),
        sockets,
        ..Files::default()
    }
}

/// A file that is replaced rather than written to is another file to Landlock. Where it is a link into a
/// folder of its own (`/run/systemd/resolve`), that folder stays readable, so that the host's resolver
/// can change.
fn name_configuration(path: &str) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from(path)];
    if let Ok(real) = Path::new(path).canonicalize() {
        let folder = real.parent().filter(|folder| folder.starts_with("/run"));
        paths.extend(folder.filter(|folder| *folder != Path::new("/run")).map(Path::to_owned));
        paths.push(real);
    }
    paths
}

/// What the daemon is, between requests of its parent.
struct DaemonState {
    config: EgressConfig,
    memory: Option<File>,
    weaker: Vec<Weaker>,
    backlog: Arc<Backlog>,
    questions: Questions,
    egress: OnceLock<Arc<Egress>>,
}

async fn serve_parent(parent: StdUnixStream, state: DaemonState) -> anyhow::Result<()> {
    parent.set_nonblocking(true)?;
    let io = UnixStream::from_std(parent)?;
    let (channel, mut incoming, hello) =
        Channel::establish(io, Side::Accepted, Hello::of(Role::Egress)).await?;
    anyhow::ensure!(hello.role == Role::Bundle, "the parent is no bundle");
    while let Some(request) = incoming.next().await {
        match request.parse::<BundleRequest>() {
            Ok(BundleRequest::Stop) => {
                let _ = request.accept().message(&BundleEvent::Stopped).await;
                channel.flush().await;
                break;
            }
            Ok(BundleRequest::Events) => {
                tokio::spawn(tell(Arc::clone(&state.backlog), request.accept()));
            }
            Ok(BundleRequest::Question) => {
                let questions = state.questions.clone();
                tokio::spawn(async move { questions.serve(request.accept()).await });
            }
            Ok(asked) => state.answer(request, asked).await,
            Err(error) => request.refuse(&error.to_string()).await,
        }
    }
    if let Err(error) = state.config.door.close(&bottle_contract::names::EGRESS_DOOR_PORTS) {
        tracing::warn!(%error, "the door's sockets could not be removed");
    }
    Ok(())
}

/// Passes events on until the stream breaks; what was not delivered is kept.
async fn tell(backlog: Arc<Backlog>, mut stream: Stream) {
    loop {
        let event = tokio::select! {
            event = backlog.next() => event,
            _ = stream.next() => return,
        };
        if stream.message(&event).await.is_err() {
            backlog.put_back(event);
            return;
        }
    }
}

impl DaemonState {
    fn new(config: EgressConfig, memory: Option<File>, weaker: Vec<Weaker>) -> Self {
        let backlog = Arc::new(Backlog::new(bounds::EVENTS));
        Self { config, memory, weaker, backlog, questions: Questions::default(), egress: OnceLock::new() }
    }

    async fn answer(&self, request: Request, asked: BundleRequest) {
        let event = match asked {
            BundleRequest::Provision(provision) => self.provision(*provision).await,
            BundleRequest::Routes(routes) => match self.egress.get() {
                Some(egress) => egress.live.replace(&routes),
                None => Err("the egress daemon is not provisioned yet".to_owned()),
            },
            BundleRequest::Health => Ok(self.health()),
            BundleRequest::Gate(_) => Err("this is nothing for the egress daemon".to_owned()),
            BundleRequest::Events | BundleRequest::Question | BundleRequest::Stop => return,
        };
        let event = event.unwrap_or_else(|message| BundleEvent::Rejected { message });
        let stream = request.accept();
        if stream.message(&event).await.is_ok() {
            // The answer is whole with its only message; a parent that is gone ends the loop above.
            let _ = stream.end().await;
        }
    }

    async fn provision(&self, provision: Provision) -> Result<BundleEvent, String> {
        if self.egress.get().is_some() {
            return Err("the egress daemon is provisioned already".to_owned());
        }
        let backlog = Arc::clone(&self.backlog);
        let egress = Egress::provision(provision, &self.config, backlog, self.questions.clone())
            .map_err(|error| error.to_string())?;
        serve::open(&egress, &self.config.door).await.map_err(|error| error.to_string())?;
        tokio::spawn(sweep(Arc::clone(&egress)));
        let redactor = egress.reporter.redactor();
        bottle_remarks::redact_with(move |line| redactor.redact(line).into_owned());
        let ca_certificate = egress.leaves.authority_certificate();
        // Requests of the parent come one after the other, so that nobody can have been faster.
        let _ = self.egress.set(egress);
        Ok(BundleEvent::Ready { ca_certificate })
    }

    fn health(&self) -> BundleEvent {
        let daemon = Daemon {
            name: NAME.to_owned(),
            // Set when the whole door is open.
            up: self.egress.get().is_some(),
            revision: self.egress.get().map(|egress| egress.live.revision()),
            resident: self.memory.as_ref().and_then(resident),
            weaker: self.weaker.iter().map(|weaker| weaker.0.clone()).collect(),
        };
        BundleEvent::Health { daemons: vec![daemon] }
    }
}

async fn sweep(egress: Arc<Egress>) {
    let mut tick = tokio::time::interval(bounds::UPSTREAM_IDLE / 2);
    loop {
        tick.tick().await;
        egress.upstream.sweep();
    }
}

/// Resident bytes, from `statm`'s second field, which counts pages.
fn resident(statm: &File) -> Option<u64> {
    let mut text = [0; 128];
    let read = statm.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..read)?).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_size())
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
