//! The words for the state of a process.

use bottle_lib::report::ProcessEnd;

/// Returns the words for the state of a process.
pub(super) fn state_word(state: &ProcessEnd) -> String {
    match (state.code, state.signal) {
        (Some(code), _) => format!("exited {code}"),
        (_, Some(signal)) => format!("killed by {signal}"),
        (None, None) => "running".to_owned(),
    }
}
