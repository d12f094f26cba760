//! Tests each promise of the backend trait on every available backend. Reports backends that are skipped.
//!
//! ```text
//! fixture     a backend with a temporary home, bottles in it, and requests to a bottle's guest
//! life        creation, enumeration and removal of resources
//! isolation   the isolation of a bottle, on backends that isolate
//! files       writable files and limits
//! listeners   the bundle, and the proxy with and without it
//! apple       logs and sockets of `container`
//! docker      engine-specific behaviour: visible configuration, networks, names
//! installing  software installation beside the host's system
//! programs    agents that are installed on the host run in a bottle
//! snapshots   freezing, resuming, removing
//! portable    moving bottles between homes and backends
//! opened      reading and changing the files of ended bottles
//! images      bottles of the linux backend on an image
//! hostile     snapshots of hostile files
//! failure     a failed setup leaves nothing running
//! ordinary    all tests again as a user who is not root
//! ```

mod apple;
mod docker;
mod failure;
mod files;
mod fixture;
mod hostile;
mod images;
mod installing;
mod isolation;
mod kept;
mod life;
mod listeners;
mod opened;
mod ordinary;
mod portable;
mod programs;
mod snapshots;
