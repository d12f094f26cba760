//! Launches new bottles, kept bottles, and copies of other bottles.
//!
//! ```text
//! StartOrder ──┐
//! ResumeOrder ─┼─► Preflight ── the user confirms ─► Confirmed ── secrets, images ─► LaunchOrder ─► Launching
//! ForkOrder ───┘
//! ```
//! No resource is created, and no secret is read, before the user confirms the preflight.
//!
//! - `start`, `resume`, `fork`: the orders of launches
//! - `preflight`: the information that the user gets before a launch
//! - `confirmed`: the inputs of a launch that the user confirmed
//! - `launching`: the launch itself
//! - `backend`: the choice of the backend
//! - `child`: the start of a bottle on behalf of the agent in another bottle
//! - `directories`, `copied`, `live_directory`, `git_directories`: the user's files that a bottle gets
//! - `changed_manifests`: how manifests changed
//! - `checks`: refusals before any secret is read
//! - `unattended`: launches that ask no question

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
