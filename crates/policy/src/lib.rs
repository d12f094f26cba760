//! The policy of the egress proxy: which requests a bottle may send, and with which credentials.
//!
//! Functions in this crate open no socket and read neither files nor the clock nor random numbers: callers pass such
//! data as arguments. `bottle policy check` and the egress proxy call the same [`decide`], so they cannot reach
//! different decisions.
//!
//! ```text
//! names             slugs, host names, ports and paths inside a bottle
//! secret            a string whose value is never printed
//! route             the requests allowed to one host: parser, renderer, look-up table
//! canonical         canonical form of host, path and query, for decisions and forwarding
//! decide            (routes, request facts, findings) → verdict, reason, message
//! address           addresses that the proxy must not connect to
//! credential        credentials, each bound to one host and header
//! added_permissions computes which permissions a change of routes adds
//! proposal          routes that an agent proposes, and how they merge into the active routes
//! lock_out          locks a bottle whose agent tries to guess credentials
//! known_hosts       registries and forges: the manifests that open them, and corrections of mistyped hosts
//! ```

pub mod added_permissions;
pub mod address;
pub mod canonical;
pub mod credential;
pub mod decide;
pub mod known_hosts;
pub mod lock_out;
pub mod names;
pub mod proposal;
pub mod route;
pub mod secret;
