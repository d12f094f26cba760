//! Reads git directories and working trees that an agent or a project wrote, as data, and writes branches and files into
//! them.
//!
//! No function of this crate follows a link of such a tree, waits for a named pipe, or reads a file without a bound.
//! No program with the user's rights reads the configuration of such a repository: git runs in our own directory.
//!
//! ```text
//!  their HEAD, refs, shallow, config, index ── read as data ──► Repository
//!  their objects ── a view ──► Store: a git directory of ours ──► git
//!  their objects, refs ◄── a pack, and one branch by git's lock protocol ── Repository
//! ```
//! - `attributes`: git attributes of paths
//! - `blobs`: reads the content of many files from a git directory of ours
//! - `build_output`: the names of directories with build output
//! - `changes`: what an agent changed in its copy of a working tree
//! - `config`: reads the syntax of a git configuration file
//! - `conversion`: what git changes in a file between the working tree and the repository
//! - `copied_config`: the configuration of a copy
//! - `directory`, `write`: open, read and write files beneath a directory, through descriptors
//! - `edits`: changes files of a working tree, all or none
//! - `fast_import`: writes a tree into a git directory of ours
//! - `fetch`: fetches one reference from a git that an agent controls
//! - `git`, `limits`: run git in a git directory of ours
//! - `given`: the record of the files that a copy of a working tree or another directory was given
//! - `id`: ids of objects
//! - `ident`: names and addresses in commits and reflogs
//! - `index`: which files git tracks, and which of them a sparse checkout leaves out
//! - `lenders`: the other directories from which a repository reads objects
//! - `lfs`: adds the content behind a pointer of Git LFS to a repository
//! - `locate`: finds the git directory of a working tree, and whether it belongs to it
//! - `git_files`: the files of a git directory that a copy gets
//! - `nested`: recognises git directories among the files of a working tree
//! - `objects`: the objects of a repository for a git that runs in a directory of ours
//! - `pack`: adds a pack to a repository
//! - `permissions`: what git does not store of the user's files
//! - `program`: finds programs in the absolute directories of `PATH`
//! - `refs`: reads and writes references
//! - `reftable`: references that git stores in tables
//! - `reflog`: the entries of reflogs
//! - `repository`: a repository that others may write
//! - `store`: a git directory of ours
//! - `unsaved`: which files of a copy of a working tree changed, and which of them git ignores
//! - `walk`: the entries below a directory
//! - `ignore_rules`: which of these entries git ignores
//! - `ignored`: which files of a copy are left out of a diff

pub mod attributes;
pub mod blobs;
pub mod build_output;
pub mod changes;
pub mod config;
pub mod conversion;
pub mod copied_config;
pub mod directory;
pub mod edits;
pub mod fast_import;
pub mod fetch;
pub mod git;
pub mod git_files;
pub mod given;
pub mod id;
pub mod ident;
pub mod ignore_rules;
pub mod ignored;
pub mod index;
pub mod lenders;
mod lfs;
mod limits;
pub mod locate;
pub mod nested;
pub mod objects;
pub mod pack;
pub mod permissions;
pub mod program;
mod ref_error;
pub mod reflog;
pub mod refs;
pub mod reftable;
pub mod repository;
pub mod store;
pub mod unsaved;
pub mod walk;
mod write;

pub use blobs::Blobs;
pub use bottle_pack_check::ObjectFormat;
pub use directory::{Directory, FileId, ReadError};
pub use edits::{Edit, EditError, Edits, FileMode, StoredFile};
pub use fast_import::FastImport;
pub use git::{Git, Program};
pub use git_files::{GitCopy, GitFile, GitFileError, GitFiles};
pub use given::{Given, GivenFile, GivenFiles, GivenRules, IgnoredPaths, Origin};
pub use id::ObjectId;
pub use ignore_rules::{IgnoreRules, RecordedRules, RuleError, RuleSources, RuleText};
pub use index::{Index, IndexError, IndexFiles};
pub use lenders::{Lender, LenderError, ObjectSources};
pub use locate::Located;
pub use objects::Objects;
pub use permissions::{KeptPermissions, Permissions};
pub use repository::{Repository, RepositoryError};
pub use store::{Store, StoreKind};
pub use walk::{Entry, Stop, Walk, WalkError};
