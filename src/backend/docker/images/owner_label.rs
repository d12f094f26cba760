//! Which process makes something, in a label of it: what it left when it was killed is known at once.

use crate::host::process::ProcessId;

/// The label.
pub(super) const LABEL: &str = "bottle.maker";

/// Its value, for this process and the home of this hash.
pub(super) fn this_process(home: &str) -> String {
    let process = ProcessId::own().map(|process| process.to_string());
    format!("{home}/{}", process.unwrap_or_default())
}

/// Whether the process that the label names has ended; `None` when it is none of this home's, whose processes
/// may be another machine's.
pub(super) fn is_gone(label: &str, home: &str) -> Option<bool> {
    let (of, process) = label.split_once('/')?;
    let process: ProcessId = process.parse().ok()?;
    (of == home).then(|| !process.is_alive())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ended_is_told_from_one_that_lives_and_from_anothers() {
        let own = this_process("0123abcd");
        assert_eq!(is_gone(&own, "0123abcd"), Some(false));
        assert_eq!(is_gone(&own, "ffffffff"), None);
        let start = own.rsplit(':').next().expect("a start").to_owned();
        assert_eq!(is_gone(&own.replace(&start, "1"), "0123abcd"), Some(true), "another of that number");
        assert_eq!(is_gone("0123abcd/", "0123abcd"), None);
        assert_eq!(is_gone("", "0123abcd"), None);
    }
}
