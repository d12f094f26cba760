//! The parent of a bottle's sidecars.
