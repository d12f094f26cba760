//! Locks a bottle that repeatedly sends parts of credentials that its agent does not hold.
//!
//! Each denial because of a known secret tells the agent whether its text is part of that secret. An honest
//! mistake causes a few such hits; more indicate that the agent is guessing. The egress proxy and the git
//! gate count hits (`bottle_daemon::Lockout`). When either daemon reaches [`HITS`], it locks the entire
//! bottle until the run ends.

use serde::{Deserialize, Serialize};

/// The number of distinct hits that locks a bottle. Repeating the same pasted credential counts as one hit,
/// or as two if the agent also sends it in another encoding. An agent that guesses learns at most this many
/// facts about the secrets.
pub const HITS: usize = 5;

/// The denial message while a bottle is locked. The message is the same for every request and push, so it
/// reveals nothing about a secret.
pub const SENTENCE: &str = "This bottle is locked: it sent parts of credentials that its agent does not hold, again \
                            and again. Every request and every push is denied now. Only the user can end that: \
                            `bottle stop` ends this run, and `bottle resume` or `bottle start` begins a new one, \
                            which is not locked. Stop here and tell the user.";

/// Why a bottle is locked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockOut {
    /// The daemon that locked the bottle: `egress` or `git-gate`.
    pub daemon: String,
    /// Distinct hits that the daemon counted.
    pub hits: usize,
    /// The destinations of the hits: hosts, or repositories of the git gate. There are at most as many as
    /// `hits`, and none contains a secret.
    pub places: Vec<String>,
}
