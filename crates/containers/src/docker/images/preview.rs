//! Previews the images of a plan. Creates and downloads nothing.

use bottle_backend::image::{config, local};
use bottle_backend::{BackendError, Preview};
use bottle_manifest::agent_provider::Template;
use bottle_plan::{ImageSource, Plan, Renewal};
use jiff::Timestamp;

use super::dockerfile::{Base, Dockerfile};
use super::image_error::{failed, is_missing};
use super::image_facts::Facts;
use super::labels::{self, IMAGE_LABEL};
use super::recipes::{self, AGENT, SIDECARS, SIDECARS_NAME, TOOLS};
use super::sources::OwnDockerfile;
use super::{AgentImage, Images, base, dockerfile_diff};
use crate::docker::listing;

/// The reason for pulling an image that the engine lacks.
const ABSENT: &str = "it is not on this engine";
/// The reason for pulling an image with `--pull`.
const ASKED: &str = "its registry is asked for a newer one";
/// The reason for building an image with `--rebuild`.
const AGAIN: &str = "`--rebuild` asks for it";
/// The age in days at which the packages of the tools' image are reported as old. Debian publishes security updates
/// every few days.
const OLD_PACKAGES: i64 = 30;
const DAY: i64 = 24 * 60 * 60;

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
                    recipes::sidecars(self.program_file().await?, base).hash(SIDECARS)
                );
                self.inspect(&name, SIDECARS_NAME).await?.is_some()
            }
            // The preview fails if there is no program for the sidecars.
            None => self.program_file().await.map(|_| false)?,
        };
        if base.is_none() {
            preview.makes.push(format!("the base image {} is fetched: {ABSENT}", base::REFERENCE));
        }
        let renewal = plan.renewal;
        match &plan.image {
            ImageSource::Provider(template) => {
                self.preview_provider(*template, base.as_deref(), renewal, &mut preview).await?;
            }
            ImageSource::Dockerfile { path, text, args, secrets } => {
                let own = OwnDockerfile { path, text, args, secrets };
                self.preview_dockerfile(own, renewal, &mut preview).await?;
            }
            ImageSource::Reference(reference) => {
                let name = recipes::reference_image(reference);
                let found = self.inspect(reference, &name).await?;
                if let Some(why) = fetched(found.is_none(), renewal) {
                    preview.makes.push(format!("{name} is fetched: {why}"));
                }
                if let Some(facts) = found {
                    self.adopted_or_noted(facts, &name, &mut preview).await?;
                }
            }
            ImageSource::Imported(id) => preview.notes = self.ready(id).await?.notes(),
            ImageSource::Path(path) => {
                let local = self.inspect_local(path).await?;
                match self.find_ready(&local.found.hash).await?.filter(|_| !renewal.rebuild) {
                    Some((_, image)) => preview.notes = image.notes(),
                    None => preview
                        .makes
                        .push(format!("{} is loaded: it is new or has changed", local::named(path))),
                }
            }
        }
        if !sidecars_exist {
            let why = self.why(labels::SIDECARS, None).await?;
            preview.makes.push(format!("{SIDECARS_NAME} is built on {}: {why}", base::REFERENCE));
        }
        Ok(preview)
    }

    async fn preview_provider(
        &self,
        template: Template,
        base: Option<&str>,
        renewal: Renewal,
        preview: &mut Preview,
    ) -> Result<(), BackendError> {
        let name = recipes::provider_image(template);
        if let Some(why) = fetched(false, renewal).filter(|_| base.is_some()) {
            preview.makes.push(format!("the base image {} is fetched: {why}", base::REFERENCE));
        }
        let mut made = None;
        if let Some(base) = base {
            let tools = format!("{TOOLS}:{}", recipes::tools(base).hash(TOOLS));
            if let Some(tools) = self.image_id(&tools, recipes::TOOLS_NAME).await? {
                made = self.find_ready(&recipes::provider(template, &tools).hash(AGENT)).await?;
            }
        }
        if let Some((facts, _)) = made.as_ref().filter(|_| !renewal.rebuild) {
            preview.notes.extend(old_packages(facts, Timestamp::now().as_second()));
        }
        self.built_or_noted(made.map(|(_, image)| image), &name, renewal, preview).await
    }

    async fn preview_dockerfile(
        &self,
        own: OwnDockerfile<'_>,
        renewal: Renewal,
        preview: &mut Preview,
    ) -> Result<(), BackendError> {
        let name = recipes::dockerfile_image(own.path);
        let file = Dockerfile::parse(own.text);
        for Base { reference, .. } in file.bases(own.args).into_iter().filter(|base| !base.of_platform) {
            let found = self.image_id(&reference, &format!("the base image {reference}")).await?;
            if let Some(why) = fetched(found.is_none(), renewal) {
                preview.makes.push(format!("the base image {reference} is fetched: {why}"));
            }
        }
        let tag = self.own_recipe(own, &file).await?.hash(AGENT);
        let made = self.find_ready(&tag).await?;
        match made.as_ref().filter(|_| !renewal.rebuild) {
            Some((facts, _)) => {
                for reference in self.changed_bases(facts).await? {
                    preview.notes.push(format!(
                        "the base image {reference} is another one than at the build: `--rebuild` builds on it"
                    ));
                }
            }
            None => {
                let changes = dockerfile_diff::lines(&self.docker, &self.host, own.path, own.text);
                preview.changed = changes.await?;
            }
        }
        self.built_or_noted(made.map(|(_, image)| image), &name, renewal, preview).await
    }

    async fn built_or_noted(
        &self,
        made: Option<AgentImage>,
        name: &str,
        renewal: Renewal,
        preview: &mut Preview,
    ) -> Result<(), BackendError> {
        match made {
            Some(_) if renewal.rebuild => preview.makes.push(format!("{name} is built: {AGAIN}")),
            Some(image) => preview.notes.extend(image.notes()),
            None => {
                let why = self.why(labels::AGENT, Some(name)).await?;
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
        match self.find_ready(&recipes::existing_image_hash(&facts)).await? {
            Some((_, image)) => preview.notes = image.notes(),
            None => {
                preview.notes = config::notes(&facts.left_out, &facts.volumes);
                preview.makes.push(format!("{name} is prepared for an agent: a user and a home are added"));
            }
        }
        Ok(())
    }

    /// Returns the reason for building an image of this kind and source.
    async fn why(&self, kind: &str, source: Option<&str>) -> Result<&'static str, BackendError> {
        let mut labels = vec![format!("{IMAGE_LABEL}={kind}")];
        labels
            .extend(source.map(|name| format!("{}={}:{name}", labels::SOURCE_LABEL, self.host.home_hash())));
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

/// Returns the reason for pulling an image. `None` if the image is not pulled.
fn fetched(missing: bool, renewal: Renewal) -> Option<&'static str> {
    if missing { Some(ABSENT) } else { renewal.pull.then_some(ASKED) }
}

/// Returns the note about packages that were installed long ago.
fn old_packages(facts: &Facts, now: i64) -> Option<String> {
    let at = facts.packages_at?;
    let days = now.saturating_sub(at) / DAY;
    let date = Timestamp::from_second(at).ok()?.strftime("%Y-%m-%d").to_string();
    (days > OLD_PACKAGES).then(|| {
        format!("the image's packages are from {date}, {days} days ago: `--rebuild` installs their security updates")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker::images::image_facts::facts;

    #[test]
    fn packages_are_reported_after_a_month() {
        let made = 1_767_225_600; // 2026-01-01
        let of = |packages_at| Facts {
            packages_at,
            ..facts(
                &bollard::models::ImageInspect { id: Some("x".to_owned()), ..Default::default() },
                "amd64",
            )
            .expect("facts")
        };
        assert_eq!(old_packages(&of(Some(made)), made + 31 * DAY - 1), None);
        let note = old_packages(&of(Some(made)), made + 31 * DAY).expect("a note");
        assert!(note.contains("from 2026-01-01, 31 days ago: `--rebuild`"), "{note}");
        assert_eq!(old_packages(&of(None), made), None);
    }
}
