//! The lock-out: a bottle that goes on to send parts of credentials that its agent does not hold is locked.
//!
//! Every denial of a known secret is one answer to the question "is this a part of it?". A few of them come of an
//! honest mistake; whoever needs more is guessing. Egress proxy and git gate count them
//! (`bottle_daemon::Lockout`), and the one that reaches the bound locks the whole bottle until its run ends.

use serde::{Deserialize, Serialize};

/// Different hits after which a bottle is locked. One conversation that carries the same pasted credential for
/// ever is one hit, or two where it is also written in another spelling; a guesser learns at most so much.
pub const HITS: usize = 5;

/// What every denial says while a bottle is locked, to whoever sent the request or the push. It says the same
/// whatever was sent: a denial of a locked bottle tells nothing about a secret.
pub const SENTENCE: &str = "This bottle is locked: it sent parts of credentials that its agent does not hold, again \
                            and again. No request and no push leaves it any more. Only the user can end that: \
                            `bottle stop` ends this run, and `bottle resume` or `bottle start` begins a new one, \
                            which is not locked. Stop here and tell the user.";

/// Why a bottle was locked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockOut {
    /// The daemon that locked it: `egress` or `git-gate`.
    pub daemon: String,
    /// Different hits that it counted.
    pub hits: usize,
    /// Where they were to go: hosts, or repositories of the git gate. At most as many as hits, without secrets.
    pub places: Vec<String>,
}
