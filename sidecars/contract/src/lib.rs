//! Shared types and pure functions of the host command, the sidecars and the guest.
//!
//! The three programs share only the types in this crate. Nothing here opens a socket, reads a file, reads
//! the clock or draws random numbers: callers pass those in as arguments. `bottle policy check` and the
//! egress proxy therefore call the same [`decide`] and cannot disagree.
//!
//! ```text
//! names      slugs, host names, ports and paths inside a bottle
//! secret     a string that does not print
//! route      the requests allowed to one host: parser, renderer, look-up table
//! canonical  canonical form of host, path and query, for decisions and forwarding
//! decide     (routes, request facts, findings) → verdict, reason, message
//! address    addresses that the proxy never connects to
//! credential a secret bound to one host and header
//! authority  the permissions that a change of routes adds
//! canary     a decoy secret that grants no access
//! proposal   routes that an agent proposes, and how they merge into the live ones
//! queue      approval requests to the user, and the responses
//! audit      the hash-chained audit log
//! lock_out   stops a bottle that guesses at credentials
//! usage      token counts of model responses
//! dns        answers of the bottle's resolver
//! suggest    the nearest known word for a mistyped one
//! terminal   filters agent output before it reaches the user's terminal
//! yaml       strict, bounded YAML reader and writer with positions
//! session    frames and messages between host, guest and bundle
//! ```

pub mod address;
pub mod audit;
pub mod authority;
pub mod canary;
pub mod canonical;
pub mod credential;
pub mod decide;
pub mod dns;
pub mod lock_out;
pub mod names;
pub mod proposal;
pub mod queue;
pub mod route;
pub mod secret;
pub mod session;
pub mod suggest;
pub mod terminal;
pub mod usage;
pub mod yaml;
