//! Launches of bottles: new ones, preserved ones, and copies of others.
//!
//! ```text
//! StartOrder ──┐
//! ResumeOrder ─┼─► Preflight ── the user confirms ─► Confirmed ── secrets, images ─► LaunchOrder ─► Launching
//! ForkOrder ───┘
//! ```
//! No resource is created, and no secret is read, before the preflight is confirmed.
//!
//! - `start`, `resume`, `fork`: what is launched · `preflight`: what the user knows before · `confirmed`: the inputs of
//!   the launch · `launching`: the launch itself
//! - `backend`: the backend of a plan · `child`: the bottle whose agent starts this one · `directories`, `copied`,
//!   `live_directory`, `git_directories`: what a bottle gets of the user's files · `changed_manifests`: how manifests
//!   changed · `checks`: what is refused before any secret is read

pub(crate) mod backend;
pub(crate) mod changed_manifests;
mod checks;
pub(crate) mod child;
mod confirmed;
mod copied;
pub(crate) mod directories;
pub(crate) mod fork;
pub(crate) mod git_directories;
mod launching;
mod live_directory;
pub(crate) mod preflight;
pub(crate) mod resume;
pub(crate) mod start;

pub(crate) use checks::{require_free_slug, require_host_keys};
pub(crate) use confirmed::{Confirmed, marked, prepare};
pub(crate) use launching::{Launching, NotStarted, Progress, Running, SideBySide};
