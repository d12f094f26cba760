//! Saves the token usage records that no keeper has received, before the bundle's container and the volume with these
//! records are removed.

use std::io::{self, Read, Write};
use std::path::Path;

use bollard::query_parameters::{
    ContainerArchiveInfoOptions, DownloadFromContainerOptionsBuilder, KillContainerOptions,
};
use bottle_backend::SIDECAR_LOGS;
use bottle_host::files;
use bottle_protocol::usage::WAITING_FILE;
use bytes::BytesMut;
use futures_util::TryStreamExt;

use super::bundle;
use super::engine::{Engine, EngineError};

/// The maximum size in bytes of the archive with the usage records. A longer archive is not saved. The proxy rewrites
/// its file of records before the file reaches half of this size.
const ARCHIVE_MAX: usize = 64 << 20;

/// Why the usage records were not saved.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSaved {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the archive with the usage records")]
    Archive(#[from] io::Error),
}

/// Ends the bundle's container, and copies its usage records to the bottle's directory `state`, where they are
/// collected. Does nothing if there are no records, or if the bottle has no directory.
///
/// # Errors
/// [`NotSaved`]. After an error, the records are still in the container.
pub(super) async fn save(engine: &Engine, container: &str, state: &Path) -> Result<(), NotSaved> {
    if !state.is_dir() {
        return Ok(());
    }
    let killed = engine.call(engine.docker().kill_container(container, None::<KillContainerOptions>)).await;
    match killed {
        // The bundle has usually exited already.
        Err(EngineError::Refused { status: 409 | 500, .. }) => {}
        Err(error) if error.is_missing() => return Ok(()),
        killed => killed?,
    }
    let path = bundle::waiting_usage();
    let options = ContainerArchiveInfoOptions { path: path.clone() };
    let asked = engine.docker().get_container_archive_info(container, Some(options));
    let size = engine.call_if_there(asked).await?.map_or(0, |file| file.size);
    if size <= 0 {
        return Ok(());
    }
    let archive = download(engine, container, &path).await?;
    let Some(records) = records(&archive)? else { return Ok(()) };
    let directory = state.join(SIDECAR_LOGS);
    files::create_private_directory(&directory)?;
    files::replace(&directory.join(WAITING_FILE), |file| file.write_all(&records))?;
    Ok(())
}

async fn download(engine: &Engine, container: &str, path: &str) -> Result<Vec<u8>, NotSaved> {
    let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
    let mut archive = BytesMut::new();
    let mut pieces = Box::pin(engine.docker().download_from_container(container, Some(options)));
    while let Some(piece) = engine.call(pieces.try_next()).await? {
        if archive.len() + piece.len() > ARCHIVE_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too long").into());
        }
        archive.extend_from_slice(&piece);
    }
    Ok(archive.into())
}

/// Returns the content of the first file in the archive.
fn records(archive: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut archive = tar::Archive::new(archive);
    let Some(entry) = archive.entries()?.next() else { return Ok(None) };
    let mut entry = entry?;
    if entry.header().entry_type() != tar::EntryType::Regular {
        return Ok(None);
    }
    let mut records = Vec::new();
    entry.read_to_end(&mut records)?;
    Ok(Some(records))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_a_regular_file() {
        let archive = |kind: tar::EntryType, content: &[u8]| {
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, WAITING_FILE, content).expect("archived");
            archive.into_inner().expect("archive")
        };
        assert_eq!(
            records(&archive(tar::EntryType::Regular, b"{}\n")).expect("read"),
            Some(b"{}\n".to_vec())
        );
        assert_eq!(records(&archive(tar::EntryType::Directory, b"")).expect("read"), None);
        assert_eq!(records(&[]).expect("read"), None);
        assert!(records(b"no archive").is_err());
    }
}
