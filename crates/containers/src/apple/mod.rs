//! The apple backend. This backend runs each bottle in virtual machines of Apple's program `container`.
//!
//! ```text
//!   host                                agent's virtual machine, without a network
//!     keeper ═════ published socket ═════►  guest, pid 1
//!       ║          mounted sockets ◄──────  its proxy's ports
//!       ║             │ the same paths
//!       ║          published sockets ────►  bundle's virtual machine, on the default network ─► internet
//!       ╚═════════ published socket ═════►    bundle, pid 1
//!
//!   args, output     build arguments and parse output, without side effects; grammar checks them in tests
//!   cli              calls `container` (`command_line` runs it), and explains its failures
//!   bottle           the sockets on the host, and the configurations of the containers
//!   inside, roles    the paths and the command lines in the containers, and what runs there
//!   launch           starts, finds and continues containers
//!   inventory        lists and removes resources
//!   layout, images   build and load images
//!   snapshots        snapshots as images; stream is the format in which their files arrive
//!   check            the findings of `bottle doctor`
//! ```
//! A kept bottle is a stopped container. A snapshot is an image with all files. `container` never restarts a container
//! by itself, and does not pause containers.

mod args;
mod bottle;
mod check;
mod cli;
#[cfg(test)]
mod grammar;
mod images;
mod inside;
mod inventory;
mod launch;
mod layout;
mod output;
#[cfg(target_os = "linux")]
pub mod roles;
mod snapshots;
mod stream;
#[cfg(test)]
mod test_program;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bottle_backend::portable_image::{Export, ExportedImage, Import, Imported};
use bottle_backend::{
    Backend, BackendError, BackendErrorKind, ByteStream, Capabilities, Check, Finding, KeptFiles, Launch,
    Lifecycle, MadeSnapshot, NewSnapshot, Prepared, Preview, ProgressSink, Resource, RunState, Snapshot,
    Snapshots, Step, Unused,
};
use bottle_host::Host;
use bottle_plan::{ImageSource, Plan, Renewal};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Changed, Changes, SecretText};

use self::check::Facts;
use self::cli::Cli;
use self::images::Images;
use super::docker::names::{Names, Part};

/// The backend that runs bottles in virtual machines of `container`.
#[derive(Debug)]
pub struct AppleBackend {
    names: Names,
    /// The parent directory of the bottles' runtime directories. No slug begins with a dot, so this path is never the
    /// directory of a bottle.
    runtime: PathBuf,
    cli: Arc<Cli>,
    images: Images,
}

impl AppleBackend {
    /// Creates the backend for this `$BOTTLE_HOME`. Runs no program yet.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        let cli = Arc::new(Cli::new(host));
        Self {
            names: Names::new(host.home_hash()),
            runtime: host.runtime.join(".apple"),
            images: Images::new(host, cli.clone()),
            cli,
        }
    }
}

/// Creates the error for a plan without a usable image.
fn needs_image(why: &str) -> BackendError {
    BackendError::unsupported(
        format!("the apple backend runs a bottle only on an image in $BOTTLE_HOME, and {why}"),
        "name a directory or a `docker save` archive in $BOTTLE_HOME as `agent_provider.image`, or use `--backend docker`",
    )
}

#[async_trait]
impl Backend for AppleBackend {
    fn name(&self) -> &'static str {
        "apple"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { isolates: true, commit_pauses: true }
    }

    async fn check(&self) -> Check {
        let facts = Facts::read(&self.cli.program, &self.cli.sw_vers).await;
        let mut findings = facts.findings();
        // The error of the program search lists many paths, which would hide the other findings.
        if findings.is_empty()
            && let Err(error) = self.images.program().await
        {
            let fix = error.hint.clone().unwrap_or_else(|| "use another backend".to_owned());
            findings.push(Finding { what: error.one_line(), fix });
        }
        let uses = facts.version.ok().map(|version| format!("`container` {version}"));
        Check { usable: findings.is_empty(), uses, findings }
    }

    fn supports(&self, plan: &Plan) -> Result<(), BackendError> {
        BackendError::reject_live(self.name(), plan)?;
        if plan.renewal != Renewal::default() {
            return Err(needs_image("`--pull` and `--rebuild` ask for another one"));
        }
        match &plan.image {
            ImageSource::Path(_) | ImageSource::Imported(_) => {}
            ImageSource::Provider(_) => return Err(needs_image("the bottle manifest names none")),
            ImageSource::Dockerfile { path, .. } => {
                return Err(needs_image(&format!("`agent_provider.dockerfile` is {}", path.display())));
            }
            ImageSource::Reference(reference) => {
                return Err(needs_image(&format!("`agent_provider.image` is {reference}")));
            }
        }
        let asked = &plan.resources;
        if asked.cpus.is_some_and(|cpus| cpus % 1000 != 0) {
            return Err(BackendError::unsupported(
                "a virtual machine has whole processors, and `resources.cpus` is a fraction",
                "set `cpus` to a whole number, or use another backend",
            ));
        }
        let unsupported = [(asked.nested, "nested"), (asked.disk.is_some(), "disk")];
        BackendError::reject_unsupported_limits(self.name(), &unsupported)
    }
}

#[async_trait]
impl bottle_backend::Images for AppleBackend {
    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        match &plan.image {
            ImageSource::Path(path) => self.images.preview(path).await,
            ImageSource::Imported(reference) => {
                let (_, notes) = self.images.imported(reference).await?;
                Ok(Preview { notes, ..Preview::default() })
            }
            _ => Err(needs_image("the bottle manifest names none")),
        }
    }

    async fn prepare(
        &self,
        plan: &Plan,
        _: &BTreeMap<String, SecretText>,
        progress: &ProgressSink<Step>,
    ) -> Result<Prepared, BackendError> {
        let roles = self.images.roles(progress).await?;
        let (inside, notes) = match &plan.image {
            ImageSource::Path(path) => self.images.agent(path, progress).await?,
            ImageSource::Imported(reference) => self.images.imported(reference).await?,
            _ => return Err(needs_image("the bottle manifest names none")),
        };
        Ok(Prepared { inside: Some(inside), roles: Some(roles), notes, ..Prepared::default() })
    }

    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        if !self.images.directory().is_dir() {
            return Ok(Vec::new());
        }
        match self.images.unused().await {
            // If `container` is missing, no image can be removed.
            Err(error) if error.kind == BackendErrorKind::Unavailable => Ok(Vec::new()),
            unused => unused,
        }
    }

    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        self.images.remove_unused(unused).await
    }
}

#[async_trait]
impl Lifecycle for AppleBackend {
    async fn make_network(&self, launch: &Launch<'_>) -> Result<(), BackendError> {
        self.make_directory(launch).await
    }

    async fn start_bundle(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        self.start_sidecars(launch, prepared).await
    }

    async fn start_guest(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        self.start_agent(launch, prepared).await
    }

    async fn open_kept(&self, kept: &KeptFiles<'_>) -> Result<(), BackendError> {
        self.open(kept).await
    }

    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        self.connect(Part::Bundle, slug).await
    }

    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        self.connect(Part::Agent, slug).await
    }

    async fn run_state(&self, slug: &Slug) -> Result<RunState, BackendError> {
        let found = self.find(Part::Agent, slug).await?;
        Ok(if found.is_some_and(|found| found.is_running()) { RunState::Running } else { RunState::Ended })
    }

    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError> {
        self.list().await
    }

    async fn find_work(&self, slug: &Slug, request: &Changed, _: bool) -> Result<Changes, BackendError> {
        self.find_changes(slug, request).await
    }

    fn kept_workspace(&self, _: &Slug) -> Option<PathBuf> {
        // The workspace is in the container's file system and has no directory on the host.
        None
    }

    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        self.remove_all(resources).await
    }
}

#[async_trait]
impl Snapshots for AppleBackend {
    async fn make_snapshot(
        &self,
        slug: &Slug,
        new: &NewSnapshot,
        progress: ProgressSink,
    ) -> Result<MadeSnapshot, BackendError> {
        self.store_snapshot(slug, new, progress).await
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError> {
        self.list_snapshots().await
    }

    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError> {
        self.delete_snapshot(snapshot).await
    }

    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError> {
        self.export_snapshot(export).await
    }

    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError> {
        self.import_snapshot(import).await
    }
}
