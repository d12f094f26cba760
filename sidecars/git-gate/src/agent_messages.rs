//! Builds messages for the agent. Removes terminal control sequences from text that git or an upstream wrote.

use std::error::Error;

use bottle_text::terminal::inert;

/// The message for the agent if the disk is full. git reports a full disk only in the middle of other text.
pub(crate) const DISK_FULL: &str =
    "the disk of the git gate's mirror is full; push or fetch less, or ask the user to free disk space";

/// The maximum number of lines from git or an upstream that are shown to the agent. Further lines are
/// dropped.
const LINES: usize = 40;

/// The maximum number of characters that are shown of one line from git or an upstream. The rest of the line is cut
/// off.
const WIDTH: usize = 400;

/// Splits text from git or an upstream into at most [`LINES`] lines of at most [`WIDTH`] characters. The lines are safe
/// for a terminal.
pub(crate) fn lines(text: &str) -> Vec<String> {
    let kept = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).take(LINES);
    kept.map(|line| inert(&line.chars().take(WIDTH).collect::<String>())).collect()
}

/// The reason why git could not use an upstream. The `Display` text is a part of a sentence for the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error(
        "its host key is not the trusted one; the user has to check it and pin the right one with `host_key`"
    )]
    HostKey,
    #[error("it does not accept the user's key (`key` of the repository)")]
    Key,
    #[error("it does not accept the user's token (`key` of the repository)")]
    Token,
    #[error("{DISK_FULL}")]
    DiskFull,
    /// Any other reason, as reported by git or by the upstream.
    #[error("{0}")]
    Other(String),
    #[error("git gave no reason")]
    Silent,
}

impl Failure {
    /// Returns whether the failure is a redirect of the upstream to another address. git does not follow the redirect.
    pub(crate) fn is_redirect(&self) -> bool {
        let Self::Other(words) = self else { return false };
        ["301", "302", "307", "308"].iter().any(|code| words.ends_with(&format!("returned error: {code}")))
    }

    /// Determines the failure from the stderr of git and ssh, because the exit codes do not distinguish the failures.
    pub(crate) fn parse(stderr: &str) -> Self {
        let lines = lines(stderr);
        for (words, failure) in [
            ("Host key verification failed", Self::HostKey),
            ("Permission denied (", Self::Key),
            ("Authentication failed for", Self::Token),
            ("No space left on device", Self::DiskFull),
        ] {
            if lines.iter().any(|line| line.contains(words)) {
                return failure;
            }
        }
        // A forge explains an error in several lines, for example that a repository has moved.
        let remote = lines.iter().filter_map(|line| Some(line.strip_prefix("remote:")?.trim()));
        let remote: Vec<&str> = remote.filter(|line| line.contains(char::is_alphanumeric)).collect();
        if !remote.is_empty() {
            return Self::Other(remote.join(" "));
        }
        // git adds these lines to every transport failure. A line from the upstream is more specific.
        let generic =
            ["and the repository exists", "Please make sure", "fatal: Could not read from remote repository"];
        let specific = |line: &&String| !generic.iter().any(|generic| line.starts_with(generic));
        let reason = lines
            .iter()
            .rev()
            .find(specific)
            .or_else(|| lines.iter().find(|line| line.starts_with("fatal: ")));
        reason.map_or(Self::Silent, |line| Self::Other(line.trim_start_matches("fatal: ").to_owned()))
    }
}

/// Joins an error, its causes and a hint into one sentence for the agent.
pub(crate) fn sentence(error: &dyn Error, hint: Option<&str>) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    hint.into_iter().fold(text, |text, hint| format!("{text}; {hint}"))
}
