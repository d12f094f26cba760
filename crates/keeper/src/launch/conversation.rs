//! Finds a resumed agent's transcripts in its bottle, and copies saved transcripts into the bottle.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bottle_channel::Channel;
use bottle_guest::archive::{Members, What};
use bottle_protocol::session::guest::{CopyIn, CopyOut, GuestRequest};

use super::connection::{open, send};
use super::error::LaunchError;

/// How long pid 1 may take to find the first file at a path. After this time, the path is treated as empty.
const WITHIN: Duration = Duration::from_secs(20);

/// Copies saved transcripts from `directory` into the bottle. The path of each transcript below `directory` is its path
/// in the bottle.
pub(super) async fn restore_transcripts(
    guest: &Channel,
    directory: &Path,
    paths: &[String],
) -> Result<(), LaunchError> {
    for path in paths {
        let inside = Path::new(path);
        let copied = directory.join(inside.strip_prefix("/").unwrap_or(inside));
        let (Some(parent), Some(name)) = (inside.parent(), inside.file_name()) else { continue };
        if !copied.exists() {
            continue;
        }
        let request = GuestRequest::CopyIn(CopyIn { path: parent.to_string_lossy().into_owned() });
        let mut stream = open(guest, &request).await?;
        let name = PathBuf::from(name);
        send(&mut stream, move |out| pack(&copied, &name, out)).await?;
    }
    Ok(())
}

fn pack(copied: &Path, name: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut builder = tar::Builder::new(out);
    bottle_archive::append_all(&mut builder, copied, name)?;
    builder.finish()
}

/// Whether at least one of these paths is a file or contains a file.
pub(super) async fn exists(guest: &Channel, paths: &[String]) -> bool {
    for path in paths {
        if matches!(tokio::time::timeout(WITHIN, holds_a_file(guest, path)).await, Ok(true)) {
            return true;
        }
    }
    false
}

async fn holds_a_file(guest: &Channel, path: &str) -> bool {
    let request = GuestRequest::CopyOut(CopyOut { path: path.to_owned() });
    let Ok(stream) = guest.open(&request).await else { return false };
    let found = Arc::new(AtomicBool::new(false));
    let finding = found.clone();
    // The first file is sufficient, so this closure returns an error, which cancels the rest of the stream.
    let _ = bottle_archive::receive(stream, move |archive| {
        finding.store(has_a_file(archive)?, Ordering::Relaxed);
        Err::<(), _>(io::ErrorKind::Interrupted.into())
    })
    .await;
    found.load(Ordering::Relaxed)
}

fn has_a_file(archive: &mut dyn Read) -> io::Result<bool> {
    let mut archive = tar::Archive::new(archive);
    let mut members = Members::new(archive.entries()?);
    while let Some(member) = members.next()? {
        if member.what == What::File {
            return Ok(true);
        }
    }
    Ok(false)
}
