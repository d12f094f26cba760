//! Reads a layer of a saved image. Limits the decompressed size, and verifies the digests of the stored bytes and of
//! the decompressed bytes.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest as _, Sha256};

use super::bad_image::BadImage;
use super::container::Container;
use super::parse::{Digest, Layer, missing};

/// The size limit of an unpacked image in bytes. Development images are smaller. A larger image is refused.
const BYTES_MAX: u64 = 64 << 30;

/// The decompressed size in bytes up to which the compression ratio is not checked.
const MIN_UNPACKED: u64 = 256 << 20;

/// The maximum compression ratio of a layer whose decompressed size exceeds [`MIN_UNPACKED`]. A layer with a higher
/// ratio is refused. Programs and sources compress to about a fifth of their size; gzip can compress to a thousandth.
const RATIO_MAX: u64 = 200;

/// The size of the read buffer in bytes.
const BUFFER: usize = 256 << 10;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The number of decompressed bytes that the remaining layers of an image may have.
#[derive(Debug)]
pub struct Budget(u64);

impl Budget {
    /// The budget of a new image.
    pub fn full() -> Self {
        Self(BYTES_MAX)
    }
}

/// Passes the decompressed content of a layer to `take`, and then verifies the layer's digests. After an error, the
/// caller must discard everything that `take` wrote.
///
/// # Errors
/// [`BadImage`] when the layer is missing, damaged or too large. Otherwise the error that `take` returned.
pub fn read(
    container: &Container,
    layer: &Layer,
    budget: &mut Budget,
    take: impl FnOnce(&mut dyn Read) -> Result<(), BadImage>,
) -> Result<(), BadImage> {
    let name = &layer.name;
    let stored = container.open(name)?.ok_or_else(|| missing(name))?;
    let damaged = |error: io::Error| BadImage::refused(format!("is damaged: {name:?}: {error}"));
    let (stored, stored_meter) = MeteredReader::new(stored, None);
    let mut stored = BufReader::with_capacity(BUFFER, stored);
    let start = stored.fill_buf().map_err(damaged)?;
    let content: Box<dyn Read> = if start.starts_with(GZIP) {
        Box::new(MultiGzDecoder::new(stored))
    } else if start.starts_with(ZSTD) {
        Box::new(Frames::new(stored))
    } else {
        Box::new(stored)
    };
    let bound = Bound { most: budget.0, stored_meter: Some(stored_meter.clone()) };
    let (mut content, above) = MeteredReader::new(content, Some(bound));
    take(&mut content)?;
    // The digest also covers the archive's padding and any trailing bytes.
    io::copy(&mut content, &mut io::sink()).map_err(damaged)?;
    budget.0 -= above.borrow().bytes;
    drop(content);
    let (actual, expected) = (above.take().digest(), layer.content);
    if actual != expected {
        return Err(BadImage::refused(format!(
            "is damaged: the content of {name:?} is {actual}, expected {expected}"
        )));
    }
    match layer.stored {
        Some(expected) if stored_meter.borrow().clone().digest() != expected => {
            let actual = stored_meter.take().digest();
            Err(BadImage::refused(format!("is damaged: {name:?} is {actual}, expected {expected}")))
        }
        _ => Ok(()),
    }
}

/// Reads an archive that is not part of a saved image. Works like [`read`], but verifies no digests.
///
/// # Errors
/// The errors of [`read`].
pub fn plain(
    archive: impl Read,
    budget: &mut Budget,
    take: impl FnOnce(&mut dyn Read) -> Result<(), BadImage>,
) -> Result<(), BadImage> {
    let (mut content, _) =
        MeteredReader::new(BufReader::with_capacity(BUFFER, archive), Some(Bound::for_image(budget)));
    take(&mut content)
}

/// Counts and hashes the bytes that pass through a reader.
#[derive(Debug, Clone, Default)]
struct Meter {
    hash: Sha256,
    bytes: u64,
}

impl Meter {
    fn digest(self) -> Digest {
        Digest::from_hasher(self.hash)
    }
}

struct Bound {
    most: u64,
    /// Counts and hashes the stored bytes. `None` for an archive without digests.
    stored_meter: Option<Rc<RefCell<Meter>>>,
}

impl Bound {
    fn for_image(budget: &Budget) -> Self {
        Self { most: budget.0, stored_meter: None }
    }
}

struct MeteredReader<R> {
    inner: R,
    meter: Rc<RefCell<Meter>>,
    bound: Option<Bound>,
}

impl<R: Read> MeteredReader<R> {
    fn new(inner: R, bound: Option<Bound>) -> (Self, Rc<RefCell<Meter>>) {
        let meter = Rc::new(RefCell::new(Meter::default()));
        (Self { inner, meter: meter.clone(), bound }, meter)
    }
}

impl<R: Read> Read for MeteredReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let mut meter = self.meter.borrow_mut();
        meter.hash.update(&buffer[..read]);
        meter.bytes += read as u64;
        if let Some(Bound { most, stored_meter }) = &self.bound {
            if meter.bytes > *most {
                return Err(io::Error::other(format!(
                    "the unpacked image is larger than {} GiB",
                    BYTES_MAX >> 30
                )));
            }
            let stored = stored_meter.as_ref().map_or(u64::MAX, |stored_meter| stored_meter.borrow().bytes);
            if meter.bytes > MIN_UNPACKED && meter.bytes / RATIO_MAX > stored {
                return Err(io::Error::other(format!(
                    "it expands to more than {RATIO_MAX} times its stored size"
                )));
            }
        }
        Ok(read)
    }
}

/// Decodes all zstd frames of a file. Parallel compressors write several frames, and some write skippable frames
/// between them.
struct Frames<R> {
    stored: R,
    decoder: FrameDecoder,
    /// Whether the decoder is inside a frame.
    in_frame: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(stored: R) -> Self {
        Self { stored, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Starts to decode the next frame. Returns `false` at the end of the file.
    fn start_frame(&mut self) -> io::Result<bool> {
        while !self.in_frame && !self.stored.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.stored) {
                Ok(()) => self.in_frame = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = Read::by_ref(&mut self.stored).take(length.into());
                    if io::copy(&mut skipped, &mut io::sink())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(self.in_frame)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.start_frame()? {
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.stored, one).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            self.in_frame = false;
        }
        Ok(0)
    }
}
