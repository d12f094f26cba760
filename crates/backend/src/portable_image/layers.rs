//! Collects the layers of a bottle's image as compressed blobs.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::blobs::Blobs;
use super::compress::Compressor;
use super::scan::{ContentFinding, ContentScanner};
use crate::image::saved::Digest;
use crate::progress::{Copied, ProgressSink};

/// The number of bytes between two progress reports. Not every write is reported, because a report takes longer than
/// most writes: an entry of a layer consists of several small writes.
const REPORT: u64 = 1 << 20;

/// A layer whose blob is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// The digest of the compressed blob.
    pub stored: Digest,
    /// The size of the blob in bytes.
    pub size: u64,
    /// The digest of the uncompressed layer.
    pub content: Digest,
}

impl Layer {
    /// Creates a layer for which only the digest of the content is known.
    pub fn of_content(content: Digest) -> Self {
        Self { stored: content, size: 0, content }
    }
}

/// The layers of an image, lowest layer first.
pub struct LayerStore {
    blobs: Box<dyn Blobs>,
    layers: Vec<Layer>,
    scanner: Arc<ContentScanner>,
    findings: Vec<ContentFinding>,
    progress: ProgressSink,
    bytes: u64,
}

impl LayerStore {
    /// Creates an empty store. `blobs` stores the layers' blobs. `scanner` searches the bottle's own layers for
    /// secrets.
    pub fn new(blobs: impl Blobs + 'static, scanner: Arc<ContentScanner>, progress: ProgressSink) -> Self {
        Self { blobs: Box::new(blobs), layers: Vec::new(), scanner, findings: Vec::new(), progress, bytes: 0 }
    }

    /// Returns the layers that were added.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the findings in the bottle's own layers.
    pub fn findings(&self) -> &[ContentFinding] {
        &self.findings
    }

    /// Adds a blob that is not a layer. No layer may have the same content.
    ///
    /// # Errors
    /// When the blob cannot be written.
    pub(super) fn add_blob(&self, content: &[u8]) -> io::Result<Digest> {
        let digest = Digest::from_bytes(content);
        self.blobs.begin()?.write_all(content)?;
        self.blobs.keep(digest, content.len() as u64)?;
        Ok(digest)
    }

    /// Adds the layer that `fill` writes as an uncompressed tar archive. `own` says whether the layer contains files of
    /// the bottle. The files of such a layer are scanned. Otherwise the layer is part of the image on which the bottle
    /// is based. Blocks.
    ///
    /// # Errors
    /// The error of `fill`, or when the blob cannot be written.
    pub fn add(&mut self, own: bool, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let file = BufWriter::with_capacity(1 << 20, self.blobs.begin()?);
        let blob = Blob { file, hash: Sha256::new(), size: 0 };
        let scan = own.then(|| self.scanner.start());
        let tee = scan.as_ref().map(|scan| scan.input());
        let mut content = Content {
            compressor: Compressor::new(blob, tee),
            hash: Sha256::new(),
            progress: &self.progress,
            bytes: self.bytes,
        };
        fill(&mut content)?;
        let Content { compressor, hash, bytes, .. } = content;
        let Blob { mut file, hash: stored, size } = compressor.finish()?;
        file.flush()?;
        drop(file);
        self.bytes = bytes;
        if let Some(scan) = scan {
            self.findings.extend(scan.finish()?);
        }
        let layer = Layer { stored: Digest::from_hasher(stored), size, content: Digest::from_hasher(hash) };
        // Equal layers share a blob.
        match self.layers.iter().any(|other| other.stored == layer.stored) {
            true => self.blobs.discard(size)?,
            false => self.blobs.keep(layer.stored, size)?,
        }
        self.layers.push(layer);
        Ok(())
    }
}

/// Passes the uncompressed content of a layer to the compressor.
struct Content<'a> {
    compressor: Compressor<Blob>,
    hash: Sha256,
    progress: &'a ProgressSink,
    bytes: u64,
}

impl Write for Content<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.compressor.write(bytes)?;
        self.hash.update(&bytes[..written]);
        let reported = self.bytes / REPORT;
        self.bytes += written as u64;
        if self.bytes / REPORT > reported {
            self.progress.report(Copied { files: 0, bytes: self.bytes });
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A blob that is being written.
struct Blob {
    file: BufWriter<Box<dyn Write + Send>>,
    hash: Sha256,
    size: u64,
}

impl Write for Blob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
