//! Plans the source of the bottle's file system.

use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_host::plain_file;
use bottle_manifest::agent_provider::Image;
use bottle_manifest::host_path;
use bottle_manifest::provider::ProviderConfig;

use super::ImageSource;
use super::secret_needs::{Needs, source_of};

/// The maximum size of a Dockerfile in bytes. A larger Dockerfile is an error.
const DOCKERFILE_MAX: u64 = 256 << 10;

/// Why a Dockerfile cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the Dockerfile {} {why} ({origin})", .path.display())]
pub struct DockerfileError {
    /// The path of the Dockerfile, relative to `$BOTTLE_HOME`.
    path: PathBuf,
    /// The cause, as the end of a sentence.
    why: String,
    /// Where the path comes from.
    origin: String,
}

/// Returns the source of the file system. The source contains the text of the Dockerfile, so that the build uses the
/// same text that the user was shown.
pub(super) fn source(
    host: &Host,
    provider: &ProviderConfig,
    needs: &mut Needs,
) -> Result<ImageSource, DockerfileError> {
    if let Some(dockerfile) = &provider.dockerfile {
        let text = read(&host.home, &dockerfile.value).map_err(|why| DockerfileError {
            path: dockerfile.value.clone(),
            why,
            origin: dockerfile.origin.to_string(),
        })?;
        let secrets = provider.build_secrets.iter().flat_map(|secrets| &secrets.value);
        let secrets = secrets.map(|(id, reference)| {
            let source = source_of(reference, &host.home, &host.user_home);
            (id.clone(), needs.add(format!("build-secret:{id}"), source, format!("build secret {id}")))
        });
        return Ok(ImageSource::Dockerfile {
            path: dockerfile.value.clone(),
            text,
            secrets: secrets.collect(),
            args: provider.build_args.as_ref().map(|args| args.value.clone()).unwrap_or_default(),
        });
    }
    Ok(match &provider.image {
        Some(image) => image.value.clone().into(),
        None => ImageSource::Provider(provider.template.value),
    })
}

impl From<Image> for ImageSource {
    fn from(image: Image) -> Self {
        match image {
            Image::Reference(reference) => Self::Reference(reference),
            Image::Path(path) => Self::Path(path),
        }
    }
}

fn read(home: &Path, path: &Path) -> Result<String, String> {
    let real = host_path::real_within(home, path)?;
    let bytes =
        plain_file::read(&real, DOCKERFILE_MAX).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > DOCKERFILE_MAX {
        return Err(format!("is larger than {} KiB", DOCKERFILE_MAX >> 10));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())
}
