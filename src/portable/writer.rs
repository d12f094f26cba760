//! Writes an archive from the blobs of a staging folder.

use std::fs::File;
use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};
use tar::{Builder, Header};

use super::digests::Digests;
use super::signature::SigningKey;
use super::{Metadata, reader};
use crate::backend::image::saved::Digest;
use crate::backend::portable_image::{ExportedImage, LAYOUT};

/// The parts of an archive.
pub struct Parts<'a> {
    /// What the bottle was.
    pub metadata: &'a Metadata,
    /// The resolved manifest. Empty if it is unknown.
    pub manifest: &'a str,
    /// The image.
    pub image: &'a ExportedImage,
    /// The key that signs the archive, if any.
    pub key: Option<&'a SigningKey>,
}

/// Writes the archive. Returns its size in bytes.
///
/// # Errors
/// When a blob cannot be read or the output cannot be written.
pub fn write(out: &mut dyn Write, parts: &Parts<'_>) -> io::Result<u64> {
    let mut archive = Archive { out: Builder::new(Counted { out, bytes: 0 }), digests: Digests::default() };
    let mut metadata = serde_json::to_vec_pretty(parts.metadata)?;
    metadata.push(b'\n');
    archive.small(reader::METADATA, &metadata)?;
    archive.small(reader::MANIFEST, parts.manifest.as_bytes())?;
    archive.small(reader::LAYOUT, LAYOUT.as_bytes())?;
    let (index, blobs) = parts.image.finish()?;
    archive.small(reader::INDEX, index.as_bytes())?;
    for digest in &blobs {
        let file = File::open(parts.image.layers.blobs().join(digest.digits()))?;
        let size = file.metadata()?.len();
        archive.digests.add(&digest.blob(), *digest);
        archive.append(&digest.blob(), size, file)?;
    }
    let digests = archive.digests.text();
    archive.append(reader::DIGESTS, digests.len() as u64, digests.as_bytes())?;
    if let Some(key) = parts.key {
        let signature = serde_json::to_vec(&key.sign(digests.as_bytes()))?;
        archive.append(reader::SIGNATURE, signature.len() as u64, signature.as_slice())?;
    }
    let counted = archive.out.into_inner()?;
    counted.out.flush()?;
    Ok(counted.bytes)
}

struct Archive<'a> {
    out: Builder<Counted<'a>>,
    digests: Digests,
}

impl Archive<'_> {
    fn small(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.digests.add(name, Digest::from_hasher(Sha256::new_with_prefix(content)));
        self.append(name, content.len() as u64, content)
    }

    /// Adds an entry. Owner, mode and time are the same for all, so that equal contents result in equal archives.
    fn append(&mut self, name: &str, size: u64, content: impl Read) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        self.out.append_data(&mut header, name, content)
    }
}

struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
