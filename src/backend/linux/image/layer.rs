//! A layer's bytes on their way out of a saved image: decompressed, counted against what an image may be, and
//! hashed on both sides, so that at the end it is known whether they were the right ones.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest as _, Sha256};

use super::BadImage;
use super::container::Container;
use super::saved::{Digest, Layer, missing};

/// The most that an image may be unpacked: more than any that a developer works in.
const BYTES_MAX: u64 = 64 << 30;

/// What a layer may always grow to.
const ALWAYS: u64 = 256 << 20;

/// How many times as large as it was stored a layer may become beyond that. Programs and sources compress to a
/// fifth; a thousandth is all that gzip can.
const RATIO_MAX: u64 = 200;

/// Read at once from the disk.
const BUFFER: usize = 256 << 10;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Bytes that all layers of an image may still have.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    /// A whole image's.
    pub(super) fn whole() -> Self {
        Self(BYTES_MAX)
    }
}

/// Reads a layer with `take`, which is given its content, and checks afterwards that this was what the image
/// names. What `take` made of a layer that fails is to be thrown away.
///
/// # Errors
/// [`BadImage`]: it is missing, damaged, or goes beyond what an image may be; or what `take` says.
pub(super) fn read(
    container: &Container,
    layer: &Layer,
    budget: &mut Budget,
    take: impl FnOnce(&mut dyn Read) -> Result<(), BadImage>,
) -> Result<(), BadImage> {
    let name = &layer.name;
    let stored = container.open(name)?.ok_or_else(|| missing(name))?;
    let damaged = |error: io::Error| BadImage::refused(format!("is damaged: {name:?}: {error}"));
    let (stored, below) = Metered::new(stored, None);
    let mut stored = BufReader::with_capacity(BUFFER, stored);
    let start = stored.fill_buf().map_err(damaged)?;
    let content: Box<dyn Read> = if start.starts_with(GZIP) {
        Box::new(MultiGzDecoder::new(stored))
    } else if start.starts_with(ZSTD) {
        Box::new(Frames::new(stored))
    } else {
        Box::new(stored)
    };
    let bound = Bound { most: budget.0, below: Some(below.clone()) };
    let (mut content, above) = Metered::new(content, Some(bound));
    take(&mut content)?;
    // The padding of the archive, and whatever stands behind it, is part of what is named.
    io::copy(&mut content, &mut io::sink()).map_err(damaged)?;
    budget.0 -= above.borrow().bytes;
    drop(content);
    let (is, should) = (above.take().digest(), layer.content);
    if is != should {
        return Err(BadImage::refused(format!(
            "is damaged: the content of {name:?} is {is}, and should be {should}"
        )));
    }
    match layer.stored {
        Some(should) if below.borrow().clone().digest() != should => {
            let is = below.take().digest();
            Err(BadImage::refused(format!("is damaged: {name:?} is {is}, and should be {should}")))
        }
        _ => Ok(()),
    }
}

/// Reads an archive that stands for itself, as [`read`] does; nothing says what it should be.
///
/// # Errors
/// As [`read`].
pub(super) fn plain(
    archive: impl Read,
    budget: &mut Budget,
    take: impl FnOnce(&mut dyn Read) -> Result<(), BadImage>,
) -> Result<(), BadImage> {
    let (mut content, _) =
        Metered::new(BufReader::with_capacity(BUFFER, archive), Some(Bound::of_whole(budget)));
    take(&mut content)
}

/// Bytes that went by.
#[derive(Debug, Clone, Default)]
struct Meter {
    hash: Sha256,
    bytes: u64,
}

impl Meter {
    fn digest(self) -> Digest {
        Digest::finished(self.hash)
    }
}

struct Bound {
    most: u64,
    /// As they were stored; absent where they are as they are stored.
    below: Option<Rc<RefCell<Meter>>>,
}

impl Bound {
    fn of_whole(budget: &Budget) -> Self {
        Self { most: budget.0, below: None }
    }
}

struct Metered<R> {
    inner: R,
    meter: Rc<RefCell<Meter>>,
    bound: Option<Bound>,
}

impl<R: Read> Metered<R> {
    fn new(inner: R, bound: Option<Bound>) -> (Self, Rc<RefCell<Meter>>) {
        let meter = Rc::new(RefCell::new(Meter::default()));
        (Self { inner, meter: meter.clone(), bound }, meter)
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let mut meter = self.meter.borrow_mut();
        meter.hash.update(&buffer[..read]);
        meter.bytes += read as u64;
        if let Some(Bound { most, below }) = &self.bound {
            if meter.bytes > *most {
                return Err(io::Error::other(format!(
                    "the image becomes larger than {} GiB",
                    BYTES_MAX >> 30
                )));
            }
            let stored = below.as_ref().map_or(u64::MAX, |below| below.borrow().bytes);
            if meter.bytes > ALWAYS && meter.bytes / RATIO_MAX > stored {
                return Err(io::Error::other(format!(
                    "it becomes more than {RATIO_MAX} times as large as it is"
                )));
            }
        }
        Ok(read)
    }
}

/// One zstd frame after another, to the end: a compressor that works in parallel writes many, and some write
/// frames in between that are to be passed over.
struct Frames<R> {
    stored: R,
    decoder: FrameDecoder,
    /// Whether a frame has begun and is not over.
    within: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(stored: R) -> Self {
        Self { stored, decoder: FrameDecoder::new(), within: false }
    }

    /// Begins the next frame; false when there is none.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.within && !self.stored.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.stored) {
                Ok(()) => self.within = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut passed = Read::by_ref(&mut self.stored).take(length.into());
                    if io::copy(&mut passed, &mut io::sink())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(self.within)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.begin()? {
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.stored, one).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            self.within = false;
        }
        Ok(0)
    }
}
