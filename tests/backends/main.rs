//! One function per promise of the backend trait, run on every backend that is here. A skip is said aloud.
//!
//! ```text
//! stand       a backend over a throw-away home, a bottle on it, and what can be asked of its guest
//! life        what is made, found again and removed
//! isolation   what a bottle cannot see, reach or do; on backends that isolate
//! files       what an agent may write, and where
//! proxy        the bundle, and the proxy with and without it
//! docker      what only an engine can get wrong: what it shows, its networks, its names
//! installing  software beside the host's system
//! programs    agents installed on the host run inside
//! snapshots   freezing, going on with what was frozen or kept, removing
//! images      bottles of the Linux backend that work in an image
//! hostile     what an agent can leave for a freeze to find
//! failure     setups that fail leave nothing
//! ordinary    all of it once more, as a user who is not root
//! ```

mod docker;
mod failure;
mod files;
mod hostile;
mod images;
mod installing;
mod isolation;
mod life;
mod listeners;
mod ordinary;
mod programs;
mod snapshots;
mod stand;
