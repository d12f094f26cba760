//! Lists and removes the resources of bottles, which it finds by their names and labels.

use std::path::Path;

use bottle_backend::runtime_directory::{self, RUNTIME_DIRECTORY};
use bottle_backend::{BackendError, LAYERS, Resource};
use bottle_policy::names::Slug;

use super::AppleBackend;
use super::launch::is_runtime_directory;
use crate::docker::commit::{KEPT_HOME, KEPT_SLUG};
use crate::docker::names::Part;

/// The [`Resource::kind`] of a running container of an agent. Removing this resource only stops the container.
pub(super) const GUEST: &str = "guest-process";

/// The [`Resource::kind`] of a bundle's container.
pub(super) const BUNDLE: &str = "bundle-process";

/// The [`Resource::kind`] of a container that reads a copy of kept files.
pub(super) const READER: &str = "reader-process";

/// The [`Resource::kind`] of the volume of the sidecars' files.
pub(super) const VOLUME: &str = "volume";

/// The [`Resource::kind`] of an image of kept files, which is made for a container that will read or replace the files.
pub(super) const IMAGE: &str = "kept-image";

/// The order of removal: processes first, then the resources that they used.
const ORDER: [&str; 7] = [GUEST, BUNDLE, READER, LAYERS, IMAGE, VOLUME, RUNTIME_DIRECTORY];

impl AppleBackend {
    /// Implements [`bottle_backend::Lifecycle::enumerate`].
    pub(super) async fn list(&self) -> Result<Vec<Resource>, BackendError> {
        let directories = runtime_directory::find(&self.runtime).map_err(|error| {
            BackendError::failed(format!("cannot list {}", self.runtime.display())).because(error)
        })?;
        let mut found: Vec<Resource> = directories
            .into_iter()
            .map(|(slug, path)| Resource::new(&slug, RUNTIME_DIRECTORY, path.display().to_string()))
            .collect();
        if !self.is_used() {
            return Ok(found);
        }
        // If `container` is missing, the state of the containers is unknown. The list then fails, because containers
        // that are not listed would be treated as removed.
        for container in self.cli.containers().await? {
            let Some((part, slug)) = self.names.owned(&container.id, &container.labels) else { continue };
            let mut add = |kind: &str| found.push(Resource::new(&slug, kind, container.id.clone()));
            match part {
                Part::Agent | Part::Kept => {
                    add(LAYERS);
                    if container.state != "stopped" {
                        add(GUEST);
                    }
                }
                Part::Bundle => add(BUNDLE),
                Part::Reader => add(READER),
                _ => {}
            }
        }
        for volume in self.cli.volumes().await? {
            if let Some((Part::State, slug)) = self.names.owned(&volume.name, &volume.labels) {
                found.push(Resource::new(&slug, VOLUME, volume.name));
            }
        }
        for image in self.cli.images().await? {
            let of = image.labels.get(KEPT_SLUG).and_then(|slug| slug.parse::<Slug>().ok());
            let ours = image.labels.get(KEPT_HOME).is_some_and(|home| home == self.names.home());
            if let (Some(slug), true) = (of, ours) {
                found.push(Resource::new(&slug, IMAGE, image.reference));
            }
        }
        // The volume of a kept bottle stays with the bottle's files, so it is not listed.
        let kept: Vec<Slug> =
            found.iter().filter(|one| one.kind == LAYERS).map(|one| one.slug.clone()).collect();
        found.retain(|one| one.kind != VOLUME || !kept.contains(&one.slug));
        Ok(found)
    }

    /// Whether this `$BOTTLE_HOME` ever used the backend. If not, the backend does not call `container`.
    fn is_used(&self) -> bool {
        self.images.directory().is_dir()
    }

    /// Implements [`bottle_backend::Lifecycle::remove`].
    pub(super) async fn remove_all(&self, resources: &[Resource]) -> Result<(), BackendError> {
        let mut failures = Vec::new();
        let rank = |one: &&Resource| ORDER.iter().position(|kind| *kind == one.kind).unwrap_or(ORDER.len());
        let mut ordered: Vec<&Resource> = resources.iter().collect();
        ordered.sort_by_key(rank);
        for resource in ordered {
            if let Err(error) = self.remove_one(resource).await {
                failures.push(format!("{} {}: {}", resource.kind, resource.id, error.one_line()));
            }
        }
        BackendError::all(&failures)
    }

    async fn remove_one(&self, resource: &Resource) -> Result<(), BackendError> {
        let Resource { slug, kind, id } = resource;
        match kind.as_str() {
            RUNTIME_DIRECTORY if is_runtime_directory(&self.runtime, slug, id) => {
                runtime_directory::RuntimeDirectory::remove(Path::new(id))
                    .map_err(|error| BackendError::failed("cannot be removed").because(error))
            }
            GUEST if self.owns_container(resource, &[Part::Agent, Part::Kept]).await? => {
                self.cli.stop(id).await?;
                self.remove_sockets(slug, Part::Agent)
            }
            BUNDLE if self.owns_container(resource, &[Part::Bundle]).await? => {
                self.cli.delete(id).await?;
                self.remove_sockets(slug, Part::Bundle)
            }
            READER if self.owns_container(resource, &[Part::Reader]).await? => {
                self.cli.delete(id).await?;
                self.remove_sockets(slug, Part::Reader)
            }
            LAYERS if self.owns_container(resource, &[Part::Agent, Part::Kept]).await? => {
                self.cli.delete(id).await?;
                if self.find(Part::Agent, slug).await?.is_some()
                    || self.find(Part::Bundle, slug).await?.is_some()
                {
                    return Ok(());
                }
                self.cli.delete_volume(&self.names.name(Part::State, slug)).await
            }
            IMAGE if *id == self.kept_reference(slug) => self.cli.delete_image(id).await,
            VOLUME if *id == self.names.name(Part::State, slug) => {
                // The volume stays with the agent's container, because a resumed bottle needs the git gate's files
                // again.
                if self.find(Part::Agent, slug).await?.is_some() {
                    return Ok(());
                }
                let volumes = self.cli.volumes().await?;
                let owned =
                    |volume: &super::output::Volume| self.names.owned(&volume.name, &volume.labels).is_some();
                match volumes.iter().find(|volume| volume.name == *id) {
                    Some(volume) if !owned(volume) => Err(not_owned()),
                    Some(_) => self.cli.delete_volume(id).await,
                    None => Ok(()),
                }
            }
            GUEST | BUNDLE | READER | LAYERS => Ok(()),
            _ => Err(not_owned()),
        }
    }

    /// Removes the sockets of a part whose container does not run any more.
    fn remove_sockets(&self, slug: &Slug, part: Part) -> Result<(), BackendError> {
        let removed = self.sockets(slug).remove(part);
        removed.map_err(|error| BackendError::failed("its sockets cannot be removed").because(error))
    }

    /// Whether the resource is an existing container of one of these parts of its bottle. Returns `false` if the
    /// container does not exist.
    async fn owns_container(&self, resource: &Resource, parts: &[Part]) -> Result<bool, BackendError> {
        let named = parts.iter().any(|part| resource.id == self.names.name(*part, &resource.slug));
        if !named {
            return Err(not_owned());
        }
        let Some(found) = self.cli.find(&resource.id).await? else { return Ok(false) };
        match self.names.owned(&found.id, &found.labels) {
            Some((part, slug)) if parts.contains(&part) && slug == resource.slug => Ok(true),
            _ => Err(not_owned()),
        }
    }
}

fn not_owned() -> BackendError {
    BackendError::failed("it is not this bottle's, by its name and labels")
}
