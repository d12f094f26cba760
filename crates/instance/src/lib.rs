//! The state of bottles on disk: record, lock, logs, audit log, usage, and cleanup.
//!
//! ```text
//! $BOTTLE_HOME/state/<slug>/
//!     metadata.json   the bottle's record ([`record`]), written before the first resource exists
//!     lock            the running keeper holds this lock; only the lock shows that it runs
//!     agent/          the backend's writable layers
//!     committed-image the bottle's complete snapshots ([`committed`])
//!     children.json   which bottles its agent may start ([`children`])
//!     canaries        the canaries of its launches ([`canaries`])
//!     credentials.json  where the values of its credentials come from ([`credentials`])
//!     routes.json     the routes that the bottle's proxy uses now ([`routes`])
//!     live-tree       the tree of the directory of `--cwd=live` when the agent started ([`live_tree`])
//!     given/          the files with which the agent began ([`given`])
//!     manifest.yml    the resolved manifest with which the bottle was started, for comparison
//!     logs/           the agent's output and the logs of the keeper and the sidecars, redacted
//!     logs/processes/ what processes that clients started wrote ([`process_logs`])
//!     SIDECAR_LOGS    the proxy's log, and usage records not yet collected ([`bottle_backend::SIDECAR_LOGS`])
//!     .preserve       marks unsaved work or a snapshot: no cleanup removes the directory of an ended bottle
//! ```
//! A single rename creates a bottle's directory under its slug, with the lock already held and the record already
//! written. A directory whose lock is free therefore never belongs to a launch in progress.

pub mod audit;
pub mod audited_routes;
mod away;
pub mod canaries;
pub mod children;
pub mod cleanup;
pub mod committed;
pub mod credentials;
pub mod deploy_keys;
pub mod engines;
pub mod environments;
pub mod given;
pub mod learn;
pub mod live_changes;
pub mod live_directory;
pub mod live_tree;
pub mod output_pieces;
pub mod portable;
pub mod process_logs;
pub mod proxy_log;
pub mod prune;
pub mod record;
pub mod repositories;
pub mod retention;
pub mod routes;
pub mod snapshots;
pub mod store;
mod stream_marks;
pub mod tool_files;
pub mod transcripts;
mod unsaved;
pub mod usage;
pub mod work;

pub use store::{Claim, ClaimError, Holder, Listed, State, Store};
