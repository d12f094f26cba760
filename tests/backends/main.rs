//! Tests each promise of the backend trait on every available backend. A skipped backend is reported.
//!
//! ```text
//! fixture     a backend over a temporary home, a bottle on it, and requests to its guest
//! life        creation, enumeration and removal of resources
//! isolation   the isolation of a bottle; on backends that isolate
//! files       writable files and limits
//! listeners   the bundle, and the proxy with and without it
//! docker      engine-specific behaviour: visible configuration, networks, names
//! installing  software installation beside the host's system
//! programs    agents installed on the host run inside
//! snapshots   freezing, resuming, removing
//! images      bottles of the linux backend on an image
//! hostile     hostile files in a freeze
//! failure     failed setups leave nothing
//! ordinary    all tests again as a user who is not root
//! ```

mod docker;
mod failure;
mod files;
mod fixture;
mod hostile;
mod images;
mod installing;
mod isolation;
mod life;
mod listeners;
mod ordinary;
mod programs;
mod snapshots;
