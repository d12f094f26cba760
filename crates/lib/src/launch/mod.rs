//! Launches of bottles: new ones, kept ones, and copies of others.
//!
//! ```text
//! StartOrder ──┐
//! ResumeOrder ─┼─► Preflight ── the user confirms ─► Confirmed ── secrets, images ─► LaunchOrder ─► Launching
//! ForkOrder ───┘
//! ```
//! No resource is created, and no secret is read, before the preflight is confirmed.
//!
//! - `start`, `resume`, `fork`: the orders of launches · `preflight`: the information that the user gets before ·
//!   `confirmed`: the inputs of the launch · `launching`: the launch itself
//! - `backend`: the backend of a plan · `child`: the bottle whose agent starts this one · `directories`, `copied`,
//!   `live_directory`, `git_directories`: the user's files that a bottle gets · `changed_manifests`: how manifests
//!   changed · `checks`: refusals before any secret is read · `unattended`: launches without a question

pub mod backend;
pub mod changed_manifests;
mod checks;
pub mod child;
mod confirmed;
mod copied;
pub mod directories;
pub mod fork;
pub mod git_directories;
mod launching;
mod live_directory;
pub mod preflight;
pub mod resume;
pub mod start;
pub mod unattended;

pub use checks::{require_free_slug, require_host_keys};
pub use confirmed::{Confirmed, marked, prepare};
pub use launching::{Launching, NotStarted, Progress, Running, SideBySide};
