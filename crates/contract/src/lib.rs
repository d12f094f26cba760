//! Shared types and pure functions of the `bottle` command on the host, the sidecars and the guest.
//!
//! These programs share no other types. Functions in this crate open no socket and read neither files nor the
//! clock nor random numbers: callers pass such values in as arguments. `bottle policy check` and the egress
//! proxy call the same [`decide`], so they cannot reach different decisions.
//!
//! ```text
//! names             slugs, host names, ports and paths inside a bottle
//! secret_files      names of files that usually contain secrets
//! secret            a string whose value is never printed
//! route             the requests allowed to one host: parser, renderer, look-up table
//! canonical         canonical form of host, path and query, for decisions and forwarding
//! decide            (routes, request facts, findings) → verdict, reason, message
//! address           addresses that the proxy must not connect to
//! credential        credentials, each bound to one host and header
//! added_permissions computes which permissions a change of routes adds
//! canary            a decoy secret that grants no access
//! proposal          routes that an agent proposes, and how they merge into the active routes
//! queue             approval requests to the user, and the user's responses
//! audit             the hash-chained audit log
//! lock_out          locks a bottle whose agent tries to guess credentials
//! usage             token counts of model responses
//! endpoints         the endpoints of model APIs that are metered, or use no tokens
//! dns               the answers of a bottle's DNS resolver
//! suggest           suggests the nearest known word for a mistyped word
//! known_hosts       registries and forges: the manifests that open them, and their typing errors
//! terminal          filters agent output before it reaches the user's terminal
//! yaml              strict, bounded YAML reader and writer with positions
//! session           frames and messages between host, guest and bundle
//! ```

pub mod added_permissions;
pub mod address;
pub mod audit;
pub mod canary;
pub mod canonical;
pub mod credential;
pub mod decide;
pub mod dns;
pub mod endpoints;
pub mod known_hosts;
pub mod lock_out;
pub mod names;
pub mod proposal;
pub mod queue;
pub mod route;
pub mod secret;
pub mod secret_files;
pub mod session;
pub mod suggest;
pub mod terminal;
pub mod usage;
pub mod yaml;
