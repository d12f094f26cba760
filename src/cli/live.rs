//! Messages about bottles whose workspace is a directory of the user (`--cwd=live`).

use bottle_instance::live_changes::LiveChanges;
use bottle_policy::names::Slug;

use crate::console::output::{Output, counted, one_line};

/// The maximum number of files that a report names. `bottle stop --json` names more.
const MAX_NAMED: usize = 20;

/// Reports the user's files that the agent of an ended bottle changed in its live workspace. `commits` is true if the
/// bottle's repository is kept, so that its commits can be pulled.
pub(crate) fn report(slug: &Slug, changes: &LiveChanges, commits: bool, output: &Output) {
    let LiveChanges { directory, files, more, unknown, repository_moved } = changes;
    let directory = one_line(&directory.display().to_string());
    let pull = if commits { format!("; `bottle pull {slug}` brings its commits") } else { String::new() };
    output.note(format!("its files are in {directory}{pull}"));
    for file in files.iter().take(MAX_NAMED) {
        output.warn(format!(
            "the agent changed {}: {}",
            one_line(&file.path.display().to_string()),
            file.why
        ));
    }
    let more = more + files.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        output.warn(format!(
            "the agent changed {} that programs on this machine use",
            counted(more as u64, "more file")
        ));
    }
    if let Some(unknown) = unknown {
        output.warn(format!("not all files in {directory} were checked: {}", one_line(unknown)));
    }
    if *repository_moved {
        output.warn(format!(
            "{directory}/.git was moved or replaced while the bottle ran, and the agent may have changed the new one: \
             check its hooks and config before you use git there"
        ));
    }
}
