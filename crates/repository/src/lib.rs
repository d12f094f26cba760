//! Reads git directories and working trees that an agent or a project wrote, as data.
//!
//! No function of this crate follows a link of such a tree, waits for a named pipe, or reads a file without a bound.
//! No program with the user's rights reads the configuration of such a repository.
//!
//! - `config`: reads the syntax of a git configuration file
//! - `directory`: opens and reads files beneath a directory, through descriptors
//! - `locate`: finds the git directory of a working tree, and whether it belongs to it · `git_files`: its files that a
//!   copy gets
//! - `walk`: the entries below a directory · `ignore_rules`: which of them git ignores
//! - `program`: finds programs in the absolute directories of `PATH`

pub mod config;
pub mod directory;
pub mod git_files;
pub mod ignore_rules;
pub mod locate;
pub mod program;
pub mod walk;

pub use directory::{Directory, FileId, ReadError};
pub use git_files::{GitFile, GitFileError, GitFiles};
pub use ignore_rules::{IgnoreRules, RuleError, RuleSources};
pub use locate::Located;
pub use walk::{Entry, Stop, Walk, WalkError};
