//! The phases of a launch, and what one of them leaves for the next.
//!
//! A phase makes all that is independent at once. What is kept here lives as long as the process that
//! launches; whoever comes later finds everything by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bollard::models::{NetworkConnectRequest, VolumeCreateRequest};
use bottle_channel::rejoin;
use bottle_contract::names::Slug;
use bottle_contract::route::{Form, OWN_MACHINE, parse_routes};

use super::agent::Agent;
use super::attach::{Attached, attach};
use super::bundle::Bundle;
use super::container::{self, create, start};
use super::engine::{Engine, EngineError, LEFT};
use super::inventory::{BUNDLE, GUEST, VOLUME, resource};
use super::names::{Names, Part};
use super::network::{self, Net};
use super::{agent, bundle, freeze, kept, subnets};
use crate::backend::{
    BackendError, ByteStream, Contained, GATE_FOLDER, Inside, LAYERS, Origin, Prepared, SIDECAR_LOGS, Site,
};
use crate::host::docker_settings::{DockerSettings, DockerTransport};

/// Whom a bundle runs as when the user is root: nobody that the host knows.
const BUNDLE_UID: u32 = 64_242;

/// Room for the proxy's sockets: none of them has content.
const LISTENER_DIR_SIZE: &str = "1m";

/// The launches of this process.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// What [`Launches::make_network`] made.
    ways: Mutex<BTreeMap<Slug, OwnedTransport>>,
    /// Streams that were opened before their container started.
    opened: Mutex<BTreeMap<(Slug, Part), Attached>>,
}

/// How the two containers meet.
#[derive(Debug, Clone)]
enum OwnedTransport {
    /// On this network.
    Network(Net),
    /// In this volume.
    Socket(String),
}

impl Launches {
    /// See [`crate::backend::Backend::make_network`]. The way out is the bundle's alone and is made with it,
    /// while pid 1 starts: an engine makes one network after the other.
    pub(super) async fn make_network(
        &self,
        engine: &Engine,
        names: &Names,
        settings: &DockerSettings,
        site: &Site<'_>,
    ) -> Result<(), BackendError> {
        let slug = &site.plan.identity.slug;
        let way = match settings.transport {
            DockerTransport::Network => {
                let made = network::make(engine, names, settings.subnets, Part::Inside, slug, site.ledger);
                OwnedTransport::Network(made.await?)
            }
            DockerTransport::Socket => OwnedTransport::Socket(make_listener_dir(engine, names, site).await?),
        };
        locked(&self.ways).insert(slug.clone(), way);
        Ok(())
    }

    /// See [`crate::backend::Backend::start_bundle`].
    pub(super) async fn start_bundle(
        &self,
        engine: &Engine,
        names: &Names,
        settings: &DockerSettings,
        site: &Site<'_>,
        prepared: &Prepared,
    ) -> Result<(), BackendError> {
        let slug = &site.plan.identity.slug;
        let failed = |error: EngineError| error.during("start the bundle");
        let (way, contained) = (self.way(slug)?, contained(prepared)?);
        let outside = network::make(engine, names, settings.subnets, Part::Outside, slug, site.ledger);
        let user = bundle_user();
        let logs = make_logs(site.state, user)?;
        let gate = if site.plan.repos.is_empty() { None } else { Some(make_gate(site.state, user)?) };
        let to_machine = leads_to_machine(&site.plan.egress.routes);
        let machine = |outside: &Net| to_machine.then(|| subnets::machine(outside.subnet));
        let make = async |way, machine| {
            let bundle = Bundle {
                names,
                slug,
                labels: names.arguments(slug),
                image: &contained.sidecars,
                user,
                logs: &logs,
                gate: gate.as_deref(),
                supervise: site.plan.supervise,
                machine,
                way,
            };
            make_bundle(engine, site, &bundle).await
        };
        let (id, attached) = match &way {
            OwnedTransport::Network(shared) if to_machine => {
                // What it is made with has the machine's place on its way out.
                let outside = outside.await?;
                let made = make(bundle::BundleTransport::Network(shared), machine(&outside)).await?;
                join_outside(engine, &outside, &made.0).await.map_err(failed)?;
                made
            }
            OwnedTransport::Network(shared) => {
                // Joined, not raced: nothing is being made while a failure of either is undone.
                let (outside, made) =
                    tokio::join!(outside, make(bundle::BundleTransport::Network(shared), None));
                let (outside, (id, attached)) = (outside?, made?);
                join_outside(engine, &outside, &id).await.map_err(failed)?;
                (id, attached)
            }
            OwnedTransport::Socket(volume) => {
                let outside = outside.await?;
                make(bundle::BundleTransport::Socket { volume, outside: &outside }, machine(&outside)).await?
            }
        };
        start(engine, &id).await.map_err(failed)?;
        locked(&self.opened).insert((slug.clone(), Part::Bundle), attached);
        Ok(())
    }

    /// See [`crate::backend::Backend::start_guest`].
    pub(super) async fn start_guest(
        &self,
        engine: &Engine,
        names: &Names,
        site: &Site<'_>,
        prepared: &Prepared,
        runtime: Option<&str>,
    ) -> Result<(), BackendError> {
        let slug = &site.plan.identity.slug;
        let failed = |error: EngineError| error.during("start the bottle");
        let (way, contained, inside) = (self.way(slug)?, contained(prepared)?, inside(prepared)?);
        let image = match site.origin {
            Origin::New => inside.image.clone(),
            Origin::Snapshot(snapshot) => {
                let image = freeze::image_of(engine, names, snapshot).await?;
                kept::clear_the_name(engine, names, slug).await.map_err(failed)?;
                image
            }
            Origin::Kept => kept::image_of(engine, names, site).await?,
        };
        let agent = Agent {
            names,
            slug,
            image: &image,
            user: (inside.uid, inside.gid),
            program: &contained.program,
            way: match &way {
                OwnedTransport::Network(net) => agent::Transport::Network(net),
                OwnedTransport::Socket(volume) => agent::Transport::Socket(volume),
            },
            limits: &site.plan.resources,
            runtime,
            api: engine.pong.api,
        };
        let id = create(engine, &names.name(Part::Agent, slug), agent.body()).await.map_err(failed)?;
        site.ledger.record(resource(slug, LAYERS, id.clone()))?;
        if *site.origin != Origin::New {
            kept::remove_aside(engine, names, slug).await.map_err(failed)?;
        }
        let attached = attach(engine, &id, Some(&log_of(site.state, "guest"))).await.map_err(failed)?;
        site.ledger.record(resource(slug, GUEST, id.clone()))?;
        start(engine, &id).await.map_err(failed)?;
        locked(&self.opened).insert((slug.clone(), Part::Agent), attached);
        Ok(())
    }

    /// The channel to pid 1 of this part: the one that was opened before it started, or one more.
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
        let unreachable = |error: EngineError| error.during(&format!("reach the {who} of {slug}"));
        let opened = locked(&self.opened).remove(&(slug.clone(), part));
        let attached = match opened {
            Some(attached) => attached,
            None => {
                let found = container::find_awake(engine, names, part, slug).await.map_err(unreachable)?;
                let Some(found) = found.filter(|found| found.running) else {
                    return Err(
                        BackendError::failed(format!("the {who} of {slug} does not run")).with_hint(LEFT)
                    );
                };
                if found.paused {
                    return Err(BackendError::busy(
                        format!("the {who} of {slug} is paused"),
                        "its engine makes a snapshot of it, or `docker unpause` is needed",
                    ));
                }
                attach(engine, &found.id, None).await.map_err(unreachable)?
            }
        };
        let joined = rejoin(attached).await.map_err(|error| {
            BackendError::failed(format!("the {who} of {slug} does not answer: {error}")).with_hint(LEFT)
        })?;
        Ok(Box::new(joined))
    }

    fn way(&self, slug: &Slug) -> Result<OwnedTransport, BackendError> {
        let way = locked(&self.ways).get(slug).cloned();
        way.ok_or_else(|| BackendError::failed(format!("the network of {slug} was not made by this process")))
    }
}

/// The volume that the bundle puts its sockets into. In memory, and the bundle's own.
async fn make_listener_dir(engine: &Engine, names: &Names, site: &Site<'_>) -> Result<String, BackendError> {
    let slug = &site.plan.identity.slug;
    let name = names.name(Part::Sockets, slug);
    site.ledger.record(resource(slug, VOLUME, name.clone()))?;
    let (uid, gid) = bundle_user();
    let options = format!("size={LISTENER_DIR_SIZE},mode=0755,uid={uid},gid={gid},nosuid,nodev,noexec");
    let request = VolumeCreateRequest {
        name: Some(name.clone()),
        driver: Some("local".to_owned()),
        driver_opts: Some(
            [("type", "tmpfs"), ("device", "tmpfs"), ("o", &options)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        ),
        labels: Some(names.labels(Part::Sockets, slug)),
        ..VolumeCreateRequest::default()
    };
    let made = engine.ask(engine.docker().create_volume(request)).await;
    let volume = made.map_err(|error| error.during("make the volume of the bottle's proxy"))?;
    // An engine answers with the one that is there already, whosever it is.
    if names.owned(&volume.name, &volume.labels).is_none() {
        return Err(BackendError::failed(format!("the engine has a volume {name} that is not bottle's"))
            .with_hint(format!("`docker volume rm {name}` makes room for it")));
    }
    Ok(name)
}

/// The bundle's container with its streams, not started yet.
async fn make_bundle(
    engine: &Engine,
    site: &Site<'_>,
    bundle: &Bundle<'_>,
) -> Result<(String, Attached), BackendError> {
    let failed = |error: EngineError| error.during("start the bundle");
    let slug = bundle.slug;
    let id = create(engine, &bundle.names.name(Part::Bundle, slug), bundle.body()).await.map_err(failed)?;
    site.ledger.record(resource(slug, BUNDLE, id.clone()))?;
    let attached = attach(engine, &id, Some(&log_of(site.state, "bundle"))).await.map_err(failed)?;
    Ok((id, attached))
}

async fn join_outside(engine: &Engine, outside: &Net, id: &str) -> Result<(), EngineError> {
    let endpoint = Some(Bundle::endpoint(outside));
    let request = NetworkConnectRequest { container: id.to_owned(), endpoint_config: endpoint };
    engine.ask(engine.docker().connect_network(&outside.id, request)).await
}

fn contained(prepared: &Prepared) -> Result<&Contained, BackendError> {
    prepared.contained.as_ref().ok_or_else(for_another)
}

fn inside(prepared: &Prepared) -> Result<&Inside, BackendError> {
    prepared.inside.as_ref().ok_or_else(for_another)
}

fn for_another() -> BackendError {
    BackendError::failed("the bottle was prepared for another backend")
}

/// Whether any of these routes leads to the user's machine. One that cannot be read leads nowhere.
fn leads_to_machine(routes: &str) -> bool {
    let Ok(table) = parse_routes(routes, Form::Runtime) else { return false };
    table.routes().iter().any(|route| route.connect_to.as_ref().is_some_and(|to| to.host == OWN_MACHINE))
}

/// The user's own ids, so that logs are the user's; never root's.
fn bundle_user() -> (u32, u32) {
    match rustix::process::geteuid().as_raw() {
        0 => (BUNDLE_UID, BUNDLE_UID),
        uid => (uid, rustix::process::getegid().as_raw()),
    }
}

/// The folder for the proxy's log.
fn make_logs(state: &Path, user: (u32, u32)) -> Result<PathBuf, BackendError> {
    make_for_bundle(state.join(SIDECAR_LOGS), user)
}

/// The folder of the git gate, with the file that gives the bundle's user a name.
fn make_gate(state: &Path, (uid, gid): (u32, u32)) -> Result<PathBuf, BackendError> {
    let folder = make_for_bundle(state.join(GATE_FOLDER), (uid, gid))?;
    let path = folder.join(bundle::PASSWD);
    let text = format!("root:x:0:0:::\ngate:x:{uid}:{gid}::/nonexistent:/bin/false\n");
    // The folder was the gate's in an earlier launch: whatever is there is replaced, and followed nowhere.
    let written = crate::host::files::replace(&path, |file| {
        std::io::Write::write_all(file, text.as_bytes())?;
        std::os::unix::fs::fchown(file.get_ref(), Some(uid), Some(gid))
    });
    let failed = |error| BackendError::failed(format!("cannot make {}: {error}", path.display()));
    written.map(|()| folder).map_err(failed)
}

/// A folder that the bundle's user may write to and nobody else gets to but the user.
fn make_for_bundle(folder: PathBuf, (uid, gid): (u32, u32)) -> Result<PathBuf, BackendError> {
    let made = std::fs::create_dir_all(&folder).and_then(|()| {
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(&folder, Some(uid), Some(gid))?;
        }
        Ok(())
    });
    let failed = |error| BackendError::failed(format!("cannot make {}: {error}", folder.display()));
    made.map(|()| folder.clone()).map_err(failed)
}

/// What a role says before its channel is up.
fn log_of(state: &Path, role: &str) -> PathBuf {
    state.join("logs").join(format!("{role}.log"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
