//! Builds, pulls or loads the images of agents and sidecars. Creates the volume that contains the program of pid 1.
//!
//! ```text
//!  Dockerfile.agent + provider ─┐
//!  the user's Dockerfile ───────┤ recipe ─► build ─┐
//!  image reference ─────────────┼─ pull ───────────┼─► check ─► adopt ─► bottle-agent:<hash>
//!  folder or archive ───────────┘ load ────────────┘            account
//!  Dockerfile.sidecars + program ─ recipe ─► build ───────────────────► bottle-sidecars:<hash>
//!  program ─────────────────────── volume ────────────────────────────► bottle-program-<hash>
//! ```
//! Every name contains a hash of the image's or the volume's inputs. For an unchanged image, two queries are sufficient
//! and nothing is built. If two starts in the same home need the same image, one builds it and the other waits; starts
//! in different homes each build a complete image. [`Images::sweep`] finds the leftovers of a killed start. The only
//! programs of an image that run here are the steps of a Dockerfile, in the engine's builder.

mod adopt;
mod base;
mod build;
mod dockerfile_diff;
mod elf;
mod image_facts;
mod load;
mod owner_label;
mod preview;
mod program;
mod program_hash_cache;
mod recipe;
mod scratch_container;
mod stages;
mod unused;
mod volume;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::RemoveImageOptions;
use bottle_contract::terminal::inert;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use self::adopt::Ready;
use self::build::BuildRequest;
use self::image_facts::Facts;
use self::load::Local;
use self::program::Program;
use self::program_hash_cache::ProgramHashCache;
use self::recipe::Recipe;
use self::volume::ScratchSource;
use crate::backend::docker::engine::{EngineError, REMOVED_HINT};
use crate::backend::docker::listing;
pub use crate::backend::image::account::Account;
use crate::backend::image::build_lock::{self, BuildLock};
use crate::backend::image::config;
use crate::backend::image::hash::Hash;
use crate::backend::image::local;
use crate::backend::{BackendError, ProgressSink, Step, Unused};
use crate::host::{Host, roots};
use crate::manifest::host_path;
use crate::manifest::provider::Template;
use crate::plan::{ImageSource, Plan};

/// The program's file name in the volume that [`Images::program`] returns.
pub const PROGRAM_FILE: &str = "bottle";
/// The label with the kind of image, on every image that this program creates.
pub const IMAGE_LABEL: &str = "bottle.image";

const AGENT_DOCKERFILE: &str = include_str!("../../../../Dockerfile.agent");
const SIDECARS_DOCKERFILE: &str = include_str!("../../../../Dockerfile.sidecars");
/// The lock files from which the provider's stage of `Dockerfile.agent` installs, by their paths in the build context.
const PINNED_FILES: [(&str, &str); 7] = [
    ("images/claude/package.json", include_str!("../../../../images/claude/package.json")),
    ("images/claude/package-lock.json", include_str!("../../../../images/claude/package-lock.json")),
    ("images/codex/package.json", include_str!("../../../../images/codex/package.json")),
    ("images/codex/package-lock.json", include_str!("../../../../images/codex/package-lock.json")),
    ("images/node/requirements.txt", include_str!("../../../../images/node/requirements.txt")),
    ("images/pi/package.json", include_str!("../../../../images/pi/package.json")),
    ("images/pi/package-lock.json", include_str!("../../../../images/pi/package-lock.json")),
];
/// The hint if the build of a bundled Dockerfile fails.
const BUILD_HINT: &str = "it is built from public packages: see whether this machine's containers reach Debian's and npm's registries";
/// Time limit of a request to build, pull or load an image, after which the request fails. None is expected to take
/// this long, and the user can interrupt it.
const LONG_TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);
/// The repository name of agent images.
const AGENT: &str = "bottle-agent";
/// The version of the preparation, a suffix of an agent image's tag. Changing it rebuilds every image.
const READY_VERSION: &str = "w1";
const SIDECARS: &str = "bottle-sidecars";
/// The name of the sidecars' image in messages.
const SIDECARS_NAME: &str = "the image for the sidecars";

/// Finds and creates the images on one engine.
#[derive(Debug)]
pub struct Images {
    docker: Docker,
    /// The engine's socket, if the engine is Podman.
    podman: Option<PathBuf>,
    host: Host,
    architecture: OnceCell<String>,
    base: OnceCell<String>,
    program: OnceCell<Program>,
    sidecars: OnceCell<String>,
    volume: OnceCell<String>,
    made_any: AtomicBool,
}

/// An image prepared for an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentImage {
    /// The image's id.
    pub id: String,
    /// The agent's account. Its home is a folder in the image, which the account owns.
    pub account: Account,
    /// The image's environment variables, as `NAME=value`.
    pub env: Vec<String>,
    /// Folders whose content is in volumes. Commits exclude it.
    pub volumes: Vec<String>,
    /// Instructions that have no effect in a bottle, such as `ENTRYPOINT`.
    pub left_out: Vec<String>,
}

impl Images {
    /// Creates the value for this engine. Sends no query yet.
    #[must_use]
    pub fn new(docker: &Docker, host: &Host) -> Self {
        Self {
            docker: docker.clone(),
            podman: None,
            host: host.clone(),
            architecture: OnceCell::new(),
            base: OnceCell::new(),
            program: OnceCell::new(),
            sidecars: OnceCell::new(),
            volume: OnceCell::new(),
            made_any: AtomicBool::new(false),
        }
    }

    /// Says that the engine is Podman with this socket, if there is one.
    #[must_use]
    pub fn on_podman(self, socket: Option<&Path>) -> Self {
        Self { podman: socket.map(Path::to_owned), ..self }
    }

    /// The plan's agent image. Builds, pulls or loads the image if it does not exist.
    ///
    /// # Errors
    /// [`BackendError`] with the cause, the output of a failed build, and the user's next step.
    pub async fn agent(
        &self,
        plan: &Plan,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        match &plan.image {
            ImageSource::Provider(template) => self.provider_image(*template, progress).await,
            ImageSource::Dockerfile { path, text } => self.dockerfile_image(path, text, progress).await,
            ImageSource::Reference(reference) => self.reference_image(reference, progress).await,
            ImageSource::Path(path) => self.local_image(path, progress).await,
        }
    }

    /// Reads an image that [`Images::agent`] prepared, or that was committed from a container of one.
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

    /// Whether at least one image was not ready at first. This process, or another one for which it waited, then built
    /// or prepared the image.
    #[must_use]
    pub fn made_any(&self) -> bool {
        self.made_any.load(Ordering::Relaxed)
    }

    /// The sidecars' image. Builds the image if it does not exist.
    ///
    /// # Errors
    /// As [`Images::agent`].
    pub async fn sidecars(&self, progress: &ProgressSink<Step>) -> Result<String, BackendError> {
        self.sidecars.get_or_try_init(|| self.make_sidecars(progress)).await.cloned()
    }

    /// The volume that contains the program of pid 1 as [`PROGRAM_FILE`]. Creates and fills the volume if it does not
    /// exist. Containers mount it read-only.
    ///
    /// # Errors
    /// [`BackendError`] when there is no static program for this engine, or the engine refuses a call.
    pub async fn program(&self) -> Result<String, BackendError> {
        let volume = self.volume.get_or_try_init(|| async {
            let nobody = ProgressSink::discard();
            let (program, base) = tokio::try_join!(self.program_file(), self.base(&nobody))?;
            let home = self.host.home_hash();
            program.keep_hash(&self.host.home);
            volume::filled(&self.docker, program, ScratchSource { image: base, home: &home }).await
        });
        volume.await.cloned()
    }

    /// Lists leftovers of this home's starts and builds, also of running builds, which [`Images::remove_unused`] does
    /// not remove. Also lists volumes and images that are unused, old, and replaced by newer ones. Changes nothing.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be queried.
    pub async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        // Without a program, no start is about to use its volume or its image.
        let program = self.program_file().await.ok();
        let home = self.host.home_hash();
        let mut unused = scratch_container::left(&self.docker, &home).await?;
        unused.extend(volume::unused(&self.docker, program, &home).await?);
        unused.extend(build::unused(&self.docker, program, &home).await?);
        Ok(unused)
    }

    /// Removes the items that [`Images::unused`] listed, except those used since then. Returns the removed items.
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

    async fn provider_image(
        &self,
        template: Template,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let recipe = provider_recipe(template, self.base(progress).await?);
        let name = provider_image(template);
        self.recipe_image(recipe, &name, BUILD_HINT, Vec::new(), progress).await
    }

    async fn dockerfile_image(
        &self,
        path: &Path,
        text: &str,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let recipe = own_recipe(text);
        let name = dockerfile_image(path);
        let hint = format!(
            "correct {}; it is built without a context, so there is nothing to COPY or ADD",
            self.host.home.join(path).display()
        );
        let labels = dockerfile_diff::labels(&self.host, path, text);
        self.recipe_image(recipe, &name, &hint, labels, progress).await
    }

    /// The image of a recipe. Builds the image if it does not exist.
    async fn recipe_image(
        &self,
        recipe: Recipe,
        name: &str,
        hint: &str,
        mut labels: Vec<(String, String)>,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        labels.push((IMAGE_LABEL.to_owned(), build::BUILT.to_owned()));
        let tag = recipe.hash(AGENT);
        if let Some(image) = self.find_ready(&tag).await? {
            return Ok(image);
        }
        let _lock = self.lock(&tag, name, progress).await?;
        if let Some(image) = self.find_ready(&tag).await? {
            return Ok(image);
        }
        let proxies = build::proxies(&self.host);
        // Only the bundled Dockerfile uses the machine's root certificates, and its image does not contain them.
        let extra_files = match recipe.args.contains_key("PROVIDER") {
            true => vec![("roots.pem", 0o644, machine_roots())],
            false => Vec::new(),
        };
        let recipe = Recipe { extra_files, ..recipe };
        let home = &self.host.home_hash();
        let request = BuildRequest { name, hint, home, tag: None, labels, proxies };
        let built = build::build(&self.long_running(), &recipe, &request, progress).await?;
        self.adopt(&built, name, &tag).await
    }

    async fn reference_image(
        &self,
        reference: &str,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let name = reference_image(reference);
        let facts = match self.inspect(reference, &name).await? {
            Some(facts) => facts,
            None => {
                base::pull(&self.long_running(), reference, progress).await.map_err(|error| {
                    failed(format!("{name} is not on this engine and cannot be pulled"), error)
                        .with_hint("`docker image ls` lists what is; an archive can be named as ./FILE.tar, in $BOTTLE_HOME")
                })?;
                let gone = || {
                    BackendError::failed(format!("{name} was removed after the pull")).with_hint(REMOVED_HINT)
                };
                self.inspect(reference, &name).await?.ok_or_else(gone)?
            }
        };
        self.existing_image(facts, &name, progress).await
    }

    async fn local_image(
        &self,
        path: &Path,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let name = local::named(path);
        let local = self.inspect_local(path).await?;
        if let Some(image) = self.find_ready(&local.found.hash).await? {
            return Ok(image);
        }
        let _lock = self.lock(&local.found.hash, &name, progress).await?;
        if let Some(image) = self.find_ready(&local.found.hash).await? {
            return Ok(image);
        }
        let before = self.nameless().await?;
        let loaded = local.load(&self.long_running(), &name, progress).await?;
        let adopted = self.adopt(&loaded, &name, &local.found.hash).await;
        if adopted.is_err() && !before.contains(&loaded) && self.nameless().await?.contains(&loaded) {
            // The image was loaded only for this preparation, and has no name.
            let _ = self.docker.remove_image(&loaded, None::<RemoveImageOptions>, None).await;
        }
        adopted
    }

    /// The ids of images that have no name.
    async fn nameless(&self) -> Result<Vec<String>, BackendError> {
        let images = listing::images(&self.docker, "dangling", vec!["true".to_owned()]).await;
        let images = images.map_err(|error| failed("cannot list the images", error))?;
        Ok(images.into_iter().map(|image| image.id).collect())
    }

    /// Inspects the folder or archive at this path, relative to `$BOTTLE_HOME`.
    async fn inspect_local(&self, path: &Path) -> Result<Local, BackendError> {
        let wrong = |why: String| {
            BackendError::failed(format!("{} {why}", local::named(path))).with_hint(local::IMAGE_HINT)
        };
        let real = host_path::real_within(&self.host.home, path).map_err(wrong)?;
        let looking = tokio::task::spawn_blocking(move || local::inspect(&real));
        let found =
            looking.await.map_err(|error| wrong(format!("cannot be read: {error}")))?.map_err(wrong)?;
        Ok(Local { found, home: self.host.home_hash() })
    }

    /// Prepares an image that exists already, unless it is prepared.
    async fn existing_image(
        &self,
        facts: Facts,
        name: &str,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let tag = existing_image_hash(&facts);
        if let Some(image) = self.find_ready(&tag).await? {
            return Ok(image);
        }
        let _lock = self.lock(&tag, name, progress).await?;
        match self.find_ready(&tag).await? {
            Some(image) => Ok(image),
            None => self.adopt(&facts.id, name, &tag).await,
        }
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

    /// A client with the timeout for long operations.
    fn long_running(&self) -> Docker {
        self.docker.clone().with_timeout(LONG_TIMEOUT)
    }

    /// The prepared image with this tag, if it exists.
    async fn find_ready(&self, tag: &str) -> Result<Option<AgentImage>, BackendError> {
        let name = format!("{AGENT}:{tag}-{READY_VERSION}");
        Ok(self.inspect(&name, &format!("the image {name}")).await?.and_then(AgentImage::of))
    }

    /// Prepares the image with this id and gives the result this tag.
    async fn adopt(&self, id: &str, named: &str, tag: &str) -> Result<AgentImage, BackendError> {
        let gone = || {
            BackendError::failed(format!("{named} was removed while it was prepared")).with_hint(REMOVED_HINT)
        };
        let facts = self.inspect(id, named).await?.ok_or_else(gone)?;
        let (tag, home) = (format!("{tag}-{READY_VERSION}"), self.host.home_hash());
        let ready = Ready { tag: (AGENT, &tag), home: &home };
        let adopted = adopt::adopt(&self.docker, self.podman.as_deref(), &facts, named, ready).await?;
        let facts = self.inspect(&adopted, named).await?.ok_or_else(gone)?;
        AgentImage::of(facts).ok_or_else(gone)
    }

    async fn make_sidecars(&self, progress: &ProgressSink<Step>) -> Result<String, BackendError> {
        let (program, base) = tokio::try_join!(self.program_file(), self.base(progress))?;
        let recipe = sidecars_recipe(program, base);
        let hash = recipe.hash(SIDECARS);
        let name = format!("{SIDECARS}:{hash}");
        if let Some(facts) = self.inspect(&name, SIDECARS_NAME).await? {
            return Ok(facts.id);
        }
        let _lock = self.lock(&hash, SIDECARS_NAME, progress).await?;
        if let Some(facts) = self.inspect(&name, SIDECARS_NAME).await? {
            return Ok(facts.id);
        }
        let request = BuildRequest {
            name: SIDECARS_NAME,
            hint: BUILD_HINT,
            home: &self.host.home_hash(),
            tag: Some(name),
            labels: vec![(IMAGE_LABEL.to_owned(), build::SIDECARS.to_owned())],
            proxies: build::proxies(&self.host),
        };
        let recipe = Recipe { extra_files: vec![("bottle", 0o755, program.bytes()?)], ..recipe };
        build::build(&self.long_running(), &recipe, &request, progress).await
    }

    async fn base(&self, progress: &ProgressSink<Step>) -> Result<&str, BackendError> {
        let id = self.base.get_or_try_init(|| async {
            let architecture = self.architecture().await?;
            base::find(&self.docker, architecture, progress).await
        });
        id.await.map(String::as_str)
    }

    async fn program_file(&self) -> Result<&Program, BackendError> {
        let program = self.program.get_or_try_init(|| async {
            let architecture = self.architecture().await?.to_owned();
            let (running, home) = (self.host.program.clone(), self.host.home.clone());
            let find = move || program::find(&running, &architecture, ProgramHashCache::read(&home).as_ref());
            let found = tokio::task::spawn_blocking(find).await;
            found.map_err(|error| BackendError::failed("cannot read the program").because(error))?
        });
        program.await
    }

    /// The engine's name for its processor architecture.
    async fn architecture(&self) -> Result<&str, BackendError> {
        let word = self.architecture.get_or_try_init(|| async {
            let version = self
                .docker
                .version()
                .await
                .map_err(|error| failed("cannot query the engine's version", error))?;
            version.arch.ok_or_else(|| BackendError::failed("the engine does not report its architecture"))
        });
        word.await.map(String::as_str)
    }

    /// Inspects an image. `None` if it does not exist.
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
    /// Notes for the user about instructions without effect and about volumes, which snapshots exclude.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        config::notes(&self.left_out, &self.volumes)
    }

    fn of(facts: Facts) -> Option<Self> {
        let Facts { id, env, volumes, left_out, account, .. } = facts;
        Some(Self { id, account: account?, env, volumes, left_out })
    }
}

/// The recipe of `Dockerfile.agent` for this provider and base image.
fn provider_recipe(template: Template, base: &str) -> Recipe {
    let provider = template.to_string();
    let own = |path: &str| match template {
        Template::Command => false,
        _ => path.starts_with(&format!("images/{provider}/")) || path.starts_with("images/node/"),
    };
    let pins = PINNED_FILES.iter().filter(|(path, _)| own(path));
    Recipe {
        dockerfile: AGENT_DOCKERFILE.to_owned(),
        args: named([("BASE", base), ("PROVIDER", &provider)]),
        files: pins.map(|(path, text)| (*path, 0o644, Bytes::from_static(text.as_bytes()))).collect(),
        extra_files: Vec::new(),
    }
}

/// The recipe of the sidecars' image for this program and base image. The build adds the program as an extra file.
fn sidecars_recipe(program: &Program, base: &str) -> Recipe {
    Recipe {
        dockerfile: SIDECARS_DOCKERFILE.to_owned(),
        args: named([("BASE", base), ("PROGRAM", &program.hash)]),
        files: Vec::new(),
        extra_files: Vec::new(),
    }
}

/// The hash that becomes the tag of a prepared existing image.
fn existing_image_hash(facts: &Facts) -> String {
    let mut hash = Hash::new("existing image");
    hash.add(facts.id.as_bytes());
    hash.finish()
}

fn provider_image(template: Template) -> String {
    format!("the image for {template}")
}

fn dockerfile_image(path: &Path) -> String {
    format!("the image of the Dockerfile {}", path.display())
}

fn reference_image(reference: &str) -> String {
    format!("the image {reference}")
}

/// The recipe of a user's Dockerfile. It is built without a build context.
fn own_recipe(text: &str) -> Recipe {
    Recipe { dockerfile: text.to_owned(), ..Recipe::default() }
}

/// This machine's trusted root certificates, for registries that are reached through a company's proxy.
fn machine_roots() -> Bytes {
    roots::of_this_machine().into()
}

fn named<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Converts an engine's error into the error of an action.
fn failed(what: impl Display, error: Error) -> BackendError {
    let error = EngineError::from(error);
    let failed = BackendError::failed(format!("{what}: {}", inert(error.to_string().trim())));
    BackendError { hint: error.hint().map(str::to_owned), ..failed }
}

fn unsupported(message: String) -> BackendError {
    BackendError::unsupported(message, "name another image in `agent_provider`")
}

/// Whether the error says that the object does not exist.
fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}
