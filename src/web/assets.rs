//! The paths of the style sheet and the script, which are compiled into the program.

/// The path of the style sheet.
pub(super) const STYLE: &str = "/style.css";

/// The path of the script.
pub(super) const SCRIPT: &str = "/script.js";
