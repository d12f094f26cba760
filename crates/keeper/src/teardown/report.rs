//! The facts about a bottle's files for the report at the bottle's end.

use std::path::Path;

use bottle_host::clock;
use bottle_instance::given;
use bottle_instance::live_changes::{self, Before, LiveChanges};
use bottle_instance::live_tree::LiveTree;
use bottle_instance::record::Record;
use bottle_repository::Given;
use tokio::task::spawn_blocking;

use crate::protocol::Retrieval;

/// Finds the agent's changes in the directory of `--cwd=live`. Returns `None` if the bottle has no such directory, or
/// if no agent ran. Must be called after all processes of the bottle have ended.
pub(super) async fn live_changes(record: &Record, state: &Path) -> Option<LiveChanges> {
    let live = record.live()?.clone();
    let since = record.changed_since(clock::boot_offset())?;
    let (directory, state) = (live.path.clone(), state.to_owned());
    let find = move || {
        let tree = LiveTree::take(&state, live_changes::BOUNDS.entries).unwrap_or_else(|error| {
            tracing::warn!("cannot read the tree of the directory at the start: {error}");
            None
        });
        live_changes::find(&live, &tree.map_or(Before::Time(since), Before::Tree))
    };
    let found = spawn_blocking(find).await;
    let failed = |why: String| LiveChanges { directory, unknown: Some(why), ..LiveChanges::default() };
    Some(match found {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => failed(error.to_string()),
        Err(error) => failed(error.to_string()),
    })
}

/// Returns the commands that can retrieve the agent's work from the kept files of a bottle. `state` is the bottle's
/// state directory.
pub(super) fn retrieval(record: &Record, state: &Path) -> Retrieval {
    let is_recorded = |name: &str| matches!(Given::origin(&given::record(state, name)), Ok(Some(_)));
    let mut names = record.directories.iter().map(|directory| directory.name.as_str()).chain([""]);
    if record.is_of_repository() {
        Retrieval::Repository
    } else if record.copied_cwd && names.any(is_recorded) {
        Retrieval::Directory
    } else {
        Retrieval::Files
    }
}
