//! Finds or makes the agent's image from each kind of source: a provider, a Dockerfile, a reference, and a directory or
//! archive.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bollard::query_parameters::RemoveImageOptions;
use bottle_backend::image::local;
use bottle_backend::{BackendError, ProgressSink, Step, run_blocking};
use bottle_host::roots;
use bottle_manifest::agent_provider::Template;
use bottle_manifest::host_path;
use bottle_plan::Renewal;
use bottle_protocol::session::guest::SecretText;
use bytes::Bytes;
use jiff::Timestamp;

use super::build_request::{BuildRequest, Builder};
use super::context::Context;
use super::dockerfile::{Base, Dockerfile};
use super::image_error::failed;
use super::image_facts::{BASES_LABEL, Facts, PACKAGES_LABEL};
use super::labels::{self, IMAGE_LABEL};
use super::load::Local;
use super::logins::{Login, registry_of};
use super::recipe::Recipe;
use super::recipes::{self, AGENT, BUILD_HINT, TOOLS, TOOLS_NAME};
use super::{AgentImage, Images, base, build, dockerfile_diff, pull};
use crate::docker::engine::REMOVED_HINT;
use crate::docker::listing;

/// The first API version of engines whose builder reads here-documents, as the number after `1.`. Docker 23 has this
/// version.
const HEREDOC_API: u32 = 42;

/// A user's Dockerfile, as the plan contains it.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnDockerfile<'a> {
    /// The path, relative to `$BOTTLE_HOME`.
    pub(super) path: &'a Path,
    /// The text.
    pub(super) text: &'a str,
    /// The build arguments.
    pub(super) args: &'a BTreeMap<String, String>,
    /// The ids of the secrets in the plan, by the ids that the Dockerfile uses.
    pub(super) secrets: &'a BTreeMap<String, String>,
}

impl Images {
    pub(super) async fn provider_image(
        &self,
        template: Template,
        renewal: Renewal,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let base = match renewal.pull {
            true => &base::find(&self.docker, &self.host, self.architecture().await?, true, progress).await?,
            false => self.base(progress).await?,
        };
        let tools = self.tools(base, renewal.rebuild, progress).await?;
        let recipe = recipes::provider(template, &tools);
        let name = recipes::provider_image(template);
        let tag = recipe.hash(AGENT);
        let request = BuildRequest {
            no_cache: renewal.rebuild,
            ..BuildRequest::new(&name, BUILD_HINT, self.host.home_hash())
        };
        self.recipe_image(&tag, recipe, request, renewal.rebuild, progress).await
    }

    /// Returns the image with the agents' tools on this base image. All `$BOTTLE_HOME`s share this image. Builds the
    /// image if it does not exist.
    async fn tools(
        &self,
        base: &str,
        rebuild: bool,
        progress: &ProgressSink<Step>,
    ) -> Result<String, BackendError> {
        let recipe = recipes::tools(base);
        let hash = recipe.hash(TOOLS);
        let name = format!("{TOOLS}:{hash}");
        let find =
            async || Ok::<_, BackendError>(self.inspect(&name, TOOLS_NAME).await?.filter(|_| !rebuild));
        if let Some(facts) = find().await? {
            return Ok(facts.id);
        }
        let _lock = self.lock(&hash, TOOLS_NAME, progress).await?;
        if let Some(facts) = find().await? {
            return Ok(facts.id);
        }
        let mut request = BuildRequest::new(TOOLS_NAME, BUILD_HINT, self.host.home_hash());
        request.tag = Some(name);
        request.labels = vec![
            (IMAGE_LABEL.to_owned(), labels::TOOLS.to_owned()),
            (PACKAGES_LABEL.to_owned(), Timestamp::now().as_second().to_string()),
        ];
        // A label contains the installation time of the packages. Without `no_cache`, the packages could come from the
        // build cache and be older.
        request.no_cache = true;
        self.build(recipe, request, progress).await
    }

    pub(super) async fn dockerfile_image(
        &self,
        own: OwnDockerfile<'_>,
        secrets: &BTreeMap<String, SecretText>,
        renewal: Renewal,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let OwnDockerfile { path, text, args, .. } = own;
        let file = Dockerfile::parse(text);
        let name = recipes::dockerfile_image(path);
        let recipe = self.own_recipe(own, &file).await?;
        let tag = recipe.hash(AGENT);
        let ready = self.find_ready(&tag).await?;
        let bases_of_file = file.bases(args);
        if let (Some((facts, image)), false) = (&ready, renewal.rebuild) {
            if !renewal.pull {
                return Ok(image.clone());
            }
            self.bases(&bases_of_file, true, progress).await?;
            if self.changed_bases(facts).await?.is_empty() {
                return Ok(image.clone());
            }
        }
        let bases = self.bases(&bases_of_file, renewal.pull && ready.is_none(), progress).await?;
        let hint = format!("correct {}", self.host.home.join(path).display());
        let mut request = BuildRequest::new(&name, &hint, self.host.home_hash());
        request.labels = dockerfile_diff::labels(&self.host, path, text);
        request.labels.push((BASES_LABEL.to_owned(), serde_json::json!(bases).to_string()));
        request.no_cache = renewal.rebuild;
        request.path = Some(path);
        request.logins = self.logins(&bases_of_file).await;
        request.builder = self.builder(own, &file, secrets).await?;
        self.recipe_image(&tag, recipe, request, ready.is_some(), progress).await
    }

    /// Returns the recipe of a user's Dockerfile. If the Dockerfile reads a build context, the context is the
    /// Dockerfile's directory. This directory must not be `$BOTTLE_HOME` itself, which contains the state of all
    /// bottles.
    pub(super) async fn own_recipe(
        &self,
        own: OwnDockerfile<'_>,
        file: &Dockerfile<'_>,
    ) -> Result<Recipe, BackendError> {
        let mut recipe =
            Recipe { dockerfile: own.text.to_owned(), args: own.args.clone(), ..Recipe::default() };
        let directory = own.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        if !file.reads_context() {
            return Ok(recipe);
        }
        let Some(directory) = directory else {
            let message = format!("{} has no build context", recipes::dockerfile_image(own.path));
            let hint = "move the Dockerfile and the files that it copies into a directory below $BOTTLE_HOME";
            return Err(BackendError::failed(message).with_hint(hint));
        };
        let name = own.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let wrong = |why: String| {
            let hint =
                format!("list what the build does not need in {name}.dockerignore, in the same directory");
            BackendError::failed(format!("the build context {} {why}", directory.display())).with_hint(hint)
        };
        let real = host_path::real_within(&self.host.home, directory).map_err(wrong)?;
        let listing = {
            let name = name.clone();
            tokio::task::spawn_blocking(move || Context::of(&real, &name))
        };
        let listed = listing.await.map_err(|error| wrong(format!("cannot be read: {error}")))?;
        recipe.directory = Some(Arc::new(listed.map_err(wrong)?));
        Ok(recipe)
    }

    /// Returns the builder that a user's Dockerfile needs.
    async fn builder(
        &self,
        own: OwnDockerfile<'_>,
        file: &Dockerfile<'_>,
        secrets: &BTreeMap<String, SecretText>,
    ) -> Result<Builder, BackendError> {
        if own.secrets.is_empty() && file.needs_buildkit().is_none() {
            return Ok(Builder::Classic);
        }
        if let Some(line) = file.heredoc_for_builtin_frontend()
            && self.api().await? < HEREDOC_API
        {
            let message =
                format!("{}, line {line}: this engine's builder has no here-documents", own.path.display());
            let hint =
                "begin the Dockerfile with `# syntax=docker/dockerfile:1`, or update the engine to Docker 23";
            return Err(BackendError::unsupported(message, hint));
        }
        let values =
            own.secrets.iter().filter_map(|(id, slot)| Some((id.clone(), secrets.get(slot)?.clone())));
        Ok(Builder::BuildKit { secrets: values.collect() })
    }

    /// Pulls the base images that are missing, or with `renew` all base images. Returns their ids by reference. The
    /// build then uses the images on the engine.
    async fn bases(
        &self,
        bases: &[Base],
        renew: bool,
        progress: &ProgressSink<Step>,
    ) -> Result<BTreeMap<String, String>, BackendError> {
        let mut ids = BTreeMap::new();
        for Base { reference, .. } in bases.iter().filter(|base| !base.of_platform) {
            let name = format!("the base image {reference}");
            let mut found = self.image_id(reference, &name).await?;
            // An image id cannot be pulled from a registry.
            let named = !reference.starts_with("sha256:");
            if named && (renew || found.is_none()) {
                let why = if found.is_none() { " is not on this engine and" } else { "" };
                let docker = self.long_running();
                pull::pull(&docker, &self.host, reference, &format!("{name}{why}"), progress).await?;
                found = self.image_id(reference, &name).await?;
            }
            ids.extend(found.map(|id| (reference.clone(), id)));
        }
        Ok(ids)
    }

    /// Returns the references of base images that now name a different image than at the time of the build.
    pub(super) async fn changed_bases(&self, facts: &Facts) -> Result<Vec<String>, BackendError> {
        let mut changed = Vec::new();
        for (reference, id) in &facts.bases {
            let now = self.image_id(reference, &format!("the base image {reference}")).await?;
            if now.is_some_and(|now| now != *id) {
                changed.push(reference.clone());
            }
        }
        Ok(changed)
    }

    /// Returns the user's logins at the registries of these images. The engine uses the logins for images that
    /// [`Images::bases`] could not pull before the build.
    async fn logins(&self, bases: &[Base]) -> BTreeMap<String, Login> {
        let mut logins = BTreeMap::new();
        for registry in bases.iter().map(|base| registry_of(&base.reference)) {
            if let Ok(Some(login)) = pull::login(&self.host, registry).await {
                logins.insert(registry.to_owned(), login);
            }
        }
        logins
    }

    /// Returns the image of a recipe. Builds the image if it does not exist, or if `renew` is set.
    async fn recipe_image(
        &self,
        tag: &str,
        recipe: Recipe,
        mut request: BuildRequest<'_>,
        renew: bool,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        request.labels.push((IMAGE_LABEL.to_owned(), labels::BUILT.to_owned()));
        let name = request.name;
        let find = async || Ok::<_, BackendError>(self.find_ready(tag).await?.filter(|_| !renew));
        if let Some((_, image)) = find().await? {
            return Ok(image);
        }
        let _lock = self.lock(tag, name, progress).await?;
        if let Some((_, image)) = find().await? {
            return Ok(image);
        }
        let built = self.build(recipe, request, progress).await?;
        self.adopt(&built, name, tag).await
    }

    /// Builds an image with the machine's proxies. If the recipe needs the machine's root certificates, adds them to
    /// the build context.
    pub(super) async fn build(
        &self,
        mut recipe: Recipe,
        mut request: BuildRequest<'_>,
        progress: &ProgressSink<Step>,
    ) -> Result<String, BackendError> {
        request.proxies = build::proxies(&self.host);
        if recipe.with_roots {
            // Reading the certificates takes longer than the queries that decide whether the image is built. The
            // certificates are therefore read only here.
            recipe.extra_files.push(("roots.pem", 0o644, Bytes::from(roots::of_this_machine())));
        }
        build::build(&self.long_running(), &self.socket, recipe, request, progress).await
    }

    pub(super) async fn reference_image(
        &self,
        reference: &str,
        renewal: Renewal,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let name = recipes::reference_image(reference);
        let mut facts = self.inspect(reference, &name).await?;
        if facts.is_none() || renewal.pull {
            let why = if facts.is_none() { " is not on this engine and" } else { "" };
            let (docker, why) = (self.long_running(), format!("{name}{why}"));
            let pulled = pull::pull(&docker, &self.host, reference, &why, progress);
            pulled.await.map_err(|error| match error.hint {
                Some(_) => error,
                None => error.with_hint(
                    "`docker image ls` lists what is on it; an archive can be named as ./FILE.tar, in $BOTTLE_HOME",
                ),
            })?;
            facts = self.inspect(reference, &name).await?;
        }
        let gone =
            || BackendError::failed(format!("{name} was removed after the pull")).with_hint(REMOVED_HINT);
        self.existing_image(facts.ok_or_else(gone)?, &name, renewal.rebuild, progress).await
    }

    pub(super) async fn local_image(
        &self,
        path: &Path,
        renewal: Renewal,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let name = local::named(path);
        let local = self.inspect_local(path).await?;
        let hash = &local.found.hash;
        let find = async || Ok::<_, BackendError>(self.find_ready(hash).await?.filter(|_| !renewal.rebuild));
        if let Some((_, image)) = find().await? {
            return Ok(image);
        }
        let _lock = self.lock(hash, &name, progress).await?;
        if let Some((_, image)) = find().await? {
            return Ok(image);
        }
        let before = self.nameless().await?;
        let loaded = local.load(&self.long_running(), &name, progress).await?;
        let adopted = self.adopt(&loaded, &name, hash).await;
        if adopted.is_err() && !before.contains(&loaded) && self.nameless().await?.contains(&loaded) {
            // The image was loaded only for this preparation, and has no name, so it is removed.
            let _ = self.docker.remove_image(&loaded, None::<RemoveImageOptions>, None).await;
        }
        adopted
    }

    /// Returns the ids of images that have no name.
    async fn nameless(&self) -> Result<Vec<String>, BackendError> {
        let images = listing::images(&self.docker, "dangling", vec!["true".to_owned()]).await;
        let images = images.map_err(|error| failed("cannot list the images", error))?;
        Ok(images.into_iter().map(|image| image.id).collect())
    }

    /// Inspects the directory or archive at this path, relative to `$BOTTLE_HOME`.
    pub(super) async fn inspect_local(&self, path: &Path) -> Result<Local, BackendError> {
        let wrong = |why: String| {
            BackendError::failed(format!("{} {why}", local::named(path))).with_hint(local::IMAGE_HINT)
        };
        let real = host_path::real_within(&self.host.home, path).map_err(wrong)?;
        let found = run_blocking(move || local::inspect(&real)).await?.map_err(wrong)?;
        Ok(Local { found, home: self.host.home_hash() })
    }

    /// Prepares an existing image, unless it is already prepared.
    async fn existing_image(
        &self,
        facts: Facts,
        name: &str,
        renew: bool,
        progress: &ProgressSink<Step>,
    ) -> Result<AgentImage, BackendError> {
        let tag = recipes::existing_image_hash(&facts);
        let find = async || Ok::<_, BackendError>(self.find_ready(&tag).await?.filter(|_| !renew));
        if let Some((_, image)) = find().await? {
            return Ok(image);
        }
        let _lock = self.lock(&tag, name, progress).await?;
        match find().await? {
            Some((_, image)) => Ok(image),
            None => self.adopt(&facts.id, name, &tag).await,
        }
    }
}
