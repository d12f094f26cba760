//! The environments of a home: one bottle for each task, which is made when it is first used, and stopped when it is idle.
//!
//! - `home`: all environments · `enter`: makes the bottle once under any concurrency, and keeps it in use · `launch`:
//!   starts or resumes it
//! - `remove` · `reaper`: the process that stops idle bottles

mod enter;
mod home;
mod launch;
pub mod reaper;
mod remove;

pub use self::enter::{InUse, Use};
pub use self::home::{Environments, slug_of};
