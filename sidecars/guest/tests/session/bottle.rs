//! Runs the guest in a separate process. This process runs the same test program.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bottle_channel::{Channel, Event, Side, Stream, rejoin};
use bottle_guest::{ForwardConfig, GuestConfig, Programs, Transport};
use bottle_protocol::session::guest::{
    Attach, Exit, GuestEvent, GuestRequest, Process, Provision, STDERR, STDIN, STDOUT, Size, Stop,
};
use bottle_protocol::session::{Hello, Role};
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::timeout;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// An environment variable with the ports of the proxy, separated by commas.
const PROXY: &str = "GUEST_TEST_PROXY";

/// An environment variable with the bottle's directory, for the guest's process.
const DIRECTORY: &str = "GUEST_TEST_DIRECTORY";

/// An environment variable that makes the guest use its standard streams as the transport.
const STDIO: &str = "GUEST_TEST_STDIO";

/// The arguments that make `unshare` run a program as pid 1 of a new namespace, as an ordinary user. A backend starts
/// the guest in the same way.
const INIT: [&str; 8] = [
    "--user",
    "--map-user=1000",
    "--map-group=1000",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

#[test]
#[ignore = "started by the other tests: it is the guest's own process"]
fn guest_process() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("started by a test"));
    let transport = match std::env::var_os(STDIO) {
        Some(_) => Transport::Stdio,
        None => {
            let listener = UnixListener::bind(directory.join("guest.sock"));
            Transport::Listener(listener.expect("the guest's socket"))
        }
    };
    let proxy = std::env::var(PROXY).ok().map(|ports| ForwardConfig {
        sockets: directory.join("proxy"),
        address: std::net::Ipv4Addr::LOCALHOST,
        ports: ports.split(',').map(|port| port.parse().expect("a port")).collect(),
    });
    let code = bottle_guest::run(GuestConfig {
        transport,
        root: directory.join("root"),
        proxy,
        resolver: false,
        programs: Programs::Any,
        limits: Default::default(),
        changed: None,
        confine: None,
    });
    assert_eq!(code, std::process::ExitCode::SUCCESS);
}

pub(crate) struct Bottle {
    pub(crate) process: Child,
    directory: tempfile::TempDir,
    /// The other ends of the guest's standard input and output. Both ends stay open, as in a container engine.
    pub(crate) streams: Option<(OwnedFd, OwnedFd)>,
}

fn as_init(exe: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(INIT).arg(exe);
    command
}

fn on_stdio(mut command: Command) -> Command {
    command.env(STDIO, "yes");
    command
}

impl Bottle {
    /// Starts a guest that shares the namespaces of this process.
    pub(crate) fn start() -> Self {
        Self::start_with(|exe| Command::new(exe))
    }

    /// Starts a guest that is pid 1 of a new namespace. Returns `None` if the machine does not allow new namespaces.
    pub(crate) fn start_as_init() -> Option<Self> {
        Self::can_be_init().then(|| Self::start_with(as_init))
    }

    /// Starts a guest that uses its standard streams as the transport.
    pub(crate) fn start_on_stdio() -> Self {
        Self::start_with(|exe| on_stdio(Command::new(exe)))
    }

    /// Starts a guest that is pid 1 of a new namespace and uses its standard streams as the transport.
    pub(crate) fn start_as_init_on_stdio() -> Option<Self> {
        Self::can_be_init().then(|| Self::start_with(|exe| on_stdio(as_init(exe))))
    }

    fn can_be_init() -> bool {
        if !Command::new("unshare").args(INIT).arg("true").status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: no user and pid namespaces here");
            return false;
        }
        true
    }

    /// Starts a guest that forwards `ports` of the loopback address to the proxy.
    pub(crate) fn start_with_proxy(ports: &str) -> Self {
        Self::start_with(|exe| {
            let mut command = Command::new(exe);
            command.env(PROXY, ports);
            command
        })
    }

    fn start_with(command: impl Fn(&Path) -> Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("root/workspace")).unwrap();
        std::fs::create_dir(directory.path().join("proxy")).unwrap();
        let mut command = command(&std::env::current_exe().unwrap());
        command
            .args(["bottle::guest_process", "--exact", "--ignored", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .env("HOST_SECRET", "must never be seen inside");
        let stdio = command.get_envs().any(|(name, _)| name == STDIO);
        let stream = || if stdio { Stdio::piped() } else { Stdio::null() };
        let mut process = command.stdin(stream()).stdout(stream()).spawn().unwrap();
        let streams = process.stdin.take().zip(process.stdout.take());
        let streams = streams.map(|(input, output)| (input.into(), output.into()));
        Self { process, directory, streams }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// Returns the path of the bundle's socket for a port of the proxy.
    pub(crate) fn proxy_socket(&self, port: u16) -> PathBuf {
        self.directory.path().join("proxy").join(port.to_string())
    }

    /// Connects a new host over the guest's standard streams.
    pub(crate) fn attach(&self) -> Attached {
        let (input, output) = self.streams.as_ref().expect("a guest on its standard streams");
        Attached { input: input.try_clone().unwrap(), output: output.try_clone().unwrap() }
    }

    /// Opens a new connection as the host.
    pub(crate) async fn connect(&self) -> Channel {
        if self.streams.is_some() {
            return self.attach().connect().await;
        }
        let socket = self.directory.path().join("guest.sock");
        let deadline = Instant::now() + SOON;
        let stream = loop {
            match UnixStream::connect(&socket).await {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => panic!("no guest: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        handshake(stream).await
    }

    /// Starts a guest, connects to it, and provisions it with one environment variable.
    pub(crate) async fn ready() -> (Self, Channel) {
        let bottle = Self::start();
        let channel = bottle.connect().await;
        provision(&channel).await;
        (bottle, channel)
    }

    pub(crate) async fn exited(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the guest did not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Bottle {
    fn drop(&mut self) {
        // Stops the guest with SIGTERM, because its processes would continue to run if it were killed.
        let pid = rustix::process::Pid::from_child(&self.process);
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            for _ in 0..200 {
                if !self.process.try_wait().is_ok_and(|status| status.is_none()) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// The other ends of a guest's standard streams.
pub(crate) struct Attached {
    input: OwnedFd,
    output: OwnedFd,
}

impl Attached {
    /// Returns only the input, so that a test can write bytes that a channel would never send.
    pub(crate) fn input(self) -> Sender {
        Sender::from_owned_fd(self.input).unwrap()
    }

    pub(crate) async fn connect(self) -> Channel {
        let reader = Receiver::from_owned_fd(self.output).unwrap();
        let writer = Sender::from_owned_fd(self.input).unwrap();
        handshake(rejoin(join(reader, writer)).await.unwrap()).await
    }
}

async fn handshake<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: IO) -> Channel {
    Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper)).await.unwrap().0
}

pub(crate) async fn provision(channel: &Channel) {
    provision_with(channel, None).await;
}

/// Provisions a bottle that keeps this number of processes.
pub(crate) async fn provision_with(channel: &Channel, processes: Option<usize>) {
    let env = [("PROVISIONED", "yes"), ("WORD", "hunter2-hunter2")];
    let env = env.map(|(name, value)| (name.to_owned(), value.into())).into();
    let request = GuestRequest::Provision(Provision {
        env,
        secret: ["WORD".to_owned()].into(),
        files: Vec::new(),
        work: None,
        processes,
    });
    assert_eq!(ask(channel, &request).await, GuestEvent::Done);
}

/// Sends one request and returns its response.
pub(crate) async fn ask(channel: &Channel, request: &GuestRequest) -> GuestEvent {
    let mut stream = channel.open(request).await.unwrap();
    timeout(SOON, stream.receive()).await.expect("an answer in time").unwrap()
}

pub(crate) fn process(argv: &[&str]) -> Process {
    Process { argv: argv.iter().map(|&word| word.to_owned()).collect(), ..Process::default() }
}

pub(crate) fn shell(script: &str) -> Process {
    process(&["sh", "-c", script])
}

pub(crate) const SIZE: Size = Size { columns: 80, rows: 24 };

pub(crate) async fn attach(channel: &Channel, read_only: bool) -> Stream {
    let size = Some(SIZE);
    channel.open(&GuestRequest::Attach(Attach { read_only, process: None, size })).await.unwrap()
}

pub(crate) fn stop(grace_ms: u64) -> GuestRequest {
    GuestRequest::Stop(Stop { grace_ms, work: None })
}

/// Everything that was received on a stream.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
    pub(crate) events: Vec<GuestEvent>,
    pub(crate) reset: Option<String>,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(400)..]).into_owned();
        write!(f, "{:?} {:?} {:?} {:?}", end(&self.out), end(&self.err), self.events, self.reset)
    }
}

impl Seen {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        self.events.iter().find_map(|event| match event {
            GuestEvent::Exited(exit) => Some(*exit),
            _ => None,
        })
    }

    /// Adds one event. Returns false after the last event.
    fn add(&mut self, event: Option<Event>) -> bool {
        match event {
            Some(Event::Data { fd: STDOUT, bytes }) => self.out.extend_from_slice(&bytes),
            Some(Event::Data { fd: STDERR, bytes }) => self.err.extend_from_slice(&bytes),
            Some(Event::Data { fd, .. }) => panic!("data of descriptor {fd}"),
            Some(message @ Event::Message(_)) => self.events.push(message.parse().unwrap()),
            Some(Event::Reset(why)) => self.reset = Some(why),
            Some(Event::End) | None => return false,
        }
        true
    }

    /// Reads until the received text contains `word`.
    pub(crate) async fn until(&mut self, stream: &mut Stream, word: &str) {
        while !self.text().contains(word) {
            let event = timeout(SOON, stream.next()).await;
            let event = event.unwrap_or_else(|_| panic!("no {word:?} in {:?}", self.text()));
            assert!(self.add(event), "no {word:?} in {self:?}");
        }
    }

    /// Reads to the end of the stream.
    pub(crate) async fn rest(mut self, stream: &mut Stream) -> Self {
        while self.add(timeout(SOON, stream.next()).await.expect("the stream ends")) {}
        self
    }
}

pub(crate) async fn all(mut stream: Stream) -> Seen {
    Seen::default().rest(&mut stream).await
}

/// Runs a process with the given input until it exits.
pub(crate) async fn run(channel: &Channel, mut process: Process, input: Option<&[u8]>) -> Seen {
    process.stdin = input.is_some();
    let mut stream = channel.open(&GuestRequest::Exec(process)).await.unwrap();
    if let Some(input) = input {
        stream.data(STDIN, input).await.unwrap();
        stream.data(STDIN, b"").await.unwrap();
    }
    Seen::default().rest(&mut stream).await
}
