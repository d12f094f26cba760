//! A resumed agent's conversations: whether there are any in the bottle, and giving back those that were
//! copied out.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bottle_channel::Channel;
use bottle_contract::session::guest::{CopyIn, CopyOut, GuestRequest};
use bottle_guest::archive::{Members, What};

use super::guest::open;
use super::{LaunchError, workspace};
use crate::archive;

/// How long pid 1 may take to find a first file.
const WITHIN: Duration = Duration::from_secs(20);

/// Copies a folder of conversations, whose paths begin at the root, into the bottle.
pub(super) async fn give_back(guest: &Channel, folder: &Path) -> Result<(), LaunchError> {
    let mut stream = open(guest, &GuestRequest::CopyIn(CopyIn { path: "/".to_owned() })).await?;
    let folder = folder.to_owned();
    workspace::send(&mut stream, move |out| pack(&folder, out)).await
}

fn pack(folder: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    // Entry by entry: the root itself is the bottle's.
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        archive.append_dir_all(PathBuf::from(entry.file_name()), entry.path())?;
    }
    archive.finish()
}

/// Whether any of these paths holds a file.
pub(super) async fn is_there(guest: &Channel, paths: &[String]) -> bool {
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
    // One is enough: the rest of the stream is given up, which is the error that comes back.
    let _ = archive::receive(stream, move |archive| {
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
