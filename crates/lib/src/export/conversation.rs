//! Adds the agent's newest conversations to an exported image.
//!
//! When a bottle ends, its conversations are copied to `$BOTTLE_HOME`. If the bottle has no unsaved work, its files are
//! removed. The copied conversations are then newer than the bottle's snapshots.

use std::io;
use std::path::Path;

use bottle_backend::portable_image::ExportedImage;
use bottle_backend::trees::portable::add_to_home;
use bottle_instance::transcripts::Transcripts;
use bottle_policy::names::AGENT_USER;

/// Adds the conversations at `paths` in the bottle to the image, as a separate layer. Blocks the thread.
///
/// # Errors
/// When a conversation cannot be read, or when the layer cannot be written.
pub(super) fn add(
    mut image: ExportedImage,
    transcripts: &Transcripts,
    paths: &[String],
) -> io::Result<ExportedImage> {
    let home = Path::new("/home").join(AGENT_USER);
    for path in paths {
        let Ok(place) = Path::new(path).strip_prefix(&home) else { continue };
        let copied = transcripts.directory().join(path.trim_start_matches('/'));
        if copied.is_dir() {
            add_to_home(&mut image, &copied, place)?;
        }
    }
    Ok(image)
}
