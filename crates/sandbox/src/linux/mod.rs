//! The linux backend. It isolates bottles with kernel namespaces, and needs no daemon, no image and no root.
//!
//! ```text
//!   this process (keeper)                       the new process: bottle __guest <home> <slug>
//!     check      machine requirements             enter       runs the steps in order
//!     identity   the agent's host user id         sources     opens private paths first
//!     spec ───── over standard input ──────────►  network     loopback only
//!                                                 root etc devices   the visible file system
//!                                                 (image: an image instead of the host's system)
//!                                                 privileges landlock seccomp   the restrictions
//!                                                 └► the guest, as pid 1
//! ```
//! The host's system directories are visible read-only. The agent's program and its dependencies are visible at their
//! host paths ([`program`]). The home and the workspace exist only for the bottle. The network contains only loopback,
//! and the guest reaches the proxy through sockets. `sys` contains system calls without a safe wrapper, and `mounts`
//! contains the mount calls.
//!
//! An agent can still learn some facts about the host: the kernel, the processors, memory, load and uptime (programs
//! adapt to these), and the versions of installed software. `/proc/self/mountinfo` also shows the source path of each
//! mount within its file system. Among these source paths are the paths of the bottle's state and of exposed programs,
//! which contain the user name. The kernel shows the source path of every mount: a bind mount of a bind mount shows the
//! same path, and an overlay shows the path among its options. Only a separate file system for the bottle would hide
//! the source path.

pub(crate) mod bottle_image;
pub(crate) mod check;
mod check_cache;
mod devices;
pub(crate) mod enter;
mod etc;
mod identity;
pub(crate) mod image;
mod landlock;
mod live;
mod mounts;
mod network;
mod owners;
mod prefix;
pub(crate) mod privileges;
pub mod program;
mod root;
mod sockets;
mod sources;
pub(crate) mod spec;
pub(crate) mod sys;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use async_trait::async_trait;
use bottle_backend::memory::{self, PROCESSES, scratch};
use bottle_backend::portable_image::{Export, ExportedImage, Import, Imported, RootKind};
use bottle_backend::{
    Backend, BackendError, BackendErrorKind, Capabilities, Check, Finding, Prepared, Preview, ProgressSink,
    Resource, ResourceLog, Step, Unused,
};
use bottle_guest::{Limit, Limits};
use bottle_host::Host;
use bottle_host::causes;
use bottle_host::settings::Settings;
use bottle_plan::{ImageSource, Plan, Renewal, Resources};
use bottle_policy::names::{self, Slug};
use bottle_protocol::session::guest::SecretText;

use self::check_cache::CheckCache;
use self::image::{Image, Images};
use self::spec::{AgentIds, ImageSpec, OwnDirectories, SandboxSpec};
use super::guest_spec::GuestSpec;
use super::local::Scope;
use super::local::backend::{Bottle, LocalBackend, LocalSandbox, Who};
use super::local::cgroups::{self, Controller, Groups};
use super::local::inventory::text;
use super::local::labels::Role;
use super::local::layer_snapshots::images_in_use;
use super::local::layers::Kind;
use super::local::roles::{self, Setup, listen, socket_fds};
use super::local::spawn_ipc::{SetupFailure, SetupPart};

pub(crate) use self::root::is_system;

/// The backend that isolates bottles with kernel namespaces.
pub type LinuxBackend = LocalBackend<Linux>;

/// The sandboxes of [`LinuxBackend`].
#[derive(Debug)]
pub struct Linux {
    host: Host,
    scope: Scope,
    images: Images,
}

impl LinuxBackend {
    /// Creates the backend for the home of `host`.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        Self(Linux { host: host.clone(), scope: Scope::linux(host), images: Images::new(host) })
    }
}

impl Linux {
    /// The specification of a sandbox that does not mount the directories of a bottle.
    fn base_spec(&self, slug: &Slug) -> Result<SandboxSpec, BackendError> {
        Ok(SandboxSpec {
            hostname: slug.to_string(),
            machine_id: self.host.machine_id(slug),
            outside_id: self.outside_id(slug, Who::Agent)?,
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

    async fn spawn_guest(
        &self,
        slug: &Slug,
        state: Option<&Path>,
        spec: SandboxSpec,
        fds: &[BorrowedFd<'_>],
        resources: &dyn ResourceLog,
    ) -> Result<(), BackendError> {
        let setup = SandboxSetup { outside_id: spec.outside_id, inside: spec.inside() };
        let started =
            roles::start(&self.scope, Role::Guest, slug, state, &GuestSpec::Sandbox(Box::new(spec)), fds)?;
        started.wait_until_ready(&setup, resources).await.map(drop)
    }

    /// Starts the sandbox of a bottle.
    async fn start_sandbox(&self, bottle: &Bottle<'_>, image: Option<&Image>) -> Result<(), BackendError> {
        let spec = self.spec(bottle, image)?;
        let listener = listen(&self.scope.runtime_directory(bottle.slug).guest_socket())?;
        self.spawn_guest(bottle.slug, Some(bottle.state), spec, &socket_fds(&listener), bottle.resources)
            .await
    }

    fn spec(&self, bottle: &Bottle<'_>, image: Option<&Image>) -> Result<SandboxSpec, BackendError> {
        let Bottle { slug, state, resources, limits: asked, prepared, live, .. } = *bottle;
        let layers = self.scope.layers_in(state);
        let groups = Groups::current().make(&self.scope.group(slug), asked, |path| {
            resources.record(Resource::new(slug, cgroups::GROUP, text(path)))
        })?;
        let copied = layers.kind() == Some(Kind::Copy);
        let mut limits = guest_limits(asked, groups.limits(Controller::Memory), image, copied);
        limits.given += live.map_or(0, live::size);
        let own = OwnDirectories {
            home: image.is_none().then(|| layers.home()),
            workspace: layers.workspace(),
            live: live.cloned(),
            objects: Some(layers.git_objects()).filter(|objects| objects.is_dir()),
            proxy: bottle.is_launched().then(|| self.scope.runtime_directory(slug).proxy()),
            read_only: bottle.is_read_only(),
        };
        let image = image.map(|image| ImageSpec {
            root: (!copied).then(|| image.root.clone()),
            layers: layers.directory().to_owned(),
            inside: image.inside(),
        });
        Ok(SandboxSpec {
            own: Some(own),
            image,
            exposed: prepared.exposed.iter().map(|exposed| exposed.path.clone()).collect(),
            processes: asked.pids.unwrap_or(PROCESSES),
            limits,
            groups: groups.procs_files(),
            nested: asked.nested,
            scratch: scratch(asked.disk),
            ..self.base_spec(slug)?
        })
    }

    /// The images on which the bottles of this home and their snapshots are based. The smolvm backend uses the same
    /// images.
    fn images_in_use(&self) -> io::Result<Vec<String>> {
        let mut used = images_in_use(&self.scope)?;
        used.extend(images_in_use(&Scope::smolvm(&self.host))?);
        Ok(used)
    }

    /// Describes the requested resource limits that the guest enforces by polling, because the kernel does not enforce
    /// these limits.
    fn polled_limits(&self, asked: &Resources) -> Vec<String> {
        let memory = asked.memory.is_some() && !Groups::current().can_limit(Controller::Memory);
        [(memory, "memory"), (asked.disk.is_some(), "disk")]
            .into_iter()
            .filter(|(polled, _)| *polled)
            .map(|(_, key)| format!("`{key}` is only polled: fast growth can exceed it briefly"))
            .collect()
    }

    /// Records in the background, for later starts, whether this start succeeded.
    fn update_check_cache(&self, succeeded: bool) {
        let host = self.host.clone();
        drop(tokio::task::spawn_blocking(move || {
            let cache = CheckCache::new(&host);
            if succeeded { cache.store() } else { cache.clear() }
        }));
    }

    /// Starts a trial sandbox, which exits as soon as its setup succeeded.
    async fn try_sandbox(&self) -> Result<(), BackendError> {
        let slug =
            Slug::from_label("trial").map_err(|error| BackendError::failed(causes::one_line(&error)))?;
        self.spawn_guest(&slug, None, self.base_spec(&slug)?, &[], &Unrecorded).await
    }
}

/// The limits that the guest enforces by polling: requested limits that the kernel does not enforce, and a default
/// memory limit that protects the machine. An upper directory is not among the returned directories, because it has no
/// path inside the bottle; the guest receives its file descriptor. The disk limit does not count the initial size of a
/// copied image.
fn guest_limits(asked: &Resources, memory_is_limited: bool, image: Option<&Image>, copied: bool) -> Limits {
    let limit = |bytes| Limit { bytes, asked: true };
    let memory = match asked.memory {
        Some(_) if memory_is_limited => None,
        Some(bytes) => Some(limit(bytes)),
        None => Some(Limit { bytes: memory::default_max(), asked: false }),
    };
    let home = format!("/home/{}", names::AGENT_USER);
    let directories: &[&str] = match image {
        None => &[&home, names::WORKSPACE],
        // All files of a bottle with a copied image are below `/` and on one disk.
        Some(_) if copied => &["/"],
        Some(_) => &[names::WORKSPACE],
    };
    let given = image.filter(|_| copied && asked.disk.is_some());
    Limits {
        memory,
        disk: asked.disk.map(limit),
        directories: directories.iter().map(Into::into).collect(),
        given: given.map_or(0, |image| bottle_guest::use_of_disk(&image.root)),
    }
}

/// The part of a sandbox's setup that runs outside the sandbox.
struct SandboxSetup {
    /// The host user id that root maps to the bottle's single id. `None` for an ordinary user, because an ordinary
    /// user's sandbox process maps the id itself.
    outside_id: Option<u32>,
    inside: AgentIds,
}

impl Setup for SandboxSetup {
    fn map_ids(&self, pid: u32) -> io::Result<()> {
        let id =
            self.outside_id.ok_or_else(|| io::Error::other("an ordinary user's bottle maps its own ids"))?;
        identity::map_from_outside(pid, id, self.inside)
    }

    fn explain(&self, failure: &SetupFailure, error: BackendError) -> BackendError {
        if failure.part == SetupPart::Overlay {
            let fix = "use another disk for $BOTTLE_HOME, or another backend";
            return BackendError { kind: BackendErrorKind::Unsupported, ..error }.with_hint(fix);
        }
        match check::fix_for(failure) {
            Some(fix) => BackendError { kind: BackendErrorKind::Unavailable, ..error }.with_hint(fix),
            None => error,
        }
    }
}

/// The resource log of a trial sandbox, which records nothing. The trial sandbox ends before a cleanup could search for
/// it.
struct Unrecorded;

impl ResourceLog for Unrecorded {
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
        Capabilities { isolates: true, commit_pauses: false }
    }

    async fn check(&self) -> Check {
        let tried = self.0.try_sandbox().await;
        let mut findings = check::findings(tried.is_ok());
        if let Err(error) = &tried {
            let fix = error.hint.clone().unwrap_or_else(|| "use another backend".to_owned());
            // The error is omitted if a finding with the same fix already names the cause.
            if findings.iter().all(|finding| finding.fix != fix) {
                findings.insert(0, Finding { what: causes::one_line(error), fix });
            }
        }
        Check { usable: tried.is_ok(), uses: None, findings }
    }

    async fn check_use(&self) -> Check {
        if CheckCache::new(&self.0.host).is_current() {
            return Check { usable: true, uses: None, findings: Vec::new() };
        }
        self.check().await
    }

    fn supports(&self, plan: &Plan) -> Result<(), BackendError> {
        if plan.renewal != Renewal::default() {
            return Err(BackendError::unsupported(
                "the linux backend builds and pulls no image, and `--pull` and `--rebuild` ask for it",
                "use `--backend docker`, or leave the flag out",
            ));
        }
        if let Some(asked) = bottle_image::needs_engine(&plan.image) {
            return Err(BackendError::unsupported(
                format!("the linux backend builds and pulls no image, and {asked}"),
                "use `--backend docker`, or name a directory or a `docker save` archive in $BOTTLE_HOME as \
                 `agent_provider.image`",
            ));
        }
        let asked = &plan.resources;
        let cpus = asked.cpus.is_some() && !Groups::current().can_limit(Controller::Cpu);
        BackendError::reject_unsupported_limits(self.name(), &[(cpus, "cpus")])
            .map_err(|error| error.with_hint(cgroups::FIX))
    }
}

#[async_trait]
impl bottle_backend::Images for LinuxBackend {
    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        if let ImageSource::Path(path) = &plan.image {
            let limits = self.0.polled_limits(&plan.resources);
            return Ok(Preview { limits, shares_objects: true, ..self.0.images.preview(path).await? });
        }
        if let ImageSource::Imported(name) = &plan.image {
            let limits = self.0.polled_limits(&plan.resources);
            let notes = self.0.images.imported(name)?.1;
            return Ok(Preview { limits, notes, shares_objects: true, ..Preview::default() });
        }
        let prepared = self.prepare(plan, &BTreeMap::new(), &ProgressSink::discard()).await?;
        let limits = self.0.polled_limits(&plan.resources);
        let Prepared { exposed, sockets, notes, .. } = prepared;
        Ok(Preview { exposed, sockets, limits, notes, shares_objects: true, ..Preview::default() })
    }

    async fn prepare(
        &self,
        plan: &Plan,
        _: &BTreeMap<String, SecretText>,
        progress: &ProgressSink<Step>,
    ) -> Result<Prepared, BackendError> {
        if let ImageSource::Path(path) = &plan.image {
            let (inside, notes) = self.0.images.prepare(path, progress).await?;
            return Ok(Prepared { inside: Some(inside), notes, ..Prepared::default() });
        }
        if let ImageSource::Imported(name) = &plan.image {
            let (inside, notes) = self.0.images.imported(name)?;
            return Ok(Prepared { inside: Some(inside), notes, ..Prepared::default() });
        }
        let program = plan.agent.argv.first().map(String::as_str).unwrap_or_default();
        let settings =
            Settings::load(&self.0.host).map_err(|error| BackendError::failed(causes::one_line(&error)))?;
        let prepared = program::prepare(&self.0.host, program, &settings.home_allow)?;
        let (exposed, is_allowed) = (prepared.exposed.clone(), settings.home_allow_sockets);
        let sockets = bottle_backend::run_blocking(move || sockets::check(&exposed, is_allowed)).await??;
        Ok(Prepared { sockets, ..prepared })
    }

    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        let used = self.0.images_in_use();
        used.and_then(|used| self.0.images.unused(&used))
            .map_err(|error| BackendError::failed("cannot list the images of this home").because(error))
    }

    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        self.0
            .images
            .remove(unused, || self.0.images_in_use())
            .map_err(|error| BackendError::failed("cannot remove an image").because(error))
    }
}

#[async_trait]
impl LocalSandbox for Linux {
    const SHARES_FILES: bool = true;

    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn layers(&self, plan: &Plan) -> Kind {
        match plan.image {
            ImageSource::Path(_) | ImageSource::Imported(_) => Kind::Upper,
            _ => Kind::Home,
        }
    }

    fn outside_id(&self, slug: &Slug, who: Who) -> Result<Option<u32>, BackendError> {
        identity::outside_id(&self.scope.label, slug, who)
            .map_err(|error| BackendError::unavailable(error.to_string(), "use another backend"))
    }

    async fn start(&self, bottle: &Bottle<'_>) -> Result<(), BackendError> {
        let layers = self.scope.layers_in(bottle.state);
        let image = bottle_image::of(&self.images, bottle, &layers)?;
        let started = match (self.start_sandbox(bottle, image.as_ref()).await, &image) {
            (Err(error), Some(image)) if error.kind == BackendErrorKind::Unsupported && bottle.is_new() => {
                // This machine cannot mount the overlay of image and layers. A copy of the image works with every
                // kernel and disk.
                bottle_image::copy(image, &layers, self.outside_id(bottle.slug, Who::Agent)?).await?;
                self.start_sandbox(bottle, Some(image)).await
            }
            (started, _) => started,
        };
        if bottle.is_launched() {
            self.update_check_cache(started.is_ok());
        }
        started
    }

    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError> {
        let images = self.images.clone();
        self.scope.export(export, move |name| images.base(name)).await
    }

    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError> {
        let Import { slug, layout, root, prepared, progress } = import;
        match root {
            RootKind::Home => {
                let base = prepared.inside.as_ref().map(|inside| (inside.image.clone(), inside.home.clone()));
                let snapshot = self.scope.import_home(slug, layout, base).await?;
                Ok(Imported { snapshot, image: None })
            }
            RootKind::Complete => {
                let image = self.images.import(slug, layout).await?;
                let snapshot = self.scope.import_on_image(slug, &image.name, &image.root, progress).await?;
                Ok(Imported { snapshot, image: Some(ImageSource::Imported(image.name)) })
            }
        }
    }
}
