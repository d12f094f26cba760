//! Starts the egress proxy as a process, and provisions it as the bundle does.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bottle_channel::{Channel, Side, Stream};
use bottle_daemon::ListenerConfig;
use bottle_egress::daemon::EgressConfig;
use bottle_policy::credential::{Binding, Scheme};
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Credential, Provision, Written};
use bottle_protocol::session::lease::{LeaseAnswer, LeaseRequest};
use bottle_protocol::session::{Hello, Role};
use bottle_test_support::killed_on_drop::KilledOnDrop;
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::HOST;
use crate::peer::{Address, Peer};
use crate::site::Site;
use crate::stages;

/// A running egress proxy.
pub(crate) struct Running {
    pub(crate) peer: Peer,
    process: KilledOnDrop,
    _channel: Channel,
    _directory: TempDir,
}

impl Running {
    /// The resident memory of the process.
    pub(crate) fn resident_mib(&self) -> Result<f64> {
        self.memory_mib("VmRSS:")
    }

    /// The peak resident memory of the process.
    pub(crate) fn peak_mib(&self) -> Result<f64> {
        self.memory_mib("VmHWM:")
    }

    /// Resets the peak of the resident memory. See `clear_refs` in proc(5).
    pub(crate) fn reset_peak(&self) -> Result<()> {
        Ok(std::fs::write(format!("/proc/{}/clear_refs", self.process.0.id()), "5")?)
    }

    fn memory_mib(&self, which: &'static str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(which)).context(which)?;
        let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
        Ok(kib / 1024.0)
    }
}

/// The number of known secrets, which the proxy searches for in requests.
const SECRETS: usize = 10;

/// The set of detectors that the proxy runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detectors {
    Default,
    Off,
}

/// The keeper's answer when the proxy asks for tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budget {
    /// No budget limits the requests.
    None,
    /// All requests of the benchmark fit into one lease.
    Large,
}

/// Starts and provisions the egress proxy.
pub(crate) async fn start(site: &Site, detectors: Detectors, budget: Budget) -> Result<Running> {
    start_measured(site, detectors, budget, None).await
}

/// Starts and provisions the egress proxy. If `stages` is a file, the proxy measures the stages of its requests, and
/// this file receives the proxy's standard error.
pub(crate) async fn start_measured(
    site: &Site,
    detectors: Detectors,
    budget: Budget,
    stages: Option<&Path>,
) -> Result<Running> {
    let directory = tempfile::tempdir()?;
    let config = EgressConfig {
        proxy: ListenerConfig::Socket { directory: directory.path().to_owned() },
        logs: directory.path().to_owned(),
        relay_log: false,
        identity: None,
        machine: None,
        lock_after: None,
    };
    let (ours, theirs) = StdUnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["__egress", "bench", "bench", &serde_json::to_string(&config)?])
        .stdin(Stdio::from(OwnedFd::from(theirs)));
    if let Some(file) = stages {
        command.env(stages::ENABLED, "1").stderr(std::fs::File::create(file)?);
    }
    let process = KilledOnDrop(command.spawn()?);
    ours.set_nonblocking(true)?;
    let io = UnixStream::from_std(ours)?;
    let (channel, _, _) = Channel::establish(io, Side::Dialed, Hello::of(Role::Bundle)).await?;
    let request = BundleRequest::Provision(Box::new(provision(site, detectors)));
    let answer = channel.open(&request).await?.receive::<BundleEvent>().await?;
    let BundleEvent::Ready { ca_certificate } = answer else { bail!("not ready: {answer:?}") };
    tokio::spawn(lease(channel.open(&BundleRequest::Leases).await?, budget));
    tokio::spawn(collect(channel.open(&BundleRequest::Usage).await?));
    let peer = Peer::proxy(Address::Unix(directory.path().join("9099")), &ca_certificate)?;
    Ok(Running { peer, process, _channel: channel, _directory: directory })
}

/// Answers the proxy's requests for tokens, as the keeper does.
async fn lease(mut stream: Stream, budget: Budget) {
    while let Ok(LeaseRequest { key, needed, .. }) = stream.receive().await {
        let answer = match budget {
            Budget::None => LeaseAnswer::Unlimited { key },
            Budget::Large => LeaseAnswer::Granted { key, granted: 1 << 50 },
        };
        if needed.is_some() && stream.message(&answer).await.is_err() {
            return;
        }
    }
}

/// Acknowledges usage records, as the keeper does.
async fn collect(mut stream: Stream) {
    while stream.receive::<BundleEvent>().await.is_ok() {
        if stream.message(&Written {}).await.is_err() {
            return;
        }
    }
}

fn provision(site: &Site, detectors: Detectors) -> Provision {
    let binding = Binding {
        slot: "key".into(),
        host: HOST.into(),
        scheme: Scheme::Bearer,
        header: "authorization".into(),
    };
    let dlp = match detectors {
        Detectors::Default => "",
        Detectors::Off => "  dlp: {outbound_detectors: false, inbound_detectors: false}\n",
    };
    // The route that matches the requests comes after 99 routes that match no request.
    let others: String = (1..100).map(|n| format!("- host: host-{n}.example.com\n")).collect();
    let yaml = format!(
        "routes:\n{others}- host: {HOST}\n  connect_to: '{}'\n  auth: {{scheme: Bearer, slot: key}}\n{dlp}",
        site.server.address()
    );
    let known = (0..SECRETS).map(|n| format!("Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc{n:02}").as_str().into());
    Provision {
        credentials: vec![Credential { binding, value: Some("real-key".into()) }],
        known_secrets: known.collect(),
        upstream_roots: site.authority.pem().to_owned(),
        ..Provision::of_routes("bench".parse().expect("a good slug"), yaml.parse().expect("routes"))
    }
}
