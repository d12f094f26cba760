//! Builds, pulls or loads the images of agents and sidecars. Creates the volume that contains the program of pid 1.
//!
//! ```text
//!  Dockerfile.tools ────────────── recipe ─► build ───────────────────► bottle-tools:<hash>
//!  Dockerfile.agent + provider ─┐ recipe ─► build ─┐
//!  the user's Dockerfile ───────┤ context          │
//!  image reference ─────────────┼─ pull ───────────┼─► check ─► adopt ─► bottle-agent:<hash>
//!  directory or archive ───────────┘ load ────────────┘            account
//!  Dockerfile.sidecars + program ─ recipe ─► build ───────────────────► bottle-sidecars:<hash>
//!  program ─────────────────────── volume ────────────────────────────► bottle-program-<hash>
//! ```
//! Every name contains a hash of the image's or the volume's inputs. For an unchanged image, two queries are sufficient
//! and no image is built. If two starts with the same `$BOTTLE_HOME` need the same image, one start builds the image
//! and the other waits. Starts with different homes each build a complete image. [`Images::sweep`] finds the leftovers
//! of a killed start. This module runs no program of an image, except the steps of a Dockerfile in the engine's
//! builder.

pub(crate) mod adopt;
mod base;
mod build;
mod build_request;
mod buildkit;
mod classic;
mod context;
mod dockerfile;
mod dockerfile_diff;
mod ignored;
mod image_error;
mod image_facts;
mod labels;
pub(crate) mod load;
mod logins;
mod output;
mod owner_label;
mod preview;
mod pull;
mod recipe;
mod recipes;
mod scratch_container;
mod sources;
mod unused;
mod upload;
mod volume;
pub(crate) mod writable;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bollard::Docker;
use bottle_backend::image::build_lock::{self, BuildLock};
use bottle_backend::image::config;
use bottle_backend::static_program::{self, Program};
use bottle_backend::{BackendError, ProgressSink, Step, Unused};
use bottle_host::Host;
use bottle_plan::{ImageSource, Plan};
use bottle_protocol::session::guest::SecretText;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use self::adopt::Ready;
use self::build_request::{BuildRequest, LONG_TIMEOUT};
use self::image_error::{failed, is_missing, unsupported};
use self::image_facts::Facts;
pub(crate) use self::image_facts::LEFT_OUT_LABEL;
use self::labels::IMAGE_LABEL;
use self::recipe::Recipe;
use self::recipes::{AGENT, BUILD_HINT, SIDECARS, SIDECARS_NAME};
use self::sources::OwnDockerfile;
pub use self::volume::PROGRAM_FILE;
use self::volume::ScratchSource;
use crate::docker::engine::REMOVED_HINT;
pub use bottle_backend::image::account::Account;

/// The version of the code that prepares images. The version is a suffix of an agent image's tag, so a new version
/// rebuilds every image.
const READY_VERSION: &str = "w3";

/// Finds and creates the images on one engine.
#[derive(Debug)]
pub struct Images {
    docker: Docker,
    /// The engine's socket.
    socket: PathBuf,
    is_podman: bool,
    host: Host,
    version: OnceCell<EngineVersion>,
    base: OnceCell<String>,
    program: OnceCell<Program>,
    sidecars: OnceCell<String>,
    volume: OnceCell<String>,
    made_any: AtomicBool,
}

/// The parts of the engine's version that this module uses.
#[derive(Debug, Clone)]
struct EngineVersion {
    architecture: String,
    /// The newest version of the API, as the number after `1.`.
    api: u32,
}

/// An image prepared for an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentImage {
    /// The image's id.
    pub id: String,
    /// The agent's account. The account's home is a directory in the image, which the account owns.
    pub account: Account,
    /// The image's environment variables, as `NAME=value`.
    pub env: Vec<String>,
    /// Directories whose content is in volumes. Commits exclude this content.
    pub volumes: Vec<String>,
    /// Instructions that have no effect in a bottle, such as `ENTRYPOINT`.
    pub left_out: Vec<String>,
}

impl Images {
    /// Creates the value for this engine. Sends no query yet.
    #[must_use]
    pub fn new(docker: &Docker, socket: &Path, host: &Host) -> Self {
        Self {
            docker: docker.clone(),
            socket: socket.to_owned(),
            is_podman: false,
            host: host.clone(),
            version: OnceCell::new(),
            base: OnceCell::new(),
            program: OnceCell::new(),
            sidecars: OnceCell::new(),
            volume: OnceCell::new(),
            made_any: AtomicBool::new(false),
        }
    }

    /// Sets whether the engine is Podman.
    #[must_use]
    pub fn on_podman(self, is_podman: bool) -> Self {
        Self { is_podman, ..self }
    }

    /// Returns the engine's socket, if the engine is Podman.
    fn podman(&self) -> Option<&Path> {
        self.is_podman.then_some(self.socket.as_path())
    }

    /// Returns the plan's agent image. Builds, pulls or loads the image if it does not exist. `secrets` contains the
    /// values of the plan's secrets, by id.
    ///
    /// # Errors
    /// [`BackendError`] with the cause, the output of a failed build, and the user's next step.
    pub async fn agent(
        &self,
        plan: &Plan,
        secrets: &BTreeMap<String, SecretText>,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let renewal = plan.renewal;
        match &plan.image {
            ImageSource::Provider(template) => self.provider_image(*template, renewal, progress).await,
            ImageSource::Dockerfile { path, text, args, secrets: ids } => {
                let own = OwnDockerfile { path, text, args, secrets: ids };
                self.dockerfile_image(own, secrets, renewal, progress).await
            }
            ImageSource::Reference(reference) => self.reference_image(reference, renewal, progress).await,
            ImageSource::Path(path) => self.local_image(path, renewal, progress).await,
            ImageSource::Imported(id) => self.ready(id).await,
        }
    }

    /// Reads an image that [`Images::agent`] prepared, or that was committed from a container of such an image.
    ///
    /// # Errors
    /// [`BackendError`] when the image does not exist or is of another kind.
    pub async fn ready(&self, id: &str) -> Result<AgentImage, BackendError> {
        let named = format!("the image {id}");
        let facts = self.inspect(id, &named).await?.ok_or_else(|| {
            BackendError::failed(format!("{named} is not on this engine")).with_hint(REMOVED_HINT)
        })?;
        AgentImage::of(facts)
            .ok_or_else(|| BackendError::failed(format!("{named} is not an image of a bottle")))
    }

    /// Whether at least one image had to be built or prepared, by this process or by another process for which this
    /// process waited.
    #[must_use]
    pub fn made_any(&self) -> bool {
        self.made_any.load(Ordering::Relaxed)
    }

    /// Returns the sidecars' image. Builds the image if it does not exist.
    ///
    /// # Errors
    /// The errors of [`Images::agent`].
    pub async fn sidecars(&self, progress: &ProgressSink<Step>) -> Result<String, BackendError> {
        self.sidecars.get_or_try_init(|| self.make_sidecars(progress)).await.cloned()
    }

    /// Returns the volume that contains the program of pid 1 as [`PROGRAM_FILE`]. Creates and fills the volume if it
    /// does not exist. Containers mount the volume read-only.
    ///
    /// # Errors
    /// [`BackendError`] when there is no static program for this engine, or the engine refuses a call.
    pub async fn program(&self) -> Result<String, BackendError> {
        let volume = self.volume.get_or_try_init(|| async {
            let nobody = ProgressSink::discard();
            let (program, base) = tokio::try_join!(self.program_file(), self.base(&nobody))?;
            let home = self.host.home_hash();
            volume::filled(&self.docker, program, ScratchSource { image: base, home: &home }).await
        });
        volume.await.cloned()
    }

    /// Lists leftovers of starts and builds of this `$BOTTLE_HOME`. The list includes objects of running builds, which
    /// [`Images::remove_unused`] does not remove. Also lists old, unused volumes and images that newer volumes and
    /// images replace. Changes nothing.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be queried.
    pub async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        // If the program is not found, no start can need a volume or an image with this program.
        let program = self.program_file().await.ok();
        let home = self.host.home_hash();
        let mut unused = scratch_container::left(&self.docker, &home).await?;
        unused.extend(volume::unused(&self.docker, program, &home).await?);
        unused.extend(build::unused(&self.docker, program, &home).await?);
        Ok(unused)
    }

    /// Removes the items that [`Images::unused`] listed, except items that were used since then. Returns the removed
    /// items.
    ///
    /// # Errors
    /// [`BackendError`] when the engine refuses a removal.
    pub async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        unused::remove(&self.docker, &self.host, unused).await
    }

    /// Finds and removes unused images and volumes.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be queried or refuses a removal.
    pub async fn sweep(&self) -> Result<Vec<Unused>, BackendError> {
        self.remove_unused(self.unused().await?).await
    }

    /// Waits for the build lock of the image with this hash.
    async fn lock(
        &self,
        hash: &str,
        name: &str,
        progress: &ProgressSink<Step>,
    ) -> Result<BuildLock, BackendError> {
        let lock = build_lock::lock(&self.host, hash, name, progress).await?;
        self.made_any.store(true, Ordering::Relaxed);
        Ok(lock)
    }

    /// Returns a client with the timeout for long operations.
    fn long_running(&self) -> Docker {
        self.docker.clone().with_timeout(LONG_TIMEOUT)
    }

    /// Returns the prepared image with this tag, if it exists, and the image's facts.
    async fn find_ready(&self, tag: &str) -> Result<Option<(Facts, AgentImage)>, BackendError> {
        let name = format!("{AGENT}:{tag}-{READY_VERSION}");
        let facts = self.inspect(&name, &format!("the image {name}")).await?;
        Ok(facts.and_then(|facts| Some((facts.clone(), AgentImage::of(facts)?))))
    }

    /// Prepares the image `id`, and gives the prepared image the tag `tag`.
    async fn adopt(&self, id: &str, named: &str, tag: &str) -> Result<AgentImage, BackendError> {
        let gone = || {
            BackendError::failed(format!("{named} was removed while it was prepared")).with_hint(REMOVED_HINT)
        };
        let facts = self.inspect(id, named).await?.ok_or_else(gone)?;
        let (tag, home) = (format!("{tag}-{READY_VERSION}"), self.host.home_hash());
        let ready = Ready { tag: (AGENT, &tag), home: &home };
        let adopted = adopt::adopt(&self.docker, self.podman(), &facts, named, ready).await?;
        let facts = self.inspect(&adopted, named).await?.ok_or_else(gone)?;
        AgentImage::of(facts).ok_or_else(gone)
    }

    async fn make_sidecars(&self, progress: &ProgressSink<Step>) -> Result<String, BackendError> {
        let (program, base) = tokio::try_join!(self.program_file(), self.base(progress))?;
        let recipe = recipes::sidecars(program, base);
        let hash = recipe.hash(SIDECARS);
        let name = format!("{SIDECARS}:{hash}");
        if let Some(facts) = self.inspect(&name, SIDECARS_NAME).await? {
            return Ok(facts.id);
        }
        let _lock = self.lock(&hash, SIDECARS_NAME, progress).await?;
        if let Some(facts) = self.inspect(&name, SIDECARS_NAME).await? {
            return Ok(facts.id);
        }
        let mut request = BuildRequest::new(SIDECARS_NAME, BUILD_HINT, self.host.home_hash());
        request.tag = Some(name);
        request.labels = vec![(IMAGE_LABEL.to_owned(), labels::SIDECARS.to_owned())];
        let recipe = Recipe { extra_files: vec![("bottle", 0o755, program.bytes()?)], ..recipe };
        self.build(recipe, request, progress).await
    }

    async fn base(&self, progress: &ProgressSink<Step>) -> Result<&str, BackendError> {
        let id = self.base.get_or_try_init(|| async {
            let architecture = self.architecture().await?;
            base::find(&self.docker, &self.host, architecture, false, progress).await
        });
        id.await.map(String::as_str)
    }

    async fn program_file(&self) -> Result<&Program, BackendError> {
        let program = self.program.get_or_try_init(|| async {
            let architecture = self.architecture().await?.to_owned();
            let running = self.host.program.clone();
            let find = move || static_program::find(&running, &architecture, "containers of this engine");
            let found = tokio::task::spawn_blocking(find).await;
            found.map_err(|error| BackendError::failed("cannot read the program").because(error))?
        });
        program.await
    }

    /// Returns the engine's name for its processor architecture.
    async fn architecture(&self) -> Result<&str, BackendError> {
        self.version().await.map(|version| version.architecture.as_str())
    }

    /// Returns the engine's newest API version, as the number after `1.`.
    async fn api(&self) -> Result<u32, BackendError> {
        self.version().await.map(|version| version.api)
    }

    async fn version(&self) -> Result<&EngineVersion, BackendError> {
        let version = self.version.get_or_try_init(|| async {
            let answer = self.docker.version().await;
            let answer = answer.map_err(|error| failed("cannot query the engine's version", error))?;
            let api = answer.api_version.as_deref().and_then(|version| version.strip_prefix("1."));
            Ok(EngineVersion {
                api: api.and_then(|minor| minor.parse().ok()).unwrap_or_default(),
                architecture: answer
                    .arch
                    .ok_or_else(|| BackendError::failed("the engine does not report its architecture"))?,
            })
        });
        version.await
    }

    /// Returns the id of an image. `None` if the image does not exist.
    async fn image_id(&self, reference: &str, named: &str) -> Result<Option<String>, BackendError> {
        match self.docker.inspect_image(reference).await {
            Ok(image) => Ok(image.id),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failed(format!("cannot inspect {named}"), error)),
        }
    }

    /// Inspects an image. Returns `None` if the image does not exist.
    async fn inspect(&self, reference: &str, named: &str) -> Result<Option<Facts>, BackendError> {
        let (image, architecture) = tokio::join!(self.docker.inspect_image(reference), self.architecture());
        let image = match image {
            Ok(image) => image,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(failed(format!("cannot inspect {named}"), error)),
        };
        let facts = image_facts::facts(&image, architecture?);
        facts.map(Some).map_err(|why| unsupported(format!("{named} {why}")))
    }
}

impl AgentImage {
    /// Returns notes for the user about instructions without effect, and about volumes, because snapshots exclude
    /// volumes.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        config::notes(&self.left_out, &self.volumes)
    }

    fn of(facts: Facts) -> Option<Self> {
        let Facts { id, env, volumes, left_out, account, .. } = facts;
        Some(Self { id, account: account?, env, volumes, left_out })
    }
}
