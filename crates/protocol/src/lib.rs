//! Messages between the `bottle` command, the keeper, the sidecars and the guest, and records that several of these
//! programs use.
//!
//! ```text
//! session       frames and messages between host, guest and bundle
//! queue         approval requests to the user, and the user's responses
//! audit         the hash-chained audit log
//! usage         token counts of model responses
//! endpoints     the endpoints of model APIs that are metered, or use no tokens
//! dns           the answers of a bottle's DNS resolver
//! canary        a decoy secret that grants no access
//! secret_files  names of files that usually contain secrets
//! ```

pub mod audit;
pub mod canary;
pub mod dns;
pub mod endpoints;
pub mod queue;
pub mod secret_files;
pub mod session;
pub mod usage;
