//! Locks a bottle that repeatedly sends parts of credentials its agent does not hold.
//!
//! Each denial of a known secret answers one question, "is this text part of it?". An honest mistake causes a
//! few; more are guesses. The egress proxy and the git gate count them (`bottle_daemon::Lockout`). The daemon
//! that reaches [`HITS`] locks the whole bottle until its run ends.

use serde::{Deserialize, Serialize};

/// Distinct hits that lock a bottle. A conversation that repeats one pasted credential for ever counts as one
/// hit, or two if it also repeats another encoding of it. A guesser learns at most this many facts.
pub const HITS: usize = 5;

/// The message of every denial while a bottle is locked. It is the same for every request and push, so it
/// reveals nothing about a secret.
pub const SENTENCE: &str = "This bottle is locked: it sent parts of credentials that its agent does not hold, again \
                            and again. Every request and every push is denied now. Only the user can end that: \
                            `bottle stop` ends this run, and `bottle resume` or `bottle start` begins a new one, \
                            which is not locked. Stop here and tell the user.";

/// Why a bottle is locked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockOut {
    /// The daemon that locked it: `egress` or `git-gate`.
    pub daemon: String,
    /// Distinct hits that it counted.
    pub hits: usize,
    /// The destinations: hosts, or repositories of the git gate. At most as many as `hits`; never contains a
    /// secret.
    pub places: Vec<String>,
}
