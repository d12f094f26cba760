//! The process that owns a bottle: provisions, answers, tears down, adopts.

pub mod protocol;
