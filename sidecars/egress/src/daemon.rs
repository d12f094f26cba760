//! The egress daemon. The daemon confines itself and then serves requests of the bundle. No other process of the bundle
//! adds the routes' credentials to requests.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, bail, ensure};
use bottle_channel::Stream;
use bottle_daemon::{Confinement, Lockout, Serve};
use bottle_harden::daemon_syscalls;
use bottle_harden::directory_access::{self, Held};
use bottle_harden::landlock::Files;
use bottle_policy::names::EGRESS_PORTS;
use bottle_protocol::session::Role;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Provision};
use bottle_queue::Questions;

use crate::bounds;
pub use crate::config::{EgressConfig, NAME};
use crate::egress::{Egress, Shared};
use crate::listener::serve;
use crate::report::backlog::Backlog;

/// Number of worker threads. One thread suffices for the traffic of any agent. The second thread keeps short requests
/// fast during a large transfer.
const WORKERS: usize = 2;

/// Runs the role `__egress HOME SLUG CONFIG` until the bundle exits.
pub fn run() -> ExitCode {
    bottle_daemon::run("__egress", start)
}

fn start(mut config: EgressConfig) -> anyhow::Result<()> {
    let _reach = open_directories(&mut config)?;
    let confined = Confinement {
        identity: config.identity,
        // Two sockets for each connection, and further descriptors for files, listeners and channels.
        descriptors: Some(2 * bounds::CONNECTIONS as u64 + 512),
        files: files(&config),
        calls: daemon_syscalls::restrict,
    }
    .apply()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let proxy = config.proxy.clone();
    runtime.block_on(bottle_daemon::serve(confined, &proxy, EgressDaemon::new(config)))
}

/// Opens the directories that the daemon needs, before the daemon switches to another user.
fn open_directories(config: &mut EgressConfig) -> anyhow::Result<Vec<Held>> {
    if config.identity.is_none() {
        return Ok(Vec::new());
    }
    let logs = directory_access::hold(&mut config.logs).context("logs")?;
    Ok(config.proxy.hold().context("proxy")?.into_iter().chain([logs]).collect())
}

fn files(config: &EgressConfig) -> Files {
    Files {
        read: [name_configuration("/etc/resolv.conf"), name_configuration("/etc/hosts")].concat(),
        write: vec![config.logs.clone()],
        ..config.proxy.files()
    }
}

/// Returns the paths that must be readable so that the daemon sees changes of a configuration file of the host. If the
/// host replaces the file instead of rewriting it, Landlock treats the replacement as a new file. So the directory of
/// the file must be readable. If the file is a symbolic link into a directory below `/run` (`/run/systemd/resolve`),
/// that directory must be readable too.
fn name_configuration(path: &str) -> Vec<PathBuf> {
    let path = Path::new(path);
    let mut paths: Vec<PathBuf> = path.parent().map(Path::to_owned).into_iter().collect();
    if let Ok(real) = path.canonicalize() {
        let directory = real.parent().filter(|directory| directory.starts_with("/run"));
        paths.extend(directory.filter(|directory| *directory != Path::new("/run")).map(Path::to_owned));
        paths.push(real);
    }
    paths
}

/// The daemon's state between requests of its parent process.
struct EgressDaemon {
    config: EgressConfig,
    shared: Shared,
    egress: OnceLock<Arc<Egress>>,
}

impl Serve for EgressDaemon {
    const NAME: &'static str = NAME;
    const ROLE: Role = Role::Egress;
    const PORTS: &'static [u16] = &EGRESS_PORTS;

    async fn answer(&self, request: BundleRequest) -> anyhow::Result<BundleEvent> {
        match request {
            BundleRequest::Provision(provision) => self.provision(*provision).await,
            BundleRequest::Routes(routes) => match self.egress.get() {
                Some(egress) => Ok(egress.live.replace(&routes)?),
                None => bail!("the egress daemon is not provisioned yet"),
            },
            BundleRequest::Secrets { values } => match self.egress.get() {
                Some(egress) => {
                    egress.replace_credentials(&values)?;
                    Ok(BundleEvent::Replaced)
                }
                None => bail!("the egress daemon is not provisioned yet"),
            },
            _ => bail!("the egress daemon does not serve this request"),
        }
    }

    fn events(&self, listener: Stream) -> impl Future<Output = ()> + Send + 'static {
        send_events(Arc::clone(&self.shared.backlog), listener)
    }

    fn questions(&self) -> &Questions {
        &self.shared.questions
    }

    fn lockout(&self) -> &Arc<Lockout> {
        &self.shared.lockout
    }

    fn usage(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        let outbox = Arc::clone(&self.shared.outbox);
        async move { outbox.serve(keeper).await }
    }

    fn leases(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        Arc::clone(&self.shared.leases).serve(keeper)
    }

    fn log(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        let relay = self.shared.log_relay.clone();
        async move {
            match relay {
                Some(relay) => relay.serve(keeper).await,
                None => keeper.reset("this proxy writes its log to files").await,
            }
        }
    }

    async fn drain(&self) {
        // The outbox ends the responses in progress, which adds lines to the log. So the log is settled after the
        // outbox.
        self.shared.outbox.settle().await;
        if let Some(egress) = self.egress.get() {
            egress.reporter.settle().await;
        }
    }

    fn up(&self) -> bool {
        self.egress.get().is_some()
    }

    fn revision(&self) -> Option<u64> {
        self.egress.get().map(|egress| egress.live.revision())
    }

    fn model_requests(&self) -> Option<u64> {
        Some(self.shared.outbox.in_progress())
    }
}

/// Sends events until the stream breaks; undelivered events stay in the backlog.
async fn send_events(backlog: Arc<Backlog>, mut stream: Stream) {
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
        let mut shared = Shared::new(&config.logs, config.lock_after);
        shared.log_relay = config.relay_log.then(Arc::default);
        Self { config, shared, egress: OnceLock::new() }
    }

    async fn provision(&self, provision: Provision) -> anyhow::Result<BundleEvent> {
        ensure!(self.egress.get().is_none(), "the egress daemon is provisioned already");
        let egress = Egress::provision(provision, &self.config, self.shared.clone())?;
        serve::open(&egress, &self.config.proxy).await?;
        tokio::spawn(sweep(Arc::clone(&egress)));
        let reporter = Arc::clone(&egress.reporter);
        bottle_sidecar_log::redact_with(move |line| reporter.redact(line).into_owned());
        let ca_certificate = egress.leaves.authority_certificate();
        // The parent process sends one request at a time, so no concurrent request can have provisioned the daemon.
        let _ = self.egress.set(egress);
        bottle_heap::trim();
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
    fn keeps_a_replaced_configuration_file_readable() {
        let directory = tempfile::tempdir().expect("directory");
        let (path, new) = (directory.path().join("hosts"), directory.path().join("new"));
        fs::write(&path, "old").expect("written");
        fs::write(&new, "new").expect("written");
        let ((restricted, is_restricted), (replaced, is_replaced)) =
            (mpsc::sync_channel(1), mpsc::sync_channel(1));
        let original = path.clone();
        // A Landlock restriction applies only to the thread that sets it, so the test restricts a separate thread.
        let reading = std::thread::spawn(move || {
            let read = name_configuration(original.to_str().expect("text"));
            let weaker = Files { read, ..Files::default() }.restrict().expect("restricted");
            restricted.send(()).expect("sent");
            is_replaced.recv().expect("replaced");
            (weaker.is_some() || fs::read("/proc/version").is_err(), fs::read_to_string(original))
        });
        is_restricted.recv().expect("restricted");
        fs::rename(&new, &path).expect("renamed");
        replaced.send(()).expect("sent");
        let (restricted, text) = reading.join().expect("the thread");
        assert!(restricted, "other files are not readable");
        assert_eq!(text.expect("read"), "new");
    }
}
