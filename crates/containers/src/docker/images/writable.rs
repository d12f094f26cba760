//! The directories in which an agent installs programs: `/usr/local` and `/opt`. The agent becomes their owner, as on
//! the linux backend. The agent also becomes the owner of the directories of volumes.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::DownloadFromContainerOptionsBuilder;
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::image_error::is_missing;

/// The directories whose subdirectories the agent will own.
pub(crate) const ROOTS: [&str; 2] = ["/usr/local", "/opt"];
/// The maximum number of directories below one of [`ROOTS`] that the agent will own. Root stays the owner of all other
/// directories.
const DIRECTORIES_MAX: usize = 50_000;
/// The number of chunks of the engine's answer that are buffered.
const CHUNKS: usize = 8;

/// A directory of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory {
    /// The absolute path.
    pub(crate) path: PathBuf,
    /// The permission bits.
    pub(crate) mode: u32,
    /// The time of the last change, in seconds since 1970.
    pub(crate) modified: u64,
}

/// Lists the directory `root` and the directories below it that the root user owns. A missing `root` is treated as an
/// empty directory. The list is empty if `root` is not a directory.
///
/// # Errors
/// The engine's error.
pub(super) async fn directories(
    docker: &Docker,
    container: &str,
    root: &str,
) -> Result<Vec<Directory>, Error> {
    let options = DownloadFromContainerOptionsBuilder::new().path(root).build();
    let mut stream = Box::pin(docker.download_from_container(container, Some(options)));
    let (chunks, received) = mpsc::channel(CHUNKS);
    let root = PathBuf::from(root);
    let reading = {
        let root = root.clone();
        tokio::task::spawn_blocking(move || owned_by_root(Chunks { received, rest: Bytes::new() }, &root))
    };
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => {
                if chunks.send(chunk).await.is_err() {
                    break;
                }
            }
            Err(error) if is_missing(&error) => {
                return Ok(vec![Directory { path: root, mode: 0o755, modified: 0 }]);
            }
            Err(error) => return Err(error),
        }
    }
    drop(chunks);
    let read = reading.await.map_err(|error| Error::from(io::Error::other(error)))?;
    Ok(read?)
}

/// Lists the directories that root owns in an archive whose only top-level entry is `root`.
fn owned_by_root(archive: impl Read, root: &Path) -> io::Result<Vec<Directory>> {
    let mut directories = Vec::new();
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry?;
        let header = entry.header();
        if !header.entry_type().is_dir() || header.uid()? != 0 || directories.len() == DIRECTORIES_MAX {
            continue;
        }
        let path = entry.path()?;
        let below: PathBuf = path.components().skip(1).collect();
        let plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if plain {
            let mode = header.mode()? & 0o7777;
            directories.push(Directory { path: root.join(below), mode, modified: header.mtime()? });
        }
    }
    Ok(directories)
}

/// Returns an archive that makes a user the owner of these directories, with the mode 0755.
///
/// # Errors
/// When a path is too long for an archive.
pub(in crate::docker) fn owned_directories(paths: &[&str], (uid, gid): (u32, u32)) -> io::Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::new());
    for path in paths {
        let directory = Directory { path: PathBuf::from(path), mode: 0o755, modified: 0 };
        append_directory(&mut archive, &directory, (uid, gid))?;
    }
    archive.into_inner().map(Bytes::from)
}

/// Adds a directory with this owner to an archive for the root of a container.
pub(crate) fn append_directory<W: io::Write>(
    archive: &mut tar::Builder<W>,
    directory: &Directory,
    (uid, gid): (u32, u32),
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(directory.mode);
    header.set_mtime(directory.modified);
    header.set_size(0);
    header.set_uid(uid.into());
    header.set_gid(gid.into());
    archive.append_data(&mut header, directory.path.strip_prefix("/").unwrap_or(&directory.path), io::empty())
}

/// Reads the chunks of a stream. Blocks.
struct Chunks {
    received: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            match self.received.blocking_recv() {
                Some(chunk) => self.rest = chunk,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.rest.len());
        self.rest.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_only_directories_that_root_owns() {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, uid, kind) in [
            ("local/", 0, tar::EntryType::Directory),
            ("local/bin/", 0, tar::EntryType::Directory),
            ("local/bin/tool", 0, tar::EntryType::Regular),
            ("local/own/", 70, tar::EntryType::Directory),
            ("local/own/below/", 0, tar::EntryType::Directory),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o2755);
            header.set_mtime(7);
            header.set_uid(uid);
            header.set_size(0);
            archive.append_data(&mut header, path, io::empty()).expect("append");
        }
        let bytes = archive.into_inner().expect("an archive");
        let directories = owned_by_root(&*bytes, Path::new("/usr/local")).expect("directories");
        let directory = |path: &str| Directory { path: path.into(), mode: 0o2755, modified: 7 };
        let expected = ["/usr/local", "/usr/local/bin", "/usr/local/own/below"].map(directory);
        assert_eq!(directories, expected);
    }
}
