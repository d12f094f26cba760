//! Bottles as containers of a Docker engine.

pub mod images;
