//! The error type of a launch.

use std::{fmt, io};

use bottle_backend::BackendError;
use bottle_channel::ChannelError;
use bottle_host::ScannerRulesError;
use bottle_host::roots::CaBundleError;
use bottle_instance::deploy_keys::KeyError;
use bottle_plan::HostKeyError;
use bottle_policy::names::Name;
use bottle_policy::route::RoutesError;
use bottle_protocol::session::guest::{Attempt, Reach};
use bottle_text::terminal::inert;

/// Why a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The handshake on a new connection to the bundle or the guest failed.
    #[error("the {0} did not complete the handshake")]
    Handshake(Peer, #[source] ChannelError),
    /// The connection to the bundle or the guest was lost.
    #[error("the {0} disconnected")]
    Disconnected(Peer, #[source] ChannelError),
    /// The bundle or the guest did not finish an action in time.
    #[error("the {0} did not {1} in time")]
    Late(Peer, &'static str),
    /// The bundle or the guest reported a failure. The text is the predicate of the error message.
    #[error("the {0} {1}")]
    Refused(Peer, String),
    /// The bundle or the guest sent a message that does not answer the request.
    #[error("the {0} sent an unexpected answer")]
    Unexpected(Peer),
    /// An operation on the host failed. The text names the operation.
    #[error("cannot {0}")]
    Host(&'static str, #[source] io::Error),
    /// A secret of the plan has no value.
    #[error("the {object} {name} has no {part}: {secret} is missing")]
    NoSecret {
        /// The kind of object that needs the secret: `variable` or `repository`.
        object: &'static str,
        /// The name of the variable or repository.
        name: String,
        /// The part of the object that the secret provides, for example `key`.
        part: &'static str,
        /// The secret's id.
        secret: String,
    },
    /// The plan's routes are not usable.
    #[error("the plan's routes do not parse")]
    Routes(#[from] RoutesError),
    /// The root certificates that the bottle's manifest adds cannot be used.
    #[error(transparent)]
    CaBundle(#[from] CaBundleError),
    /// The user's scanner rules cannot be used.
    #[error(transparent)]
    Rules(#[from] ScannerRulesError),
    /// The host of a repository has no trusted host key.
    #[error(transparent)]
    HostKey(#[from] HostKeyError),
    /// A repository needs a deploy key, but no deploy key was created for it.
    #[error("no deploy key was made for {0}")]
    NoDeployKey(Name),
    /// A deploy key could not be registered.
    #[error(transparent)]
    DeployKey(#[from] KeyError),
    /// The isolation probe reached a target, or could not confirm that a target is blocked.
    #[error("isolation could not be proven: {}", failed_attempts(.0))]
    Isolation(Vec<Attempt>),
    /// The agent's program is not in the bottle.
    #[error("{report}")]
    ProgramMissing {
        /// The guest's message about the missing program.
        report: String,
        /// Whether the bottle's programs come from an image.
        in_image: bool,
    },
    /// The agent's program exists but cannot be executed.
    #[error("{0}")]
    ProgramRefused(String),
    /// A service did not become ready.
    #[error("the service {name} did not start: {why}")]
    Service {
        /// The name of the service.
        name: String,
        /// Why the service did not become ready, as a clause.
        why: String,
        /// The last lines of the service's output, joined into one line.
        output: String,
    },
    /// The git in the bottle cannot read the copy of the repository.
    #[error("git in the bottle cannot read the repository at {path}: {why}")]
    UnreadableRepository {
        /// The path of the repository in the bottle.
        path: String,
        /// The first line of git's error.
        why: String,
    },
    /// The user or a signal interrupted the launch.
    #[error("interrupted")]
    Interrupted,
}

/// The process at the other end of one of the keeper's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The bundle, which is the parent process of the sidecars.
    Bundle,
    /// Pid 1 of the bottle.
    Guest,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bundle => "bundle",
            Self::Guest => "guest",
        })
    }
}

impl LaunchError {
    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Backend(error) => return error.hint.clone(),
            Self::ProgramMissing { in_image, .. } => {
                let target = if *in_image { "in its image" } else { "on this machine" };
                format!("install it {target}, or name its path in `agent_provider.command`")
            }
            Self::Service { name, output, .. } if output.is_empty() => {
                format!("check `services.{name}` of the bottle; the service printed nothing")
            }
            Self::UnreadableRepository { .. } => {
                "its objects have SHA-256: use an image with git 2.29 or later, or start without `--cwd`"
                    .to_owned()
            }
            Self::Service { output, .. } => format!("its last output: {output}"),
            Self::Isolation(_) => {
                "nothing was started; run `bottle doctor` to see what this machine lacks".to_owned()
            }
            Self::Handshake(..)
            | Self::Disconnected(..)
            | Self::Late(..)
            | Self::Refused(..)
            | Self::Unexpected(_) => "run `bottle doctor` to see what this machine lacks".to_owned(),
            Self::DeployKey(KeyError::Forge(error)) => error.hint.clone(),
            _ => return None,
        })
    }

    /// Returns a function that converts the cause of a failed `action` on the host to a [`LaunchError`].
    pub fn host<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Host(action, error.into())
    }
}

impl Peer {
    /// Creates the error for a lost connection to this peer.
    pub(super) fn lost(self, source: ChannelError) -> LaunchError {
        LaunchError::Disconnected(self, source)
    }
}

/// The maximum number of attempts that an error describes. It counts the others.
const DESCRIBED_ATTEMPTS: usize = 3;

/// Describes the first attempts that were not blocked, separated by semicolons. An address that was reached comes first.
fn failed_attempts(attempts: &[Attempt]) -> String {
    let mut worst: Vec<_> = attempts.iter().collect();
    worst.sort_by_key(|attempt| attempt.result != Reach::Reached);
    let described = worst.iter().take(DESCRIBED_ATTEMPTS).map(|attempt| {
        let Attempt { target, via, seen, result, .. } = attempt;
        let result =
            if *result == Reach::Reached { "was reached" } else { "could not be confirmed as blocked" };
        inert(&format!("{target} {result} by {via} ({seen})"))
    });
    let more = attempts.len().saturating_sub(DESCRIBED_ATTEMPTS);
    let more = (more > 0).then(|| format!("{more} more attempts were not blocked"));
    described.chain(more).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unproven_isolation_is_one_bounded_sentence_with_the_worst_first() {
        let attempt = |target: &str, result| Attempt {
            target: target.to_owned(),
            via: "tcp 192.0.2.1:80".to_owned(),
            to: None,
            result,
            seen: "x".to_owned(),
        };
        let mut attempts = vec![attempt("a", Reach::Unknown), attempt("b", Reach::Reached)];
        assert_eq!(
            failed_attempts(&attempts),
            "b was reached by tcp 192.0.2.1:80 (x); a could not be confirmed as blocked by tcp 192.0.2.1:80 (x)"
        );
        attempts.extend((0..40).map(|_| attempt("c", Reach::Unknown)));
        let described = failed_attempts(&attempts);
        assert!(described.starts_with("b was reached by "), "{described}");
        assert!(described.ends_with("; 39 more attempts were not blocked"), "{described}");
        assert_eq!(described.matches("; ").count(), DESCRIBED_ATTEMPTS);
    }
}
