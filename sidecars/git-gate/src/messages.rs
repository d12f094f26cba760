//! What the agent is told. Everything that came from elsewhere is made inert.

use bottle_contract::terminal::inert;

/// A full disk, which git names in the middle of other words.
pub(crate) const NO_ROOM: &str =
    "there is no room left where the git gate keeps its mirror; push or fetch less, or the user makes room";

/// Lines of somebody else's that are passed on.
const LINES: usize = 40;

/// Characters of one of them.
const WIDTH: usize = 400;

/// Somebody else's text, line by line, fit for a terminal.
pub(crate) fn lines(text: &str) -> Vec<String> {
    let kept = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).take(LINES);
    kept.map(|line| inert(&line.chars().take(WIDTH).collect::<String>())).collect()
}

/// Why git could not do something upstream, in one line.
pub(crate) fn cause(complaint: &str) -> String {
    let lines = lines(complaint);
    if lines.iter().any(|line| line.contains("Host key verification failed")) {
        return "its host key is not the one that is trusted; the user has to check it, and pin the right one \
                with `host_key`"
            .to_owned();
    }
    if lines.iter().any(|line| line.contains("Permission denied (")) {
        return "it does not accept the key that the user gave (`key` of the repository)".to_owned();
    }
    if lines.iter().any(|line| line.contains("Authentication failed for")) {
        return "it does not accept the token that the user gave (`key` of the repository)".to_owned();
    }
    if lines.iter().any(|line| line.contains("No space left on device")) {
        return NO_ROOM.to_owned();
    }
    // What git adds to every failure of its transport says nothing where the upstream itself has spoken.
    let always =
        ["and the repository exists", "Please make sure", "fatal: Could not read from remote repository"];
    let own = |line: &&String| !always.iter().any(|always| line.starts_with(always));
    let said = lines.iter().rev().find(own).or_else(|| lines.iter().find(|line| line.starts_with("fatal: ")));
    said.map_or_else(
        || "git gave no reason".to_owned(),
        |line| line.trim_start_matches("fatal: ").trim_start_matches("remote: ").to_owned(),
    )
}
