//! Defines the reasons why the gate refuses a push or a fetch, with their messages for the agent.

use std::sync::Arc;

use bottle_policy::lock_out;

use crate::agent_messages;
use crate::findings::Found;
use crate::git::GitError;
use crate::push_options::OptionError;
use crate::read_error::ReadError;
use crate::refs::{MOST_UPDATES, RefError};
use crate::repo::RefreshError;

/// The maximum number of findings that a message lists. If there are more findings, the last line of the list is `...
/// and more`.
pub(crate) const SHOWN: usize = 20;

/// The reason why a push or fetch is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{}", lock_out::SENTENCE)]
    Locked,
    #[error(transparent)]
    Refresh(#[from] Arc<RefreshError>),
    #[error("the git gate takes at most {MOST_UPDATES} refs in a push; push fewer")]
    Updates,
    #[error(
        "the git gate refused the push: the name of a ref looks like it contains a secret; choose another name"
    )]
    RefName,
    #[error(
        "the git gate refused the push: the name of the ref {0:?} is not UTF-8; rename it (`git branch -m OLD NEW`), and \
         push again"
    )]
    RefEncoding(String),
    #[error("the git gate refused the push")]
    Option(#[from] OptionError),
    #[error("the git gate refused the push")]
    Ref(#[from] RefError),
    #[error("the git gate refused the push")]
    Git(#[from] GitError),
    #[error("the git gate refused the push")]
    Read(#[from] ReadError),
    #[error("the git gate refused the push: it contains secrets\n{}\n{reason}", listed(found, *more))]
    Secrets { found: Vec<Found>, more: bool, reason: Block },
    #[error("the client has disconnected")]
    Disconnected,
    #[error("the upstream of {repo} did not confirm the push")]
    Unconfirmed { repo: String, source: GitError },
    #[error("the upstream of {repo} refused the push:\n{words}\n{}", rejected_hint(*stale))]
    Rejected {
        repo: String,
        words: String,
        /// Whether the upstream's refs changed during the push.
        stale: bool,
    },
}

/// The reason why findings block a push. The reason determines what the agent can do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Block {
    #[error("a secret of this bottle never passes; remove it from every commit, and push again")]
    Known,
    #[error("{REMOVE_IT}")]
    Unapproved,
    #[error("approval is off (`supervise: false`); {REMOVE_IT}")]
    ApprovalOff,
    /// The user rejected the push. `notes` contains the user's text and may be empty.
    #[error("the user rejected it{}{notes}; {REMOVE_IT}", if notes.is_empty() { "" } else { ": " })]
    Rejected { notes: String },
    #[error("the user did not decide in time; push again when the user is available, or remove it")]
    Undecided,
    #[error("cannot request approval: {0}; {REMOVE_IT}")]
    NotAsked(String),
}

const REMOVE_IT: &str = "remove it from every commit that has it (`git rebase -i`), and push again";

impl Refusal {
    /// Returns the complete message, which consists of the refusal, its causes and a hint.
    pub(crate) fn sentence(&self) -> String {
        let hint = match self {
            Self::Refresh(error) => error.hint(),
            Self::Unconfirmed { .. } => Some("check whether it has it, and push again"),
            _ => None,
        };
        agent_messages::sentence(self, hint)
    }
}

fn rejected_hint(stale: bool) -> &'static str {
    if stale {
        "another client pushed to it meanwhile; fetch, merge or rebase, and push again"
    } else {
        "the upstream changed nothing; follow its message, or notify the user, and push again"
    }
}

/// Returns a list of findings, with one finding on each line.
fn listed(found: &[Found], more: bool) -> String {
    let mut lines: Vec<String> = found.iter().take(SHOWN).map(Found::to_string).collect();
    if found.len() > SHOWN || more {
        lines.push("... and more".to_owned());
    }
    lines.join("\n")
}
