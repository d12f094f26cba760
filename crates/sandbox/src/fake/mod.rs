//! A test backend without isolation. The real guest and the real bundle run as plain processes, and the bottle's files
//! are directories in the home. The backend exists only in test builds (feature `test-parts`), and runs only when it is
//! selected by name.
//!
//! The bottles of the fake backend consist of processes and files. Like the bottles of other backends, these processes
//! continue to run after the command that started them exits. An agent can run only the built-in [`programs`].
//! [`failing`] makes a chosen step fail, hang, or kill its process.

mod failing;
pub(crate) mod guest;
pub mod programs;

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use bottle_backend::portable_image::{Export, ExportedImage, Import, Imported, RootKind};
use bottle_backend::{
    Backend, BackendError, ByteStream, Capabilities, Check, EngineIdentity, Finding, Images, KeptFiles,
    Launch, Lifecycle, MadeSnapshot, NewSnapshot, Prepared, Preview, ProgressSink, Resource, Snapshot,
    Snapshots,
};
use bottle_host::{Host, files};
use bottle_plan::Plan;
use bottle_policy::names::{AGENT_USER, Slug};
use bottle_protocol::session::guest::{Changed, Changes, SecretText};

use self::failing::{Failing, Step};
use self::guest::PlainSpec;
use super::guest_spec::GuestSpec;
use super::local::Scope;
use super::local::backend::{Bottle, LocalBackend, LocalSandbox};
use super::local::labels::Role;
use super::local::layers::Kind;
use super::local::roles::{self, PlainSetup, listen, socket_fds};

/// The environment variable with the name of the container engine that the backend pretends to use. The value `absent`
/// pretends that no engine answers. The backend finds neither the files nor the snapshots of a bottle that was created
/// with another engine.
const ENGINE: &str = "BOTTLE_FAKE_ENGINE";

/// The file in a bottle's directory that contains the engine's name.
const ENGINE_FILE: &str = "fake-engine";

/// The test backend without isolation: a local backend into which tests can inject failures.
#[derive(Debug)]
pub struct FakeBackend {
    local: LocalBackend<Plain>,
    failing: Failing,
    engine: Option<String>,
    /// The directory of the bottles' directories.
    state: PathBuf,
}

impl FakeBackend {
    /// Creates the backend for the home of `host`, with the failure that the environment requests.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        let failing = Failing::from_environment(host);
        Self {
            local: LocalBackend(Plain { scope: Scope::fake(host), failing: failing.clone() }),
            failing,
            engine: host.var(ENGINE).map(str::to_owned),
            state: host.state(),
        }
    }
}

impl FakeBackend {
    /// Whether the bottle was created with the engine of this backend.
    fn is_here(&self, slug: &Slug) -> bool {
        let on = std::fs::read_to_string(self.state.join(slug.as_str()).join(ENGINE_FILE)).ok();
        on == self.engine
    }
}

/// The sandboxes of [`FakeBackend`]: plain processes whose files are in a bottle's layers.
#[derive(Debug)]
struct Plain {
    scope: Scope,
    failing: Failing,
}

#[async_trait]
impl LocalSandbox for Plain {
    const SHARES_FILES: bool = false;

    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn layers(&self, _: &Plan) -> Kind {
        Kind::Home
    }

    fn restoring(&self) -> ProgressSink {
        self.failing.while_copying(Step::Restoring, ProgressSink::discard())
    }

    async fn start(&self, bottle: &Bottle<'_>) -> Result<(), BackendError> {
        let Bottle { slug, state, resources, .. } = *bottle;
        let listener = listen(&self.scope.runtime_directory(slug).guest_socket())?;
        let spec = GuestSpec::Plain(PlainSpec { root: self.scope.layers_in(state).directory().to_owned() });
        let fds = socket_fds(&listener);
        let started = roles::start(&self.scope, Role::Guest, slug, Some(state), &spec, &fds)?;
        started.wait_until_ready(&PlainSetup, resources).await.map(drop)
    }

    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError> {
        self.scope.export(export, |_| Ok(None)).await
    }

    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError> {
        if import.root == RootKind::Complete {
            return Err(BackendError::unsupported(
                "the fake backend has no images, and the archive contains one",
                "use another backend",
            ));
        }
        let snapshot = self.scope.import_home(import.slug, import.layout, None).await?;
        Ok(Imported { snapshot, image: None })
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn identity(&self) -> Result<Option<EngineIdentity>, BackendError> {
        match &self.engine {
            Some(name) if name == "absent" => {
                Err(BackendError::unavailable("no engine answers", format!("set another {ENGINE}")))
            }
            Some(name) => Ok(Some(EngineIdentity {
                id: name.clone(),
                data: "memory".to_owned(),
                address: format!("fake:{name}"),
                select: format!("{ENGINE}={name}"),
            })),
            None => Ok(None),
        }
    }

    fn engine_address(&self) -> Option<String> {
        self.engine.as_ref().map(|name| format!("fake:{name}"))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolates: false,
            // If a test makes `make_snapshot` wait, the fake backend reports that a commit pauses the bottle.
            commit_pauses: self.failing.waits_at(Step::MakeSnapshot),
        }
    }

    async fn check(&self) -> Check {
        let findings = vec![Finding {
            what: "the fake backend isolates nothing and runs no program of yours".to_owned(),
            fix: "use it in tests only".to_owned(),
        }];
        Check { usable: self.failing.at(Step::Check).await.is_ok(), uses: None, findings }
    }

    fn supports(&self, plan: &Plan) -> Result<(), BackendError> {
        BackendError::reject_live(self.name(), plan)?;
        let name = plan.agent.argv.first().map(String::as_str).unwrap_or_default();
        if programs::NAMES.contains(&name) {
            let asked = &plan.resources;
            let limits = [
                (asked.cpus.is_some(), "cpus"),
                (asked.memory.is_some(), "memory"),
                (asked.disk.is_some(), "disk"),
            ];
            return BackendError::reject_unsupported_limits(self.name(), &limits);
        }
        Err(BackendError::unsupported(
            format!("the fake backend runs only programs of its own, and {name:?} is none of them"),
            format!("use one of {}, or another backend", programs::NAMES.join(", ")),
        ))
    }
}

#[async_trait]
impl Images for FakeBackend {
    async fn preview(&self, _: &Plan) -> Result<Preview, BackendError> {
        Ok(Preview::default())
    }

    async fn prepare(
        &self,
        plan: &Plan,
        _: &BTreeMap<String, SecretText>,
        _: &ProgressSink<bottle_backend::Step>,
    ) -> Result<Prepared, BackendError> {
        self.failing.at(Step::Prepare).await?;
        Ok(Prepared { program: plan.agent.argv.first().cloned(), ..Prepared::default() })
    }
}

#[async_trait]
impl Lifecycle for FakeBackend {
    async fn make_network(&self, launch: &Launch<'_>) -> Result<(), BackendError> {
        self.failing.at(Step::MakeNetwork).await?;
        self.local.make_network(launch).await?;
        if let Some(name) = &self.engine {
            let path = launch.state.join(ENGINE_FILE);
            files::replace(&path, |file| std::io::Write::write_all(file, name.as_bytes()))
                .map_err(|error| BackendError::failed("cannot write").because(error))?;
        }
        // The guest uses the layers directory as its root. The agent's home has its usual path below this root.
        let home = self.local.0.scope.layers_in(launch.state).home().join(AGENT_USER);
        files::create_private_directory(&home)
            .map_err(|error| BackendError::failed(format!("cannot make {}", home.display())).because(error))
    }

    async fn start_bundle(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        self.failing.at(Step::StartBundle).await?;
        self.local.start_bundle(launch, prepared).await
    }

    async fn start_guest(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        self.failing.at(Step::StartGuest).await?;
        self.local.start_guest(launch, prepared).await
    }

    async fn open_kept(&self, kept: &KeptFiles<'_>) -> Result<(), BackendError> {
        self.failing.at(Step::OpenKept).await?;
        self.local.open_kept(kept).await
    }

    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        self.failing.at(Step::ConnectBundle).await?;
        self.local.connect_bundle(slug).await
    }

    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        self.failing.at(Step::ConnectGuest).await?;
        self.local.connect_guest(slug).await
    }

    fn running_sidecars(&self, slug: &Slug) -> Option<Vec<&'static str>> {
        self.local.running_sidecars(slug)
    }

    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError> {
        let mut all = self.local.enumerate().await?;
        all.retain(|resource| self.is_here(&resource.slug));
        Ok(all)
    }

    async fn find_work(
        &self,
        slug: &Slug,
        request: &Changed,
        is_live: bool,
    ) -> Result<Changes, BackendError> {
        self.local.find_work(slug, request, is_live).await
    }

    async fn size(&self, slug: &Slug) -> Result<Option<u64>, BackendError> {
        self.local.size(slug).await
    }

    fn kept_workspace(&self, slug: &Slug) -> Option<PathBuf> {
        self.local.kept_workspace(slug)
    }

    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        self.failing.at(Step::Remove).await?;
        self.local.remove(resources).await
    }
}

#[async_trait]
impl Snapshots for FakeBackend {
    async fn make_snapshot(
        &self,
        slug: &Slug,
        new: &NewSnapshot,
        progress: ProgressSink,
    ) -> Result<MadeSnapshot, BackendError> {
        self.failing.at(Step::MakeSnapshot).await?;
        let made = self
            .local
            .make_snapshot(slug, new, self.failing.while_copying(Step::SnapshotCopying, progress))
            .await?;
        self.failing.at(Step::SnapshotMade).await?;
        Ok(made)
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError> {
        self.failing.at(Step::Snapshots).await?;
        let mut all = self.local.snapshots().await?;
        all.retain(|snapshot| self.is_here(&snapshot.slug));
        Ok(all)
    }

    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError> {
        self.failing.at(Step::RemoveSnapshot).await?;
        self.local.remove_snapshot(snapshot).await
    }

    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError> {
        self.failing.at(Step::Export).await?;
        self.local.export(export).await
    }

    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError> {
        self.failing.at(Step::Import).await?;
        let imported = self.local.import(import).await?;
        self.failing.at(Step::Importing).await?;
        Ok(imported)
    }
}
