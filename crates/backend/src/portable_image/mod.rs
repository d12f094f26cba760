//! The image of a bottle's files in an archive: an OCI layout whose layers are compressed with gzip.
//!
//! ```text
//!   export:  backend ─tar─► layers ─► compress ─► blobs ─► oci: configuration, manifest, index
//!                             └─► scan: secrets in the bottle's own files
//!   import:  blobs ─► backend::image::saved ─► backend
//! ```
//! - `request`: the inputs and results of a backend
//! - `layers`: collects layers · `compress`: gzip on several threads · `scan`: searches for secrets
//! - `blobs`: where blobs are stored · `oci`: the JSON files

mod blobs;
mod compress;
mod layers;
mod oci;
mod request;
mod scan;

pub use self::blobs::BlobDirectory;
pub use self::blobs::Blobs;
pub use self::layers::Layer;
pub use self::layers::LayerStore;
pub use self::oci::ImageConfig;
pub use self::oci::LAYOUT;
pub use self::request::{Export, ExportedImage, Import, Imported, RootKind};
pub use self::scan::{CANARY, ContentFinding, ContentScanner};
pub use crate::image::saved::parse::Digest;
