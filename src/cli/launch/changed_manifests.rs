//! Shows how manifests changed since the last start of a bottle.

use std::fmt::Write as _;

use bottle_lib::launch::preflight::Preflight;

use crate::console::output::{Output, Styles};

/// Shows the changes of the manifests, and the warnings, before a launch. `asks` is true if a question to the user
/// follows. The changes are then always shown, because the user needs them for the answer.
pub(crate) fn show_before(launch: &Preflight, changes: Option<&str>, asks: bool, output: &Output) {
    if let Some(changes) = changes
        && (asks || !output.quiet && !output.json)
    {
        output.write_error_lines(&changed(changes, output.err_styles()));
    }
    for line in launch.warnings() {
        output.note(line);
    }
}

/// Formats the changes of manifests since the last start of a bottle.
pub(crate) fn changed(changes: &str, styles: Styles) -> String {
    differences("its manifests changed since its last start:", changes, styles)
}

/// Formats the lines of a unified diff under a heading.
pub(crate) fn differences(heading: &str, changes: &str, styles: Styles) -> String {
    let mut text = styles.yellow(heading);
    for line in changes.lines() {
        let shown = match line.as_bytes().first() {
            Some(b'+') => styles.green(line),
            Some(b'-') => styles.red(line),
            Some(b'@') => styles.dim(line),
            _ => line.to_owned(),
        };
        let _ = write!(text, "\n  {shown}");
    }
    text
}
