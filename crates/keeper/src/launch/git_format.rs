//! Checks that the git in a bottle can read the copy of a repository. An older git refuses objects with SHA-256.
//! Without this check, the agent would notice the error only in the middle of its work.

use std::time::Duration;

use bottle_channel::{Channel, Event};
use bottle_protocol::session::guest::{Exit, FailureKind, GuestEvent, GuestRequest, Process, STDERR};
use bottle_text::terminal::inert;

use super::connection::open;
use super::error::{LaunchError, Peer};

/// How long git may take. It only reads a few small files.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The maximum number of bytes that are kept of git's output on standard error.
const MAX_STDERR: usize = 1000;

/// Parts of git's messages about repository formats that git does not know.
const UNKNOWN: [&str; 4] = [
    "unknown repository extension",
    "Expected git repo version",
    "unknown hash algorithm",
    "repo version is",
];

/// Runs git in the bottle to check that it can read the repository at this path. Ignores a missing git and all other
/// errors of git.
///
/// # Errors
/// [`LaunchError::UnreadableRepository`] if git does not know the repository's format.
pub(super) async fn require_readable(guest: &Channel, path: &str) -> Result<(), LaunchError> {
    let argv = ["git", "-C", path, "rev-parse", "--git-dir"].map(str::to_owned).to_vec();
    let env = [("LC_ALL".to_owned(), "C".to_owned())].into();
    let process = Process { argv, env, ..Process::default() };
    let asked = tokio::time::timeout(TIMEOUT, run(guest, process)).await;
    match asked.map_err(|_| LaunchError::Late(Peer::Guest, "run git"))?? {
        (code, why) if code != 0 && is_unknown_format(&why) => {
            Err(LaunchError::UnreadableRepository { path: path.to_owned(), why })
        }
        _ => Ok(()),
    }
}

fn is_unknown_format(error: &str) -> bool {
    UNKNOWN.iter().any(|unknown| error.contains(unknown))
}

/// The exit code with which a shell reports a program that does not exist.
const NOT_FOUND: u8 = 127;

/// Runs a process in the bottle. Returns its exit code and the first line of its output on standard error.
async fn run(guest: &Channel, process: Process) -> Result<(u8, String), LaunchError> {
    let mut stream = open(guest, &GuestRequest::Exec(process)).await?;
    let mut stderr = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            Event::Data { fd: STDERR, bytes } => {
                let room = MAX_STDERR - stderr.len();
                stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Event::Data { .. } => {}
            Event::Message(json) => match serde_json::from_slice(&json) {
                Ok(GuestEvent::Exited(exit)) => {
                    let text = String::from_utf8_lossy(&stderr);
                    return Ok((
                        Exit::shell_code(exit),
                        inert(text.trim().lines().next().unwrap_or_default()),
                    ));
                }
                Ok(GuestEvent::Failed(failure)) if failure.kind == FailureKind::NotFound => {
                    return Ok((NOT_FOUND, String::new()));
                }
                Ok(GuestEvent::Failed(failure)) => {
                    return Err(LaunchError::Refused(Peer::Guest, failure.message));
                }
                _ => {}
            },
            Event::End | Event::Reset(_) => break,
        }
    }
    Err(LaunchError::Unexpected(Peer::Guest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_what_git_says_of_formats_that_it_does_not_know() {
        for (error, expected) in [
            ("fatal: unknown repository extension found: objectformat", true),
            ("fatal: unknown repository extensions found:", true),
            ("fatal: Expected git repo version <= 0, found 1", true),
            ("fatal: repo version is 0, but v1-only extension found:", true),
            ("fatal: detected dubious ownership in repository at '/workspace'", false),
            ("fatal: not a git repository (or any of the parent directories): .git", false),
            ("", false),
        ] {
            assert_eq!(is_unknown_format(error), expected, "{error}");
        }
    }
}
