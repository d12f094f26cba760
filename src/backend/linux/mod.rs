//! Bottles out of the kernel's own namespaces: no daemon, no image, no root.
//!
//! ```text
//!   this process (keeper)                       the new one: bottle __guest <home> <slug>
//!     check      can this machine                 enter       the order of it all
//!     identity   who the agent is outside         sources     private places, opened first
//!     spec ───── over standard input ──────────►  network     loopback only
//!                                                 root etc devices   what is there to see
//!                                                 (image: of an image instead of the host's system)
//!                                                 privileges landlock seccomp   what may be done
//!                                                 └► the guest, as pid 1
//! ```
//! The host's system folders are seen read-only, the agent's program and what it needs at their own places
//! ([`program`]), home and workspace are the bottle's own. The network has no neighbour but the
//! proxy's sockets. `sys` holds the few system calls without a safe wrapper, `mounts` the rest.
//!
//! What an agent learns of the host all the same: its kernel, processors, memory, load and time since boot
//! (programs size themselves by these), the versions of what is installed, and by `/proc/self/mountinfo`
//! the path of each mount inside the file system that it was taken from. So it sees where the bottle's
//! state and exposed programs lie, and with that the user's user name. The kernel writes that path from
//! the mount, for every process there is; a bind mount of a bind mount shows the same one, and an overlay
//! shows it among its options. Only a file system of the bottle's own would not.

pub(crate) mod check;
mod check_cache;
mod devices;
pub(crate) mod enter;
mod etc;
mod identity;
mod image;
mod landlock;
mod mounts;
mod network;
mod prefix;
mod privileges;
pub mod program;
mod root;
pub(super) mod seccomp;
mod sources;
pub(crate) mod spec;
pub(crate) mod sys;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bottle_contract::names::{self, Slug};
use bottle_contract::session::guest::Overrun;
use bottle_guest::{Limit, Limits};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use self::check_cache::CheckCache;
use self::identity::Who;
use self::image::{Image, Images};
use self::spec::{ImageSpec, Inside, OwnFolders, SandboxSpec};
use super::guest_entry::Birth;
use super::local::cgroups::{self, Controller, Groups};
use super::local::freeze::{IMAGES, images_in_use};
use super::local::inventory::{resource, text};
use super::local::labels::Role;
use super::local::layers::{COPY, Kind, Layers};
use super::local::roles::{self, MapIds, descriptors, listen};
use super::local::{Scope, tree_into};
use super::memory::{self, PROCESSES, scratch};
use super::{
    Backend, BackendError, BackendErrorKind, ByteStream, Capabilities, Check, Finding, Frozen, Ledger,
    Origin, Prepared, Preview, ProgressSink, Resource, Site, Snapshot, Step, Unused,
};
use crate::host::Host;
use crate::host::settings::Settings;
use crate::plan::{ImageSource, Plan, Resources};

pub(crate) use self::image::mounted::LAY_OVER;
pub(crate) use self::root::is_system;

/// See the module.
#[derive(Debug)]
pub struct LinuxBackend {
    host: Host,
    scope: Scope,
    images: Images,
}

impl LinuxBackend {
    /// The backend for this home.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        Self { host: host.clone(), scope: Scope::linux(host), images: Images::new(host) }
    }

    fn outside(&self, slug: &Slug, who: Who) -> Result<Option<u32>, BackendError> {
        identity::outside_id(&self.scope.label, slug, who)
            .map_err(|error| BackendError::unavailable(error.to_string(), "use another backend"))
    }

    /// A sandbox with nothing of a bottle's own in it.
    fn bare(&self, slug: &Slug) -> Result<SandboxSpec, BackendError> {
        let digest = Sha256::digest(format!("machine {}/{slug}", self.scope.label));
        Ok(SandboxSpec {
            hostname: slug.to_string(),
            machine_id: hex::encode(&digest[..16]),
            outside_id: self.outside(slug, Who::Agent)?,
            own: None,
            image: None,
            exposed: Vec::new(),
            processes: PROCESSES,
            nested: false,
            limits: Limits::default(),
            groups: Vec::new(),
            scratch: scratch(None),
        })
    }

    async fn give_birth(
        &self,
        slug: &Slug,
        state: Option<&Path>,
        spec: SandboxSpec,
        fds: &[BorrowedFd<'_>],
        ledger: &dyn Ledger,
    ) -> Result<(), BackendError> {
        let map_ids = IdMapper { outside_id: spec.outside_id, inside: spec.inside() };
        let started =
            roles::start(&self.scope, Role::Guest, slug, state, &Birth::Sandbox(Box::new(spec)), fds)?;
        started.settle(&map_ids, ledger).await.map(drop)
    }

    async fn start(&self, site: &Site<'_>, spec: SandboxSpec) -> Result<(), BackendError> {
        let slug = &site.plan.identity.slug;
        let listener = listen(&self.scope.place(slug).guest_socket())?;
        self.give_birth(slug, Some(site.state), spec, &descriptors(&listener), site.ledger).await
    }

    fn spec(
        &self,
        site: &Site<'_>,
        layers: &Layers,
        image: Option<&Image>,
        prepared: &Prepared,
    ) -> Result<SandboxSpec, BackendError> {
        let slug = &site.plan.identity.slug;
        let asked = &site.plan.resources;
        let groups = Groups::here().make(&self.scope.group(slug), asked, |path| {
            site.ledger.record(resource(slug, cgroups::GROUP, text(path)))
        })?;
        let copied = layers.kind() == Some(Kind::Copy);
        let limits = watched(asked, groups.limits(Controller::Memory), image, copied);
        let own = OwnFolders {
            home: image.is_none().then(|| layers.home()),
            workspace: layers.workspace(),
            proxy: self.scope.place(slug).proxy(),
        };
        let image = image.map(|image| ImageSpec {
            root: (!copied).then(|| image.root.clone()),
            layers: layers.folder().to_owned(),
            inside: image.inside(),
        });
        Ok(SandboxSpec {
            own: Some(own),
            image,
            exposed: prepared.exposed.iter().map(|exposed| exposed.path.clone()).collect(),
            processes: asked.pids.unwrap_or(PROCESSES),
            limits,
            groups: groups.joined(),
            nested: asked.nested,
            scratch: scratch(asked.disk),
            ..self.bare(slug)?
        })
    }

    /// The image that the bottle's files stand on: what was prepared for a new bottle, else what they say.
    fn image_under(
        &self,
        site: &Site<'_>,
        layers: &Layers,
        prepared: &Prepared,
    ) -> Result<Option<Image>, BackendError> {
        let slug = &site.plan.identity.slug;
        let failed =
            |error: io::Error| BackendError::failed(format!("the image of {slug} cannot be read: {error}"));
        if let (Origin::New, Some(inside)) = (site.origin, &prepared.inside) {
            layers.set_image(&inside.image).map_err(failed)?;
        }
        let name = layers.image().map_err(failed)?;
        if name.is_some() != prepared.inside.is_some() {
            let (was, is) = if name.is_some() { ("an image", "none") } else { ("no image", "one") };
            let message = format!("the files of {slug} stand on {was}, and its bottle names {is} by now");
            return Err(BackendError::failed(message).with_hint("put `agent_provider.image` back as it was"));
        }
        let Some(name) = name else { return Ok(None) };
        match self.images.hold(&name).map_err(failed)? {
            Some(image) => Ok(Some(image)),
            None => Err(BackendError::failed(format!("the image that the files of {slug} stand on is gone"))
                .with_hint(format!(
                    "it was made of what `agent_provider.image` named then; it is {name} in {IMAGES}/"
                ))),
        }
    }

    /// Gives a new bottle a copy of its image.
    async fn copy(&self, image: &Image, layers: &Layers, owner: Option<u32>) -> Result<(), BackendError> {
        let (root, folder) = (image.root.clone(), layers.folder().to_owned());
        let copied =
            tokio::task::spawn_blocking(move || tree_into(&root, &folder, COPY, owner).map(drop)).await;
        copied
            .map_err(io::Error::other)
            .flatten()
            .map_err(|error| BackendError::failed(format!("cannot copy the image for the bottle: {error}")))
    }

    /// Limits that are looked at now and then, and kept by nobody in between.
    fn watched(&self, asked: &Resources) -> Vec<String> {
        let memory = asked.memory.is_some() && !Groups::here().can_limit(Controller::Memory);
        [(memory, "memory"), (asked.disk.is_some(), "disk")]
            .into_iter()
            .filter(|(watched, _)| *watched)
            .map(|(_, key)| {
                format!("`{key}` is looked at now and then: what fills it fast gets beyond it first")
            })
            .collect()
    }

    /// Notes for later starts how this one went; this one does not wait for it.
    fn note(&self, worked: bool) {
        let host = self.host.clone();
        drop(tokio::task::spawn_blocking(move || {
            let here = CheckCache::on(&host);
            if worked { here.remember() } else { here.forget() }
        }));
    }

    /// Makes a sandbox that ends as soon as it is set up.
    async fn trial(&self) -> Result<(), BackendError> {
        let slug = Slug::from_label("trial").map_err(|error| BackendError::failed(error.to_string()))?;
        self.give_birth(&slug, None, self.bare(&slug)?, &[], &Unrecorded).await
    }
}

/// What of the plan asks for an engine, as the end of a sentence.
fn needs_engine(image: &ImageSource) -> Option<String> {
    match image {
        ImageSource::Provider(_) | ImageSource::Path(_) => None,
        ImageSource::Dockerfile { path, .. } => {
            Some(format!("`agent_provider.dockerfile` is {}", path.display()))
        }
        ImageSource::Reference(reference) => Some(format!("`agent_provider.image` is {reference}")),
    }
}

/// What the guest watches: what was asked for and nothing limits, and what the machine needs for itself. What the
/// bottle changes of its image has no path inside and is handed over opened; a copy of one begins with all that its
/// image has.
fn watched(asked: &Resources, memory_is_limited: bool, image: Option<&Image>, copied: bool) -> Limits {
    let limit = |bytes| Limit { bytes, asked: true };
    let memory = match asked.memory {
        Some(_) if memory_is_limited => None,
        Some(bytes) => Some(limit(bytes)),
        None => Some(Limit { bytes: memory::most(), asked: false }),
    };
    let home = format!("/home/{}", names::AGENT_USER);
    let folders: &[&str] = match image {
        None => &[&home, names::WORKSPACE],
        // Seen from inside, all of it lies on one disk, and below the root.
        Some(_) if copied => &["/"],
        Some(_) => &[names::WORKSPACE],
    };
    let given = image.filter(|_| copied && asked.disk.is_some());
    Limits {
        memory,
        disk: asked.disk.map(limit),
        folders: folders.iter().map(Into::into).collect(),
        given: given.map_or(0, |image| bottle_guest::use_of_disk(&image.root)),
    }
}

/// Root maps a bottle's one id; an ordinary user's process does so itself.
struct IdMapper {
    outside_id: Option<u32>,
    inside: Inside,
}

impl MapIds for IdMapper {
    fn map_ids(&self, pid: u32) -> io::Result<()> {
        let id =
            self.outside_id.ok_or_else(|| io::Error::other("an ordinary user's bottle maps its own ids"))?;
        identity::map_from_outside(pid, id, self.inside)
    }
}

/// For a trial: it is gone before anything could look for it.
struct Unrecorded;

impl Ledger for Unrecorded {
    fn record_all(&self, _: &[Resource]) -> Result<(), BackendError> {
        Ok(())
    }
}

#[async_trait]
impl Backend for LinuxBackend {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { isolates: true, snapshot: true, live_commit: true, pause: false }
    }

    async fn check(&self) -> Check {
        let tried = self.trial().await;
        let mut findings = check::findings(tried.is_ok());
        if let Err(error) = &tried {
            let fix = error.hint.clone().unwrap_or_else(|| "use another backend".to_owned());
            // What is behind it says more than it does.
            if findings.iter().all(|finding| finding.fix != fix) {
                findings.insert(0, Finding { what: error.message.clone(), fix });
            }
        }
        Check { usable: tried.is_ok(), findings }
    }

    async fn check_use(&self) -> Check {
        if CheckCache::on(&self.host).did() {
            return Check { usable: true, findings: Vec::new() };
        }
        self.check().await
    }

    fn fits(&self, plan: &Plan) -> Result<(), BackendError> {
        if let Some(asked) = needs_engine(&plan.image) {
            return Err(BackendError {
                kind: BackendErrorKind::Unsupported,
                message: format!("the linux backend builds and pulls no image, and {asked}"),
                hint: Some(
                    "use `--backend docker`, or name a folder or a `docker save` archive in $BOTTLE_HOME as \
                     `agent_provider.image`"
                        .to_owned(),
                ),
            });
        }
        let asked = &plan.resources;
        let cpus = asked.cpus.is_some() && !Groups::here().can_limit(Controller::Cpu);
        BackendError::refuse_limits(self.name(), &[(cpus, "cpus")])
            .map_err(|error| error.with_hint(cgroups::FIX))
    }

    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        if let ImageSource::Path(path) = &plan.image {
            let limits = self.watched(&plan.resources);
            return Ok(Preview { limits, ..self.images.preview(path).await? });
        }
        let prepared = self.prepare(plan, &ProgressSink::nobody()).await?;
        let limits = self.watched(&plan.resources);
        Ok(Preview { exposed: prepared.exposed, limits, ..Preview::default() })
    }

    async fn prepare(&self, plan: &Plan, told: &ProgressSink<Step>) -> Result<Prepared, BackendError> {
        if let ImageSource::Path(path) = &plan.image {
            let (inside, notes) = self.images.prepare(path, told).await?;
            return Ok(Prepared { inside: Some(inside), notes, ..Prepared::default() });
        }
        let program = plan.agent.argv.first().map(String::as_str).unwrap_or_default();
        let settings = Settings::load(&self.host).map_err(|error| BackendError::failed(error.to_string()))?;
        program::prepare(&self.host, program, &settings.home_allow)
    }

    async fn make_network(&self, site: &Site<'_>) -> Result<(), BackendError> {
        let kind = if matches!(site.plan.image, ImageSource::Path(_)) { Kind::Upper } else { Kind::Home };
        self.scope.make_folders(site, kind, self.outside(&site.plan.identity.slug, Who::Agent)?)
    }

    async fn start_bundle(&self, site: &Site<'_>, _: &Prepared) -> Result<(), BackendError> {
        self.scope.start_bundle(site, self.outside(&site.plan.identity.slug, Who::Guards)?).await
    }

    async fn start_guest(&self, site: &Site<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        let slug = &site.plan.identity.slug;
        self.scope.fill_layers(site, self.outside(slug, Who::Agent)?, ProgressSink::nobody()).await?;
        let layers = self.scope.layers_in(site.state);
        let image = self.image_under(site, &layers, prepared)?;
        let spec = self.spec(site, &layers, image.as_ref(), prepared)?;
        let started = match (self.start(site, spec).await, &image) {
            (Err(error), Some(image))
                if error.kind == BackendErrorKind::Unsupported && *site.origin == Origin::New =>
            {
                // Its own copy needs nothing of the kernel or the disk.
                self.copy(image, &layers, self.outside(slug, Who::Agent)?).await?;
                self.start(site, self.spec(site, &layers, Some(image), prepared)?).await
            }
            (started, _) => started,
        };
        self.note(started.is_ok());
        started
    }

    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        self.scope.connect_bundle(slug).await
    }

    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        self.scope.connect_guest(slug).await
    }

    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError> {
        self.scope.enumerate().await
    }

    async fn holds_work(&self, slug: &Slug, since: Timestamp) -> Result<bool, BackendError> {
        self.scope.holds_work(slug, since).await
    }

    async fn overrun(&self, slug: &Slug) -> Option<Overrun> {
        Groups::here().overrun(&self.scope.group(slug))
    }

    async fn freeze(
        &self,
        slug: &Slug,
        previous: Option<&Snapshot>,
        told: ProgressSink,
    ) -> Result<Frozen, BackendError> {
        self.scope.freeze(slug, previous, told).await
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError> {
        self.scope.snapshots().await
    }

    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError> {
        self.scope.remove_snapshot(snapshot).await
    }

    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        let used = images_in_use(&self.scope);
        used.and_then(|used| self.images.unused(&used))
            .map_err(|error| BackendError::failed(format!("cannot list the images of this home: {error}")))
    }

    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        self.images
            .remove(unused, || images_in_use(&self.scope))
            .map_err(|error| BackendError::failed(format!("cannot remove an image: {error}")))
    }

    fn moved_by(&self, snapshot: &Snapshot) -> Option<String> {
        self.scope.moved_by(snapshot)
    }

    fn kept_workspace(&self, slug: &Slug) -> Option<PathBuf> {
        self.scope.kept_workspace(slug)
    }

    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        self.scope.remove(resources).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::provider::Template;

    #[test]
    fn an_image_that_an_engine_makes_is_refused_by_the_key_that_asks_for_it() {
        let dockerfile = ImageSource::Dockerfile { path: "images/dev".into(), text: String::new() };
        for (image, asked) in [
            (ImageSource::Provider(Template::Claude), None),
            (dockerfile, Some("`agent_provider.dockerfile` is images/dev")),
            (ImageSource::Reference("team/a:1".to_owned()), Some("`agent_provider.image` is team/a:1")),
            (ImageSource::Path("rootfs".into()), None),
        ] {
            assert_eq!(needs_engine(&image).as_deref(), asked);
        }
    }
}
