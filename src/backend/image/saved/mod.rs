//! Reads saved images: the output of `docker save`, or an OCI layout, in a folder or an archive. All input is untrusted.
//!
//! - `container`: opens the files of a saved image
//! - `parse`: reads the manifest and the configuration
//! - `layer`: decompresses a layer, and verifies its digests
//! - `entry`: checks the paths and links of a layer's entries · `check`: checks a whole image with it

pub(crate) mod check;
pub(crate) mod container;
pub(crate) mod entry;
pub(crate) mod layer;
pub(crate) mod parse;

pub(crate) use self::container::Container;
pub(crate) use self::parse::{Digest, Saved};

/// Why an image cannot be used, as the end of a sentence that begins with its name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadImage {
    /// The image is damaged, hostile, or for another kind of machine.
    #[error("{0}")]
    Refused(String),
    /// A file system operation failed.
    #[error("cannot be unpacked: {0}")]
    Disk(std::io::Error),
}

impl BadImage {
    /// Creates the error for an image that is not used.
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// Creates the error of a file system operation on a path in the image.
    pub(crate) fn at(path: &std::path::Path, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        Self::Disk(std::io::Error::new(error.kind(), format!("{path:?}: {error}")))
    }
}

impl From<std::io::Error> for BadImage {
    fn from(error: std::io::Error) -> Self {
        Self::Disk(error)
    }
}

/// This machine's processor architecture, as container engines spell it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
