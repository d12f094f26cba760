//! The error for a saved image that cannot be used.

/// Why an image cannot be used, as the end of a sentence that begins with the image's name.
#[derive(Debug, thiserror::Error)]
pub enum BadImage {
    /// The image is damaged, hostile, or for another kind of machine.
    #[error("{0}")]
    Refused(String),
    /// A file system operation failed.
    #[error("cannot be unpacked: {0}")]
    Disk(std::io::Error),
}

impl BadImage {
    /// Creates the error for an image that is refused.
    pub fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// Creates the error of a file system operation on a path in the image.
    pub fn at(path: &std::path::Path, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        Self::Disk(std::io::Error::new(error.kind(), format!("{path:?}: {error}")))
    }
}

impl From<std::io::Error> for BadImage {
    fn from(error: std::io::Error) -> Self {
        Self::Disk(error)
    }
}
