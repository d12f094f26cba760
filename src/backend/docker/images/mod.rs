//! Images: what an agent and its guards are made of, and the program that both run.
//!
//! ```text
//!  Dockerfile.agent + provider ─┐
//!  the user's Dockerfile ─────┤ recipe ─► build ─┐
//!  image reference ─────────────┼─ pull ───────────┼─► check ─► adopt ─► bottle-agent:<hash>
//!  folder or archive ───────────┘ load ────────────┘            account
//!  Dockerfile.sidecars + program ─ recipe ─► build ───────────────────► bottle-sidecars:<hash>
//!  program ─────────────────────── volume ────────────────────────────► bottle-program-<hash>
//! ```
//! Every name follows from the content, so what is there is taken as it is: an unchanged image costs two
//! questions and is never built again. Of two starts of a home that need the same one builds and the other
//! waits; two of different homes both end with a good image. What one that was killed leaves,
//! [`Images::sweep`] finds. Nothing of an image runs here, but for
//! the steps of a Dockerfile in the engine's builder.

mod adopt;
mod base;
mod build;
mod changed;
mod check;
mod elf;
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
use std::path::Path;
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
use self::build::Order;
use self::check::Facts;
use self::load::Local;
use self::program::Program;
use self::program_hash_cache::Known;
use self::recipe::Recipe;
use self::volume::Maker;
use crate::backend::docker::engine::{EngineError, REMOVED};
use crate::backend::docker::listing;
pub use crate::backend::image::account::Account;
use crate::backend::image::building::{self, Building};
use crate::backend::image::config;
use crate::backend::image::hash::Hash;
use crate::backend::image::local;
use crate::backend::{BackendError, BackendErrorKind, ProgressSink, Step, Unused};
use crate::host::{Host, roots};
use crate::manifest::host_path;
use crate::manifest::provider::Template;
use crate::plan::{ImageSource, Plan};

/// The program's name in the volume that [`Images::program`] names.
pub const PROGRAM_FILE: &str = "bottle";
/// On every image that is made here: what it is for.
pub const IMAGE_LABEL: &str = "bottle.image";

const AGENT_DOCKERFILE: &str = include_str!("../../../../Dockerfile.agent");
const SIDECARS_DOCKERFILE: &str = include_str!("../../../../Dockerfile.sidecars");
/// What the provider's stage of `Dockerfile.agent` installs from, at its place in the context.
const PINS: [(&str, &str); 7] = [
    ("images/claude/package.json", include_str!("../../../../images/claude/package.json")),
    ("images/claude/package-lock.json", include_str!("../../../../images/claude/package-lock.json")),
    ("images/codex/package.json", include_str!("../../../../images/codex/package.json")),
    ("images/codex/package-lock.json", include_str!("../../../../images/codex/package-lock.json")),
    ("images/node/requirements.txt", include_str!("../../../../images/node/requirements.txt")),
    ("images/pi/package.json", include_str!("../../../../images/pi/package.json")),
    ("images/pi/package-lock.json", include_str!("../../../../images/pi/package-lock.json")),
];
/// What a failed build of ours most often means.
const FETCHES: &str = "it is built from public packages: see whether this machine's containers reach Debian's and npm's registries";
/// Longer than any build, pull or load; a user who has waited enough interrupts it.
const PATIENCE: Duration = Duration::from_secs(6 * 60 * 60);
/// Repositories of what is made here.
const AGENT: &str = "bottle-agent";
/// Behind the hash in an agent image's tag: what it is made ready with. Another one makes every image anew.
const READY: &str = "w1";
const SIDECARS: &str = "bottle-sidecars";
/// How errors call it.
const GUARDS: &str = "the image for the guards";

/// The images of one engine.
#[derive(Debug)]
pub struct Images {
    docker: Docker,
    host: Host,
    architecture: OnceCell<String>,
    base: OnceCell<String>,
    program: OnceCell<Program>,
    sidecars: OnceCell<String>,
    volume: OnceCell<String>,
    made_any: AtomicBool,
}

/// An image that an agent can work in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentImage {
    /// Its id.
    pub id: String,
    /// Who the agent is in it. Its home is a folder in the image that it owns.
    pub account: Account,
    /// What the image adds to the environment, as `NAME=value`.
    pub env: Vec<String>,
    /// Folders that the image keeps in volumes: no commit holds them.
    pub volumes: Vec<String>,
    /// Instructions of the image that have no effect in a bottle (`ENTRYPOINT`).
    pub left_out: Vec<String>,
}

impl Images {
    /// The images of this engine. Asks nothing yet.
    #[must_use]
    pub fn new(docker: &Docker, host: &Host) -> Self {
        Self {
            docker: docker.clone(),
            host: host.clone(),
            architecture: OnceCell::new(),
            base: OnceCell::new(),
            program: OnceCell::new(),
            sidecars: OnceCell::new(),
            volume: OnceCell::new(),
            made_any: AtomicBool::new(false),
        }
    }

    /// The image that the plan's agent works in, built, pulled or loaded when it is not there.
    ///
    /// # Errors
    /// [`BackendError`] with the first cause, a failed build's output, and the next step.
    pub async fn agent(&self, plan: &Plan, told: &ProgressSink<Step>) -> Result<AgentImage, BackendError> {
        match &plan.image {
            ImageSource::Provider(template) => self.of_provider(*template, told).await,
            ImageSource::Dockerfile { path, text } => self.of_dockerfile(path, text, told).await,
            ImageSource::Reference(reference) => self.of_reference(reference, told).await,
            ImageSource::Path(path) => self.of_path(path, told).await,
        }
    }

    /// An image that was made ready by [`Images::agent`], or committed from one that was.
    ///
    /// # Errors
    /// [`BackendError`] when it is gone, or is no such image.
    pub async fn ready(&self, id: &str) -> Result<AgentImage, BackendError> {
        let named = format!("the image {id}");
        let facts = self.inspect(id, &named).await?.ok_or_else(|| {
            BackendError::failed(format!("{named} is not on this engine")).with_hint(REMOVED)
        })?;
        AgentImage::of(facts)
            .ok_or_else(|| BackendError::failed(format!("{named} was not made for a bottle")))
    }

    /// Whether any image had to be made.
    #[must_use]
    pub fn made_any(&self) -> bool {
        self.made_any.load(Ordering::Relaxed)
    }

    /// The image of the guards, built when it is not there.
    ///
    /// # Errors
    /// As [`Images::agent`].
    pub async fn sidecars(&self, told: &ProgressSink<Step>) -> Result<String, BackendError> {
        self.sidecars.get_or_try_init(|| self.make_sidecars(told)).await.cloned()
    }

    /// The volume that holds the program for pid 1, as [`PROGRAM_FILE`]; made and filled when it is not there.
    /// It is only ever mounted read-only.
    ///
    /// # Errors
    /// [`BackendError`] when there is no static program for this engine, or the engine refuses.
    pub async fn program(&self) -> Result<String, BackendError> {
        let volume = self.volume.get_or_try_init(|| async {
            let nobody = ProgressSink::nobody();
            let (program, base) = tokio::try_join!(self.program_file(), self.base(&nobody))?;
            let home = self.host.home_hash();
            program.keep_hash(&self.host.home);
            volume::filled(&self.docker, program, Maker { image: base, home: &home }).await
        });
        volume.await.cloned()
    }

    /// What starts of this home left that were killed while they made an image or a volume, and what builds leave
    /// behind, unless one goes on; and volumes and images that others have taken the place of, once they are old
    /// and no container has them. Changes nothing.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be asked.
    pub async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        // Without one there is none that a start is about to use.
        let program = self.program_file().await.ok();
        let home = self.host.home_hash();
        let mut unused = scratch_container::left(&self.docker, &home).await?;
        unused.extend(volume::unused(&self.docker, program, &home).await?);
        unused.extend(build::unused(&self.docker, program, &home).await?);
        Ok(unused)
    }

    /// Removes what [`Images::unused`] found, as far as nobody has come to use it since, and answers with it.
    ///
    /// # Errors
    /// [`BackendError`] when the engine refuses.
    pub async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        unused::remove(&self.docker, &self.host, unused).await
    }

    /// Both at once.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be asked, or refuses.
    pub async fn sweep(&self) -> Result<Vec<Unused>, BackendError> {
        self.remove_unused(self.unused().await?).await
    }

    async fn of_provider(
        &self,
        template: Template,
        told: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let recipe = provider_recipe(template, self.base(told).await?);
        let name = of_provider(template);
        self.of_recipe(recipe, &name, FETCHES, Vec::new(), told).await
    }

    async fn of_dockerfile(
        &self,
        path: &Path,
        text: &str,
        told: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let recipe = own_recipe(text);
        let name = of_dockerfile(path);
        let hint = format!(
            "correct {}; it is built without a context, so there is nothing to COPY or ADD",
            self.host.home.join(path).display()
        );
        let labels = changed::labels(&self.host, path, text);
        self.of_recipe(recipe, &name, &hint, labels, told).await
    }

    /// The image of a recipe, built when it is not there.
    async fn of_recipe(
        &self,
        recipe: Recipe,
        name: &str,
        hint: &str,
        mut labels: Vec<(String, String)>,
        told: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        labels.push((IMAGE_LABEL.to_owned(), build::BUILT.to_owned()));
        let tag = recipe.hash(AGENT);
        if let Some(image) = self.made(&tag).await? {
            return Ok(image);
        }
        let _alone = self.begin(&tag, name, told).await?;
        if let Some(image) = self.made(&tag).await? {
            return Ok(image);
        }
        let proxies = build::proxies(&self.host);
        // The roots are for our own Dockerfile, which leaves them behind.
        let aids = match recipe.args.contains_key("PROVIDER") {
            true => vec![("roots.pem", 0o644, machine_roots())],
            false => Vec::new(),
        };
        let recipe = Recipe { aids, ..recipe };
        let home = &self.host.home_hash();
        let order = Order { name, hint, home, tag: None, labels, proxies };
        let built = build::build(&self.patient(), &recipe, &order, told).await?;
        self.adopt(&built, name, &tag).await
    }

    async fn of_reference(
        &self,
        reference: &str,
        told: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let name = of_reference(reference);
        let facts = match self.inspect(reference, &name).await? {
            Some(facts) => facts,
            None => {
                base::pull(&self.patient(), reference, told).await.map_err(|error| {
                    failed(format!("{name} is not on this engine and cannot be pulled"), error)
                        .with_hint("`docker image ls` lists what is; an archive can be named as ./FILE.tar, in $BOTTLE_HOME")
                })?;
                let gone =
                    || BackendError::failed(format!("{name} was pulled and is not there")).with_hint(REMOVED);
                self.inspect(reference, &name).await?.ok_or_else(gone)?
            }
        };
        self.of_existing(facts, &name, told).await
    }

    async fn of_path(&self, path: &Path, told: &ProgressSink<Step>) -> Result<AgentImage, BackendError> {
        let name = of_path(path);
        let local = self.look(path).await?;
        if let Some(image) = self.made(&local.found.hash).await? {
            return Ok(image);
        }
        let _alone = self.begin(&local.found.hash, &name, told).await?;
        if let Some(image) = self.made(&local.found.hash).await? {
            return Ok(image);
        }
        let before = self.nameless().await?;
        let loaded = local.load(&self.patient(), &name, told).await?;
        let adopted = self.adopt(&loaded, &name, &local.found.hash).await;
        if adopted.is_err() && !before.contains(&loaded) && self.nameless().await?.contains(&loaded) {
            // It came for this alone, and nobody could find it again.
            let _ = self.docker.remove_image(&loaded, None::<RemoveImageOptions>, None).await;
        }
        adopted
    }

    /// The ids of images that have neither a name nor another one made on them.
    async fn nameless(&self) -> Result<Vec<String>, BackendError> {
        let images = listing::images(&self.docker, "dangling", vec!["true".to_owned()]).await;
        let images = images.map_err(|error| failed("cannot list the images", error))?;
        Ok(images.into_iter().map(|image| image.id).collect())
    }

    /// The folder or archive at this path of the home.
    async fn look(&self, path: &Path) -> Result<Local, BackendError> {
        let wrong = |why: String| {
            BackendError::failed(format!("{} {why}", of_path(path)))
                .with_hint("it must be a folder or a tar archive in $BOTTLE_HOME, of a file system or from `docker save`")
        };
        let real = host_path::real_within(&self.host.home, path).map_err(wrong)?;
        let looking = tokio::task::spawn_blocking(move || local::look(&real));
        let found =
            looking.await.map_err(|error| wrong(format!("cannot be read: {error}")))?.map_err(wrong)?;
        Ok(Local { found, home: self.host.home_hash() })
    }

    /// An image that is on the engine, made ready once.
    async fn of_existing(
        &self,
        facts: Facts,
        name: &str,
        told: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let tag = hash_of_existing(&facts);
        if let Some(image) = self.made(&tag).await? {
            return Ok(image);
        }
        let _alone = self.begin(&tag, name, told).await?;
        match self.made(&tag).await? {
            Some(image) => Ok(image),
            None => self.adopt(&facts.id, name, &tag).await,
        }
    }

    /// Waits for its turn to make the image of this hash.
    async fn begin(
        &self,
        hash: &str,
        name: &str,
        told: &ProgressSink<Step>,
    ) -> Result<Building, BackendError> {
        let building = building::begin(&self.host, hash, name, told).await?;
        self.made_any.store(true, Ordering::Relaxed);
        Ok(building)
    }

    /// The engine, for what takes as long as it takes: it answers when it is done.
    fn patient(&self) -> Docker {
        self.docker.clone().with_timeout(PATIENCE)
    }

    /// The image with this tag, when it was made before.
    async fn made(&self, tag: &str) -> Result<Option<AgentImage>, BackendError> {
        let name = format!("{AGENT}:{tag}-{READY}");
        Ok(self.inspect(&name, &format!("the image {name}")).await?.and_then(AgentImage::of))
    }

    /// Makes the image with this id ready, under this tag.
    async fn adopt(&self, id: &str, named: &str, tag: &str) -> Result<AgentImage, BackendError> {
        let gone = || {
            BackendError::failed(format!("{named} is not there any more, half-way ready")).with_hint(REMOVED)
        };
        let facts = self.inspect(id, named).await?.ok_or_else(gone)?;
        let (tag, home) = (format!("{tag}-{READY}"), self.host.home_hash());
        let ready = Ready { tag: (AGENT, &tag), home: &home };
        let adopted = adopt::adopt(&self.docker, &facts, named, ready).await?;
        let facts = self.inspect(&adopted, named).await?.ok_or_else(gone)?;
        AgentImage::of(facts).ok_or_else(gone)
    }

    async fn make_sidecars(&self, told: &ProgressSink<Step>) -> Result<String, BackendError> {
        let (program, base) = tokio::try_join!(self.program_file(), self.base(told))?;
        let recipe = sidecars_recipe(program, base);
        let hash = recipe.hash(SIDECARS);
        let name = format!("{SIDECARS}:{hash}");
        if let Some(facts) = self.inspect(&name, GUARDS).await? {
            return Ok(facts.id);
        }
        let _alone = self.begin(&hash, GUARDS, told).await?;
        if let Some(facts) = self.inspect(&name, GUARDS).await? {
            return Ok(facts.id);
        }
        let order = Order {
            name: GUARDS,
            hint: FETCHES,
            home: &self.host.home_hash(),
            tag: Some(name),
            labels: vec![(IMAGE_LABEL.to_owned(), build::SIDECARS.to_owned())],
            proxies: build::proxies(&self.host),
        };
        let recipe = Recipe { aids: vec![("bottle", 0o755, program.bytes()?)], ..recipe };
        build::build(&self.patient(), &recipe, &order, told).await
    }

    async fn base(&self, told: &ProgressSink<Step>) -> Result<&str, BackendError> {
        let id = self.base.get_or_try_init(|| async {
            let architecture = self.architecture().await?;
            base::find(&self.docker, architecture, told).await
        });
        id.await.map(String::as_str)
    }

    async fn program_file(&self) -> Result<&Program, BackendError> {
        let program = self.program.get_or_try_init(|| async {
            let architecture = self.architecture().await?.to_owned();
            let (running, home) = (self.host.program.clone(), self.host.home.clone());
            let find = move || program::find(&running, &architecture, Known::read(&home).as_ref());
            let found = tokio::task::spawn_blocking(find).await;
            found.map_err(|error| BackendError::failed(format!("cannot read the program: {error}")))?
        });
        program.await
    }

    /// The engine's own word for its processor.
    async fn architecture(&self) -> Result<&str, BackendError> {
        let word = self.architecture.get_or_try_init(|| async {
            let version = self
                .docker
                .version()
                .await
                .map_err(|error| failed("cannot ask the engine what it is", error))?;
            version.arch.ok_or_else(|| BackendError::failed("the engine does not say what machine it is on"))
        });
        word.await.map(String::as_str)
    }

    /// What an image says; `None` when it is not there.
    async fn inspect(&self, reference: &str, named: &str) -> Result<Option<Facts>, BackendError> {
        let (image, architecture) = tokio::join!(self.docker.inspect_image(reference), self.architecture());
        let image = match image {
            Ok(image) => image,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(failed(format!("cannot look at {named}"), error)),
        };
        let facts = check::facts(&image, architecture?);
        facts.map(Some).map_err(|why| unsupported(format!("{named} {why}")))
    }
}

impl AgentImage {
    /// What a user should know of it: what has no effect in a bottle, what no snapshot holds.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        config::notes(&self.left_out, &self.volumes)
    }

    fn of(facts: Facts) -> Option<Self> {
        let Facts { id, env, volumes, left_out, account, .. } = facts;
        Some(Self { id, account: account?, env, volumes, left_out })
    }
}

/// The provider's part of `Dockerfile.agent`, on this base.
fn provider_recipe(template: Template, base: &str) -> Recipe {
    let provider = template.to_string();
    let own = |path: &str| match template {
        Template::Command => false,
        _ => path.starts_with(&format!("images/{provider}/")) || path.starts_with("images/node/"),
    };
    let pins = PINS.iter().filter(|(path, _)| own(path));
    Recipe {
        dockerfile: AGENT_DOCKERFILE.to_owned(),
        args: named([("BASE", base), ("PROVIDER", &provider)]),
        files: pins.map(|(path, text)| (*path, 0o644, Bytes::from_static(text.as_bytes()))).collect(),
        aids: Vec::new(),
    }
}

/// The guards' image with this program, on this base; what is built of it gets the program beside it.
fn sidecars_recipe(program: &Program, base: &str) -> Recipe {
    Recipe {
        dockerfile: SIDECARS_DOCKERFILE.to_owned(),
        args: named([("BASE", base), ("PROGRAM", &program.hash)]),
        files: Vec::new(),
        aids: Vec::new(),
    }
}

/// The tag of an image that was there before.
fn hash_of_existing(facts: &Facts) -> String {
    let mut hash = Hash::new("existing image");
    hash.add(facts.id.as_bytes());
    hash.finish()
}

fn of_provider(template: Template) -> String {
    format!("the image for {template}")
}

fn of_dockerfile(path: &Path) -> String {
    format!("the image of the Dockerfile {}", path.display())
}

fn of_reference(reference: &str) -> String {
    format!("the image {reference}")
}

fn of_path(path: &Path) -> String {
    format!("the image ./{}", path.display())
}

/// A user's Dockerfile, which sees nothing of the machine.
fn own_recipe(text: &str) -> Recipe {
    Recipe { dockerfile: text.to_owned(), ..Recipe::default() }
}

/// The authorities this machine trusts, for registries behind a company's proxy.
fn machine_roots() -> Bytes {
    roots::of_this_machine().into()
}

fn named<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The engine refused, or went away; it says why.
fn failed(what: impl Display, error: Error) -> BackendError {
    let error = EngineError::from(error);
    let failed = BackendError::failed(format!("{what}: {}", inert(error.to_string().trim())));
    BackendError { hint: error.hint().map(str::to_owned), ..failed }
}

fn unsupported(message: String) -> BackendError {
    BackendError {
        kind: BackendErrorKind::Unsupported,
        message,
        hint: Some("name another image in `agent_provider`".to_owned()),
    }
}

/// Whether the engine does not have what was asked for.
fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}
