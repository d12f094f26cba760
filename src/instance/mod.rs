//! A bottle that exists: its record, its lock, and the transitions it can take.
//!
//! ```text
//! $BOTTLE_HOME/state/<slug>/   metadata.json  lock  agent/  logs/  .preserve
//! ```

pub mod record;
