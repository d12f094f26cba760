//! Bottles on a container engine, over its API alone.
//!
//! ```text
//!                       ┌ inside: leads nowhere, without the host ┐
//!     agent's container ┤   or: no network, a volume of sockets   ├ bundle's container ─ outside ─► world
//!       guest, pid 1    └─────────────────────────────────────────┘   bundle, pid 1
//!           ║ standard streams                                          ║ standard streams
//!           ╚═════════════════════════ the keeper ══════════════════════╝
//! ```
//! - `engine`, `ping`: the connection, and what can be wrong with it
//! - `names`: what things are called, and which things are ours
//! - `subnets`, `routes`, `network`: addresses and networks
//! - `hardened`, `agent`, `bundle`: the containers as they are asked for; pure
//! - `contained`: this program inside them
//! - `container`, `attach`: making, starting, finding; their streams
//! - `launch`: what a launch keeps in mind between its phases
//! - `freeze`, `commit`: snapshots · `kept`: going on with what was kept
//! - `work`: whether there is any in a bottle
//! - `inventory`: what exists, and removing it
//! - `check`: what `bottle doctor` says
//!
//! Nothing secret is in a container's configuration, and nothing of an image runs: no entrypoint, no health
//! check. Calls go by the engine's ids, and only what is ours by name and labels is ever removed.

mod agent;
mod attach;
mod bundle;
mod check;
mod commit;
pub mod contained;
mod container;
mod engine;
mod freeze;
mod hardened;
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
mod subnets;
mod work;

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
    Backend, BackendError, ByteStream, Capabilities, Check, Frozen, Prepared, Preview, ProgressSink,
    Resource, Site, Snapshot, Step, Unused,
};
use crate::host::Host;
use crate::host::docker_settings::DockerSettings;
use crate::host::settings::Settings;
use crate::plan::Plan;

/// The variable that names the agent's runtime for one start.
const RUNTIME_VARIABLE: &str = "BOTTLE_RUNTIME";

/// See the module.
#[derive(Debug)]
pub struct DockerBackend {
    host: Host,
    names: Names,
    engine: OnceCell<Engine>,
    launches: Launches,
    /// What a preview found out holds for the making that follows.
    images: OnceCell<Images>,
}

impl DockerBackend {
    /// The backend for this home. Asks nothing yet.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        Self {
            host: host.clone(),
            names: Names::of(host.home_hash()),
            engine: OnceCell::new(),
            launches: Launches::default(),
            images: OnceCell::new(),
        }
    }

    async fn engine(&self, doing: &str) -> Result<&Engine, BackendError> {
        self.engine.get_or_try_init(|| Engine::connect(&self.host)).await.map_err(|error| error.during(doing))
    }

    /// None when there is none for this user: then nothing of theirs is on it. What a bottle's record says was
    /// made is removed through [`Self::engine`], which names what is in the way.
    async fn engine_if_any(&self, doing: &str) -> Result<Option<&Engine>, BackendError> {
        match self.engine.get_or_try_init(|| Engine::connect(&self.host)).await {
            Ok(engine) => Ok(Some(engine)),
            Err(error) if error.is_no_engine() => Ok(None),
            Err(error) => Err(error.during(doing)),
        }
    }

    async fn images(&self) -> Result<&Images, BackendError> {
        let engine = self.engine("find the bottle's images").await?;
        Ok(self.images.get_or_init(async || Images::new(engine.docker(), &self.host)).await)
    }

    fn settings(&self) -> Result<DockerSettings, BackendError> {
        let settings = Settings::load(&self.host).map_err(|error| BackendError::failed(error.to_string()))?;
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
        Capabilities { isolates: true, snapshot: true, live_commit: true, pause: false }
    }

    async fn check(&self) -> Check {
        check::check(&self.host, self.settings()).await
    }

    async fn check_use(&self) -> Check {
        let connected = self.engine.get_or_try_init(|| Engine::connect(&self.host)).await;
        check::check_use(connected, self.settings()).await
    }

    fn fits(&self, plan: &Plan) -> Result<(), BackendError> {
        let asked = &plan.resources;
        BackendError::refuse_limits(self.name(), &[(asked.nested, "nested"), (asked.disk.is_some(), "disk")])
    }

    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        self.images().await?.preview(plan).await
    }

    async fn prepare(&self, plan: &Plan, told: &ProgressSink<Step>) -> Result<Prepared, BackendError> {
        prepare::prepare(self.images().await?, plan, told).await
    }

    async fn make_network(&self, site: &Site<'_>) -> Result<(), BackendError> {
        let engine = self.engine("make the bottle's network").await?;
        self.launches.make_network(engine, &self.names, &self.settings()?, site).await
    }

    async fn start_bundle(&self, site: &Site<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        let engine = self.engine("start the bundle").await?;
        self.launches.start_bundle(engine, &self.names, &self.settings()?, site, prepared).await
    }

    async fn start_guest(&self, site: &Site<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        let engine = self.engine("start the bottle").await?;
        let runtime = self.settings()?.runtime;
        self.launches.start_guest(engine, &self.names, site, prepared, runtime.as_deref()).await
    }

    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        let engine = self.engine("reach the bundle").await?;
        self.launches.connect(engine, &self.names, Part::Bundle, slug).await
    }

    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        let engine = self.engine("reach the bottle").await?;
        self.launches.connect(engine, &self.names, Part::Agent, slug).await
    }

    async fn others(&self, slug: &Slug) -> Result<Vec<SocketAddr>, BackendError> {
        let doing = "look for other bottles";
        let engine = self.engine(doing).await?;
        let proxies = network::listeners_of_others(engine, &self.names, slug).await;
        let proxies = proxies.map_err(|error| error.during(doing))?;
        Ok(proxies.into_iter().map(|proxy| SocketAddr::from((proxy, EGRESS_PORT))).collect())
    }

    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError> {
        let doing = "list what belongs to bottles";
        let Some(engine) = self.engine_if_any(doing).await? else { return Ok(Vec::new()) };
        inventory::enumerate(engine, &self.names).await.map_err(|error| error.during(doing))
    }

    async fn holds_work(&self, slug: &Slug, since: Timestamp) -> Result<bool, BackendError> {
        let engine = self.engine("look for work").await?;
        work::holds_work(engine, &self.names, slug, since).await
    }

    async fn not_frozen(&self, slug: &Slug) -> Result<Vec<String>, BackendError> {
        let engine = self.engine("look at the bottle").await?;
        freeze::not_frozen(engine, &self.names, slug).await
    }

    async fn freeze(
        &self,
        slug: &Slug,
        previous: Option<&Snapshot>,
        told: ProgressSink,
    ) -> Result<Frozen, BackendError> {
        let engine = self.engine("make a snapshot").await?;
        freeze::freeze(engine, &self.names, slug, previous, &told).await
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError> {
        let doing = "list the snapshots";
        let Some(engine) = self.engine_if_any(doing).await? else { return Ok(Vec::new()) };
        freeze::snapshots(engine, &self.names).await.map_err(|error| error.during(doing))
    }

    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError> {
        let engine = self.engine("remove the snapshot").await?;
        freeze::remove(engine, &self.names, snapshot).await
    }

    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        let doing = "look for images that nobody needs";
        let Some(engine) = self.engine_if_any(doing).await? else { return Ok(Vec::new()) };
        Images::new(engine.docker(), &self.host).unused().await
    }

    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        let engine = self.engine("remove what nobody needs").await?;
        Images::new(engine.docker(), &self.host).remove_unused(unused).await
    }

    fn moved_by(&self, snapshot: &Snapshot) -> Option<String> {
        let Snapshot { slug, reference, .. } = snapshot;
        Some(format!("docker save {reference} | gzip > {slug}.tar.gz"))
    }

    fn kept_workspace(&self, _: &Slug) -> Option<PathBuf> {
        // It lies in the engine's own store; `bottle cp` and `bottle resume` reach it.
        None
    }

    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        if resources.is_empty() {
            return Ok(());
        }
        let engine = self.engine("remove what is left of a bottle").await?;
        inventory::remove(engine, &self.names, resources).await
    }
}
