//! Writes an archive in place: the blobs of the image are compressed into the file of the archive.
//!
//! An archive begins with its metadata, which is complete only when all layers are known. The writer therefore reserves
//! space for the metadata, and fills the unused rest with space characters.
//!
//! ```text
//!   │ reserved │ manifest │ oci-layout │ blobs, while they are made │ index │ digests │ signature │
//!        └─ metadata, at the end
//! ```

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use bottle_backend::portable_image::Digest;
use bottle_backend::portable_image::{Blobs, ExportedImage, LAYOUT};
use sha2::{Digest as _, Sha256};
use tar::Header;

use super::digests::Digests;
use super::signature::SigningKey;
use super::{Metadata, entry_names};

/// The size of a block of a tar archive in bytes. A header is a block, and contents are padded to full blocks.
const BLOCK: u64 = 512;

/// The number of empty blocks at the end of an archive.
const END: u64 = 2;

/// The space in bytes for the parts of the metadata that are known only at the end: which files the archive contains,
/// and the path of the agent's home.
const UNKNOWN: u64 = 8 << 10;

/// An archive that is being written.
#[derive(Debug)]
pub struct Writer {
    file: Arc<File>,
    /// The OS error code of the first failed write of a blob.
    failure: Arc<OnceLock<i32>>,
    digests: Digests,
    /// The space reserved for the metadata in bytes, without the header.
    reserved: u64,
}

impl Writer {
    /// Begins an archive in an empty file. `metadata` contains at least the rules and the canaries that the metadata of
    /// [`Writer::finish`] contains. `manifest` is empty if the manifest is unknown.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn begin(file: File, metadata: &Metadata, manifest: &str) -> io::Result<Self> {
        let reserved = (text_of(metadata)?.len() as u64 + UNKNOWN).next_multiple_of(BLOCK);
        file.set_len(BLOCK + reserved)?;
        let (file, failure) = (Arc::new(file), Arc::default());
        let mut writer = Self { file, failure, digests: Digests::default(), reserved };
        writer.add(entry_names::MANIFEST, manifest.as_bytes())?;
        writer.add(entry_names::LAYOUT, LAYOUT.as_bytes())?;
        Ok(writer)
    }

    /// Returns the target for the blobs of the image. All blobs have to be complete before [`Writer::finish`] is
    /// called.
    pub fn blobs(&self) -> impl Blobs + use<> {
        BlobEntries { file: self.file.clone(), failure: self.failure.clone() }
    }

    /// Returns the error of the archive file if this error prevented the write of a blob. The error of an export does
    /// not name the file that the error concerns.
    pub fn failure(&self) -> Option<io::Error> {
        self.failure.get().copied().map(io::Error::from_raw_os_error)
    }

    /// Completes the archive, and signs it if `key` is set. Returns the archive's size in bytes. This call blocks.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn finish(
        mut self,
        metadata: &Metadata,
        image: &ExportedImage,
        key: Option<&SigningKey>,
    ) -> io::Result<u64> {
        let (index, blobs) = image.finish()?;
        for digest in &blobs {
            self.digests.add(&digest.blob(), *digest);
        }
        self.add(entry_names::INDEX, index.as_bytes())?;
        self.add_metadata(metadata)?;
        let digests = self.digests.text();
        append(&self.file, entry_names::DIGESTS, digests.as_bytes())?;
        if let Some(key) = key {
            let signature = serde_json::to_vec(&key.sign(digests.as_bytes()))?;
            append(&self.file, entry_names::SIGNATURE, &signature)?;
        }
        let size = length(&self.file)? + END * BLOCK;
        self.file.set_len(size)?;
        Ok(size)
    }

    fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.digests.add(name, Digest::from_hasher(Sha256::new_with_prefix(content)));
        append(&self.file, name, content)
    }

    fn add_metadata(&mut self, metadata: &Metadata) -> io::Result<()> {
        let mut text = text_of(metadata)?;
        let missing = usize::try_from(self.reserved).ok().and_then(|size| size.checked_sub(text.len()));
        let missing = missing.ok_or_else(|| io::Error::other("the path of the agent's home is too long"))?;
        text.resize(text.len() + missing, b' ');
        self.digests.add(entry_names::METADATA, Digest::from_bytes(&text));
        self.file.write_all_at(header(entry_names::METADATA, self.reserved)?.as_bytes(), 0)?;
        self.file.write_all_at(&text, BLOCK)
    }
}

/// The blobs of an archive. The file ends with the last complete entry, or with the blob that is being written.
struct BlobEntries {
    file: Arc<File>,
    failure: Arc<OnceLock<i32>>,
}

impl Blobs for BlobEntries {
    fn begin(&self) -> io::Result<Box<dyn Write + Send>> {
        let content = length(&self.file)? + BLOCK;
        // The header is written later, when the name and the size are known.
        self.file.set_len(content)?;
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(content))?;
        Ok(Box::new(Blob { file, failure: self.failure.clone() }))
    }

    fn keep(&self, digest: Digest, size: u64) -> io::Result<()> {
        let begin = self.content_of_last(size)?;
        complete(&self.file, &digest.blob(), begin, size)
    }

    fn discard(&self, size: u64) -> io::Result<()> {
        self.file.set_len(self.content_of_last(size)? - BLOCK)
    }
}

impl BlobEntries {
    /// Returns the position at which the content of the last blob begins. This blob is still being written.
    fn content_of_last(&self, size: u64) -> io::Result<u64> {
        let begin = length(&self.file)?.checked_sub(size).filter(|begin| *begin >= BLOCK);
        begin.ok_or_else(|| io::Error::other("the file of the archive was changed"))
    }
}

/// A blob that is being written.
struct Blob {
    file: File,
    failure: Arc<OnceLock<i32>>,
}

impl Write for Blob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|error| {
            if let Some(number) = error.raw_os_error() {
                self.failure.get_or_init(|| number);
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Adds an entry at the end of the file.
fn append(file: &File, name: &str, content: &[u8]) -> io::Result<()> {
    let begin = length(file)? + BLOCK;
    file.write_all_at(content, begin)?;
    complete(file, name, begin, content.len() as u64)
}

/// Writes the header of an entry whose content is at the end of the file, and pads the entry's last block.
fn complete(file: &File, name: &str, begin: u64, size: u64) -> io::Result<()> {
    file.set_len(begin + size.next_multiple_of(BLOCK))?;
    file.write_all_at(header(name, size)?.as_bytes(), begin - BLOCK)
}

/// Returns the header of an entry. Owner, mode and time are the same for all entries, so that equal contents result in
/// equal archives.
fn header(name: &str, size: u64) -> io::Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    Ok(header)
}

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

fn text_of(metadata: &Metadata) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(metadata)?;
    text.push(b'\n');
    Ok(text)
}
