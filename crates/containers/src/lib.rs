//! The backends that run bottles in the containers of an engine: `docker` (also on Podman) and `apple`.

pub mod apple;
pub mod docker;
