//! The image on which the files of a bottle are based.

use std::io;

use bottle_contract::names::Slug;
use bottle_plan::ImageSource;

use super::image::{Image, Images};
use crate::local::layer_snapshots::IMAGES;
use crate::local::layers::{COPY, Layers};
use crate::local::tree_into;
use crate::{BackendError, Launch, Origin, Prepared, run_blocking};

/// The image that the bottle's files are based on. For a new bottle it is the prepared image, otherwise the recorded
/// one. Records the image of a new bottle.
///
/// # Errors
/// [`BackendError`] when the image was removed, or the manifest changed between an image and none.
pub(crate) fn under(
    images: &Images,
    launch: &Launch<'_>,
    layers: &Layers,
    prepared: &Prepared,
) -> Result<Option<Image>, BackendError> {
    let slug = &launch.plan.identity.slug;
    let failed = |error: io::Error| failed(slug, error);
    if let (Origin::New, Some(inside)) = (launch.origin, &prepared.inside) {
        layers.set_image(&inside.image).map_err(failed)?;
    }
    let name = layers.image().map_err(failed)?;
    if name.is_some() != prepared.inside.is_some() {
        let (was, is) = if name.is_some() { ("an image", "none") } else { ("no image", "one") };
        let message = format!(
            "cannot use the files of {slug}: they are based on {was}, and its bottle manifest now names {is}"
        );
        return Err(BackendError::failed(message).with_hint("put `agent_provider.image` back as it was"));
    }
    open(images, slug, name)
}

/// The image of a bottle whose kept files are opened.
///
/// # Errors
/// [`BackendError`] when the image was removed.
pub(crate) fn of_kept(images: &Images, slug: &Slug, layers: &Layers) -> Result<Option<Image>, BackendError> {
    open(images, slug, layers.image().map_err(|error| failed(slug, error))?)
}

fn open(images: &Images, slug: &Slug, name: Option<String>) -> Result<Option<Image>, BackendError> {
    let Some(name) = name else { return Ok(None) };
    match images.open_shared(&name).map_err(|error| failed(slug, error))? {
        Some(image) => Ok(Some(image)),
        None => Err(BackendError::failed(format!(
            "cannot use the files of {slug}: the image that they are based on was removed"
        ))
        .with_hint(format!(
            "the image was unpacked from the earlier `agent_provider.image` as {name} in {IMAGES}/"
        ))),
    }
}

/// Copies the image into the layers of a new bottle. If root starts the bottle, `owner` owns the copy.
///
/// # Errors
/// [`BackendError`] when the image cannot be copied.
pub(crate) async fn copy(image: &Image, layers: &Layers, owner: Option<u32>) -> Result<(), BackendError> {
    let (root, directory) = (image.root.clone(), layers.directory().to_owned());
    run_blocking(move || tree_into(&root, &directory, COPY, owner).map(drop))
        .await?
        .map_err(|error| BackendError::failed("cannot copy the image for the bottle").because(error))
}

/// The manifest setting that needs a container engine, as the end of a sentence.
pub(crate) fn needs_engine(image: &ImageSource) -> Option<String> {
    match image {
        ImageSource::Provider(_) | ImageSource::Path(_) | ImageSource::Imported(_) => None,
        ImageSource::Dockerfile { path, .. } => {
            Some(format!("`agent_provider.dockerfile` is {}", path.display()))
        }
        ImageSource::Reference(reference) => Some(format!("`agent_provider.image` is {reference}")),
    }
}

fn failed(slug: &Slug, error: io::Error) -> BackendError {
    BackendError::failed(format!("cannot read the image of {slug}")).because(error)
}

#[cfg(test)]
mod tests {
    use bottle_manifest::agent_provider::Template;

    use super::*;

    #[test]
    fn refuses_an_image_that_needs_an_engine_and_names_its_key() {
        let dockerfile = ImageSource::Dockerfile {
            path: "images/dev".into(),
            text: String::new(),
            args: Default::default(),
            secrets: Default::default(),
        };
        for (image, asked) in [
            (ImageSource::Provider(Template::Claude), None),
            (dockerfile, Some("`agent_provider.dockerfile` is images/dev")),
            (ImageSource::Reference("team/a:1".to_owned()), Some("`agent_provider.image` is team/a:1")),
            (ImageSource::Path("rootfs".into()), None),
        ] {
            assert_eq!(needs_engine(&image).as_deref(), asked);
        }
    }
}
