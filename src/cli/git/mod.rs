//! Git for `pull` and `diff`: the host's git and the git in the bottle.
//!
//! ```text
//!  a git directory of ours ◄── fetch ── keeper ──► exec in the bottle: git upload-pack
//! ```
//! The program on the host chooses the command that runs in the bottle. The command's output is a pack, which
//! the host's git checks object by object in a directory of ours, and text, which is shown escaped. No git runs in the
//! user's repository: an agent or a project may have written its configuration. The agent controls the git in
//! the bottle, so its output may be false. The output can affect which message is shown, but not which
//! changes the user sees.
//!
//! - `host`: a repository of the user, which is read as data
//! - `identity`: the user's name and address for commits
//! - `bottle_git`: git commands in the bottle, whose output is limited
//! - `root`: the parts of a workspace that are compared by themselves
//! - `beside`: finds what is in none of these parts
//! - `transport`: fetches from the bottle
//! - `scratch`: a temporary repository in which a bottle's history and workspace are compared with the user's
//!   commit
//! - `workspace`: imports the files of a workspace into the temporary repository
//! - `work`: opens a bottle's work for a comparison
//! - `changes`: lists the files that differ, and packs their content in the base
//! - `merge`, `folder`: merge a bottle's work with the files of a folder
//! - `applied`: records which files `bottle apply` last applied
//! - `uncommitted`: commits the uncommitted work of a bottle
//! - `ignored`: decides which of these files a diff leaves out

mod applied;
mod beside;
mod bottle_git;
mod changes;
mod folder;
mod host;
mod identity;
mod ignored;
mod merge;
#[cfg(test)]
mod patch_tests;
mod root;
mod scratch;
mod transport;
mod uncommitted;
mod work;
mod workspace;

pub(crate) use beside::Beside;
pub(crate) use bottle_git::{BottleGit, copy_out_hint, nothing_committed};
pub(crate) use bottle_repository::ObjectId;
pub(crate) use changes::Change;
pub(crate) use folder::is_inside;
pub(crate) use host::{Fetched, Repository};
pub(crate) use identity::identity;
pub(crate) use merge::{Conflict, Merge};
pub(crate) use root::{Root, quoted};
pub(crate) use scratch::{Compared, Content, Form, Scratch, Text};
pub(crate) use uncommitted::{Author, Uncommitted};
pub(crate) use work::Work;
pub(crate) use workspace::LeftOut;
