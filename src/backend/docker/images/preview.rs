//! Previews the images of a plan. Creates and downloads nothing.

use super::image_facts::Facts;
use super::{
    AGENT, AgentImage, IMAGE_LABEL, Images, SIDECARS, SIDECARS_NAME, base, build, dockerfile_diff,
    dockerfile_image, existing_image_hash, failed, is_missing, own_recipe, provider_image, provider_recipe,
    reference_image, sidecars_recipe,
};
use crate::backend::docker::listing;
use crate::backend::image::{config, local};
use crate::backend::{BackendError, Preview};
use crate::plan::{ImageSource, Plan};

/// The reason for which an image is pulled.
const ABSENT: &str = "it is not on this engine";

impl Images {
    /// Previews [`Images::agent`] and [`Images::sidecars`]. The result contains the images to build, pull or load and
    /// the reason for each, the changes to the Dockerfile, and the instructions without effect.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be queried, or when the preparation would certainly fail.
    pub async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        let mut preview = Preview::default();
        // The program is read while the engine's architecture is queried.
        let (base, _) = tokio::join!(self.base_if_there(), self.program_file());
        let base = base?;
        let sidecars_exist = match &base {
            Some(base) => {
                let name = format!(
                    "{SIDECARS}:{}",
                    sidecars_recipe(self.program_file().await?, base).hash(SIDECARS)
                );
                self.inspect(&name, SIDECARS_NAME).await?.is_some()
            }
            // The preview fails if there is no program for the sidecars.
            None => self.program_file().await.map(|_| false)?,
        };
        if base.is_none() {
            preview.makes.push(format!("the base image {} is fetched: {ABSENT}", base::REFERENCE));
        }
        match &plan.image {
            ImageSource::Provider(template) => {
                let made = match &base {
                    Some(base) => self.find_ready(&provider_recipe(*template, base).hash(AGENT)).await?,
                    None => None,
                };
                let name = provider_image(*template);
                self.built_or_noted(made, &name, &mut preview).await?;
            }
            ImageSource::Dockerfile { path, text } => {
                let made = self.find_ready(&own_recipe(text).hash(AGENT)).await?;
                if made.is_none() {
                    preview.changed = dockerfile_diff::lines(&self.docker, &self.host, path, text).await?;
                }
                self.built_or_noted(made, &dockerfile_image(path), &mut preview).await?;
            }
            ImageSource::Reference(reference) => {
                let name = reference_image(reference);
                match self.inspect(reference, &name).await? {
                    None => preview.makes.push(format!("{name} is fetched: {ABSENT}")),
                    Some(facts) => self.adopted_or_noted(facts, &name, &mut preview).await?,
                }
            }
            ImageSource::Path(path) => {
                let local = self.inspect_local(path).await?;
                match self.find_ready(&local.found.hash).await? {
                    Some(image) => preview.notes = image.notes(),
                    None => preview
                        .makes
                        .push(format!("{} is loaded: it is new or has changed", local::named(path))),
                }
            }
        }
        if !sidecars_exist {
            let why = self.why(build::SIDECARS, None).await?;
            preview.makes.push(format!("{SIDECARS_NAME} is built on {}: {why}", base::REFERENCE));
        }
        Ok(preview)
    }

    async fn built_or_noted(
        &self,
        made: Option<AgentImage>,
        name: &str,
        preview: &mut Preview,
    ) -> Result<(), BackendError> {
        match made {
            Some(image) => preview.notes = image.notes(),
            None => {
                let why = self.why(build::AGENT, Some(name)).await?;
                preview.makes.push(format!("{name} is built: {why}"));
            }
        }
        Ok(())
    }

    async fn adopted_or_noted(
        &self,
        facts: Facts,
        name: &str,
        preview: &mut Preview,
    ) -> Result<(), BackendError> {
        match self.find_ready(&existing_image_hash(&facts)).await? {
            Some(image) => preview.notes = image.notes(),
            None => {
                preview.notes = config::notes(&facts.left_out, &facts.volumes);
                preview.makes.push(format!("{name} is prepared for an agent: a user and a home are added"));
            }
        }
        Ok(())
    }

    /// The reason for which an image of this kind and source is built.
    async fn why(&self, kind: &str, source: Option<&str>) -> Result<&'static str, BackendError> {
        let mut labels = vec![format!("{IMAGE_LABEL}={kind}")];
        labels.extend(source.map(|name| format!("{}={}:{name}", build::SOURCE_LABEL, self.host.home_hash())));
        let earlier = listing::images(&self.docker, "label", labels).await;
        let earlier = earlier.map_err(|error| failed("cannot look for earlier builds", error))?;
        Ok(if earlier.is_empty() { "it was not built yet" } else { "its source changed" })
    }

    async fn base_if_there(&self) -> Result<Option<String>, BackendError> {
        let (answer, architecture) =
            tokio::join!(self.docker.inspect_image(base::REFERENCE), self.architecture());
        if answer.as_ref().is_err_and(is_missing) {
            return Ok(None);
        }
        let id = base::id(answer, architecture?)?;
        // Later builds use the same base image.
        Ok(Some(self.base.get_or_init(async || id).await.clone()))
    }
}
