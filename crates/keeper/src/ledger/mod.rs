//! The ledger: the tokens that all bottles of this home used, in the database `$BOTTLE_HOME/bottle.db`.
//!
//! ```text
//! proxy ─► keeper ─► usage/<slug>.jsonl ─► ingest ─► bottle.db ─► report
//!   ▲      (adds what only the host knows)  (by id)    ▲    │
//!   └─ lease ─────── keeper ◄──────────────────────────┴────┘
//! ```
//! Only host processes open the database: commands, and the keepers of bottles with a budget. Sidecars never open the
//! database. The usage files are the source of the data: a record is on disk in a usage file before it is ingested, and
//! the record's id is unique in the database. A process that is killed at any time therefore loses no records and
//! counts no record twice. A bottle continues to run if the database cannot be used.
//!
//! - `repository`, `series`: the only modules that contain SQL for data · `schema`: the tables and their migrations
//! - `ingest`: reads the usage files · `report`: sums up usage by day, provider and other properties · `error`: errors
//!   with hints
//! - `standing`: the spent and reserved tokens of a budget · `lease`: reserves tokens for bottles
//! - `series`: the data for dashboards, about the last minutes and about one bottle

mod error;
mod ingest;
mod lease;
#[cfg(test)]
mod lease_tests;
mod report;
mod repository;
mod schema;
mod series;
mod standing;
#[cfg(test)]
mod tests;

pub use error::{Cause, LedgerError};
pub use ingest::Ingested;
pub use lease::{LeaseGrant, Lessee, Shortage};
pub use report::{Group, GroupBy, ModelGroup};
pub use repository::{Ledger, Response, Totals};
pub use series::{Minute, SourceUsage};
pub use standing::Standing;
