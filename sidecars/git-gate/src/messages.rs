//! Messages for the agent. Removes terminal control sequences from text of other origin.

use bottle_contract::terminal::inert;

/// Explains a full disk, which git reports in the middle of other text.
pub(crate) const DISK_FULL: &str =
    "the disk of the git gate's mirror is full; push or fetch less, or ask the user to free disk space";

/// Most lines of foreign text that are passed on.
const LINES: usize = 40;

/// Most characters of one such line.
const WIDTH: usize = 400;

/// Splits foreign text into lines that are safe for a terminal, within bounds.
pub(crate) fn lines(text: &str) -> Vec<String> {
    let kept = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).take(LINES);
    kept.map(|line| inert(&line.chars().take(WIDTH).collect::<String>())).collect()
}

/// Extracts from git's stderr why an upstream operation failed, in one line.
pub(crate) fn cause(stderr: &str) -> String {
    let lines = lines(stderr);
    if lines.iter().any(|line| line.contains("Host key verification failed")) {
        return "its host key is not the trusted one; the user has to check it and pin the right one \
                with `host_key`"
            .to_owned();
    }
    if lines.iter().any(|line| line.contains("Permission denied (")) {
        return "it does not accept the user's key (`key` of the repository)".to_owned();
    }
    if lines.iter().any(|line| line.contains("Authentication failed for")) {
        return "it does not accept the user's token (`key` of the repository)".to_owned();
    }
    if lines.iter().any(|line| line.contains("No space left on device")) {
        return DISK_FULL.to_owned();
    }
    // git adds these lines to every transport failure; a line of the upstream itself says more.
    let generic =
        ["and the repository exists", "Please make sure", "fatal: Could not read from remote repository"];
    let specific = |line: &&String| !generic.iter().any(|generic| line.starts_with(generic));
    let reason =
        lines.iter().rev().find(specific).or_else(|| lines.iter().find(|line| line.starts_with("fatal: ")));
    reason.map_or_else(
        || "git gave no reason".to_owned(),
        |line| line.trim_start_matches("fatal: ").trim_start_matches("remote: ").to_owned(),
    )
}
