//! The docker backend. It runs bottles on a container engine and uses only the engine's API.
//!
//! ```text
//!                       ┌ inner network, internal, without host   ┐
//!     agent's container ┤   or: no network, a volume of sockets   ├ bundle's container ─ outer network ─► internet
//!       guest, pid 1    └─────────────────────────────────────────┘   bundle, pid 1
//!           ║ standard streams                                          ║ standard streams
//!           ╚═════════════════════════ the keeper ══════════════════════╝
//! ```
//! - `engine`, `ping`: the connection and its errors · `identity`: which engine it is
//! - `names`: names and labels of a bottle's objects
//! - `subnets`, `routes`, `network`: addresses and networks
//! - `runtime`: the transport that the container runtime supports
//! - `hardened`, `agent`, `bundle`: the create requests of the containers, without side effects
//! - `container_entry`: the entry points of this program inside the containers
//! - `container`, `attach`: create, start, find and attach to containers
//! - `prepare`, `images`: the images and the program volume of a bottle · `launch`: the state of a launch between its
//!   phases
//! - `snapshot_images`, `commit`: snapshots · `kept`: resumes kept containers and opens their files · `flatten`: limits the
//!   layers of images
//! - `run_state`: whether the containers run
//! - `changed_work`: detects changes in a bottle's workspace
//! - `inventory`: lists and removes resources · `listing`: lists an engine's images
//! - `check`: the findings of `bottle doctor`
//!
//! A container's configuration contains no secrets. No program of an image runs automatically, because entrypoints and
//! health checks are disabled. Calls identify objects by the engine's ids. Only objects with this home's name and
//! labels are removed.

mod agent;
mod attach;
mod bundle;
mod changed_work;
mod check;
mod commit;
mod container;
pub mod container_entry;
mod engine;
mod flatten;
mod hardened;
mod identity;
pub mod images;
mod inventory;
mod kept;
mod launch;
mod listing;
mod names;
mod network;
mod ping;
mod prepare;
mod routes;
mod run_state;
mod runtime;
mod snapshot_images;
mod subnets;

use std::net::SocketAddr;
use std::path::PathBuf;

use async_trait::async_trait;
use bottle_contract::names::{EGRESS_PORT, Slug};
use jiff::Timestamp;
use tokio::sync::OnceCell;

use self::engine::Engine;
use self::images::Images;
use self::launch::Launches;
use self::names::{Names, Part};
use super::{
    Backend, BackendError, ByteStream, Capabilities, Check, EngineIdentity, Frozen, KeptFiles, Launch,
    Lifecycle, Prepared, Preview, ProgressSink, Resource, RunState, Snapshot, Snapshots, Step, Unused,
};
use crate::causes;
use crate::host::Host;
use crate::host::docker_settings::DockerSettings;
use crate::host::settings::Settings;
use crate::plan::Plan;

/// The environment variable that sets the agent's container runtime for one start.
const RUNTIME_VARIABLE: &str = "BOTTLE_RUNTIME";

/// The backend that runs bottles on a container engine.
#[derive(Debug)]
pub struct DockerBackend {
    host: Host,
    names: Names,
    engine: OnceCell<Engine>,
    launches: Launches,
    /// The images that a preview found, so that the preparation does not query them again.
    images: OnceCell<Images>,
}

impl DockerBackend {
    /// Creates the backend for this home. Does not connect to the engine yet.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        Self {
            host: host.clone(),
            names: Names::new(host.home_hash()),
            engine: OnceCell::new(),
            launches: Launches::default(),
            images: OnceCell::new(),
        }
    }

    async fn engine(&self, doing: &str) -> Result<&Engine, BackendError> {
        self.engine.get_or_try_init(|| Engine::connect(&self.host)).await.map_err(|error| error.during(doing))
    }

    /// The engine, or `None` if this user has no usable engine and therefore no resources on one. The removal of
    /// recorded resources uses [`Self::engine`], which reports why the engine is not usable.
    async fn engine_if_any(&self, doing: &str) -> Result<Option<&Engine>, BackendError> {
        match self.engine.get_or_try_init(|| Engine::connect(&self.host)).await {
            Ok(engine) => Ok(Some(engine)),
            Err(error) if error.is_unusable() => Ok(None),
            Err(error) => Err(error.during(doing)),
        }
    }

    async fn images(&self) -> Result<&Images, BackendError> {
        let engine = self.engine("find the bottle's images").await?;
        Ok(self.images.get_or_init(async || Images::new(engine.docker(), &self.host)).await)
    }

    fn settings(&self) -> Result<DockerSettings, BackendError> {
        let settings =
            Settings::load(&self.host).map_err(|error| BackendError::failed(causes::one_line(&error)))?;
        let named = self.host.var(RUNTIME_VARIABLE).map(str::to_owned);
        Ok(DockerSettings { runtime: named.or(settings.docker.runtime), ..settings.docker })
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { isolates: true, snapshot: true, live_commit: true, pause: false, commit_pauses: true }
    }

    async fn identity(&self) -> Result<Option<EngineIdentity>, BackendError> {
        let doing = "find out which engine this is";
        let engine = self.engine(doing).await?;
        identity::query(engine).await.map(Some).map_err(|error| error.during(doing))
    }

    fn engine_address(&self) -> Option<String> {
        Engine::address_for(&self.host)
    }

    async fn check(&self) -> Check {
        check::check(&self.host, self.settings()).await
    }

    async fn check_use(&self) -> Check {
        let connected = self.engine.get_or_try_init(|| Engine::connect(&self.host)).await;
        check::check_use(connected, self.settings()).await
    }

    fn supports(&self, plan: &Plan) -> Result<(), BackendError> {
        let asked = &plan.resources;
        BackendError::reject_unsupported_limits(
            self.name(),
            &[(asked.nested, "nested"), (asked.disk.is_some(), "disk")],
        )
    }
}

#[async_trait]
impl super::Images for DockerBackend {
    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        self.images().await?.preview(plan).await
    }

    async fn prepare(&self, plan: &Plan, progress: &ProgressSink<Step>) -> Result<Prepared, BackendError> {
        let images = self.images().await?;
        let engine = self.engine("find the bottle's images").await?;
        // The next phases need the engine's information, so it is requested at the same time. They report a failure.
        let (prepared, _) = tokio::join!(prepare::prepare(images, plan, progress), engine.info());
        prepared
    }

    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        let doing = "look for unused images";
        let Some(engine) = self.engine_if_any(doing).await? else { return Ok(Vec::new()) };
        Images::new(engine.docker(), &self.host).unused().await
    }

    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        let engine = self.engine("remove unused images").await?;
        Images::new(engine.docker(), &self.host).remove_unused(unused).await
    }
}

#[async_trait]
impl Lifecycle for DockerBackend {
    async fn make_network(&self, launch: &Launch<'_>) -> Result<(), BackendError> {
        let doing = "make the bottle's network";
        let (engine, settings) = (self.engine(doing).await?, self.settings()?);
        let info = engine.info().await.map_err(|error| error.during(doing))?;
        let transport = runtime::transport(&settings, settings.runtime.as_deref(), info);
        self.launches.make_network(engine, &self.names, transport, settings.subnets, launch).await
    }

    async fn start_bundle(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        let engine = self.engine("start the bundle").await?;
        self.launches.start_bundle(engine, &self.names, self.settings()?.subnets, launch, prepared).await
    }

    async fn start_guest(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        let engine = self.engine("start the bottle").await?;
        let runtime = self.settings()?.runtime;
        self.launches.start_guest(engine, &self.names, launch, prepared, runtime.as_deref()).await
    }

    async fn open_kept(&self, kept: &KeptFiles<'_>) -> Result<(), BackendError> {
        let engine = self.engine("open the bottle's files").await?;
        let program = self.images().await?.program().await?;
        let runtime = self.settings()?.runtime;
        self.launches.open_kept(engine, &self.names, kept, &program, runtime.as_deref()).await
    }

    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        let engine = self.engine("connect to the bundle").await?;
        self.launches.connect(engine, &self.names, Part::Bundle, slug).await
    }

    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        let engine = self.engine("connect to the bottle").await?;
        self.launches.connect(engine, &self.names, Part::Agent, slug).await
    }

    async fn other_listeners(&self, slug: &Slug) -> Result<Vec<SocketAddr>, BackendError> {
        let doing = "look for other bottles";
        let engine = self.engine(doing).await?;
        let proxies = network::other_listeners(engine, &self.names, slug).await;
        let proxies = proxies.map_err(|error| error.during(doing))?;
        Ok(proxies.into_iter().map(|proxy| SocketAddr::from((proxy, EGRESS_PORT))).collect())
    }

    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError> {
        let doing = "list the bottles' resources";
        let Some(engine) = self.engine_if_any(doing).await? else { return Ok(Vec::new()) };
        inventory::enumerate(engine, &self.names).await.map_err(|error| error.during(doing))
    }

    async fn run_state(&self, slug: &Slug) -> Result<RunState, BackendError> {
        let engine = self.engine("find out whether the bottle runs").await?;
        run_state::run_state(engine, &self.names, slug).await
    }

    async fn unpause(&self, slug: &Slug) -> Result<(), BackendError> {
        let engine = self.engine("continue the bottle").await?;
        run_state::unpause(engine, &self.names, slug).await
    }

    async fn holds_work(&self, slug: &Slug, since: Timestamp) -> Result<bool, BackendError> {
        let engine = self.engine("look for changes in the workspace").await?;
        changed_work::holds_work(engine, &self.names, slug, since).await
    }

    fn kept_workspace(&self, _: &Slug) -> Option<PathBuf> {
        // The workspace is in the engine's store and has no folder on the host. `bottle cp` and `bottle resume` can
        // read it.
        None
    }

    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        if resources.is_empty() {
            return Ok(());
        }
        let engine = self.engine("remove a bottle's resources").await?;
        inventory::remove(engine, &self.names, resources).await
    }
}

#[async_trait]
impl Snapshots for DockerBackend {
    async fn snapshot_exclusions(&self, slug: &Slug) -> Result<Vec<String>, BackendError> {
        let engine = self.engine("look at the bottle").await?;
        snapshot_images::snapshot_exclusions(engine, &self.names, slug).await
    }

    async fn freeze(
        &self,
        slug: &Slug,
        previous: Option<&Snapshot>,
        progress: ProgressSink,
    ) -> Result<Frozen, BackendError> {
        let engine = self.engine("make a snapshot").await?;
        snapshot_images::freeze(engine, &self.names, slug, previous, &progress).await
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError> {
        let doing = "list the snapshots";
        let Some(engine) = self.engine_if_any(doing).await? else { return Ok(Vec::new()) };
        snapshot_images::snapshots(engine, &self.names).await.map_err(|error| error.during(doing))
    }

    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError> {
        let engine = self.engine("remove the snapshot").await?;
        snapshot_images::remove(engine, &self.names, snapshot).await
    }

    fn export_command(&self, snapshot: &Snapshot) -> Option<String> {
        let Snapshot { slug, reference, .. } = snapshot;
        Some(format!("docker save {reference} | gzip > {slug}.tar.gz"))
    }
}
