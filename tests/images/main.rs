//! Images and the program's volume, on a real engine.
//!
//! ```text
//! stand     an engine, a home, a program that is this test's own, and containers to look inside
//! own       what bottle builds itself
//! ```

mod own;
mod stand;
