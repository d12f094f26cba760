//! The questions that wait for a user.
//!
//! A daemon of a bundle asks over its channel; the keeper writes the question to a file of
//! `$BOTTLE_HOME/queue/<slug>/` and carries the answer back. So no sidecar shares a folder with the host, and
//! it is the same on every backend.
//!
//! ```text
//! questions  in daemons and bundle: asking, and passing on to whoever listens at the moment
//! asker      in the keeper: one file for each question, and waiting for its answer
//! cooling    how long it waits when it was rejected before
//! folder     the files of one bottle: written whole, read as hostile
//! list       what waits in all of them, for whoever answers
//! ```
//! On disk:
//! ```text
//! queue/<slug>/<id>.proposal.json    locked (flock) by who asked, as long as they wait: stale without
//!              <id>.response.json    made by link, so that the first answer wins
//!              processed/            both, moved there by who asked
//! ```

mod asker;
mod cooling;
mod file;
mod folder;
mod list;
mod questions;

pub use asker::{Asker, Decide, Outcome};
pub use folder::{Folder, Pending, RespondError, State, SubmitError};
pub use list::{Damaged, Listing, Looks, find, list};
pub use questions::{Questions, carry, question};
