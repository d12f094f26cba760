//! The steps on macOS, which has no Landlock, no seccomp, no capabilities and no parent-death signal.
//!
//! On macOS no sidecar runs: the sidecars of a bottle run in a Linux container or virtual machine. The keeper runs on
//! macOS itself, and calls [`process::seal`] and [`process::leave_directory`]. The keeper also uses types of the
//! sidecars' crates, and these crates call the other steps. The other steps therefore exist on macOS too. Each of the
//! other steps reports what is missing, fails, or does nothing. A bundle passes on the reports.

pub mod daemon_syscalls;
pub mod directory_access;
pub mod error;
pub mod identity;
pub mod landlock;
pub mod process;
