//! The docker backend. This backend runs bottles on a container engine and uses only the engine's API.
//!
//! ```text
//!                       ┌ inner network, internal, without host   ┐
//!     agent's container ┤   or: no network, a volume of sockets   ├ bundle's container ─ outer network ─► internet
//!       guest, pid 1    └─────────────────────────────────────────┘   bundle, pid 1
//!           ║ standard streams                                          ║ standard streams
//!           ╚═════════════════════════ the keeper ══════════════════════╝
//! ```
//! - `endpoint`: finds the engine's socket · `engine`, `engine_error`, `ping`: the connection and its errors ·
//!   `identity`: the identity of the engine
//! - `names`: names and labels of a bottle's objects
//! - `subnets`, `routes`, `network`: addresses and networks
//! - `limits`: the resource limits that the engine enforces · `podman`: commits on Podman
//! - `runtime`: the container runtime and the transport that it supports · `runtime_trial`: whether a runtime works
//! - `hardened`, `agent`, `bundle`: the create requests of the containers, without side effects
//! - `container_entry`: the command lines of this program inside the containers · `container_roles`: the roles that
//!   these command lines run
//! - `host_directories`: whether containers see directories of this machine · `shared_objects`: shares git objects
//! - `live`: mounts a directory of the user as the workspace · `container_live`: checks the mounted directory in the
//!   container
//! - `container`, `attach`: create, start, find and attach to containers
//! - `prepare`, `images`: the images and the program volume of a bottle · `launch`: the state of a launch between its
//!   phases
//! - `snapshot_images`, `commit`: snapshots · `kept`: resumes kept containers and opens their files · `flatten`: limits
//!   the layers of images
//! - `portable`, `imported_snapshot`: exports and imports snapshots · `home_import`: imports a home and a workspace
//!   without an image
//! - `run_state`: whether the containers run
//! - `changed_work`: detects changes in a bottle's workspace
//! - `inventory`: lists and removes resources · `pending_usage`: saves usage records before a removal · `listing`:
//!   lists an engine's images
//! - `check`: the findings of `bottle doctor`
//!
//! A container's configuration contains no secrets. No program of an image runs automatically, because entrypoints and
//! health checks are disabled. Calls identify objects by the engine's ids. Only objects with the name and the labels of
//! this `$BOTTLE_HOME` are removed.

mod agent;
mod attach;
mod bundle;
mod changed_work;
mod check;
pub(crate) mod commit;
mod container;
mod container_entry;
#[cfg(target_os = "linux")]
mod container_live;
#[cfg(target_os = "linux")]
pub mod container_roles;
mod endpoint;
mod engine;
mod engine_error;
mod flatten;
mod hardened;
mod home_import;
mod host_directories;
mod identity;
pub mod images;
mod imported_snapshot;
mod inventory;
mod kept;
mod launch;
mod limits;
mod listing;
mod live;
pub(crate) mod names;
mod network;
mod pending_usage;
mod ping;
mod podman;
pub(crate) mod portable;
mod prepare;
mod routes;
mod run_state;
mod runtime;
mod runtime_trial;
mod shared_objects;
mod snapshot_images;
mod snapshot_pause;
mod subnets;
mod volume_owner;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use async_trait::async_trait;
use bottle_backend::portable_image::{Export, ExportedImage, Import, Imported};
use bottle_backend::{
    Backend, BackendError, ByteStream, Capabilities, Check, EngineIdentity, KeptFiles, Launch, Lifecycle,
    MadeSnapshot, NewSnapshot, PausedBy, Prepared, Preview, ProgressSink, RepositoryObjects, Resource,
    RunState, Snapshot, Snapshots, Step, Unused,
};
use bottle_host::Host;
use bottle_host::causes;
use bottle_host::docker_settings::{self, DockerSettings};
use bottle_host::settings::Settings;
use bottle_plan::Plan;
use bottle_policy::names::{EGRESS_PORT, Slug};
use bottle_protocol::session::guest::{Changed, Changes, SecretText};
use tokio::sync::OnceCell;

use self::engine::{Engine, EngineError};
use self::flatten::Source;
use self::host_directories::Obstacle;
use self::images::Images;
use self::launch::Launches;
use self::limits::Enforced;
use self::names::{Names, Part};

/// The environment variable that sets the agent's container runtime for one start.
const RUNTIME_VARIABLE: &str = "BOTTLE_RUNTIME";

/// The backend that runs bottles on a container engine.
#[derive(Debug)]
pub struct DockerBackend {
    host: Host,
    names: Names,
    engine: OnceCell<Engine>,
    launches: Launches,
    /// The images that a preview found. They are kept so that the preparation does not query them again.
    images: OnceCell<Images>,
}

impl DockerBackend {
    /// Creates the backend for this `$BOTTLE_HOME`. Does not connect to the engine yet.
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

    /// Returns the engine. `None` if this user has no usable engine, and therefore no resources on an engine. The
    /// removal of recorded resources uses [`Self::engine`], which reports why the engine is not usable.
    async fn engine_if_any(&self, doing: &str) -> Result<Option<&Engine>, BackendError> {
        match self.engine.get_or_try_init(|| Engine::connect(&self.host)).await {
            Ok(engine) => Ok(Some(engine)),
            Err(error) if error.is_unusable() => Ok(None),
            Err(error) => Err(error.during(doing)),
        }
    }

    async fn images(&self) -> Result<&Images, BackendError> {
        let engine = self.engine("find the bottle's images").await?;
        Ok(self.images.get_or_init(async || self.images_on(engine)).await)
    }

    fn images_on(&self, engine: &Engine) -> Images {
        let images = Images::new(engine.docker(), &engine.endpoint.socket, &self.host);
        images.on_podman(engine.podman_socket().is_some())
    }

    /// Describes the default limits that the engine ignores. Returns an error if the engine ignores a limit of the
    /// plan.
    async fn limits(&self, plan: &Plan) -> Result<Vec<String>, BackendError> {
        let doing = "find the engine's limits";
        let engine = self.engine(doing).await?;
        let info = engine.info().await.map_err(|error| error.during(doing))?;
        Enforced::of(info).check(&plan.resources)
    }

    fn settings(&self) -> Result<DockerSettings, BackendError> {
        let settings =
            Settings::load(&self.host).map_err(|error| BackendError::failed(causes::one_line(&error)))?;
        let runtime = match self.host.var(RUNTIME_VARIABLE) {
            Some(docker_settings::AUTO) => None,
            Some(named) => Some(named.to_owned()),
            None => settings.docker.runtime,
        };
        Ok(DockerSettings { runtime, ..settings.docker })
    }

    /// Returns the runtime of the agent's container. This is the runtime in the settings, or otherwise the preferred
    /// runtime if [`DockerBackend::try_runtime`] found that it works. `None` means the engine's default runtime.
    async fn runtime(&self, engine: &Engine, doing: &str) -> Result<Option<String>, BackendError> {
        let settings = self.settings()?;
        let info = engine.info().await.map_err(|error| error.during(doing))?;
        let Some(preferred) = runtime::preferred(&settings, info) else { return Ok(settings.runtime) };
        let earlier = runtime_trial::earlier(&self.host.home, &runtime_trial::subject(preferred, info));
        let works = earlier.is_some_and(|verdict| verdict.failure.is_none());
        Ok(works.then(|| preferred.to_owned()))
    }

    /// Returns why the agent's container cannot see directories of this machine. `None` if the container can see them.
    async fn obstacle(&self, runtime: Option<&str>, doing: &str) -> Result<Option<Obstacle>, BackendError> {
        let engine = self.engine(doing).await?;
        let info = engine.info().await.map_err(|error| error.during(doing))?;
        Ok(host_directories::obstacle(engine, info, runtime))
    }

    /// Tries the preferred runtime, unless it was tried before. Returns a note for the user if the runtime does not
    /// work.
    async fn try_runtime(&self, prepared: &Prepared) -> Result<Option<String>, BackendError> {
        let doing = "try the container runtime";
        let (engine, settings) = (self.engine(doing).await?, self.settings()?);
        let info = engine.info().await.map_err(|error| error.during(doing))?;
        let (Some(preferred), Some(image), Some(roles)) =
            (runtime::preferred(&settings, info), &prepared.inside, &prepared.roles)
        else {
            return Ok(None);
        };
        let subject = runtime_trial::subject(preferred, info);
        let verdict = match runtime_trial::earlier(&self.host.home, &subject) {
            Some(earlier) => earlier,
            None => {
                let inputs = (image, roles);
                runtime_trial::run(engine, &self.names, &self.host.home, preferred, subject, inputs).await
            }
        };
        Ok(verdict
            .failure
            .map(|why| format!("the engine's runtime {preferred} is not used, because it fails: {why}")))
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { isolates: true, commit_pauses: true }
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
        plan.live.as_ref().map_or(Ok(()), live::require_ordinary)?;
        let asked = &plan.resources;
        BackendError::reject_unsupported_limits(
            self.name(),
            &[(asked.nested, "nested"), (asked.disk.is_some(), "disk")],
        )
    }
}

#[async_trait]
impl bottle_backend::Images for DockerBackend {
    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        let preview = self.images().await?.preview(plan).await?;
        let limits = [preview.limits, self.limits(plan).await?].concat();
        let doing = "look for shared directories";
        let runtime = self.runtime(self.engine(doing).await?, doing).await?;
        let obstacle = self.obstacle(runtime.as_deref(), doing).await?;
        if let Some(live) = &plan.live {
            live::require_visible(live, obstacle.as_ref())?;
        }
        let shares_objects = obstacle.is_none();
        Ok(Preview { limits, shares_objects, ..preview })
    }

    async fn prepare(
        &self,
        plan: &Plan,
        secrets: &BTreeMap<String, SecretText>,
        progress: &ProgressSink<Step>,
    ) -> Result<Prepared, BackendError> {
        let images = self.images().await?;
        let (mut prepared, _) =
            tokio::try_join!(prepare::prepare(images, plan, secrets, progress), self.limits(plan))?;
        if let (Some(live), Some(image)) = (&plan.live, &prepared.inside) {
            live::require_image(live, image)?;
        }
        let note = self.try_runtime(&prepared).await?;
        prepared.notes.extend(note);
        Ok(prepared)
    }

    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        let doing = "look for unused images";
        let Some(engine) = self.engine_if_any(doing).await? else { return Ok(Vec::new()) };
        self.images_on(engine).unused().await
    }

    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        let engine = self.engine("remove unused images").await?;
        self.images_on(engine).remove_unused(unused).await
    }
}

#[async_trait]
impl Lifecycle for DockerBackend {
    async fn make_network(&self, launch: &Launch<'_>) -> Result<(), BackendError> {
        let doing = "make the bottle's network";
        let (engine, settings) = (self.engine(doing).await?, self.settings()?);
        let info = engine.info().await.map_err(|error| error.during(doing))?;
        let runtime = self.runtime(engine, doing).await?;
        let transport = runtime::transport(&settings, runtime.as_deref(), info);
        self.launches.make_network(engine, &self.names, transport, settings.subnets, launch).await
    }

    async fn start_bundle(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        let engine = self.engine("start the bundle").await?;
        self.launches.start_bundle(engine, &self.names, self.settings()?.subnets, launch, prepared).await
    }

    async fn start_guest(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        let doing = "start the bottle";
        let engine = self.engine(doing).await?;
        let runtime = self.runtime(engine, doing).await?;
        let obstacle = self.obstacle(runtime.as_deref(), doing).await?;
        if let Some(live) = &launch.plan.live {
            live::require_visible(live, obstacle.as_ref())?;
        }
        let runtime = (runtime.as_deref(), obstacle.is_none());
        self.launches.start_guest(engine, &self.names, launch, prepared, runtime).await
    }

    async fn share_objects(
        &self,
        launch: &Launch<'_>,
        objects: &RepositoryObjects,
    ) -> Result<bool, BackendError> {
        let engine = self.engine("share the git objects").await?;
        self.launches.share_objects(engine, &self.names, launch, objects).await
    }

    async fn open_kept(&self, kept: &KeptFiles<'_>) -> Result<(), BackendError> {
        let engine = self.engine("open the bottle's files").await?;
        let program = self.images().await?.program().await?;
        let runtime = self.runtime(engine, "open the bottle's files").await?;
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

    async fn recover(&self, slug: &Slug, by: PausedBy) -> Result<(), BackendError> {
        let engine = self.engine("continue the bottle").await?;
        let directory = self.host.state().join(slug.as_str());
        match by {
            PausedBy::Snapshot => snapshot_pause::end(engine, &self.names, slug, &directory).await,
            PausedBy::Other => run_state::unpause(engine, &self.names, slug).await,
        }
    }

    async fn find_work(&self, slug: &Slug, request: &Changed, _: bool) -> Result<Changes, BackendError> {
        let engine = self.engine("look for changes in the workspace").await?;
        changed_work::find_work(engine, &self.names, slug, request).await
    }

    async fn size(&self, slug: &Slug) -> Result<Option<u64>, BackendError> {
        let doing = "measure the bottle's files";
        let engine = self.engine(doing).await?;
        let failed = |error: EngineError| error.during(doing);
        match container::find_agent(engine, &self.names, slug).await.map_err(failed)? {
            Some(container) => engine.writable_size(&container.id).await.map_err(failed),
            None => Ok(None),
        }
    }

    fn kept_workspace(&self, _: &Slug) -> Option<PathBuf> {
        // The workspace is in the engine's store and has no directory on the host. `bottle cp` and `bottle resume` can
        // still read the workspace.
        None
    }

    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        if resources.is_empty() {
            return Ok(());
        }
        let engine = self.engine("remove a bottle's resources").await?;
        inventory::remove(engine, &self.names, &self.host.state(), resources).await
    }
}

#[async_trait]
impl Snapshots for DockerBackend {
    async fn snapshot_exclusions(&self, slug: &Slug) -> Result<Vec<String>, BackendError> {
        let engine = self.engine("look at the bottle").await?;
        snapshot_images::snapshot_exclusions(engine, &self.names, slug).await
    }

    async fn make_snapshot(
        &self,
        slug: &Slug,
        new: &NewSnapshot,
        progress: ProgressSink,
    ) -> Result<MadeSnapshot, BackendError> {
        let engine = self.engine("make a snapshot").await?;
        let source = Source { engine, names: &self.names, slug, progress: &progress };
        snapshot_images::make(&source, &self.host.state(), new).await
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

    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError> {
        let engine = self.engine("export the snapshot").await?;
        portable::export(engine, &self.names, export).await
    }

    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError> {
        let engine = self.engine("import the bottle").await?;
        portable::import(engine, &self.names, import).await
    }
}
