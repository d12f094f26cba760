//! Reads saved images: the output of `docker save`, or an OCI layout, in a directory or an archive. All input is
//! untrusted.
//!
//! - `container`: opens the files of a saved image
//! - `parse`: reads the manifest and the configuration
//! - `layer`: decompresses a layer, and verifies its digests
//! - `entry`: checks the paths and links of a layer's entries · `check`: checks all layers of an image

mod bad_image;
pub mod check;
pub mod container;
pub mod entry;
pub mod layer;
pub mod parse;

pub use self::bad_image::BadImage;
pub use self::container::Container;
pub use self::parse::{Digest, Saved};

/// Returns this machine's processor architecture, as container engines spell it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
