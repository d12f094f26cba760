//! Labels temporary objects with the process that created them. Leftovers of killed processes can then be recognized
//! without waiting until they are old.

use bottle_host::process::ProcessId;

/// The name of the label.
pub(super) const LABEL: &str = "bottle.maker";

/// Returns the label's value for this process, and for the `$BOTTLE_HOME` with the hash `home`.
pub(super) fn this_process(home: &str) -> String {
    let process = ProcessId::own().map(|process| process.to_string());
    format!("{home}/{}", process.unwrap_or_default())
}

/// Whether the process that the label names has exited. Returns `None` for a process of another `$BOTTLE_HOME`, because
/// that process may run on another machine.
pub(super) fn has_exited(label: &str, home: &str) -> Option<bool> {
    let (of, process) = label.split_once('/')?;
    let process: ProcessId = process.parse().ok()?;
    (of == home).then(|| !process.is_alive())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_exited_running_and_foreign_processes() {
        let own = this_process("0123abcd");
        assert_eq!(has_exited(&own, "0123abcd"), Some(false));
        assert_eq!(has_exited(&own, "ffffffff"), None);
        let start = own.rsplit(':').next().expect("a start").to_owned();
        assert_eq!(has_exited(&own.replace(&start, "1"), "0123abcd"), Some(true), "another of that number");
        assert_eq!(has_exited("0123abcd/", "0123abcd"), None);
        assert_eq!(has_exited("", "0123abcd"), None);
    }
}
