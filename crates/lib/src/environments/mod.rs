//! The environments of a home: one bottle for each task. The bottle is created at its first use, and stopped when it is
//! idle.
//!
//! - `home`: all environments · `enter`: creates the bottle exactly once, even with concurrent callers, and marks it as
//!   in use · `launch`: starts or resumes it
//! - `remove` · `reaper`: the process that stops idle bottles

mod enter;
mod home;
mod launch;
pub mod reaper;
mod remove;

pub use self::enter::{InUse, Use};
pub use self::home::{Environments, slug_of};
