//! A backend with a temporary home, and bottles in that home.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bottle_backend::{
    Access, Backend, BackendError, BackendErrorKind, ByteStream, KeptFiles, LAYERS, Launch, NewSnapshot,
    Origin, Prepared, ProgressSink, Resource, ResourceLog, Sandbox, Snapshot,
};
use bottle_channel::{Channel, Event, Side};
use bottle_host::Host;
use bottle_host::process::ProcessId;
use bottle_lib::registry;
use bottle_manifest::agent_provider::Template;
use bottle_plan::{
    AgentProcess, Egress, GitField, GitFieldSource, GitIdentity, Identity, ImageSource, Plan, Resources,
    Workspace,
};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{
    CopyIn, Exit, Failure, FailureKind, GuestEvent, GuestRequest, Process, Provision, STDERR, STDIN, STDOUT,
};
use bottle_protocol::session::{Hello, Role};
use bottle_test_support::program::Program;
use bottle_test_support::{engine, skip, small_root};
use tokio::sync::OnceCell;

/// A backend and its temporary home.
pub(crate) struct Fixture {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) host: Host,
    planned_only: Plan,
    prepared: OnceCell<Prepared>,
    unpacked: Option<Arc<Unpacked>>,
    loaded: OnceCell<Arc<Loaded>>,
    _directory: tempfile::TempDir,
}

/// Every backend with each of its transports to the proxy, as the backend's name and the `settings.yml` that selects
/// the transport.
const ALL: [(&str, &str); 6] = [
    ("fake", ""),
    ("linux", ""),
    ("docker", ""),
    ("docker", "docker: {transport: network}\n"),
    ("smolvm", ""),
    ("apple", ""),
];

/// The environment variable that selects the backends to test, separated by commas. If the variable is not set, all
/// backends are tested.
const SELECTED: &str = "BOTTLE_TEST_BACKENDS";

/// The environment variables of this process that the smolvm backend needs to find its program.
const ENGINE: [&str; 4] = ["PATH", "HOME", "SMOLVM_LIB_DIR", "SMOLVM_AGENT_ROOTFS"];

/// The name that the small image of [`Fixture::in_image`] has in the fixture's home.
const IMAGE: &str = "small";

/// The small image, unpacked one time for all fixtures.
struct Unpacked {
    home: tempfile::TempDir,
    prepared: Prepared,
}

static UNPACKED: tokio::sync::Mutex<Weak<Unpacked>> = tokio::sync::Mutex::const_new(Weak::new());

/// The versions of `container` as which its test double behaves: the oldest supported one, and the newest known one.
const CONTAINER_VERSIONS: [&str; 2] = ["1.2.1", "1.4.1"];

/// The variable of [`Fixture::new`] that selects one of [`CONTAINER_VERSIONS`]. The default is the newest one.
const CONTAINER_VERSION: &str = "BOTTLE_TEST_CONTAINER_VERSION";

/// Every available backend with each of its transports, the linux backend also with an image, and the apple backend with
/// each version of `container`. Each fixture has its own home. Reports the backends that are not available.
pub(crate) async fn every_backend() -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for (name, settings) in ALL.into_iter().filter(|(name, _)| is_selected(name)) {
        let fixture = Fixture::new(name, &[]);
        fixture.set(settings);
        if fixture.is_usable().await {
            match name {
                "apple" => fixtures.extend([Fixture::on_oldest_container().await, fixture]),
                "linux" => fixtures.extend([Fixture::in_image("linux").await, fixture]),
                // The bottles of this backend always run on an image.
                "smolvm" => fixtures.push(Fixture::in_image("smolvm").await),
                _ => fixtures.push(fixture),
            }
        }
    }
    fixtures
}

/// Whether [`SELECTED`] selects a backend. If the backend is not selected, reports its tests as skipped.
fn is_selected(name: &str) -> bool {
    let selected = std::env::var(SELECTED).map_or(true, |names| names.split(',').any(|other| other == name));
    if !selected {
        skip::aloud(name, &format!("${SELECTED} does not name it"));
    }
    selected
}

/// The docker backend with each transport to the proxy, if an engine is available.
pub(crate) async fn docker() -> Vec<Fixture> {
    let mut fixtures = every_backend().await;
    fixtures.retain(|fixture| fixture.name() == "docker");
    fixtures
}

/// Every available backend that isolates bottles.
pub(crate) async fn every_isolating_backend() -> Vec<Fixture> {
    let mut fixtures = every_backend().await;
    fixtures.retain(|fixture| fixture.backend.capabilities().isolates);
    fixtures
}

impl Fixture {
    /// Creates a fixture for this backend with a new home.
    pub(crate) fn new(name: &str, env: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        let mut env: BTreeMap<OsString, OsString> =
            env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        if name == "apple" {
            // The test double of `container` runs the containers on a Docker engine.
            let path = std::env::var("PATH").unwrap_or_default();
            let [.., newest] = CONTAINER_VERSIONS;
            let version =
                env.remove(std::ffi::OsStr::new(CONTAINER_VERSION)).unwrap_or_else(|| newest.into());
            let programs = container_programs(&version);
            env.insert("PATH".into(), format!("{}:{path}", programs.display()).into());
            // The test double of `container` keeps the archives of snapshots in `TMPDIR`.
            env.insert("TMPDIR".into(), directory.path().into());
        }
        if name == "smolvm" {
            // The backend finds its program with these environment variables.
            env.extend(std::env::vars_os().filter(|(name, _)| ENGINE.iter().any(|known| name == *known)));
        }
        let host = Host {
            env,
            cwd: "/".into(),
            home: directory.path().join("home"),
            user_home: directory.path().join("user"),
            runtime: directory.path().join("run"),
            program: Program::bottle().expect("built").path().to_owned(),
        };
        let backend = registry::by_name(&host, name).expect("a backend of that name");
        let mut planned_only = plan("planned", name);
        if name == "apple" {
            planned_only.image = ImageSource::Path(IMAGE.into());
        }
        Self {
            backend,
            host,
            planned_only,
            prepared: OnceCell::new(),
            unpacked: None,
            loaded: OnceCell::new(),
            _directory: directory,
        }
    }

    /// Creates a fixture for the linux or smolvm backend. Its bottles run on a small image that contains programs of
    /// this machine.
    pub(crate) async fn in_image(name: &str) -> Self {
        let mut fixture = Self::new(name, &[]);
        fixture.planned_only.image = ImageSource::Path(IMAGE.into());
        let unpacked = Unpacked::shared().await;
        std::fs::create_dir_all(&fixture.host.home).expect("home");
        let images = unpacked.home.path().join("images");
        std::os::unix::fs::symlink(images, fixture.host.home.join("images")).expect("shared");
        fixture.unpacked = Some(unpacked);
        fixture
    }

    /// Creates a fixture for the apple backend with the oldest supported version of `container`.
    async fn on_oldest_container() -> Self {
        let [oldest, ..] = CONTAINER_VERSIONS;
        let fixture = Self::new("apple", &[(CONTAINER_VERSION, oldest)]);
        assert!(fixture.is_usable().await, "`container` {oldest} is not usable");
        fixture
    }

    /// Creates a fixture for the docker backend, if an engine is available. Its bottles run on the small image.
    pub(crate) async fn docker_on_small_image() -> Option<Self> {
        let mut fixture = Self::new("docker", &[]);
        fixture.planned_only.image = ImageSource::Path(IMAGE.into());
        small_root::make(&fixture.host.home.join(IMAGE)).expect("a small file system");
        fixture.is_usable().await.then_some(fixture)
    }

    /// Whether the bottles run on an image and can therefore change their system files.
    pub(crate) fn is_in_image(&self) -> bool {
        self.unpacked.is_some() || self.name() == "apple"
    }

    /// Whether the bottles run in containers. Of the processes in a container, only the first is a resource.
    pub(crate) fn is_contained(&self) -> bool {
        ["docker", "apple"].contains(&self.name())
    }

    /// Whether each bottle has a kernel of its own.
    pub(crate) fn is_machine(&self) -> bool {
        self.name() == "smolvm"
    }

    /// Writes the home's `settings.yml`.
    pub(crate) fn set(&self, settings: &str) {
        std::fs::create_dir_all(&self.host.home).expect("home");
        std::fs::write(self.host.home.join("settings.yml"), settings).expect("settings");
    }

    /// Whether the backend is usable on this machine. If not, reports the skipped tests.
    async fn is_usable(&self) -> bool {
        if ["docker", "apple"].contains(&self.name())
            && let Err(why) = engine::here()
        {
            skip::aloud(self.name(), &why);
            return false;
        }
        if self.name() == "apple" && !rustix::process::geteuid().is_root() {
            skip::aloud(self.name(), &"the test double of `container` needs root");
            return false;
        }
        let check = self.backend.check().await;
        if !check.usable {
            skip::aloud(self.name(), &format!("it is not usable here: {:?}", check.findings));
            return false;
        }
        match self.prepared().await {
            Ok(_) => true,
            // Containers need a static build of the program.
            Err(error) if error.kind == BackendErrorKind::Unavailable => {
                skip::aloud(self.name(), &error);
                false
            }
            Err(error) => panic!("{}: {error}", self.name()),
        }
    }

    /// Prepares the image or program for the fixture's bottles.
    pub(crate) async fn prepared(&self) -> Result<Prepared, BackendError> {
        if let Some(unpacked) = &self.unpacked {
            return Ok(unpacked.prepared.clone());
        }
        if self.name() == "apple" {
            let loaded = self.loaded.get_or_try_init(|| Loaded::shared(self)).await?;
            return Ok(loaded.prepared.clone());
        }
        if self.name() != "docker" {
            return Ok(Prepared::default());
        }
        let prepare = async || {
            let _lock = bottle_test_support::engine::lock_tools();
            let none = Default::default();
            self.backend.prepare(&self.planned_only, &none, &ProgressSink::discard()).await
        };
        self.prepared.get_or_try_init(prepare).await.cloned()
    }

    /// Whether the bottles see the host's programs.
    pub(crate) fn shows_the_host(&self) -> bool {
        self.name() == "linux" && !self.is_in_image()
    }

    /// Whether the bottles connect to the proxy over a network.
    pub(crate) fn is_networked(&self) -> bool {
        let settings = std::fs::read_to_string(self.host.home.join("settings.yml")).unwrap_or_default();
        self.name() == "docker" && settings.contains("transport: network")
    }

    /// The backend's name, for messages.
    pub(crate) fn name(&self) -> &'static str {
        self.backend.name()
    }

    /// Starts a bottle, and does not provision its pid 1.
    pub(crate) async fn bottle(&self, slug: &str) -> Bottle<'_> {
        self.bottle_with(slug, Prepared::default(), Resources::default()).await
    }

    /// Starts a bottle with exposed paths and limits.
    pub(crate) async fn bottle_with(
        &self,
        slug: &str,
        prepared: Prepared,
        resources: Resources,
    ) -> Bottle<'_> {
        let mut bottle = self.planned(slug);
        bottle.plan.resources = resources;
        let Prepared { inside, roles, .. } = self.prepared().await.expect("prepared");
        bottle.prepared = Prepared { inside, roles, ..prepared };
        bottle.begin().await;
        bottle
    }

    /// Starts a bottle with the files of `origin`.
    pub(crate) async fn bottle_from(&self, slug: &str, origin: Origin) -> Bottle<'_> {
        let mut bottle = self.planned(slug);
        bottle.origin = origin;
        bottle.prepared = self.prepared().await.expect("prepared");
        bottle.begin().await;
        bottle
    }

    /// Creates only the state directory of a bottle.
    pub(crate) fn planned(&self, slug: &str) -> Bottle<'_> {
        let plan = Plan { image: self.planned_only.image.clone(), ..plan(slug, self.name()) };
        let state = self.host.state().join(slug);
        std::fs::create_dir_all(&state).expect("state");
        let shared = self.unpacked.as_ref().map(|unpacked| &unpacked.prepared);
        let shared = shared.or(self.loaded.get().map(|loaded| &loaded.prepared));
        let prepared = self.prepared.get().or(shared).cloned().unwrap_or_default();
        let progress = ProgressSink::discard();
        Bottle {
            fixture: self,
            plan,
            state,
            resources: Recorded::default(),
            origin: Origin::New,
            prepared,
            progress,
            connected: tokio::sync::Mutex::default(),
        }
    }
}

/// The small image in the store of the test double of `container`, loaded one time for all fixtures.
struct Loaded {
    prepared: Prepared,
    /// The fixture with the home for which the image was loaded.
    fixture: Box<Fixture>,
}

static LOADED: tokio::sync::Mutex<Weak<Loaded>> = tokio::sync::Mutex::const_new(Weak::new());

impl Loaded {
    /// The image, and the program of pid 1 in the fixture's home.
    async fn shared(fixture: &Fixture) -> Result<Arc<Self>, BackendError> {
        let mut shared = LOADED.lock().await;
        let loaded = match shared.upgrade() {
            Some(loaded) => loaded,
            None => {
                let fixture = Fixture::new("apple", &[]);
                small_root::make(&fixture.host.home.join(IMAGE)).expect("a small file system");
                let (plan, none) = (&fixture.planned_only, Default::default());
                let prepared = fixture.backend.prepare(plan, &none, &ProgressSink::discard()).await?;
                let loaded = Arc::new(Self { prepared, fixture: Box::new(fixture) });
                *shared = Arc::downgrade(&loaded);
                loaded
            }
        };
        let (from, to) =
            (loaded.fixture.host.home.join("apple/program"), fixture.host.home.join("apple/program"));
        std::fs::create_dir_all(&to).expect("directory");
        for file in ["bottle", "build-id"] {
            let _ = std::fs::hard_link(from.join(file), to.join(file));
        }
        Ok(loaded)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let image = self.prepared.inside.as_ref().map(|inside| inside.image.clone());
        let _ = engine::docker(&["rmi", "--force", &image.unwrap_or_default()]);
    }
}

/// Returns a directory with the programs that the apple backend calls. The double of `container` behaves as the version
/// that the directory is named after.
fn container_programs(version: &std::ffi::OsStr) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("container-programs").join(version);
    std::fs::create_dir_all(&directory).expect("directory");
    let double = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/backends/apple/container");
    for name in ["container", "sw_vers"] {
        match std::os::unix::fs::symlink(double, directory.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{name}: {error}"),
            _ => {}
        }
    }
    directory
}

impl Unpacked {
    async fn shared() -> Arc<Self> {
        let mut shared = UNPACKED.lock().await;
        if let Some(unpacked) = shared.upgrade() {
            return unpacked;
        }
        let fixture = Fixture::new("linux", &[]);
        small_root::make(&fixture.host.home.join(IMAGE)).expect("a small file system");
        let plan = Plan { image: ImageSource::Path(IMAGE.into()), ..plan("small", "linux") };
        let prepared = fixture
            .backend
            .prepare(&plan, &Default::default(), &ProgressSink::discard())
            .await
            .expect("unpacked");
        let home = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        std::fs::rename(fixture.host.home.join("images"), home.path().join("images")).expect("kept");
        let unpacked = Arc::new(Self { home, prepared });
        *shared = Arc::downgrade(&unpacked);
        unpacked
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !["docker", "apple"].contains(&self.name()) {
            return;
        }
        // Snapshots on an engine would remain after this home is removed, so they are removed here.
        let label = format!("label=bottle.snapshot={}", self.host.home_hash());
        let format = "{{.Repository}}:{{.Tag}}";
        let names = engine::docker(&["images", "--filter", &label, "--format", format]).unwrap_or_default();
        for name in names.lines() {
            let _ = engine::docker(&["rmi", "--force", name]);
        }
    }
}

/// A bottle. Dropping it kills its processes, so that a failed test leaves no process running.
pub(crate) struct Bottle<'a> {
    pub(crate) fixture: &'a Fixture,
    pub(crate) plan: Plan,
    pub(crate) state: PathBuf,
    pub(crate) resources: Recorded,
    pub(crate) origin: Origin,
    pub(crate) prepared: Prepared,
    progress: ProgressSink,
    /// The last connection to pid 1. This connection is closed before the next connection opens, because the streams of
    /// a container carry one connection at a time.
    connected: tokio::sync::Mutex<Option<Channel>>,
}

impl Bottle<'_> {
    /// Creates the bottle's network and starts pid 1.
    pub(crate) async fn begin(&self) {
        let backend = &self.fixture.backend;
        backend.make_network(&self.launch()).await.expect("network");
        backend.start_guest(&self.launch(), &self.prepared).await.expect("guest");
    }

    /// Starts the bottle's bundle without provisioning it.
    pub(crate) async fn start_bundle(&self) {
        self.fixture.backend.start_bundle(&self.launch(), &self.prepared).await.expect("bundle");
    }

    pub(crate) fn launch(&self) -> Launch<'_> {
        Launch {
            plan: &self.plan,
            state: &self.state,
            resources: &self.resources,
            origin: &self.origin,
            progress: &self.progress,
        }
    }

    /// Opens the kept files of the bottle.
    pub(crate) async fn open(&self, access: Access) {
        self.try_open(access).await.unwrap_or_else(|error| panic!("{}: {error}", self.fixture.name()));
    }

    /// Opens the kept files of the bottle, if there are any.
    pub(crate) async fn try_open(&self, access: Access) -> Result<(), BackendError> {
        let sandbox =
            Sandbox { prepared: self.prepared.clone(), limits: self.plan.resources.clone(), live: None };
        let (slug, state, resources) = (self.slug(), self.state.as_path(), &self.resources);
        self.fixture.backend.open_kept(&KeptFiles { slug, state, resources, sandbox: &sandbox, access }).await
    }

    pub(crate) fn slug(&self) -> &Slug {
        &self.plan.identity.slug
    }

    /// Opens the channel to pid 1, and closes the previous channel.
    pub(crate) async fn connect(&self) -> Channel {
        let mut connected = self.connected.lock().await;
        if let Some(previous) = connected.take() {
            close(previous).await;
        }
        let stream: ByteStream = self.fixture.backend.connect_guest(self.slug()).await.expect("connect");
        let hello = Hello::of(Role::Keeper);
        let (channel, _, peer) = Channel::establish(stream, Side::Dialed, hello).await.expect("greeted");
        assert_eq!(peer.role, Role::Guest);
        *connected = Some(channel.clone());
        channel
    }

    /// Connects to pid 1 and provisions it with an empty environment.
    pub(crate) async fn provisioned(&self) -> Channel {
        let channel = self.connect().await;
        let nothing = Provision {
            env: BTreeMap::new(),
            secret: [].into(),
            files: Vec::new(),
            work: None,
            processes: None,
        };
        let mut stream = channel.open(&GuestRequest::Provision(nothing)).await.expect("open");
        assert_eq!(stream.receive::<GuestEvent>().await.expect("answer"), GuestEvent::Done);
        channel
    }

    /// Runs a shell script in the bottle and returns its output, including standard error.
    pub(crate) async fn shell(&self, script: &str) -> String {
        let channel = self.provisioned().await;
        let (output, _) = run(&channel, &["/bin/sh", "-c", script]).await.expect("shell");
        close(channel).await;
        output
    }

    /// Connects to pid 1, runs a program and returns its output and exit.
    pub(crate) async fn once(&self, argv: &[&str]) -> Result<(String, Exit), GuestEvent> {
        let channel = self.connect().await;
        let ended = run(&channel, argv).await;
        close(channel).await;
        ended
    }

    /// Creates a snapshot of the bottle.
    pub(crate) async fn make_snapshot(&self, previous: Option<&Snapshot>) -> Snapshot {
        let frozen = self
            .fixture
            .backend
            .make_snapshot(self.slug(), &replacing(previous), ProgressSink::discard())
            .await;
        let frozen = frozen.unwrap_or_else(|error| panic!("{}: {error}", self.fixture.name()));
        assert_eq!(frozen.notes, [] as [&str; 0], "{}", self.fixture.name());
        frozen.snapshot
    }

    /// Kills the bottle's processes and keeps its files.
    pub(crate) async fn stop(&self) {
        let mut all = self.found().await;
        all.retain(|resource| resource.kind != LAYERS);
        self.fixture.backend.remove(&all).await.expect("stopped");
    }

    /// Lists all resources of this bottle by their labels.
    pub(crate) async fn found(&self) -> Vec<Resource> {
        let all = self.fixture.backend.enumerate().await.expect("enumerated");
        all.into_iter().filter(|resource| resource.slug == *self.slug()).collect()
    }

    /// Removes all resources of this bottle.
    pub(crate) async fn remove(&self) {
        let all: Vec<Resource> = self.found().await.into_iter().chain(self.resources.all()).collect();
        self.fixture.backend.remove(&all).await.expect("removed");
    }
}

impl Drop for Bottle<'_> {
    fn drop(&mut self) {
        let processes =
            self.resources.all().into_iter().filter(|resource| resource.kind.ends_with("process"));
        for process in processes.filter_map(|resource| resource.id.parse::<ProcessId>().ok()) {
            // The process has usually been removed already.
            let _ = process.kill(Duration::from_secs(5));
        }
        for group in self.resources.all().iter().filter(|resource| resource.kind == "control-group") {
            let _ = std::fs::remove_dir(&group.id);
        }
        if std::thread::panicking() && self.fixture.name() == "docker" {
            for resource in self.resources.all() {
                let _ = match resource.kind.as_str() {
                    "network" => engine::docker(&["network", "rm", &resource.id]),
                    "volume" => engine::docker(&["volume", "rm", &resource.id]),
                    _ => engine::docker(&["rm", "--force", "--volumes", &resource.id]),
                };
            }
        }
    }
}

/// Closes a connection, and waits until it is closed.
pub(crate) async fn close(channel: Channel) {
    channel.close();
    channel.closed().await;
}

/// Runs a program in the bottle and returns its output and exit.
pub(crate) async fn run(channel: &Channel, argv: &[&str]) -> Result<(String, Exit), GuestEvent> {
    let process = Process { argv: argv.iter().map(ToString::to_string).collect(), ..Process::default() };
    let mut stream = channel.open(&GuestRequest::Exec(process)).await.expect("open");
    let mut output = Vec::new();
    loop {
        match stream.next().await.expect("an end") {
            Event::Data { fd: STDOUT | STDERR, bytes } => output.extend_from_slice(&bytes),
            Event::Data { fd, .. } => panic!("bytes for descriptor {fd}"),
            event => match event.parse() {
                Ok(GuestEvent::Exited(exit)) => {
                    return Ok((String::from_utf8_lossy(&output).into_owned(), exit));
                }
                Ok(GuestEvent::Started { .. }) => {}
                Ok(other) => return Err(other),
                // The guest disconnected.
                Err(error) => {
                    let message = error.to_string();
                    return Err(GuestEvent::Failed(Failure { kind: FailureKind::Other, message }));
                }
            },
        }
    }
}

/// Writes a file at a path that is relative to the bottle's root.
pub(crate) async fn write(channel: &Channel, path: &str, content: &[u8]) {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, path.trim_start_matches('/'), content).expect("archived");
    let request = GuestRequest::CopyIn(CopyIn { path: "/".to_owned() });
    let mut stream = channel.open(&request).await.expect("open");
    for chunk in archive.into_inner().expect("archive").chunks(16 << 10) {
        stream.data(STDIN, chunk).await.expect("sent");
    }
    stream.end().await.expect("ended");
    assert_eq!(stream.receive::<GuestEvent>().await.expect("answer"), GuestEvent::Done, "{path}");
}

/// Reads a file. Returns `None` if the file does not exist.
pub(crate) async fn read(channel: &Channel, path: &str) -> Option<String> {
    match run(channel, &["cat", path]).await.expect("ran") {
        (content, Exit::Code(0)) => Some(content),
        _ => None,
    }
}

/// A resource log whose content a test can read.
#[derive(Default)]
pub(crate) struct Recorded(Mutex<Vec<Resource>>);

impl Recorded {
    pub(crate) fn all(&self) -> Vec<Resource> {
        self.0.lock().expect("resource log").clone()
    }
}

impl ResourceLog for Recorded {
    fn record_all(&self, resources: &[Resource]) -> Result<(), BackendError> {
        self.0.lock().expect("resource log").extend_from_slice(resources);
        Ok(())
    }
}

fn git_field(value: &str) -> GitField {
    GitField { value: value.to_owned(), source: GitFieldSource::Default }
}

fn plan(slug: &str, backend: &str) -> Plan {
    Plan {
        budget: Vec::new(),
        cutoff: None,
        mcp: None,
        identity: Identity {
            lineage: Vec::new(),
            template: None,
            slug: slug.parse().expect("slug"),
            label: None,
            color: None,
            agent: "tester".parse().expect("name"),
            bottles: Vec::new(),
            cwd: "/".into(),
            inside: None,
            directories: Vec::new(),
        },
        backend: backend.to_owned(),
        image: ImageSource::Provider(Template::Command),
        renewal: Default::default(),
        workspace: Workspace::Empty,
        live: None,
        git_directories: Vec::new(),
        user_ignore_file: None,
        agent: AgentProcess {
            argv: vec!["true".to_owned()],
            terminal: None,
            stdin: false,
            prompt: None,
            task: None,
        },
        env: BTreeMap::new(),
        files: Vec::new(),
        git_repos: String::new(),
        git_identity: GitIdentity { name: git_field("tester"), email: git_field("tester@example.com") },
        transcript: Vec::new(),
        egress: Egress {
            routes: Default::default(),
            log: Default::default(),
            log_keep: 1 << 20,
            limits: Default::default(),
            metering: Default::default(),
            ca_bundle: None,
            upstream_proxy: None,
        },
        repos: Vec::new(),
        supervise: true,
        learn: false,
        waits: Default::default(),
        placeholders: Vec::new(),
        unsettled: None,
        secrets: Vec::new(),
        resources: Resources::default(),
        services: Vec::new(),
        detached: false,
        ends_with: None,
        manifest_hash: String::new(),
        manifest: String::new(),
    }
}

/// A snapshot without a name, which replaces the bottle's previous snapshot.
pub(crate) fn replacing(previous: Option<&Snapshot>) -> NewSnapshot {
    let reference = previous.map(|previous| previous.reference.clone());
    NewSnapshot { name: None, parent: reference.clone(), previous: previous.cloned(), replaced: reference }
}
