//! The image on which the files of a bottle are based.

use std::io;

use bottle_backend::trees::tree_into;
use bottle_backend::{BackendError, run_blocking};
use bottle_plan::ImageSource;

use super::image::{Image, Images};
use crate::local::backend::Bottle;
use crate::local::layer_snapshots::IMAGES;
use crate::local::layers::{COPY, Layers};

/// Returns the image on which the bottle's files are based. For a new bottle, records and returns the prepared image.
/// For any other bottle, returns the recorded image.
///
/// # Errors
/// [`BackendError`] when the image was removed, or when the bottle manifest gained or lost its image after the bottle
/// was created.
pub(crate) fn of(
    images: &Images,
    bottle: &Bottle<'_>,
    layers: &Layers,
) -> Result<Option<Image>, BackendError> {
    let slug = bottle.slug;
    let failed =
        |error: io::Error| BackendError::failed(format!("cannot read the image of {slug}")).because(error);
    let prepared = bottle.prepared.inside.as_ref();
    if let Some(inside) = prepared.filter(|_| bottle.is_new()) {
        layers.set_image(&inside.image).map_err(failed)?;
    }
    let name = layers.image().map_err(failed)?;
    if bottle.is_launched() && name.is_some() != prepared.is_some() {
        let (was, is) = if name.is_some() { ("an image", "none") } else { ("no image", "one") };
        let message = format!(
            "cannot use the files of {slug}: they are based on {was}, and its bottle manifest now names {is}"
        );
        return Err(BackendError::failed(message).with_hint("put `agent_provider.image` back as it was"));
    }
    let Some(name) = name else { return Ok(None) };
    match images.open_shared(&name).map_err(failed)? {
        Some(image) => Ok(Some(image)),
        None => Err(BackendError::failed(format!(
            "cannot use the files of {slug}: the image that they are based on was removed"
        ))
        .with_hint(format!(
            "the image was unpacked from the earlier `agent_provider.image` as {name} in {IMAGES}/"
        ))),
    }
}

/// Copies the image into the layers of a new bottle. If root starts the bottle, `owner` is the user id that owns the
/// copy.
///
/// # Errors
/// [`BackendError`] when the image cannot be copied.
pub(crate) async fn copy(image: &Image, layers: &Layers, owner: Option<u32>) -> Result<(), BackendError> {
    let (root, directory) = (image.root.clone(), layers.directory().to_owned());
    run_blocking(move || tree_into(&root, &directory, COPY, owner).map(drop))
        .await?
        .map_err(|error| BackendError::failed("cannot copy the image for the bottle").because(error))
}

/// Returns the manifest setting that needs a container engine, as a clause for an error message. Returns `None` if the
/// image needs no engine.
pub(crate) fn needs_engine(image: &ImageSource) -> Option<String> {
    match image {
        ImageSource::Provider(_) | ImageSource::Path(_) | ImageSource::Imported(_) => None,
        ImageSource::Dockerfile { path, .. } => {
            Some(format!("`agent_provider.dockerfile` is {}", path.display()))
        }
        ImageSource::Reference(reference) => Some(format!("`agent_provider.image` is {reference}")),
    }
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
