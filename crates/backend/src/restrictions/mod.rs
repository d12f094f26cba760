//! The restrictions that several backends put on the programs of a bottle.

mod bounding_set;
pub mod seccomp;
pub mod set_id;

pub use self::bounding_set::clear_bounding_set;
