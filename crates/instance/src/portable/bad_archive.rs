//! Why an archive cannot be imported.

use std::io;

/// Why an archive cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum BadArchive {
    /// A newer version of the program wrote the archive. The number is the version of the format.
    #[error("it was written by a newer bottle (format {0})")]
    Newer(u64),
    /// `bottle export` did not write the archive. If another program compressed the archive, the value names the
    /// compression format.
    #[error("{}", .0.map_or("it is not an archive that `bottle export` wrote".to_owned(), |format| format!("it is compressed with {format}")))]
    Foreign(Option<&'static str>),
    /// The archive is damaged or hostile.
    #[error("{0}")]
    Refused(String),
    /// The archive cannot be read.
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    /// The staging directory cannot be written.
    #[error("it cannot be stored")]
    Disk(#[source] io::Error),
}

/// Returns a name, or only the end of the name if the name is long.
pub(super) fn shortened(name: &str) -> String {
    const SHOWN: usize = 100;
    let skipped = name.chars().count().saturating_sub(SHOWN);
    name.chars().skip(skipped).collect()
}
