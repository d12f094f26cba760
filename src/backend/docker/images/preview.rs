//! What a user should see before images are made. Makes nothing, and asks the engine only.

use super::check::Facts;
use super::{
    AGENT, AgentImage, GUARDS, IMAGE_LABEL, Images, SIDECARS, base, build, changed, failed, hash_of_existing,
    is_missing, of_dockerfile, of_path, of_provider, of_reference, own_recipe, provider_recipe,
    sidecars_recipe,
};
use crate::backend::docker::listing;
use crate::backend::image::config;
use crate::backend::{BackendError, Preview};
use crate::plan::{ImageSource, Plan};

/// Why something is fetched.
const ABSENT: &str = "it is not on this engine";

impl Images {
    /// What [`Images::agent`] and [`Images::sidecars`] will make for this plan and why, how its Dockerfile
    /// changed since the last build, and what of its image a bottle leaves out.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be asked, or when it is known already that they will fail.
    pub async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError> {
        let mut preview = Preview::default();
        // The program is read, and the engine says what machine it is on, meanwhile.
        let (base, _) = tokio::join!(self.base_if_there(), self.program_file());
        let base = base?;
        let guards = match &base {
            Some(base) => {
                let name = format!(
                    "{SIDECARS}:{}",
                    sidecars_recipe(self.program_file().await?, base).hash(SIDECARS)
                );
                self.inspect(&name, GUARDS).await?.is_some()
            }
            // Whether there is a program for them is known all the same.
            None => self.program_file().await.map(|_| false)?,
        };
        if base.is_none() {
            preview.makes.push(format!("the base image {} is fetched: {ABSENT}", base::REFERENCE));
        }
        match &plan.image {
            ImageSource::Provider(template) => {
                let made = match &base {
                    Some(base) => self.made(&provider_recipe(*template, base).hash(AGENT)).await?,
                    None => None,
                };
                let name = of_provider(*template);
                self.built_or_noted(made, &name, &mut preview).await?;
            }
            ImageSource::Dockerfile { path, text } => {
                let made = self.made(&own_recipe(text).hash(AGENT)).await?;
                if made.is_none() {
                    preview.changed = changed::lines(&self.docker, &self.host, path, text).await?;
                }
                self.built_or_noted(made, &of_dockerfile(path), &mut preview).await?;
            }
            ImageSource::Reference(reference) => {
                let name = of_reference(reference);
                match self.inspect(reference, &name).await? {
                    None => preview.makes.push(format!("{name} is fetched: {ABSENT}")),
                    Some(facts) => self.adopted_or_noted(facts, &name, &mut preview).await?,
                }
            }
            ImageSource::Path(path) => {
                let local = self.look(path).await?;
                match self.made(&local.found.hash).await? {
                    Some(image) => preview.notes = image.notes(),
                    None => preview
                        .makes
                        .push(format!("{} is loaded: it was not yet, or changed since", of_path(path))),
                }
            }
        }
        if !guards {
            let why = self.why(build::SIDECARS, None).await?;
            preview.makes.push(format!("{GUARDS} is built on {}: {why}", base::REFERENCE));
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
        match self.made(&hash_of_existing(&facts)).await? {
            Some(image) => preview.notes = image.notes(),
            None => {
                preview.notes = config::notes(&facts.left_out, &facts.volumes);
                preview.makes.push(format!("{name} is made ready for an agent: a user and a home in it"));
            }
        }
        Ok(())
    }

    /// Why an image of this kind, and of this source where there are several, is built.
    async fn why(&self, kind: &str, source: Option<&str>) -> Result<&'static str, BackendError> {
        let mut labels = vec![format!("{IMAGE_LABEL}={kind}")];
        labels.extend(source.map(|name| format!("{}={}:{name}", build::SOURCE_LABEL, self.host.home_hash())));
        let earlier = listing::images(&self.docker, "label", labels).await;
        let earlier = earlier.map_err(|error| failed("cannot look for earlier builds", error))?;
        Ok(if earlier.is_empty() { "it was not built yet" } else { "what it is built of changed" })
    }

    async fn base_if_there(&self) -> Result<Option<String>, BackendError> {
        let (answer, architecture) =
            tokio::join!(self.docker.inspect_image(base::REFERENCE), self.architecture());
        if answer.as_ref().is_err_and(is_missing) {
            return Ok(None);
        }
        let id = base::id(answer, architecture?)?;
        // What is made of it later is made of this one.
        Ok(Some(self.base.get_or_init(async || id).await.clone()))
    }
}
