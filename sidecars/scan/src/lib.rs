//! What may not leave: the redactor and the detectors.
//!
//! ```text
//! forms     one secret in every spelling in which it may turn up
//! redact    log lines, with every known secret masked
//! ```
//! Pure: nothing here opens a file or a socket, and no value of a secret is ever in a message.

mod forms;
mod redact;

pub use redact::{MASK, Redactor, SHORTEST_ANYWHERE, SHORTEST_MASKED, TooLarge};
