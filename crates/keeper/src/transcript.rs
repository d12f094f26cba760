//! Copies the agent's conversations out of the bottle when the bottle ends.
//!
//! The agent controls the content of the conversation files. The copy therefore has a size limit, follows no links out
//! of the target directory, and masks the agent's secrets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bottle_archive::{ReceiveError, Rules};
use bottle_channel::Channel;
use bottle_host::files;
use bottle_instance::transcripts::Transcripts;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::{CopyOut, GuestRequest};
use bottle_repository::Directory;
use bottle_scan::Redactor;

/// The size limit, in bytes, of the conversations at one path. The conversations of months of work are smaller. Files
/// that exceed the limit are skipped.
const MAX_BYTES: u64 = 256 << 20;

/// How long the copy may take. There is a limit, because the teardown waits for the copy. After this time, the copy
/// fails, and an earlier copy is kept.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Copies the conversations at `paths` out of the bottle. Returns whether there were any conversations.
///
/// # Errors
/// When the conversations cannot be copied. In this case, an earlier copy is kept.
pub(super) async fn save(
    transcripts: &Transcripts,
    paths: &[String],
    guest: &Channel,
    secrets: &[Secret],
) -> anyhow::Result<bool> {
    if paths.is_empty() {
        return Ok(false);
    }
    let saved = tokio::time::timeout(TIMEOUT, copy_out(transcripts, paths, guest, secrets)).await;
    let saved = saved.unwrap_or_else(|_| Err(anyhow::anyhow!("it took too long")));
    saved.context("cannot copy the agent's conversations out")
}

async fn copy_out(
    transcripts: &Transcripts,
    paths: &[String],
    guest: &Channel,
    secrets: &[Secret],
) -> anyhow::Result<bool> {
    let new = transcripts.begin()?;
    let mut found = false;
    for path in paths {
        let mask = Redactor::new(secrets)?;
        let rules = Rules { max_bytes: Some(MAX_BYTES), mask: Some(mask) };
        match receive(guest, path, &new.path().join(parent_of(path)), rules).await {
            Ok(files) => found |= files > 0,
            // The agent has no conversation at this path.
            Err(ReceiveError::Refused(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if found {
        transcripts.finish(new)?;
    } else {
        transcripts.abandon(new);
    }
    Ok(found)
}

async fn receive(guest: &Channel, path: &str, into: &Path, rules: Rules) -> Result<u64, ReceiveError> {
    files::create_private_directory(into).map_err(ReceiveError::Unpacked)?;
    let request = GuestRequest::CopyOut(CopyOut { path: path.to_owned() });
    let stream = guest.open(&request).await.map_err(|_| ReceiveError::BrokeOff)?;
    let into = Directory::open(into).map_err(ReceiveError::Unpacked)?;
    let unpacked =
        bottle_archive::receive(stream, move |archive| bottle_archive::unpack(&into, archive, &rules))
            .await?;
    for name in &unpacked.skipped {
        tracing::warn!("skipped in the agent's conversations: {name:?}");
    }
    Ok(unpacked.files)
}

/// Returns the directory into which the archive of a path is extracted, relative to the root of the copy.
fn parent_of(path: &str) -> PathBuf {
    let relative = Path::new(path).strip_prefix("/").unwrap_or(Path::new(path));
    relative.parent().map(Path::to_owned).unwrap_or_default()
}
