//! Images and the program's volume, on a real engine.
//!
//! ```text
//! fixture       an engine, a home, a unique program, and containers to inspect images
//! built_images  images that bottle builds itself
//! others        user-provided images: a Dockerfile, a reference, a folder, an archive
//! races         concurrent builds and killed builds
//! failure       failed, cancelled and killed builds
//! ```

mod built_images;
mod failure;
mod fixture;
mod others;
mod races;
