//! The environments of a `$BOTTLE_HOME`: one bottle for each task. The bottle is created when it is first used, and
//! stopped when it is idle.
//!
//! - `home`: lists the environments
//! - `enter`: creates the bottle of a task exactly once, even if several callers ask for it concurrently, and marks it
//!   as in use
//! - `launch`: starts or resumes the bottle of a task
//! - `remove`: stops the bottle of a task, and deletes its files
//! - `reaper`: the process that stops idle bottles

mod enter;
mod home;
mod launch;
pub mod reaper;
mod remove;

pub use self::enter::{InUse, Use};
pub use self::home::{Environments, slug_of};
