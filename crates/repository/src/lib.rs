//! Reads git directories and working trees that an agent or a project wrote, as data, and writes branches into them.
//!
//! No function of this crate follows a link of such a tree, waits for a named pipe, or reads a file without a bound.
//! No program with the user's rights reads the configuration of such a repository: git runs in a directory of ours.
//!
//! ```text
//!  their HEAD, refs, shallow, config, index ── read as data ──► Repository
//!  their objects ── a view ──► Store: a git directory of ours ──► git
//!  their objects, refs ◄── a pack, and one branch by git's lock protocol ── Repository
//! ```
//! - `config`: reads the syntax of a git configuration file
//! - `directory`, `write`: open, read and write files beneath a directory, through descriptors
//! - `fetch`: fetches one reference from a git that an agent controls
//! - `git`, `limits`: run git in a git directory of ours
//! - `id`: ids of objects
//! - `index`: which files git tracks, and which of them a sparse checkout leaves out
//! - `locate`: finds the git directory of a working tree, and whether it belongs to it
//! - `git_files`: the files of a git directory that a copy gets
//! - `objects`: the objects of a repository for a git that runs in a directory of ours
//! - `pack`: adds a pack to a repository
//! - `program`: finds programs in the absolute directories of `PATH`
//! - `refs`: reads and writes references
//! - `repository`: a repository that others may write
//! - `store`: a git directory of ours
//! - `walk`: the entries below a directory
//! - `ignore_rules`: which of these entries git ignores

pub mod config;
pub mod directory;
pub mod fetch;
pub mod git;
pub mod git_files;
pub mod id;
pub mod ignore_rules;
pub mod index;
mod limits;
pub mod locate;
pub mod objects;
pub mod pack;
pub mod program;
pub mod refs;
pub mod repository;
pub mod store;
pub mod walk;
mod write;

pub use bottle_pack_check::ObjectFormat;
pub use directory::{Directory, FileId, ReadError};
pub use git::{Git, Program};
pub use git_files::{GitFile, GitFileError, GitFiles};
pub use id::ObjectId;
pub use ignore_rules::{IgnoreRules, RuleError, RuleSources};
pub use index::{Index, IndexError, TrackedError};
pub use locate::Located;
pub use objects::Objects;
pub use repository::{Repository, RepositoryError};
pub use store::{Store, StoreKind};
pub use walk::{Entry, Stop, Walk, WalkError};
