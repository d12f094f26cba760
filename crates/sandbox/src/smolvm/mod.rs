//! The smolvm backend. It uses the program `smolvm` to run each bottle in a virtual machine with its own kernel.
//!
//! ```text
//!   host                                            machine, without a network
//!     keeper ═══════════ exposed socket ══════════►   guest, pid 1 of a sandbox
//!     bundle ◄────────── mounted sockets ──────────   its proxy's ports
//!     layers: the image's copy, the workspace ─────   the same files, over virtiofs
//!
//!   args, output     build arguments and parse output, without side effects
//!   command_line     runs `smolvm` (shared with other engines that are programs)
//!   machines         creates, starts, lists, deletes machines
//!   root, inside     the machine's own file system, and the paths in it
//!   machine_entry    the first process in the machine: enters the sandbox of the linux backend
//!   check            the findings of `bottle doctor`
//! ```
//! The bundle is the same host process as on the linux backend. The machine runs the sandbox of the linux backend, on a
//! copy of the image. The machine's files are directories of the host. [`super::local`] therefore implements kept
//! bottles, snapshots and restores, and the machine is needed only while a bottle runs. When the bottle ends, the
//! machine is deleted.
//!
//! smolvm's own network rules are not used: the machine has no network device, and the sandbox has only loopback. The
//! isolation probe tests the machine and the sandbox together. A sandbox cannot mount an overlay on directories that
//! the host shares with the machine, because the file server of these directories refuses an operation that overlays
//! need. Each bottle therefore gets a copy of its image.

mod args;
mod check;
mod inside;
pub mod machine_entry;
mod machines;
mod output;
mod root;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bottle_backend::image::saved::architecture;
use bottle_backend::memory::{self, PROCESSES, scratch};
use bottle_backend::portable_image::{Export, ExportedImage, Import, Imported, RootKind};
use bottle_backend::{
    Backend, BackendError, Capabilities, Check, Finding, Prepared, Preview, ProgressSink, Resource, Step,
    Unused, run_blocking, static_program,
};
use bottle_guest::{Limit, Limits};
use bottle_host::Host;
use bottle_host::causes;
use bottle_plan::{ImageSource, Plan, Renewal, Resources};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::SecretText;
use tokio::net::UnixListener;

use self::args::{NewMachine, Socket, Volume};
use self::check::Facts;
use self::machine_entry::MachineSpec;
use self::machines::Machines;
use self::output::Machine;
use super::linux::bottle_image;
use super::linux::image::{Image, Images};
use super::linux::spec::{ImageSpec, OwnDirectories, SandboxSpec};
use super::local::Scope;
use super::local::backend::{Bottle, LocalBackend, LocalSandbox};
use super::local::labels::Role;
use super::local::layers::{Kind, Layers};
use super::local::roles::listen;
use super::local::spawn_ipc::{Report, Starter};

/// The name of the backend and of the program `smolvm`.
const NAME: &str = "smolvm";

/// The memory in bytes that the machine's kernel needs in addition to the bottle's memory.
const KERNEL_MEMORY: u64 = 192 << 20;

/// The memory limit in bytes of a bottle if its plan sets no limit. The machine uses only as much memory of the host as
/// the bottle uses.
const MEMORY: u64 = 8 << 30;

/// How long the first process of a machine may take to connect to the backend. This time includes the start of the
/// machine.
const CONNECT: Duration = Duration::from_secs(200);

/// The backend that runs bottles in smolvm's virtual machines.
pub type SmolvmBackend = LocalBackend<Smolvm>;

/// The virtual machines of [`SmolvmBackend`].
#[derive(Debug)]
pub struct Smolvm {
    host: Host,
    scope: Scope,
    images: Images,
    machines: Machines,
}

impl SmolvmBackend {
    /// Creates the backend for the home of `host`.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        let scope = Scope::smolvm(host);
        let machines = Machines::new(host, &scope.runtime);
        Self(Smolvm { host: host.clone(), scope, images: Images::new(host), machines })
    }
}

impl Smolvm {
    /// Finds the static `bottle` program that runs in the machines.
    async fn program(&self) -> Result<static_program::Program, BackendError> {
        let running = self.host.program.clone();
        let find = move || static_program::find(&running, architecture(), "the machines of smolvm");
        run_blocking(find).await?
    }

    /// Starts the machine of a bottle, and waits until its sandbox is ready. On failure, the machine is deleted.
    async fn start_machine(&self, bottle: &Bottle<'_>, image: &Image) -> Result<(), BackendError> {
        let slug = bottle.slug;
        bottle.resources.record(Resource::new(slug, Role::Guest.kind(), Machines::name(slug)))?;
        let started = self.try_start(bottle, image).await;
        if started.is_err() {
            // An error is ignored, because it would hide the failure of the start. A later cleanup finds the machine.
            let _ = self.machines.delete(slug).await;
        }
        started
    }

    async fn try_start(&self, bottle: &Bottle<'_>, image: &Image) -> Result<(), BackendError> {
        let slug = bottle.slug;
        let spec = MachineSpec {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            sandbox: self.spec(bottle, image),
        };
        let setup = self.scope.runtime_directory(slug).directory().join("setup");
        let listener = listen(&setup)?;
        let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        let listener = listener.map_err(|error| {
            BackendError::failed(format!("cannot listen on {}", setup.display())).because(error)
        })?;
        self.machines.create(&self.new_machine(bottle, &setup).await?).await?;
        tokio::try_join!(self.machines.start(slug), self.set_up(slug, &listener, &spec)).map(drop)
    }

    /// Sends the specification to the machine's first process, and waits until the sandbox is ready.
    async fn set_up(
        &self,
        slug: &Slug,
        listener: &UnixListener,
        spec: &MachineSpec,
    ) -> Result<(), BackendError> {
        let failed = |why: String| {
            BackendError::failed(format!("cannot set up the machine of {slug}"))
                .because(io::Error::other(why))
        };
        let Ok(accepted) = tokio::time::timeout(CONNECT, listener.accept()).await else {
            let words = self.machines.last_words(slug).await.map(|words| format!(": {words}"));
            let within = CONNECT.as_secs();
            return Err(failed(format!(
                "its first process did not answer within {within} s{}",
                words.unwrap_or_default()
            )));
        };
        let stream = accepted.and_then(|(stream, _)| stream.into_std()).and_then(|stream| {
            stream.set_nonblocking(false)?;
            Ok(stream)
        });
        let starter = stream.and_then(|stream| Starter::send(stream, spec, &[]));
        let mut starter = starter.map_err(|error| failed(causes::one_line(&error)))?;
        let reports = async {
            loop {
                match starter.next_report().await.map_err(|error| failed(causes::one_line(&error)))? {
                    Some(Report::Started { .. }) => {}
                    Some(Report::Ready) => return Ok(()),
                    Some(Report::Failed(failure)) => {
                        let error = BackendError::failed(format!("cannot set up the bottle {slug}"));
                        return Err(error.because(failure));
                    }
                    Some(Report::AwaitsIds) => return Err(failed("it asked for ids".to_owned())),
                    None => {
                        let words = self.machines.last_words(slug).await;
                        return Err(failed(words.unwrap_or_else(|| "its first process ended".to_owned())));
                    }
                }
            }
        };
        reports.await
    }

    async fn new_machine(&self, bottle: &Bottle<'_>, setup: &Path) -> Result<NewMachine, BackendError> {
        let program = self.program().await?;
        let runtime_directory = self.scope.runtime_directory(bottle.slug);
        let mut mounted = vec![Socket { host: setup.to_owned(), inside: inside::SETUP.to_owned() }];
        if bottle.is_launched() {
            mounted.extend(inside::proxy_sockets(&runtime_directory.proxy()));
        }
        let layers = self.scope.layers_in(bottle.state);
        Ok(NewMachine {
            name: Machines::name(bottle.slug),
            home: self.machines.home(),
            slug: bottle.slug.clone(),
            root: root::make(&self.machines.directory, program).await?,
            cpus: cpus(bottle.limits.cpus),
            memory: machine_memory(bottle.limits) >> 20,
            volumes: vec![Volume {
                host: layers.directory().to_owned(),
                inside: inside::LAYERS,
                // The volume is writable even if the bottle's files are read-only: the sandbox first writes the files
                // of this launch, and then mounts the bottle's files read-only.
                read_only: false,
            }],
            mounted,
            exposed: Socket { host: runtime_directory.guest_socket(), inside: inside::GUEST.to_owned() },
            command: vec![inside::PROGRAM.into(), machine_entry::FLAG.into()],
        })
    }

    /// The specification of the sandbox in the machine. All its paths are paths in the machine.
    fn spec(&self, bottle: &Bottle<'_>, image: &Image) -> SandboxSpec {
        let Bottle { slug, limits, .. } = *bottle;
        let memory = machine_memory(limits);
        SandboxSpec {
            hostname: slug.to_string(),
            machine_id: self.host.machine_id(slug),
            outside_id: None,
            own: Some(OwnDirectories {
                live: None,
                home: None,
                workspace: Path::new(inside::LAYERS).join(Layers::WORKSPACE),
                objects: None,
                proxy: bottle.is_launched().then(|| inside::PROXY.into()),
                read_only: bottle.is_read_only(),
            }),
            image: Some(ImageSpec { root: None, layers: inside::LAYERS.into(), inside: image.inside() }),
            exposed: Vec::new(),
            processes: limits.pids.unwrap_or(PROCESSES),
            nested: limits.nested,
            limits: guest_limits(limits, image),
            groups: Vec::new(),
            scratch: scratch(limits.disk).min(memory / 2),
        }
    }

    /// Copies the image into the layers of a bottle that has no copy yet.
    async fn copy_image(&self, image: &Image, layers: &Layers) -> Result<(), BackendError> {
        match layers.kind() {
            Some(Kind::Copy) => Ok(()),
            _ => bottle_image::copy(image, layers, None).await,
        }
    }
}

/// The number of processors of a machine. `limit` is in thousandths of a processor and is rounded up. Without a limit,
/// the machine gets all processors of this host.
fn cpus(limit: Option<u32>) -> u32 {
    let all =
        || std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
    limit.map_or_else(all, |limit| limit.div_ceil(1000)).max(1)
}

/// The memory limit of a bottle in bytes.
fn bottle_memory(limits: &Resources) -> u64 {
    limits.memory.unwrap_or_else(|| memory::default_max().min(MEMORY))
}

/// The memory of a bottle's machine in bytes.
fn machine_memory(limits: &Resources) -> u64 {
    bottle_memory(limits).saturating_add(KERNEL_MEMORY)
}

/// The limits that the guest enforces by polling. The machine has more memory than the bottle's limit, because its
/// kernel also needs memory. The guest therefore stops a bottle at its memory limit before the machine's kernel kills
/// programs of the bottle.
fn guest_limits(asked: &Resources, image: &Image) -> Limits {
    Limits {
        memory: Some(Limit { bytes: bottle_memory(asked), asked: asked.memory.is_some() }),
        disk: asked.disk.map(|bytes| Limit { bytes, asked: true }),
        directories: vec!["/".into()],
        // The disk limit does not count the files of the image.
        given: asked.disk.map_or(0, |_| bottle_guest::use_of_disk(&image.root)),
    }
}

/// The error for a plan without an image.
fn needs_image(why: &str) -> BackendError {
    BackendError::unsupported(
        format!("the smolvm backend runs a bottle only on an image in $BOTTLE_HOME, and {why}"),
        "name a directory or a `docker save` archive in $BOTTLE_HOME as `agent_provider.image`, or use another backend",
    )
}

#[async_trait]
impl Backend for SmolvmBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { isolates: true, commit_pauses: false }
    }

    async fn check(&self) -> Check {
        let facts = Facts::read(&self.0.machines.program).await;
        let mut findings = facts.findings();
        if let Some(what) = self.0.machines.too_long() {
            let fix = "set XDG_RUNTIME_DIR or BOTTLE_HOME to a directory with a shorter path".to_owned();
            findings.push(Finding { what, fix });
        }
        // The static program is searched only if there are no other findings, because the error of this search lists
        // many paths and would hide them.
        if findings.is_empty()
            && let Err(error) = self.0.program().await
        {
            let fix = error.hint.clone().unwrap_or_else(|| "use another backend".to_owned());
            findings.push(Finding { what: error.one_line(), fix });
        }
        let uses = facts.version.ok().map(|version| format!("smolvm {version}"));
        Check { usable: findings.is_empty(), uses, findings }
    }

    fn supports(&self, plan: &Plan) -> Result<(), BackendError> {
        BackendError::reject_live(self.name(), plan)?;
        if plan.renewal != Renewal::default() {
            return Err(needs_image("`--pull` and `--rebuild` ask for another one"));
        }
        if let Some(asked) = bottle_image::needs_engine(&plan.image) {
            return Err(needs_image(&asked));
        }
        if !matches!(plan.image, ImageSource::Path(_) | ImageSource::Imported(_)) {
            return Err(needs_image("the bottle manifest names none"));
        }
        let part = plan.resources.cpus.is_some_and(|cpus| cpus % 1000 != 0);
        if part {
            return Err(BackendError::unsupported(
                "a virtual machine has whole processors, and `resources.cpus` is a fraction",
                "set `cpus` to a whole number, or use another backend",
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl bottle_backend::Images for SmolvmBackend {
    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        let preview = match &plan.image {
            ImageSource::Path(path) => self.0.images.preview(path).await?,
            ImageSource::Imported(name) => {
                Preview { notes: self.0.images.imported(name)?.1, ..Preview::default() }
            }
            _ => return Err(needs_image("the bottle manifest names none")),
        };
        let polled = plan
            .resources
            .disk
            .map(|_| "`disk` is only polled: fast growth can exceed it briefly".to_owned());
        Ok(Preview { limits: polled.into_iter().collect(), ..preview })
    }

    async fn prepare(
        &self,
        plan: &Plan,
        _: &BTreeMap<String, SecretText>,
        progress: &ProgressSink<Step>,
    ) -> Result<Prepared, BackendError> {
        let (info, notes) = match &plan.image {
            ImageSource::Path(path) => self.0.images.prepare(path, progress).await?,
            ImageSource::Imported(name) => self.0.images.imported(name)?,
            _ => return Err(needs_image("the bottle manifest names none")),
        };
        Ok(Prepared { inside: Some(info), notes, ..Prepared::default() })
    }

    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        // This function does not list images: the smolvm and linux backends share them, and the linux backend lists
        // them. Without the static program, the current build is not known, so nothing is listed.
        let Ok(program) = self.0.program().await else { return Ok(Vec::new()) };
        root::unused(&self.0.machines.directory, &program.id).map_err(|error| {
            BackendError::failed("cannot list the root file systems of the machines").because(error)
        })
    }

    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        // A machine that an earlier build started may still use its root file system.
        if !self.0.machines.list().await?.is_empty() {
            return Ok(Vec::new());
        }
        for one in &unused {
            root::remove(&self.0.machines.directory, &one.id).map_err(|error| {
                BackendError::failed("cannot remove a root file system of the machines").because(error)
            })?;
        }
        Ok(unused)
    }
}

#[async_trait]
impl LocalSandbox for Smolvm {
    const SHARES_FILES: bool = false;

    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn layers(&self, _: &Plan) -> Kind {
        // The first start copies the image into the layers. The copy is then used instead of the empty directory of
        // changes.
        Kind::Upper
    }

    async fn start(&self, bottle: &Bottle<'_>) -> Result<(), BackendError> {
        let layers = self.scope.layers_in(bottle.state);
        let image = bottle_image::of(&self.images, bottle, &layers)?;
        let image = image.ok_or_else(|| needs_image("the bottle has none"))?;
        self.copy_image(&image, &layers).await?;
        self.start_machine(bottle, &image).await
    }

    async fn enumerate_own(&self) -> Result<Vec<Resource>, BackendError> {
        let machines = self.machines.list().await?;
        let machine =
            |(slug, machine): (Slug, Machine)| Resource::new(&slug, Role::Guest.kind(), machine.name);
        Ok(machines.into_iter().map(machine).collect())
    }

    async fn remove_own(&self, resources: &[Resource]) -> Result<Vec<Resource>, BackendError> {
        let is_machine = |resource: &Resource| {
            resource.kind == Role::Guest.kind() && resource.id == Machines::name(&resource.slug)
        };
        let (machines, rest): (Vec<Resource>, Vec<Resource>) =
            resources.iter().cloned().partition(is_machine);
        let mut failures = Vec::new();
        for machine in machines {
            if let Err(error) = self.machines.delete(&machine.slug).await {
                failures.push(error.one_line());
            }
        }
        // After a failure, the other resources are not returned, because a machine that could not be deleted still uses
        // the bottle's files and sockets.
        BackendError::all(&failures).map(|()| rest)
    }

    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError> {
        let images = self.images.clone();
        self.scope.export(export, move |name| images.base(name)).await
    }

    /// Stores the image of the archive. The first start of the bottle copies the image, as for a new bottle.
    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError> {
        let Import { slug, layout, root, progress, .. } = import;
        if root == RootKind::Home {
            return Err(BackendError::unsupported(
                format!("cannot import {slug}: its files are only a home, without a system"),
                "use `--backend linux` or `--backend docker`, or export it from a bottle that runs on an image",
            ));
        }
        let image = self.images.import(slug, layout).await?;
        let snapshot = self.scope.import_on_image(slug, &image.name, &image.root, progress).await?;
        Ok(Imported { snapshot, image: Some(ImageSource::Imported(image.name)) })
    }
}

#[cfg(test)]
mod tests;
