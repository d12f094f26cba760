//! Reads git directories and working trees that an agent or a project wrote as data, and writes branches and files into
//! them.
//!
//! No function of this crate follows a link in such a tree, waits for a named pipe, or reads a file without a size
//! limit. No program with the user's rights reads the configuration of such a repository: git runs in `bottle`'s own
//! git directory.
//!
//! ```text
//!  their HEAD, refs, shallow, config, index ── read as data ──► Repository
//!  their objects ── a view ──► Store: a git directory of ours ──► git
//!  their objects, refs ◄── a pack, and one branch by git's lock protocol ── Repository
//! ```
//! - `attributes`: reads the git attributes of paths
//! - `blobs`: reads the content of many files from `bottle`'s own git directory
//! - `build_output`: the names of directories with build output
//! - `changes`: finds the changes of an agent in its copy of a working tree
//! - `config`: reads the syntax of a git configuration file
//! - `conversion`: converts files between the working tree and the repository, as git does
//! - `copied_config`: generates the configuration for the copy of a repository
//! - `directory`, `write`: open, read and write files beneath a directory, through descriptors
//! - `edits`: changes files of a working tree, either all files or none
//! - `fast_import`: writes a tree into `bottle`'s own git directory
//! - `fetch`: fetches one reference from a git program that an agent controls
//! - `git`, `limits`: run git in `bottle`'s own git directory
//! - `given`: records the files that the copy of a working tree or of another directory received
//! - `id`: the ids of git objects
//! - `ident`: cleans names and email addresses for commits and reflogs
//! - `index`: finds the files that git tracks, and which of these files a sparse checkout leaves out
//! - `lenders`: finds the other directories from which a repository reads objects
//! - `lfs`: adds the content of a Git LFS pointer to a repository
//! - `locate`: finds the git directory of a working tree, and checks that it belongs to the working tree
//! - `git_files`: determines the files of a git directory that a copy gets
//! - `nested`: recognises git directories among the files of a working tree
//! - `objects`: gives the git in `bottle`'s own git directory access to the objects of a repository
//! - `pack`: adds a pack to a repository
//! - `permissions`: keeps the permissions of the user's files, which git does not store
//! - `program`: finds programs in the absolute directories of `PATH`
//! - `refs`: reads and writes references
//! - `reftable`: reads and writes references that git stores in tables
//! - `reflog`: formats the entries of reflogs
//! - `repository`: reads and writes a repository that an agent or a project may have written
//! - `store`: creates `bottle`'s own git directory, which is temporary
//! - `unsaved`: finds the files of a copy of a working tree that changed, and which of them git ignores
//! - `walk`: lists the entries below a directory
//! - `ignore_rules`: decides which of these entries git ignores
//! - `ignored`: decides which files of a copy are left out of a diff

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
