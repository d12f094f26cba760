//! A bottle that exists: its record, its lock, and the transitions it can take.
//!
//! ```text
//! $BOTTLE_HOME/state/<slug>/
//!     metadata.json   what is known of it ([`record`]), written before the first resource exists
//!     lock            held by the living keeper; the only proof of life
//!     agent/          the backend's writable layers
//!     committed-image the bottle's last whole snapshot ([`committed`])
//!     routes.json     the routes that its proxy goes by now ([`routes`])
//!     manifest.yml    what it was started from, for a user to compare with
//!     logs/           the agent's output, and what the program's own roles say, redacted
//!     logs/guards/    the proxy's log, and what it counted and no keeper took ([`crate::backend::SIDECAR_LOGS`])
//!     .preserve       there is work in it, or a snapshot: no cleanup takes it away
//! ```
//! A claim is one rename: the folder appears under its slug complete, with its lock held and its record
//! written, or not at all. So a folder without a living lock is always an orphan, never a beginner.

pub mod audit;
pub mod cleanup;
pub mod committed;
pub mod deploy_keys;
pub mod freeze;
pub mod journal;
pub mod record;
pub mod routes;
pub mod store;
pub mod transcripts;
pub mod usage;

pub use store::{Claim, ClaimError, Listed, State, Store, Unlistable};
