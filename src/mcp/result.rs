//! The result of a call.

use serde_json::Value;

/// The maximum size of a result in bytes.
pub(super) const RESULT_MAX: u64 = 8 << 20;

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CallResult {
    /// A JSON document.
    Document(Value),
    /// Text.
    Text(String),
}

/// Returns the error for a result that is larger than [`RESULT_MAX`].
pub(super) fn too_large() -> String {
    format!("the result is larger than {} MiB; ask for a smaller part", RESULT_MAX >> 20)
}
