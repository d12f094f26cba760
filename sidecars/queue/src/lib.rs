//! The supervise queue: questions for the user.
//!
//! A daemon of a bundle sends a question over its channel. The keeper writes it to a file in
//! `$BOTTLE_HOME/queue/<slug>/` and returns the answer. So no sidecar shares a folder with the host, and
//! every backend works the same.
//!
//! ```text
//! questions  in daemons and the bundle: sends questions, forwards them to the connected keeper
//! asker      in the keeper: writes a file for each question and waits for its answer
//! cooldown   delays a question that was rejected before
//! folder     the files of one bottle: written atomically, read as hostile input
//! file       single files: atomic creation, locks, bounded reads
//! list       lists the pending proposals of all bottles
//! ```
//! On disk:
//! ```text
//! queue/<slug>/<id>.proposal.json    locked (flock) by the asker while it waits; stale without a lock
//!              <id>.response.json    created by link, so the first answer wins
//!              processed/            both files, moved here by the asker
//! ```

mod asker;
mod cooldown;
mod file;
mod folder;
mod list;
mod questions;

pub use asker::{AnswerError, Asker, Decide, Outcome};
pub use folder::{Folder, Pending, RespondError, State, SubmitError};
pub use list::{Damaged, Listing, QueueWatcher, find, list};
pub use questions::{Questions, forward, question};
