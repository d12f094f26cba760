//! Starts and stops daemons, and sends requests to daemons. The bundle has a channel to each daemon over a socket pair.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bottle_channel::{Channel, ChannelError, Side};
use bottle_egress::daemon::EgressConfig;
use bottle_git_gate::{FORWARD_SECONDS, GateConfig};
use bottle_policy::lock_out::{HITS, LockOut};
use bottle_policy::names::{EGRESS_PORTS, GATE_PORTS, SUPERVISE_PORTS};
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_protocol::session::{Hello, Role};
use bottle_supervise::SuperviseConfig;
use bytes::Bytes;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::BundleConfig;

/// The time limit for a daemon's response. When the limit is reached, the request fails. A health report then states
/// that the daemon is down. The limit allows for key generation during provisioning, which takes half a second on a
/// machine that is swapping.
const RESPONSE_WITHIN: Duration = Duration::from_secs(8);

/// The time limit for a daemon to exit. When the limit is reached, the bundle kills the daemon.
const EXIT_WITHIN: Duration = Duration::from_secs(2);

/// The properties of one kind of daemon.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// The daemon's name in events.
    name: &'static str,
    /// The first argument of the daemon's process.
    flag: &'static str,
    /// The daemon's role in the handshake.
    role: Role,
    /// The ports of the daemon's listeners.
    ports: &'static [u16],
}

const EGRESS: Kind =
    Kind { name: bottle_egress::daemon::NAME, flag: "__egress", role: Role::Egress, ports: &EGRESS_PORTS };

const GATE: Kind =
    Kind { name: bottle_git_gate::NAME, flag: "__git-gate", role: Role::Gate, ports: &GATE_PORTS };

const SUPERVISE: Kind = Kind {
    name: bottle_supervise::NAME,
    flag: "__supervise",
    role: Role::Supervise,
    ports: &SUPERVISE_PORTS,
};

/// The reason why a daemon did not serve a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("this bundle has no {0} daemon")]
    Missing(&'static str),
    #[error("the {0} daemon")]
    Channel(&'static str, #[source] ChannelError),
    #[error("the {0} daemon did not respond in time")]
    Timeout(&'static str),
}

/// A daemon that was spawned and has not completed the handshake.
pub(crate) struct Starting {
    kind: Kind,
    process: Child,
    socket: StdUnixStream,
}

/// A running daemon.
pub(crate) struct Sidecar {
    /// The daemon's name in events.
    pub(crate) name: &'static str,
    /// The ports of the daemon's listeners.
    pub(crate) ports: &'static [u16],
    process: Mutex<Child>,
    channel: Channel,
}

/// Starts the daemons of this bundle. The first daemon is egress, which every bundle has.
pub(crate) fn start_all(config: &BundleConfig) -> anyhow::Result<Vec<Starting>> {
    let egress = EgressConfig {
        proxy: config.proxy.clone(),
        logs: config.logs.clone(),
        relay_log: config.relay_log,
        identity: config.identity,
        machine: config.machine,
        lock_after: Some(HITS),
    };
    let mut started = vec![start(config, EGRESS, &egress)?];
    if let Some(directory) = &config.gate {
        let gate = GateConfig {
            proxy: config.proxy.clone(),
            directory: directory.clone(),
            identity: config.identity,
            forward_seconds: FORWARD_SECONDS,
            lock_after: Some(HITS),
        };
        started.push(start(config, GATE, &gate)?);
    }
    if config.supervise {
        let supervise = SuperviseConfig { proxy: config.proxy.clone(), identity: config.identity };
        started.push(start(config, SUPERVISE, &supervise)?);
    }
    Ok(started)
}

/// Starts the running program again as a daemon. The daemon runs the same program even if the program's file was
/// replaced in the meantime.
fn start(config: &BundleConfig, kind: Kind, own: &impl Serialize) -> anyhow::Result<Starting> {
    let argument = serde_json::to_string(own)?;
    let what = || format!("start the {} daemon", kind.name);
    let (ours, theirs) = StdUnixStream::pair().with_context(what)?;
    let process = Command::new("/proc/self/exe")
        .arg0("bottle")
        .arg(kind.flag)
        .args(&config.labels)
        .arg(&argument)
        .env_clear()
        .envs(std::env::var_os("RUST_LOG").map(|levels| ("RUST_LOG", levels)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .with_context(what)?;
    Ok(Starting { kind, process, socket: ours })
}

impl Starting {
    /// Performs the handshake with the daemon over its channel.
    pub(crate) async fn establish(self) -> anyhow::Result<Sidecar> {
        self.socket.set_nonblocking(true)?;
        let io = UnixStream::from_std(self.socket)?;
        let (channel, _, hello) = Channel::establish(io, Side::Dialed, Hello::of(Role::Bundle)).await?;
        let Kind { name, role, ports, .. } = self.kind;
        anyhow::ensure!(hello.role == role, "the {name} daemon reports another role");
        Ok(Sidecar { name, ports, process: Mutex::new(self.process), channel })
    }
}

impl Sidecar {
    /// Creates a daemon from a given process and channel. A test uses this function to avoid starting its own program
    /// again.
    #[cfg(test)]
    pub(crate) fn of_channel(name: &'static str, process: Child, channel: Channel) -> Self {
        Self { name, ports: &[], process: Mutex::new(process), channel }
    }

    /// Returns the channel to the daemon. Callers open long-lived streams on the channel.
    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Sends one request to the daemon, unchanged, and waits for the response.
    pub(crate) async fn request(&self, request: Bytes) -> Result<BundleEvent, RequestError> {
        let exchange = async {
            let mut stream = self.channel.open_bytes(request)?;
            stream.receive::<BundleEvent>().await
        };
        let event = timeout(RESPONSE_WITHIN, exchange).await.map_err(|_| RequestError::Timeout(self.name))?;
        event.map_err(|error| RequestError::Channel(self.name, error))
    }

    /// Locks the daemon because the bottle is locked. Returns whether the daemon confirmed the lock.
    pub(crate) async fn lock(&self, why: &LockOut) -> bool {
        let Ok(request) = serde_json::to_vec(&BundleRequest::Lock(why.clone())) else { return false };
        matches!(self.request(request.into()).await, Ok(BundleEvent::Locked))
    }

    /// Requests that the daemon exits. Kills the daemon if it has not exited after [`EXIT_WITHIN`].
    pub(crate) async fn stop(&self, request: Bytes) -> io::Result<()> {
        let exit = async {
            let mut stream = self.channel.open_bytes(request)?;
            stream.receive::<BundleEvent>().await?;
            self.channel.closed().await;
            Ok::<_, ChannelError>(())
        };
        // An error is ignored, because the next line kills the process in any case.
        let _ = timeout(EXIT_WITHIN, exit).await;
        self.kill()
    }

    /// Kills the daemon's process if it is still running, and reaps the process.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.kill()?;
        // The call returns soon, because the process has been killed or has exited.
        process.wait().map(drop)
    }
}
