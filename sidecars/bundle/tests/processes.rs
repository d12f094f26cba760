//! Tests the bundle and its daemons as real processes. The test acts as the keeper.
//!
//! This program runs the bundle if its first argument is `__bundle`. This program runs a daemon if its first argument
//! is the role of a daemon. Otherwise, this program runs the tests.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bottle_bundle::{BundleConfig, Control, Identity, ListenerConfig};
use bottle_channel::{Channel, Side, Stream, rejoin};
use bottle_policy::credential::{Binding, Scheme};
use bottle_policy::lock_out::{HITS, LockOut, SENTENCE};
use bottle_policy::route::RouteTable;
use bottle_protocol::session::bundle::{
    BundleEvent, BundleRequest, Credential, Daemon, LogLevel, Provision, Routes, SuperviseProvision,
};
use bottle_protocol::session::git_gate::{GateKey, GateProvision, GateRefs, GateRepo};
use bottle_protocol::session::{Hello, Role};
use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};

/// The time limit for one step of a test.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("__egress") => bottle_egress::run(),
        Some("__git-gate") => bottle_git_gate::run(),
        Some("__supervise") => bottle_supervise::run(),
        Some("__bundle") => {
            bottle_bundle::run(serde_json::from_str(&arguments[2]).expect("the configuration this test made"))
        }
        _ => libtest_mimic::run(&Arguments::from_args(), trials()).exit_code(),
    }
}

fn trials() -> Vec<Trial> {
    vec![
        trial("provisions_reports_health_and_stops_cleanly", lifecycle),
        trial("rejects_invalid_requests_with_a_reason", rejected),
        trial("buffers_events_for_the_next_keeper", reconnects),
        trial("closes_the_listeners_of_a_dead_daemon_and_notifies_the_keeper", daemon_dies),
        trial("a_lock_out_locks_every_daemon_and_notifies_each_keeper", locked_out),
        trial("daemons_die_with_their_parent", parent_dies),
        trial("both_processes_drop_their_privileges", hardened),
        trial("both_processes_switch_to_the_configured_user", switches_user),
        trial("buffers_a_long_body_on_disk_until_its_verdict", buffers_bodies),
        trial("serves_consecutive_keepers_on_standard_streams", on_stdio),
        trial("exits_with_its_daemons_on_end_of_input_or_sigterm", exits),
        trial("reports_why_a_daemon_cannot_start", reports_failure),
    ]
}

fn trial<F: Future<Output = Result<()>> + 'static>(name: &str, test: fn() -> F) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(async { tokio::time::timeout(3 * PATIENCE, test()).await });
        outcome.context("the test took too long").and_then(|done| done).map_err(|e| format!("{e:?}").into())
    })
}

/// A running bundle. Dropping this value kills the bundle.
struct Running {
    directory: TempDir,
    process: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Running {
    fn start(identity: Option<Identity>) -> Result<Self> {
        Self::start_with(identity, |directory| Control::Socket { path: directory.join("bundle.sock") })
    }

    /// Starts a bundle that keepers control over its standard streams. The field `process` holds the test's ends of the
    /// streams.
    fn start_on_stdio() -> Result<Self> {
        Self::start_with(None, |_| Control::Stdio)
    }

    fn start_with(identity: Option<Identity>, control: impl Fn(&Path) -> Control) -> Result<Self> {
        Self::start_as(identity, control, |_, _| {})
    }

    fn start_as(
        identity: Option<Identity>,
        control: impl Fn(&Path) -> Control,
        change: fn(&Path, &mut BundleConfig),
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        for name in ["proxy", "logs", "gate"] {
            let path = directory.path().join(name);
            std::fs::create_dir(&path)?;
            if let Some(Identity { uid, gid }) = identity {
                std::os::unix::fs::chown(&path, Some(uid), Some(gid))?;
            }
        }
        // Only the owner can access the directory, as is the case for the directory of a real keeper.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700))?;
        let mut config = config(directory.path(), identity, control(directory.path()));
        change(directory.path(), &mut config);
        let process = bundle(&config)?.spawn()?;
        Ok(Self { directory, process })
    }

    /// Connects a new keeper over the standard streams.
    async fn rejoined(&self) -> Result<Channel> {
        let streams = self.process.stdin.as_ref().zip(self.process.stdout.as_ref());
        let (input, output) = streams.context("no streams")?;
        let writer = Sender::from_owned_fd(input.as_fd().try_clone_to_owned()?)?;
        let reader = Receiver::from_owned_fd(output.as_fd().try_clone_to_owned()?)?;
        let stream = rejoin(tokio::io::join(reader, writer)).await?;
        let (channel, _, hello) = Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper)).await?;
        ensure!(hello.role == Role::Bundle);
        Ok(channel)
    }

    /// Connects a keeper as soon as the control socket exists.
    async fn keeper(&self) -> Result<Channel> {
        let path = self.directory.path().join("bundle.sock");
        let until = Instant::now() + PATIENCE;
        let socket = loop {
            match UnixStream::connect(&path).await {
                Ok(socket) => break socket,
                Err(error) if Instant::now() > until => bail!("no control socket: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let (channel, _, hello) = Channel::establish(socket, Side::Dialed, Hello::of(Role::Keeper)).await?;
        ensure!(hello.role == Role::Bundle);
        Ok(channel)
    }

    fn proxy(&self, port: u16) -> PathBuf {
        self.directory.path().join("proxy").join(port.to_string())
    }

    /// Sends a plain HTTP GET through the proxy and returns the response.
    fn get(&self, url: &str) -> Result<String> {
        let mut socket = StdUnixStream::connect(self.proxy(9099))?;
        let host = url.split('/').nth(2).context("a URL")?;
        write!(socket, "GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Sends a plain HTTP POST through the proxy and returns the response.
    fn post(&self, body: &str) -> Result<String> {
        self.post_to(9099, "http://api.example.com/", "api.example.com", "text/plain", body)
    }

    /// Sends a plain HTTP POST to a listener and returns the response.
    fn post_to(&self, port: u16, to: &str, host: &str, kind: &str, body: &str) -> Result<String> {
        let mut socket = StdUnixStream::connect(self.proxy(port))?;
        write!(
            socket,
            "POST {to} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\nContent-Type: {kind}\r\n\
             Accept: application/json, text/event-stream\r\nConnection: close\r\n\r\n",
            body.len()
        )?;
        socket.write_all(body.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns the process id of the egress daemon. Checks the process's command line, by which a backend finds the
    /// process.
    fn egress(&self) -> Result<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.process.id());
        let child = std::fs::read_to_string(children)?.trim().parse()?;
        let line = std::fs::read_to_string(format!("/proc/{child}/cmdline"))?;
        ensure!(line.contains("__egress\x000123abcd\x00tested\x00"), "{line:?}");
        Ok(child)
    }
}

fn config(directory: &Path, identity: Option<Identity>, control: Control) -> BundleConfig {
    BundleConfig {
        labels: ["0123abcd".into(), "tested".into()],
        proxy: ListenerConfig::Socket { directory: directory.join("proxy") },
        control,
        logs: directory.join("logs"),
        relay_log: false,
        identity,
        machine: None,
        gate: None,
        supervise: false,
    }
}

fn bundle(config: &BundleConfig) -> Result<Command> {
    let stream = || if config.control == Control::Stdio { Stdio::piped() } else { Stdio::null() };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("__bundle").arg(serde_json::to_string(config)?).stdin(stream()).stdout(stream());
    Ok(command)
}

async fn request(keeper: &Channel, request: &BundleRequest) -> Result<BundleEvent> {
    let mut stream = keeper.open(request).await?;
    Ok(stream.receive().await?)
}

async fn event(events: &mut Stream) -> Result<BundleEvent> {
    Ok(tokio::time::timeout(PATIENCE, events.receive()).await??)
}

fn provision() -> BundleRequest {
    let slug = "tested".parse().expect("slug");
    BundleRequest::Provision(Box::new(Provision {
        log: LogLevel::Blocks,
        log_keep: 1 << 20,
        ..Provision::of_routes(
            slug,
            "routes:
- host: api.example.com
"
            .parse()
            .expect("routes"),
        )
    }))
}

/// Connects a keeper, which provisions the bundle.
async fn ready(running: &Running) -> Result<Channel> {
    let keeper = running.keeper().await?;
    send_provision(&keeper).await?;
    Ok(keeper)
}

async fn send_provision(keeper: &Channel) -> Result<()> {
    ensure!(!daemon(keeper).await?.up, "up before its listener is open");
    let BundleEvent::Ready { ca_certificate } = request(keeper, &provision()).await? else {
        bail!("not ready");
    };
    ensure!(ca_certificate.starts_with("-----BEGIN CERTIFICATE-----"));
    Ok(())
}

async fn daemon(keeper: &Channel) -> Result<Daemon> {
    let BundleEvent::Health { daemons } = request(keeper, &BundleRequest::Health).await? else {
        bail!("no health")
    };
    let [daemon] = daemons.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
    Ok(daemon)
}

/// Waits until `condition` is true.
async fn until(what: &str, condition: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        ensure!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn lifecycle() -> Result<()> {
    let mut running = Running::start(None)?;
    let keeper = running.keeper().await?;
    ensure!(!running.proxy(9099).exists(), "the listener is open before provisioning");
    drop(keeper);
    let keeper = ready(&running).await?;
    ensure!(running.get("http://_egress.local/allowlist")?.contains("\"revision\":1"));
    let daemon = daemon(&keeper).await?;
    ensure!(daemon.up && daemon.revision == Some(1) && daemon.name == "egress");
    ensure!(daemon.resident.is_some_and(|bytes| bytes > 1 << 20), "{:?}", daemon.resident);
    let table = "routes:\n- host: other.example.com\n".parse()?;
    let routes = BundleRequest::Routes(Routes { revision: 2, ..Routes::first(table) });
    ensure!(request(&keeper, &routes).await? == BundleEvent::Live { revision: 2 });
    ensure!(running.get("http://_egress.local/allowlist")?.contains("other.example.com"));
    let egress = running.egress()?;
    ensure!(request(&keeper, &BundleRequest::Stop).await? == BundleEvent::Stopped);
    ensure!(running.process.wait()?.success());
    ensure!(!Path::new(&format!("/proc/{egress}")).exists(), "the daemon still runs");
    for path in [running.proxy(9099), running.proxy(80), running.directory.path().join("bundle.sock")] {
        ensure!(!path.exists(), "{} is left", path.display());
    }
    Ok(())
}

async fn rejected() -> Result<()> {
    let running = Running::start(None)?;
    let keeper = running.keeper().await?;
    let early = Routes { revision: 2, ..Routes::first(RouteTable::default()) };
    let rejected = |event| matches!(event, BundleEvent::Rejected { .. });
    ensure!(rejected(request(&keeper, &BundleRequest::Routes(early)).await?));
    let mut bad = serde_json::to_value(provision())?;
    bad["routes"]["table"] = serde_json::json!({"routes": [{"hots": "x"}]});
    let answer = keeper.open(&bad).await?.receive::<BundleEvent>().await.expect_err("refused").to_string();
    ensure!(answer.contains("hots"), "{answer}");
    ensure!(!running.proxy(9099).exists());
    ensure!(matches!(request(&keeper, &provision()).await?, BundleEvent::Ready { .. }));
    ensure!(rejected(request(&keeper, &provision()).await?), "provisioned twice");
    Ok(())
}

async fn reconnects() -> Result<()> {
    let running = Running::start(None)?;
    drop(ready(&running).await?);
    ensure!(running.get("http://evil.example.org/drop")?.starts_with("HTTP/1.1 403"));
    let keeper = running.keeper().await?;
    let mut events = keeper.open(&BundleRequest::Events).await?;
    let BundleEvent::Refused(refused) = event(&mut events).await? else { bail!("no refusal") };
    ensure!(refused.host == "evil.example.org" && refused.path == "/drop", "{refused:?}");
    let second = running.keeper().await?;
    let mut latest = second.open(&BundleRequest::Events).await?;
    ensure!(events.receive::<BundleEvent>().await.is_err(), "two keepers listen");
    ensure!(running.get("http://evil.example.net/")?.starts_with("HTTP/1.1 403"));
    let BundleEvent::Refused(refused) = event(&mut latest).await? else { bail!("no refusal") };
    ensure!(refused.host == "evil.example.net", "{refused:?}");
    let path = running.directory.path().join("logs/egress.jsonl");
    let log = || std::fs::read_to_string(&path).unwrap_or_default();
    // A separate thread of the daemon writes the log, so the test waits for the lines.
    until("both are in the log", || log().lines().count() == 2).await?;
    ensure!(log().contains(&refused.id), "{}", log());
    Ok(())
}

async fn daemon_dies() -> Result<()> {
    let running = Running::start(None)?;
    let keeper = ready(&running).await?;
    let mut events = keeper.open(&BundleRequest::Events).await?;
    signal(running.egress()?, Signal::SIGKILL)?;
    ensure!(event(&mut events).await? == BundleEvent::Down { daemon: "egress".into() });
    for port in [9099, 80, 443] {
        ensure!(!running.proxy(port).exists(), "port {port} is still there");
    }
    ensure!(!daemon(&keeper).await?.up);
    ensure!(request(&keeper, &BundleRequest::Stop).await? == BundleEvent::Stopped);
    Ok(())
}

/// A real credential that only the proxy and the git gate receive. Requests that contain pieces of this credential are
/// counted, and lock the bottle.
const KEY: &str = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4Po6As8Dg1Hj3Kl5";

/// Starts a bundle with all daemons. The bundle's proxy and git gate have the credential [`KEY`].
async fn with_every_daemon() -> Result<(Running, Channel)> {
    let control = |directory: &Path| Control::Socket { path: directory.join("bundle.sock") };
    let running = Running::start_as(None, control, |directory, config| {
        config.gate = Some(directory.join("gate"));
        config.supervise = true;
    })?;
    let keeper = running.keeper().await?;
    let yaml = "routes:\n- host: api.example.com\n  ports: [80]\n  dlp: {outbound_on_match: block}\n\
                - host: key.example.com\n  auth: {scheme: Bearer, slot: key}\n";
    let binding = Binding {
        slot: "key".into(),
        host: "key.example.com".into(),
        scheme: Scheme::Bearer,
        header: "authorization".into(),
    };
    let provision = Provision {
        credentials: vec![Credential { binding, value: Some(KEY.into()) }],
        ..Provision::of_routes("tested".parse()?, yaml.parse()?)
    };
    let ready = request(&keeper, &BundleRequest::Provision(Box::new(provision))).await?;
    ensure!(matches!(ready, BundleEvent::Ready { .. }), "{ready:?}");
    let repo = GateRepo {
        address: None,
        name: "tool".parse()?,
        url: "https://git.example.com/tool.git".into(),
        key: GateKey::Token { token: KEY.into() },
        refs: GateRefs::default(),
        supervise: false,
        stale_ok: false,
    };
    let gate = GateProvision {
        slug: "tested".parse()?,
        repos: vec![repo],
        credentials: vec![KEY.into()],
        known_secrets: Vec::new(),
        rules: Vec::new(),
        placeholders: Vec::new(),
        upstream_roots: String::new(),
        ask_seconds: None,
    };
    let open = request(&keeper, &BundleRequest::Gate(Box::new(gate))).await?;
    ensure!(open == BundleEvent::GateOpen, "{open:?}");
    let supervise =
        SuperviseProvision { routes: Routes::first(yaml.parse()?), call_seconds: 1, keeper_tools: false };
    let open = request(&keeper, &BundleRequest::Supervise(supervise)).await?;
    ensure!(open == BundleEvent::SuperviseOpen, "{open:?}");
    Ok((running, keeper))
}

async fn locked_out() -> Result<()> {
    let (running, keeper) = with_every_daemon().await?;
    let push = || running.post_to(9420, "/tool.git/git-receive-pack", "git-gate", "x/y", "0000");
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list-egress-routes","arguments":{}}}"#;
    let supervised = || running.post_to(9100, "/mcp", "supervise:9100", "application/json", call);
    ensure!(!push()?.contains(SENTENCE) && supervised()?.contains("api.example.com"), "{}", supervised()?);
    let mut early = keeper.open(&BundleRequest::LockOut).await?;
    for number in 0..HITS {
        let answer = running.post(&KEY[number..number + 16])?;
        let reason = if number + 1 == HITS { "locked-out" } else { "secret-found" };
        ensure!(answer.contains(&format!("x-bottle-reason: {reason}")), "{number}: {answer}");
    }
    let places = vec!["api.example.com".to_owned()];
    let why = BundleEvent::LockedOut(LockOut { daemon: "egress".into(), hits: HITS, places, parent: None });
    ensure!(event(&mut early).await? == why);
    // Many denials do not displace the lock notice. A keeper that connects later also receives the lock notice.
    drop(keeper);
    for _ in 0..50 {
        ensure!(running.get("http://evil.example.org/")?.contains("x-bottle-reason: locked-out"));
    }
    let keeper = running.keeper().await?;
    ensure!(request(&keeper, &BundleRequest::LockOut).await? == why);
    until("the other daemons are not locked", || {
        push().is_ok_and(|response| response.contains(SENTENCE))
            && supervised().is_ok_and(|response| response.contains(SENTENCE))
    })
    .await?;
    // No request from a keeper unlocks the bottle.
    let BundleEvent::Rejected { .. } = request(&keeper, &provision()).await? else {
        bail!("provisioned again")
    };
    let routes =
        Routes { revision: 2, ..Routes::first("routes:\n- host: api.example.com\n  ports: [80]\n".parse()?) };
    ensure!(request(&keeper, &BundleRequest::Routes(routes)).await? == BundleEvent::Live { revision: 2 });
    ensure!(running.post("hello")?.contains("x-bottle-reason: locked-out"));
    ensure!(request(&keeper, &BundleRequest::Stop).await? == BundleEvent::Stopped);
    Ok(())
}

async fn parent_dies() -> Result<()> {
    let mut running = Running::start(None)?;
    let _keeper = ready(&running).await?;
    let egress = running.egress()?;
    running.process.kill()?;
    running.process.wait()?;
    until("the daemon outlived its parent", || has_exited(egress)).await?;
    // The kernel closes the sockets of a killed process after the first thread of the process has exited. Therefore the
    // test waits until the listener is closed.
    until("the listener is still open", || StdUnixStream::connect(running.proxy(9099)).is_err()).await?;
    Ok(())
}

async fn hardened() -> Result<()> {
    let running = Running::start(None)?;
    let keeper = ready(&running).await?;
    let weaker = daemon(&keeper).await?.weaker;
    if !weaker.is_empty() {
        skipped(&format!("this kernel is weaker: {weaker:?}"));
        return Ok(());
    }
    for process in [running.process.id(), running.egress()?] {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        for line in
            ["NoNewPrivs:\t1", "Seccomp:\t2", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000"]
        {
            ensure!(status.contains(line), "{process}: no {line}: {status}");
        }
        let limits = std::fs::read_to_string(format!("/proc/{process}/limits"))?;
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("limits")?;
        ensure!(core.split_whitespace().nth(4) == Some("0"), "{core}");
        let data = limits.lines().find(|line| line.starts_with("Max data size")).context("limits")?;
        let is_limited = !data.contains("unlimited");
        ensure!(is_limited || process == running.process.id(), "the daemon's memory has no limit: {data}");
        let environ = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        ensure!(process == running.process.id() || environ.is_empty(), "the daemon inherited variables");
    }
    Ok(())
}

async fn switches_user() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root can become another user");
        return Ok(());
    }
    let running = Running::start(Some(Identity { uid: 54_321, gid: 54_322 }))?;
    let keeper = ready(&running).await?;
    for process in [running.process.id(), running.egress()?] {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        ensure!(status.contains("Uid:\t54321\t54321\t54321\t54321"), "{status}");
        ensure!(status.contains("Gid:\t54322\t54322\t54322\t54322"), "{status}");
    }
    let around = std::fs::metadata(running.directory.path())?;
    ensure!(around.permissions().mode() & 0o077 == 0, "other users can reach the listener");
    ensure!(running.get("http://evil.example.org/")?.starts_with("HTTP/1.1 403"));
    let log = running.directory.path().join("logs/egress.jsonl");
    until("no line in the log", || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("evil")))
        .await?;
    ensure!(std::fs::metadata(&log)?.uid() == 54_321);
    let egress = running.egress()?;
    ensure!(request(&keeper, &BundleRequest::Stop).await? == BundleEvent::Stopped);
    ensure!(has_exited(egress) && !running.proxy(9099).exists());
    Ok(())
}

/// Checks that the daemon can buffer a long request body on disk after it has dropped its privileges.
async fn buffers_bodies() -> Result<()> {
    let other = Identity { uid: 65_533, gid: 65_533 };
    let more = nix::unistd::getuid().is_root().then_some(Some(other));
    for identity in [None].into_iter().chain(more) {
        let running = Running::start(identity)?;
        let keeper = running.keeper().await?;
        let BundleRequest::Provision(mut wanted) = provision() else { bail!("unreachable") };
        let yaml = "routes:\n- host: api.example.com\n  ports: [80]\n  connect_to: '127.0.0.1:1'\n  \
                    dlp: {outbound_on_match: block}\n";
        wanted.routes.table = yaml.parse()?;
        wanted.canary = Some("Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4".into());
        let answer = request(&keeper, &BundleRequest::Provision(wanted)).await?;
        ensure!(matches!(answer, BundleEvent::Ready { .. }), "{answer:?}");
        let end = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4";
        for (end, reason) in [(end, "secret-found"), ("nothing", "upstream-unreachable")] {
            let answer = running.post(&format!("{}{end}", "abcdefghij ".repeat(300_000)))?;
            ensure!(answer.contains(&format!("x-bottle-reason: {reason}")), "{identity:?}: {answer}");
        }
        let left = std::fs::read_dir(running.directory.path().join("logs"))?.count();
        ensure!(left == 1, "{left} files beside the log");
    }
    Ok(())
}

async fn on_stdio() -> Result<()> {
    let mut running = Running::start_on_stdio()?;
    // This keeper has a separate tokio runtime, so that the test can stop the keeper before it sends a close frame.
    let killed = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    {
        let _inside = killed.enter();
        // Dropping the channel would close the connection properly, so the channel is never dropped.
        let keeper = std::mem::ManuallyDrop::new(running.rejoined().await?);
        send_provision(&keeper).await?;
    }
    ensure!(running.get("http://evil.example.org/drop")?.starts_with("HTTP/1.1 403"));
    // The thread of the killed keeper's runtime exits before another keeper uses the same pipes.
    let exited = std::thread::spawn(move || killed.shutdown_timeout(PATIENCE)).join();
    ensure!(exited.is_ok(), "the keeper's runtime panicked");
    let half = b"\0\0\x10\0\0\0\0\x01\x03{\"half\":";
    let input = running.process.stdin.as_ref().context("input")?;
    // The killed keeper made the pipe non-blocking, and the keeper's remaining bytes may fill the pipe for a short
    // time. The kernel writes `half` completely or not at all, because `half` is short.
    until("the bundle reads nothing", || !is_full((&*input).write_all(half))).await?;
    let keeper = running.rejoined().await?;
    let mut events = keeper.open(&BundleRequest::Events).await?;
    let BundleEvent::Refused(refused) = event(&mut events).await? else { bail!("no refusal") };
    ensure!(refused.path == "/drop", "{refused:?}");
    ensure!(daemon(&keeper).await?.up);
    ensure!(request(&keeper, &BundleRequest::Stop).await? == BundleEvent::Stopped);
    ensure!(running.process.wait()?.success());
    ensure!(!running.proxy(9099).exists());
    Ok(())
}

fn is_full(written: std::io::Result<()>) -> bool {
    written.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

async fn exits() -> Result<()> {
    for end_of_input in [true, false] {
        let mut running = Running::start_on_stdio()?;
        let keeper = running.rejoined().await?;
        send_provision(&keeper).await?;
        let egress = running.egress()?;
        if end_of_input {
            drop(keeper);
            drop(running.process.stdin.take());
        } else {
            signal(running.process.id(), Signal::SIGTERM)?;
        }
        let bundle = running.process.id();
        until("the bundle still runs", || has_exited(bundle)).await?;
        ensure!(running.process.wait()?.success(), "end of input: {end_of_input}");
        until("the daemon outlived its parent", || has_exited(egress)).await?;
        // The kernel closes the sockets of a killed process after the first thread of the process has exited. Therefore
        // the test waits until the listener is closed.
        until("the listener is still open", || StdUnixStream::connect(running.proxy(9099)).is_err()).await?;
    }
    Ok(())
}

async fn reports_failure() -> Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::create_dir(directory.path().join("proxy"))?;
    // In this test, the directory for logs does not exist.
    let control = Control::Socket { path: directory.path().join("bundle.sock") };
    let output = bundle(&config(directory.path(), None, control))?.stderr(Stdio::piped()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success());
    ensure!(stderr.lines().any(|line| line.contains("__egress") && line.contains("logs")), "{stderr}");
    Ok(())
}

/// Prints a message to the process's standard error, because the test harness hides the output of passing tests.
fn skipped(why: &str) {
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("skipped: {why}\n"));
}

fn signal(process: u32, signal: Signal) -> Result<()> {
    let process = nix::unistd::Pid::from_raw(i32::try_from(process)?);
    Ok(nix::sys::signal::kill(process, signal)?)
}

/// Returns whether a process has exited. A zombie process has exited.
fn has_exited(process: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
        Err(_) => true,
    }
}
