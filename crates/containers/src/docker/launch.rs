//! Runs the phases of a launch, and keeps the state that later phases need.
//!
//! A phase creates independent resources in parallel. The state between phases exists only in the launching process.
//! Later processes find the resources by their names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bollard::models::{NetworkConnectRequest, VolumeCreateRequest};
use bottle_backend::{
    Access, BackendError, BackendErrorKind, ByteStream, ImageInfo, KeptFiles, LAYERS, Launch, Origin,
    Prepared, ProgressSink, RepositoryObjects, Resource, ResourceLog, RoleInputs,
};
use bottle_channel::rejoin;
use bottle_host::docker_settings::DockerTransport;
use bottle_host::plain_file;
use bottle_plan::Workspace;
use bottle_policy::names::Slug;
use bottle_policy::route::{OWN_MACHINE, RouteTable};
use bottle_text::terminal::inert;
use ipnet::Ipv4Net;

use super::agent::Agent;
use super::attach::{Attached, attach};
use super::bundle::{Bundle, FirstNetwork};
use super::container::{self, create, start};
use super::engine::{Engine, EngineError, PART_REMOVED_HINT};
use super::inventory::{BUNDLE, GUEST, READER, VOLUME};
use super::limits::Enforced;
use super::live::{self, WorkspaceFiles};
use super::names::{self, Names, Part};
use super::network::{self, Net, Transport};
use super::{kept, run_state, shared_objects, snapshot_images, subnets, volume_owner};

/// The size limit of the tmpfs for the proxy's sockets, in pages, because Podman does not accept the volume option
/// `size`.
const LISTENER_DIR_PAGES: u32 = 256;

/// The maximum number of bytes of a container's standard error in an error message.
const LAST_WORDS: u64 = 512;

/// The state of the launches in this process.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// The results of [`Launches::make_network`].
    transports: Mutex<BTreeMap<Slug, Transport>>,
    /// Streams that were attached before the container was started.
    opened: Mutex<BTreeMap<(Slug, Part), Attached>>,
    /// The new bottles with a container that mounts the directory of the shared git objects.
    sharing: Mutex<BTreeSet<Slug>>,
}

impl Launches {
    /// Implements [`bottle_backend::Lifecycle::make_network`]. Only the bundle uses the outer network. The outer
    /// network is created later, together with the bundle, while pid 1 starts, because an engine creates networks one
    /// after the other.
    pub(super) async fn make_network(
        &self,
        engine: &Engine,
        names: &Names,
        transport: DockerTransport,
        subnets: Ipv4Net,
        launch: &Launch<'_>,
    ) -> Result<(), BackendError> {
        let slug = &launch.plan.identity.slug;
        let transport = match transport {
            DockerTransport::Network => {
                let made = network::make(engine, names, subnets, Part::Inner, slug, launch.resources);
                Transport::Network(made.await?)
            }
            DockerTransport::Socket => {
                Transport::Socket(make_listener_dir(engine, names, slug, launch.resources).await?)
            }
        };
        locked(&self.transports).insert(slug.clone(), transport);
        Ok(())
    }

    /// Implements [`bottle_backend::Lifecycle::start_bundle`].
    pub(super) async fn start_bundle(
        &self,
        engine: &Engine,
        names: &Names,
        subnets: Ipv4Net,
        launch: &Launch<'_>,
        prepared: &Prepared,
    ) -> Result<(), BackendError> {
        let slug = &launch.plan.identity.slug;
        let failed = |error: EngineError| error.during("start the bundle");
        let (transport, roles) = (self.transport(slug)?, roles(prepared)?);
        let outside = network::make(engine, names, subnets, Part::Outer, slug, launch.resources);
        let state = make_volume(engine, names, (slug, launch.resources), Part::State, None).await?;
        let enforced = Enforced::of(engine.info().await.map_err(failed)?);
        let to_machine = has_route_to_machine(&launch.plan.egress.routes);
        let machine = |outside: &Net| to_machine.then(|| subnets::machine(outside.subnet));
        let make = async |network, machine| {
            let bundle = Bundle {
                names,
                slug,
                labels: names.arguments(slug),
                image: &roles.sidecars,
                state: &state,
                gate: !launch.plan.repos.is_empty(),
                supervise: launch.plan.supervise,
                machine,
                transport: &transport,
                enforced,
                on_podman: engine.podman_socket().is_some(),
                network,
            };
            make_bundle(engine, launch, &bundle).await
        };
        let (id, attached) = match &transport {
            Transport::Network(shared) if to_machine => {
                // The create request contains the machine's address on the outer network, so the network must exist
                // first.
                let outside = outside.await?;
                let made = make(FirstNetwork::Made(shared), machine(&outside)).await?;
                join_outside(engine, &outside, &made.0).await.map_err(failed)?;
                made
            }
            Transport::Network(shared) => {
                // Waits for both the outer network and the container, even if one of them fails. Otherwise the engine
                // could create one of them while the failed launch is undone.
                let (outside, made) = tokio::join!(outside, make(FirstNetwork::Made(shared), None));
                let (outside, (id, attached)) = (outside?, made?);
                join_outside(engine, &outside, &id).await.map_err(failed)?;
                (id, attached)
            }
            Transport::Socket(_) if to_machine || engine.podman_socket().is_some() => {
                let outside = outside.await?;
                make(FirstNetwork::Made(&outside), machine(&outside)).await?
            }
            Transport::Socket(_) => {
                // The engine looks up the network only when the container starts, so the network and the container can
                // be created in parallel.
                let name = names.name(Part::Outer, slug);
                let (outside, made) = tokio::join!(outside, make(FirstNetwork::Named(&name), None));
                outside?;
                made?
            }
        };
        start(engine, &id).await.map_err(failed)?;
        locked(&self.opened).insert((slug.clone(), Part::Bundle), attached);
        Ok(())
    }

    /// Implements [`bottle_backend::Lifecycle::start_guest`]. `sees_directories` says whether the container can
    /// probably see directories of this machine.
    pub(super) async fn start_guest(
        &self,
        engine: &Engine,
        names: &Names,
        launch: &Launch<'_>,
        prepared: &Prepared,
        (runtime, sees_directories): (Option<&str>, bool),
    ) -> Result<(), BackendError> {
        let slug = &launch.plan.identity.slug;
        let failed = |error: EngineError| error.during("start the bottle");
        let (transport, roles, inside) = (self.transport(slug)?, roles(prepared)?, inside(prepared)?);
        let objects = objects_directory(launch, sees_directories)?;
        if let Some(live) = &launch.plan.live {
            live::require_image(live, inside)?;
        }
        let workspace = WorkspaceFiles::of(launch.plan.live.as_ref());
        let agent = Agent {
            names,
            slug,
            part: Part::Agent,
            image: &inside.image,
            user: workspace.user(inside),
            program: &roles.program,
            transport: Some(&transport),
            workspace,
            objects: objects.as_deref(),
            read_only: false,
            limits: &launch.plan.resources,
            enforced: Enforced::of(engine.info().await.map_err(failed)?),
            on_podman: engine.podman_socket().is_some(),
            runtime,
            api: engine.pong.api,
        };
        let id = match launch.origin {
            Origin::New => {
                let id = self.create_new(engine, agent).await.map_err(failed)?;
                launch.resources.record(Resource::new(slug, LAYERS, id.clone()))?;
                volume_owner::give_to_agent(engine, &id, inside, workspace).await?;
                id
            }
            Origin::Snapshot(snapshot) => {
                let image = snapshot_images::image_of(engine, names, snapshot).await?;
                let image =
                    kept::shallow(engine, names, slug, image, launch.progress).await.map_err(failed)?;
                kept::set_aside(engine, names, slug).await.map_err(failed)?;
                let agent = Agent { image: &image, ..agent };
                let id = kept::create_agent(engine, &agent, None).await.map_err(failed)?;
                launch.resources.record(Resource::new(slug, LAYERS, id.clone()))?;
                volume_owner::give_to_agent(engine, &id, inside, workspace).await?;
                kept::remove_set_aside(engine, names, slug, true).await.map_err(failed)?;
                // The image of the snapshot contains the git objects, so the directory with the shared objects is
                // removed.
                shared_objects::remove(launch.state)
                    .map_err(|error| cannot_use(&shared_objects::directory(launch.state), "remove", error))?;
                id
            }
            Origin::Kept => {
                kept::continue_kept(engine, launch.resources, "resume", agent, launch.progress).await?
            }
        };
        let attached = attach(engine, &id, Some(&log_of(launch.state, "guest"))).await.map_err(failed)?;
        launch.resources.record(Resource::new(slug, GUEST, id.clone()))?;
        start(engine, &id).await.map_err(failed)?;
        locked(&self.opened).insert((slug.clone(), Part::Agent), attached);
        Ok(())
    }

    /// Creates the container of a new bottle. The container mounts no shared git objects if the engine does not see
    /// their directory.
    async fn create_new(&self, engine: &Engine, agent: Agent<'_>) -> Result<String, EngineError> {
        let created = kept::create_agent(engine, &agent, None).await;
        if agent.objects.is_none() {
            return created;
        }
        match created {
            Err(error) if shared_objects::is_unseen(&error) => {
                kept::create_agent(engine, &Agent { objects: None, ..agent }, None).await
            }
            created => created.inspect(|_| {
                locked(&self.sharing).insert(agent.slug.clone());
            }),
        }
    }

    /// Implements [`bottle_backend::Lifecycle::share_objects`].
    pub(super) async fn share_objects(
        &self,
        engine: &Engine,
        names: &Names,
        launch: &Launch<'_>,
        objects: &RepositoryObjects,
    ) -> Result<bool, BackendError> {
        let slug = &launch.plan.identity.slug;
        if !locked(&self.sharing).contains(slug) {
            return Ok(false);
        }
        let directory = shared_objects::directory(launch.state);
        let container = names.name(Part::Agent, slug);
        let sees = shared_objects::sees(engine, &container, &directory).await;
        if !sees.map_err(|error| error.during("share the git objects"))? {
            return Ok(false);
        }
        shared_objects::share(objects, &directory).await.map(|()| true)
    }

    /// Implements [`bottle_backend::Lifecycle::open_kept`].
    pub(super) async fn open_kept(
        &self,
        engine: &Engine,
        names: &Names,
        files: &KeptFiles<'_>,
        program: &str,
        runtime: Option<&str>,
    ) -> Result<(), BackendError> {
        let failed = |error: EngineError| error.during(&format!("open the files of {}", files.slug));
        let KeptFiles { slug, sandbox, .. } = *files;
        let workspace = WorkspaceFiles::of(sandbox.live.as_ref());
        let user = workspace.user(inside(&sandbox.prepared)?);
        let objects = shared_objects::directory(files.state);
        let agent = Agent {
            names,
            slug,
            part: Part::Reader,
            image: "",
            user,
            program,
            transport: None,
            workspace,
            objects: objects.to_str(),
            read_only: true,
            limits: &sandbox.limits,
            enforced: Enforced::of(engine.info().await.map_err(failed)?),
            on_podman: engine.podman_socket().is_some(),
            runtime,
            api: engine.pong.api,
        };
        let (kind, id) = match files.access {
            Access::Read => (READER, kept::make_reader(engine, agent).await?),
            Access::Write => {
                // Without kept files, no resource may be created.
                kept::find_kept(engine, names, slug, "open").await?;
                // The container has the wiring of the socket transport, so that a later launch can start the container
                // again. No proxy listens on the sockets.
                let transport =
                    Transport::Socket(make_listener_dir(engine, names, slug, files.resources).await?);
                let agent =
                    Agent { part: Part::Agent, transport: Some(&transport), read_only: false, ..agent };
                let progress = ProgressSink::discard();
                (GUEST, kept::continue_kept(engine, files.resources, "open", agent, &progress).await?)
            }
        };
        files.resources.record(Resource::new(slug, kind, id.clone()))?;
        let attached = attach(engine, &id, Some(&log_of(files.state, "guest"))).await.map_err(failed)?;
        start(engine, &id).await.map_err(failed)?;
        locked(&self.opened).insert((files.slug.clone(), Part::Agent), attached);
        Ok(())
    }

    /// Opens the channel to pid 1 of this part. Returns the stream that was attached before the container started, or
    /// otherwise attaches a new stream.
    pub(super) async fn connect(
        &self,
        engine: &Engine,
        names: &Names,
        part: Part,
        slug: &Slug,
    ) -> Result<ByteStream, BackendError> {
        let who = match part {
            Part::Bundle => "bundle",
            _ => "guest",
        };
        let unreachable = |error: EngineError| error.during(&format!("connect to the {who} of {slug}"));
        let opened = locked(&self.opened).remove(&(slug.clone(), part));
        let attached = match opened {
            Some(attached) => attached,
            None => {
                let found = container::find(engine, names, part, slug).await.map_err(unreachable)?;
                let Some(found) = found.filter(|found| found.running) else {
                    let message = format!("cannot connect to the {who} of {slug}: it is not running");
                    return Err(
                        BackendError::new(BackendErrorKind::NotRunning, message).with_hint(PART_REMOVED_HINT)
                    );
                };
                if found.paused {
                    let message = format!("cannot connect to the {who} of {slug}: its container is paused");
                    return Err(BackendError::new(BackendErrorKind::Busy, message)
                        .with_hint(run_state::unpause_hint(&names.name(part, slug))));
                }
                attach(engine, &found.id, None).await.map_err(unreachable)?
            }
        };
        let log = attached.log().map(Path::to_owned);
        match rejoin(attached).await {
            Ok(joined) => Ok(Box::new(joined)),
            Err(error) => {
                let failed = BackendError::failed(format!("cannot connect to the {who} of {slug}"));
                let ended = container::find(engine, names, part, slug).await.ok().flatten();
                Err(match (ended.and_then(|found| found.exit_code), log) {
                    (Some(code), Some(log)) => failed.because(Ended { code, words: last_words(&log) }),
                    _ => failed.because(error).with_hint(PART_REMOVED_HINT),
                })
            }
        }
    }

    fn transport(&self, slug: &Slug) -> Result<Transport, BackendError> {
        let transport = locked(&self.transports).get(slug).cloned();
        transport
            .ok_or_else(|| BackendError::failed(format!("this process did not create the network of {slug}")))
    }
}

/// Creates the volume for the proxy's sockets, which is a small tmpfs. Every user may create files in the volume,
/// because an engine that maps user ids cannot make the sidecars' user its owner. Only the bundle's container mounts
/// the volume writable.
async fn make_listener_dir(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    resources: &dyn ResourceLog,
) -> Result<String, BackendError> {
    let mount = format!("nr_blocks={LISTENER_DIR_PAGES},mode=1777,nosuid,nodev,noexec");
    let options = [("type", "tmpfs"), ("device", "tmpfs"), ("o", &mount)];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    make_volume(engine, names, (slug, resources), Part::Sockets, Some(options.into())).await
}

/// Creates a volume of the bottle and records it, or returns the existing volume. Without options, the volume is a
/// directory on the engine's disk.
async fn make_volume(
    engine: &Engine,
    names: &Names,
    (slug, resources): (&Slug, &dyn ResourceLog),
    part: Part,
    options: Option<HashMap<String, String>>,
) -> Result<String, BackendError> {
    let name = names.name(part, slug);
    resources.record(Resource::new(slug, VOLUME, name.clone()))?;
    let request = VolumeCreateRequest {
        name: Some(name.clone()),
        driver: Some("local".to_owned()),
        driver_opts: options,
        labels: Some(names.labels(part, slug)),
        ..VolumeCreateRequest::default()
    };
    let failed = |error: EngineError| error.during("make a volume of the bottle");
    engine.call(engine.docker().create_volume(request)).await.map_err(failed)?;
    // If a volume of that name exists, the engine uses it, even if another program created it. The engine's answer then
    // lacks the labels if the engine was restarted after the volume was created (20.10).
    let volume = engine.call(engine.docker().inspect_volume(&name)).await.map_err(failed)?;
    if names.owned(&volume.name, &volume.labels).is_none() {
        return Err(names::foreign_volume(&name));
    }
    Ok(name)
}

/// Creates the bundle's container and attaches to it. Does not start the container.
async fn make_bundle(
    engine: &Engine,
    launch: &Launch<'_>,
    bundle: &Bundle<'_>,
) -> Result<(String, Attached), BackendError> {
    let failed = |error: EngineError| error.during("start the bundle");
    let slug = bundle.slug;
    let id = create(engine, &bundle.names.name(Part::Bundle, slug), bundle.body()).await.map_err(failed)?;
    launch.resources.record(Resource::new(slug, BUNDLE, id.clone()))?;
    let attached = attach(engine, &id, Some(&log_of(launch.state, "bundle"))).await.map_err(failed)?;
    Ok((id, attached))
}

async fn join_outside(engine: &Engine, outside: &Net, id: &str) -> Result<(), EngineError> {
    let endpoint = Some(Bundle::endpoint(outside));
    let request = NetworkConnectRequest { container: id.to_owned(), endpoint_config: endpoint };
    engine.call(engine.docker().connect_network(&outside.id, request)).await
}

/// Returns the directory of the shared git objects, which the container mounts if it can. Creates the directory for a
/// new bottle.
fn objects_directory(launch: &Launch<'_>, sees_directories: bool) -> Result<Option<String>, BackendError> {
    let copies_repository = !matches!(launch.plan.workspace, Workspace::Empty | Workspace::Files);
    let directory = match launch.origin {
        Origin::Snapshot(_) => return Ok(None),
        Origin::Kept => shared_objects::directory(launch.state),
        Origin::New if copies_repository && sees_directories => shared_objects::make_directory(launch.state)
            .map_err(|error| cannot_use(&shared_objects::directory(launch.state), "make", error))?,
        Origin::New => return Ok(None),
    };
    Ok(directory.to_str().map(str::to_owned))
}

fn cannot_use(directory: &Path, verb: &str, error: std::io::Error) -> BackendError {
    BackendError::failed(format!("cannot {verb} {}", directory.display())).because(error)
}

fn roles(prepared: &Prepared) -> Result<&RoleInputs, BackendError> {
    prepared.roles.as_ref().ok_or_else(for_another)
}

fn inside(prepared: &Prepared) -> Result<&ImageInfo, BackendError> {
    prepared.inside.as_ref().ok_or_else(for_another)
}

/// Creates the error for a launch whose inputs come from another backend.
fn for_another() -> BackendError {
    BackendError::failed("the bottle was prepared for another backend")
}

/// Whether any of these routes connects to the user's machine.
fn has_route_to_machine(table: &RouteTable) -> bool {
    table.routes().iter().any(|route| route.connect_to.as_ref().is_some_and(|to| to.host == OWN_MACHINE))
}

/// Pid 1 of a container ended before it answered.
#[derive(Debug, thiserror::Error)]
#[error("its first process ended with exit code {code}{words}")]
struct Ended {
    code: i64,
    /// The end of the process's standard error, after a colon.
    words: String,
}

/// Returns the last lines of a log, as the end of a sentence. Empty if the log has no lines.
fn last_words(log: &Path) -> String {
    let mut end = Vec::new();
    let _ = plain_file::open(log).and_then(|mut log| {
        let start = log.metadata()?.len().saturating_sub(LAST_WORDS);
        log.seek(SeekFrom::Start(start))?;
        log.take(LAST_WORDS).read_to_end(&mut end)
    });
    let end = String::from_utf8_lossy(&end);
    let lines: Vec<&str> = end.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { String::new() } else { format!(": {}", inert(&lines.join("; "))) }
}

/// Returns the path of the log for a role's standard error.
fn log_of(state: &Path, role: &str) -> PathBuf {
    state.join("logs").join(format!("{role}.log"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
