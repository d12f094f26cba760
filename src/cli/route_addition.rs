//! Shows the lines of a bottle manifest that change when routes are saved in it.

use bottle_lib::line_diff::Changed;
use bottle_lib::saved_routes::Addition;
use bottle_manifest::append::AppendError;

use crate::console::output::{Output, one_line};

/// Shows the lines that will be changed in a manifest. `when` is the text at the beginning of the heading.
///
/// # Errors
/// Returns an error if the manifest cannot be extended.
pub(crate) fn show_addition(output: &Output, addition: &Addition, when: &str) -> Result<(), AppendError> {
    let diff = addition.diff().map_err(Clone::clone)?;
    if output.json || output.quiet {
        return Ok(());
    }
    let removes = diff.iter().any(|changed| matches!(changed, Changed::Removed(_)));
    let what = if removes { "these lines are changed in" } else { "these lines are added to" };
    output.note(format!("{when}{what} {}", addition.path.display()));
    for changed in diff {
        match changed {
            Changed::Added(line) => output.write_error_lines(&format!("  + {}", one_line(&line))),
            Changed::Removed(line) => output.write_error_lines(&format!("  - {}", one_line(&line))),
            Changed::Same(_) | Changed::Gap => {}
        }
    }
    Ok(())
}
