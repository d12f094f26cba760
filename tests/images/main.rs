//! Images and the program's volume, on a real engine.
//!
//! ```text
//! stand     an engine, a home, a program that is this test's own, and containers to look inside
//! own       what bottle builds itself
//! others    what a user brings: a Dockerfile, a reference, a folder, an archive
//! races     two that make the same, one that is killed
//! failure   builds that fail, are given up or killed
//! ```

mod built_images;
mod failure;
mod others;
mod races;
mod stand;
