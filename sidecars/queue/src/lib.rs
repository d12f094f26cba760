//! Implements the supervise queue, through which a bottle asks its user questions.
//!
//! A daemon in a bundle sends a question over its channel to the bundle. The bundle forwards the question to the
//! keeper, which is the process that owns the bottle. The keeper writes the question to a file in
//! `$BOTTLE_HOME/queue/<slug>/`, and returns the user's answer over the channel. Therefore no sidecar shares a
//! directory with the host, and the queue works in the same way on every backend.
//!
//! ```text
//! question_channel   in daemons and the bundle: sends questions, and forwards them to the connected keeper
//! pending_questions  the asker, in the keeper: writes a file for each question and waits for its answer
//! cooldown           delays a question about a host or finding that the user rejected before
//! queue_directory       the files of one bottle, which are written atomically and read as hostile input
//! safe_file          single files: atomic creation, locks, limits on their size
//! list               lists the pending proposals of all bottles
//! ```
//! The queue consists of these files on disk:
//! ```text
//! queue/<slug>/<id>.proposal.json    locked (flock) by the asker while it waits; stale without a lock
//!              <id>.response.json    created atomically, so that the first answer counts
//!              processed/            both files, after the proposal was decided, has expired or was dismissed
//! ```

mod cooldown;
mod list;
mod pending_questions;
mod question_channel;
mod queue_directory;
mod safe_file;

pub use list::{Damaged, Listing, QueueWatcher, find, list};
pub use pending_questions::{AnswerError, Asker, Decide, Outcome};
pub use question_channel::{Questions, forward, question};
pub use queue_directory::{Directory, Pending, RespondError, State, SubmitError};
