//! Tests images and the volume with the program on a real container engine.
//!
//! ```text
//! fixture       an engine, a home, a unique program, and containers for inspecting images
//! build_inputs  the directory, arguments and secrets of a Dockerfile, and BuildKit
//! built_images  images that `bottle` builds itself
//! others        user-provided images: a Dockerfile, a reference, a directory, an archive
//! registries    pulls with and without a login, and newer images
//! races         concurrent builds and killed builds
//! failure       failed, cancelled and killed builds
//! ```

mod build_inputs;
mod built_images;
mod failure;
mod fixture;
mod others;
mod races;
mod registries;
