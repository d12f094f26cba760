//! The egress daemon: what it is given up for, provisioned with and asked. It holds the credentials, and nobody else
//! in the bundle does.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use bottle_channel::Stream;
use bottle_contract::names::EGRESS_PORTS;
use bottle_contract::session::Role;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Provision};
use bottle_daemon::{Confinement, ListenerConfig, Lockout, Serve};
use bottle_harden::files::Files;
use bottle_harden::identity::Identity;
use bottle_harden::reach::{self, Held};
use bottle_harden::syscalls;
use bottle_queue::Questions;
use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::egress::Egress;
use crate::listener::serve;
use crate::report::backlog::Backlog;
use crate::usage::Outbox;

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
    pub proxy: ListenerConfig,
    /// An existing folder for the log's ring of files.
    pub logs: PathBuf,
    /// Whom to become, when started as root. ListenerConfig and logs must be writable for it, wherever they are.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Where the user's machine is, seen from here; none: this is it.
    #[serde(default)]
    pub machine: Option<IpAddr>,
    /// Hits after which the bottle is locked ([`bottle_contract::lock_out::HITS`]); none: it never is.
    pub lock_after: Option<usize>,
}

/// The role `__egress HOME SLUG CONFIG`: runs until the bundle goes away.
pub fn run() -> ExitCode {
    bottle_daemon::run("__egress", start)
}

fn start(mut config: EgressConfig) -> anyhow::Result<()> {
    let _reach = hold(&mut config)?;
    let confined = Confinement {
        identity: config.identity,
        // Two sockets for each connection, and some for the rest.
        descriptors: Some(2 * bounds::CONNECTIONS as u64 + 512),
        files: files(&config),
        calls: syscalls::restrict,
    }
    .apply()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let proxy = config.proxy.clone();
    runtime.block_on(bottle_daemon::serve(confined, &proxy, EgressDaemon::new(config)))
}

/// Keeps what it needs within reach of the user that it will be.
fn hold(config: &mut EgressConfig) -> anyhow::Result<Vec<Held>> {
    if config.identity.is_none() {
        return Ok(Vec::new());
    }
    let logs = reach::hold(&mut config.logs).context("logs")?;
    Ok(config.proxy.hold().context("proxy")?.into_iter().chain([logs]).collect())
}

fn files(config: &EgressConfig) -> Files {
    Files {
        read: [name_configuration("/etc/resolv.conf"), name_configuration("/etc/hosts")].concat(),
        write: vec![config.logs.clone()],
        ..config.proxy.files()
    }
}

/// What has to be readable for a file of the host's configuration. A file that is replaced rather than written to is
/// another file to Landlock, so its folder is readable. Where it is a link into a folder of its own
/// (`/run/systemd/resolve`), that one is as well.
fn name_configuration(path: &str) -> Vec<PathBuf> {
    let path = Path::new(path);
    let mut paths: Vec<PathBuf> = path.parent().map(Path::to_owned).into_iter().collect();
    if let Ok(real) = path.canonicalize() {
        let folder = real.parent().filter(|folder| folder.starts_with("/run"));
        paths.extend(folder.filter(|folder| *folder != Path::new("/run")).map(Path::to_owned));
        paths.push(real);
    }
    paths
}

/// What the daemon is, between requests of its parent.
struct EgressDaemon {
    config: EgressConfig,
    backlog: Arc<Backlog>,
    questions: Questions,
    outbox: Arc<Outbox>,
    lockout: Arc<Lockout>,
    egress: OnceLock<Arc<Egress>>,
}

impl Serve for EgressDaemon {
    const NAME: &'static str = NAME;
    const ROLE: Role = Role::Egress;
    const PORTS: &'static [u16] = &EGRESS_PORTS;

    async fn answer(&self, asked: BundleRequest) -> Result<BundleEvent, String> {
        match asked {
            BundleRequest::Provision(provision) => self.provision(*provision).await,
            BundleRequest::Routes(routes) => match self.egress.get() {
                Some(egress) => egress.live.replace(&routes),
                None => Err("the egress daemon is not provisioned yet".to_owned()),
            },
            _ => Err("this is nothing for the egress daemon".to_owned()),
        }
    }

    fn events(&self, listener: Stream) -> impl Future<Output = ()> + Send + 'static {
        tell(Arc::clone(&self.backlog), listener)
    }

    fn questions(&self) -> &Questions {
        &self.questions
    }

    fn lockout(&self) -> &Arc<Lockout> {
        &self.lockout
    }

    fn usage(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        let outbox = Arc::clone(&self.outbox);
        async move { outbox.serve(keeper).await }
    }

    async fn drain(&self) {
        self.outbox.settle().await;
    }

    fn up(&self) -> bool {
        self.egress.get().is_some()
    }

    fn revision(&self) -> Option<u64> {
        self.egress.get().map(|egress| egress.live.revision())
    }
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

impl EgressDaemon {
    fn new(config: EgressConfig) -> Self {
        let backlog = Arc::new(Backlog::new(bounds::EVENTS));
        let outbox = Arc::new(Outbox::new(&config.logs, Arc::clone(&backlog)));
        let lockout = Arc::new(Lockout::new(NAME, config.lock_after));
        Self { config, backlog, questions: Questions::default(), outbox, lockout, egress: OnceLock::new() }
    }

    async fn provision(&self, provision: Provision) -> Result<BundleEvent, String> {
        if self.egress.get().is_some() {
            return Err("the egress daemon is provisioned already".to_owned());
        }
        let backlog = Arc::clone(&self.backlog);
        let own = (self.questions.clone(), Arc::clone(&self.outbox), Arc::clone(&self.lockout));
        let egress =
            Egress::provision(provision, &self.config, backlog, own).map_err(|error| error.to_string())?;
        serve::open(&egress, &self.config.proxy).await.map_err(|error| error.to_string())?;
        tokio::spawn(sweep(Arc::clone(&egress)));
        let redactor = egress.reporter.redactor();
        bottle_sidecar_log::redact_with(move |line| redactor.redact(line).into_owned());
        let ca_certificate = egress.leaves.authority_certificate();
        // Requests of the parent come one after the other, so that nobody can have been faster.
        let _ = self.egress.set(egress);
        Ok(BundleEvent::Ready { ca_certificate })
    }
}

async fn sweep(egress: Arc<Egress>) {
    let mut tick = tokio::time::interval(bounds::UPSTREAM_IDLE / 2);
    loop {
        tick.tick().await;
        egress.upstream.sweep();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_configuration_that_is_replaced_stays_readable() {
        let folder = tempfile::tempdir().expect("folder");
        let (path, new) = (folder.path().join("hosts"), folder.path().join("new"));
        fs::write(&path, "old").expect("written");
        fs::write(&new, "new").expect("written");
        let ((restricted, is_restricted), (replaced, is_replaced)) =
            (mpsc::sync_channel(1), mpsc::sync_channel(1));
        let place = path.clone();
        // A rule holds for the thread that makes it.
        let reading = std::thread::spawn(move || {
            let read = name_configuration(place.to_str().expect("text"));
            let weaker = Files { read, ..Files::default() }.restrict().expect("restricted");
            restricted.send(()).expect("sent");
            is_replaced.recv().expect("replaced");
            (weaker.is_some() || fs::read("/proc/version").is_err(), fs::read_to_string(place))
        });
        is_restricted.recv().expect("restricted");
        fs::rename(&new, &path).expect("renamed");
        replaced.send(()).expect("sent");
        let (restricted, text) = reading.join().expect("the thread");
        assert!(restricted, "other files are not readable");
        assert_eq!(text.expect("read"), "new");
    }
}
