//! Compares an agent's work with the start of its bottle, and transfers the work to the user.
//!
//! A bottle's workspace has one or several roots ([`Root`]): the workspace itself, or the directories that several
//! `--cwd` flags copied. If a repository of the user is not known to be the copied repository, it is used only after
//! the user confirms it ([`Root::unconfirmed`]). With these roots, a caller
//!
//! - compares the workspace with its start ([`compare()`]), or with the workspace of another bottle ([`Pairs`])
//! - fetches commits and uncommitted work into a branch of the user's repository ([`pull()`])
//! - merges the files with the user's files, and writes the result ([`Merges`])
//! - resets files to their state at the start ([`Differences`])
//!
//! ```text
//!  a git directory of ours ◄── fetch ── keeper ──► exec in the bottle: git upload-pack
//! ```
//! The program on the host chooses the command that runs in the bottle. The command's output is a pack and text. The
//! host's git checks the pack object by object in a temporary git directory. The text is shown escaped. No git runs in
//! the user's repository, because an agent or a project may have written the repository's configuration. The agent
//! controls the git in the bottle, so the output of this git may be false. False output can affect which message is
//! shown, but not which changes the user sees.
//!
//! | what | files |
//! |---|---|
//! | the operations | `compare`, `pull`, `apply`, `reset` |
//! | the roots of a workspace, and the entries outside of them | `root`, `submodules`, `beside` |
//! | the work of a root, opened for a comparison | `opened`, `changes`, `merge`, `uncommitted` |
//! | the temporary repository in which the work is compared | `scratch`, `workspace` (imports files) |
//! | the files at the start of a bottle, and the form in which git would commit the files of its workspace | `start` |
//! | the bottle's git, whose output is limited | `bottle_git`, `transport` |
//! | the user's repository, which is read as data, and the user's files | `host`, `enclosing`, `directory` |
//! | the record of the files that were last applied | `applied` |

mod applied;
mod apply;
mod beside;
mod bottle_git;
mod changes;
mod compare;
mod directory;
mod enclosing;
mod host;
mod merge;
mod opened;
#[cfg(test)]
mod patch_tests;
mod pull;
mod reset;
mod root;
mod scratch;
mod start;
mod submodules;
mod transport;
mod uncommitted;

mod workspace;

pub use apply::{Merged, Merges, require_copy_to_apply};
pub use beside::Beside;
pub use bottle_repository::ObjectId;
pub use changes::Change;
pub use compare::{ComparedPair, ComparedRoot, Comparison, Pairs, compare, document_of_pairs};
pub use directory::is_inside;
pub use enclosing::Enclosing;
pub use host::Fetched;
use host::Repository;
pub use merge::Conflict;
pub use opened::Work;
pub use pull::{Pulled, PulledWork, Wanted, forks, pull};
pub use reset::{Differences, RootDifferences, in_workspace, require_copy_to_reset, retain_roots};
pub use root::{Root, Unconfirmed, require_copy};
pub use scratch::{Compared, Content, Form, Text};
pub use workspace::LeftOut;
