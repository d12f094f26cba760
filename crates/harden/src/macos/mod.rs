//! The steps on macOS, which has no Landlock, no seccomp, no capabilities and no signal at the end of a parent.
//!
//! On macOS no sidecar runs: the sidecars of a bottle run in a Linux container or virtual machine. The keeper runs
//! there, and calls [`process::seal`] and [`process::leave_directory`]. The other steps exist so that the sidecars'
//! crates, whose types the keeper uses, are the same on both systems. Each such step reports what is missing, and a
//! bundle passes this report on.

pub mod daemon_syscalls;
pub mod directory_access;
pub mod error;
pub mod identity;
pub mod landlock;
pub mod process;
