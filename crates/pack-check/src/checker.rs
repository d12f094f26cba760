//! The state machine that reads a pack in parts of any size.

use flate2::{Decompress, FlushDecompress, Status};

use crate::varint::{Distance, Size, TooLong};
use crate::{ObjectFormat, PackError, PackLimits, PackSummary, Part};

/// The number of bytes before the first object: the word `PACK`, the version, and the number of objects.
const HEADER: usize = 12;

/// The maximum number of bytes of an object that are inflated in one step.
const PIECE: usize = 32 << 10;

/// The number of bytes by which deflated data may exceed a small object. zlib needs at most 13 bytes, and 5 bytes for
/// each 16 KiB.
const DEFLATE_OVERHEAD: u64 = 128;

/// The numbers of the object types (gitformat-pack(5), "object types").
const COMMIT: u8 = 1;
const BLOB: u8 = 3;
const TAG: u8 = 4;
const OFFSET_DELTA: u8 = 6;
const ID_DELTA: u8 = 7;

/// Checks a pack whose bytes arrive in parts of any size. After an error, [`Self::feed`] must not be called again.
#[derive(Debug)]
pub struct PackChecker {
    limits: PackLimits,
    format: ObjectFormat,
    state: State,
    /// The number of bytes that have been read.
    at: u64,
    /// The number of objects that have not been read completely.
    left: u32,
    /// The positions and sizes of the complete blobs that are too large to be the base of a delta, in order.
    large: Vec<(u64, u64)>,
    summary: PackSummary,
    inflate: Box<Decompress>,
    output: Box<[u8]>,
}

/// The part of the pack to which the next byte belongs.
#[derive(Debug)]
enum State {
    /// The header of the pack. The vector contains the bytes of the header that have been read.
    Header(Vec<u8>),
    /// The first byte of an object.
    Begin,
    /// The further bytes of an object's size.
    ObjectSize { start: u64, kind: u8, size: Size },
    /// The distance from a delta to its base.
    BaseDistance { start: u64, size: u64, distance: Distance },
    /// The id of a delta's base. The last `left` bytes of the id have not been read.
    BaseId { size: u64, left: usize },
    /// The deflated data of an object.
    Data(Data),
    /// The checksum of the pack. The last `left` bytes of the checksum have not been read.
    Checksum { left: usize },
}

/// The deflated data of one object.
#[derive(Debug)]
struct Data {
    /// The size after inflating, as the object's header announces it.
    size: u64,
    /// The number of bytes that have been inflated.
    inflated: u64,
    /// The sizes at the start of a delta. `None` for an object that is not a delta.
    delta: Option<DeltaHead>,
}

/// The two sizes at the start of a delta.
#[derive(Debug, Clone, Copy)]
enum DeltaHead {
    Base(Size),
    Result(Size),
    Done,
}

impl PackChecker {
    /// Creates a checker for a pack of which no byte has been read.
    #[must_use]
    pub fn new(limits: PackLimits, format: ObjectFormat) -> Self {
        Self {
            limits,
            format,
            state: State::Header(Vec::with_capacity(HEADER)),
            at: 0,
            left: 0,
            large: Vec::new(),
            summary: PackSummary::default(),
            inflate: Box::new(Decompress::new(true)),
            output: vec![0; PIECE].into(),
        }
    }

    /// Checks the next part of the pack. After `Ok`, all sizes that this part announces are within the limits, and the
    /// caller may pass the part to git.
    ///
    /// # Errors
    /// Fails with [`PackError`] if a size exceeds a limit, or the pack is malformed or has bytes after its checksum.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), PackError> {
        while !bytes.is_empty() {
            let taken = self.step(bytes)?;
            self.at += taken as u64;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Returns a summary of the part of the pack that has been read. An object is included as soon as its sizes are
    /// known.
    #[must_use]
    pub fn summary(&self) -> PackSummary {
        self.summary
    }

    /// Returns the summary of the complete pack.
    ///
    /// # Errors
    /// Fails with [`PackError::Incomplete`] if the checksum has not been read completely.
    pub fn finish(&self) -> Result<PackSummary, PackError> {
        match self.state {
            State::Checksum { left: 0 } => Ok(self.summary),
            _ => Err(PackError::Incomplete),
        }
    }

    /// Reads at least one byte of `bytes`, and returns the number of bytes that were read.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, PackError> {
        match &mut self.state {
            State::Header(read) => {
                let count = bytes.len().min(HEADER - read.len());
                read.extend_from_slice(&bytes[..count]);
                if let Some(header) = read.first_chunk::<HEADER>().copied() {
                    self.begin_pack(&header)?;
                }
                Ok(count)
            }
            State::Begin => self.begin_object(bytes[0]).map(|()| 1),
            State::ObjectSize { start, kind, size } => {
                let (start, kind) = (*start, *kind);
                if let Some(size) = size.push(bytes[0])? {
                    self.sized(start, kind, size)?;
                }
                Ok(1)
            }
            State::BaseDistance { start, size, distance } => {
                let (start, size) = (*start, *size);
                if let Some(distance) = distance.push(bytes[0])? {
                    self.check_base(start, distance)?;
                    self.begin_data(size, true);
                }
                Ok(1)
            }
            State::BaseId { size, left } => {
                let (size, count) = (*size, bytes.len().min(*left));
                *left -= count;
                if *left == 0 {
                    self.begin_data(size, true);
                }
                Ok(count)
            }
            State::Data(_) => self.inflate(bytes),
            State::Checksum { left: 0 } => Err(PackError::Damaged("it has bytes after its checksum")),
            State::Checksum { left } => {
                let count = bytes.len().min(*left);
                *left -= count;
                Ok(count)
            }
        }
    }

    fn begin_pack(&mut self, header: &[u8; HEADER]) -> Result<(), PackError> {
        let [b'P', b'A', b'C', b'K', 0, 0, 0, 2 | 3, count @ ..] = header else {
            return Err(PackError::NotAPack);
        };
        let count = u32::from_be_bytes(*count);
        if count > self.limits.objects {
            return Err(PackError::Objects { count, most: self.limits.objects });
        }
        (self.left, self.summary.objects) = (count, count);
        self.await_object();
        Ok(())
    }

    /// Sets the state to the first byte of the next object, or to the checksum after the last object.
    fn await_object(&mut self) {
        self.state = match self.left {
            0 => State::Checksum { left: self.format.width() },
            _ => State::Begin,
        };
    }

    /// Reads the first byte of an object, which contains the object's type and the lowest four bits of its size.
    fn begin_object(&mut self, byte: u8) -> Result<(), PackError> {
        let (start, kind, low) = (self.at, byte >> 4 & 7, u64::from(byte & 15));
        if !matches!(kind, COMMIT..=TAG | OFFSET_DELTA | ID_DELTA) {
            return Err(PackError::Damaged("an object has an unknown type"));
        }
        if byte & 0x80 == 0 {
            return self.sized(start, kind, low);
        }
        self.state = State::ObjectSize { start, kind, size: Size::after(low, 4) };
        Ok(())
    }

    /// Checks the size in an object's header.
    fn sized(&mut self, start: u64, kind: u8, size: u64) -> Result<(), PackError> {
        match kind {
            OFFSET_DELTA | ID_DELTA => {
                self.count_buffered(Part::DeltaText, size)?;
                self.state = if kind == OFFSET_DELTA {
                    State::BaseDistance { start, size, distance: Distance::default() }
                } else {
                    State::BaseId { size, left: self.format.width() }
                };
            }
            BLOB => {
                within(Part::Blob, size, self.limits.blob)?;
                if size > self.limits.buffered {
                    self.large.push((start, size));
                }
                self.count_total(size)?;
                self.begin_data(size, false);
            }
            _ => {
                self.count_buffered(Part::Other, size)?;
                self.count_total(size)?;
                self.begin_data(size, false);
            }
        }
        Ok(())
    }

    /// Checks the base of a delta. The base begins `distance` bytes before the delta.
    fn check_base(&self, start: u64, distance: u64) -> Result<(), PackError> {
        let base = start.checked_sub(distance).filter(|base| *base >= HEADER as u64 && distance > 0);
        let base = base.ok_or(PackError::Damaged("the base of a delta is outside the pack"))?;
        match self.large.binary_search_by_key(&base, |(at, _)| *at) {
            Ok(found) => within(Part::DeltaBase, self.large[found].1, self.limits.buffered),
            Err(_) => Ok(()),
        }
    }

    fn begin_data(&mut self, size: u64, is_delta: bool) {
        self.inflate.reset(true);
        let delta = is_delta.then(|| DeltaHead::Base(Size::default()));
        self.state = State::Data(Data { size, inflated: 0, delta });
    }

    /// Inflates the next bytes of an object. Returns the number of bytes that belong to the object.
    fn inflate(&mut self, bytes: &[u8]) -> Result<usize, PackError> {
        let mut taken = 0;
        loop {
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(&bytes[taken..], &mut self.output, FlushDecompress::None);
            let status = status.map_err(|_| PackError::Damaged("an object cannot be inflated"))?;
            let read = usize::try_from(self.inflate.total_in() - before_in).unwrap_or(usize::MAX);
            let made = usize::try_from(self.inflate.total_out() - before_out).unwrap_or(usize::MAX);
            taken += read;
            self.check_deflated()?;
            self.inflated(made)?;
            if status == Status::StreamEnd {
                self.end_object()?;
                return Ok(taken);
            }
            let is_stuck = read == 0 && made == 0;
            if taken == bytes.len() && (is_stuck || made < self.output.len()) {
                return Ok(taken);
            }
            if is_stuck {
                return Err(PackError::Damaged("an object cannot be inflated"));
            }
        }
    }

    /// Checks that the deflated data of an object is not much longer than the object. A deflate stream can contain
    /// blocks without output. Such blocks could hide data that no reader of the object sees.
    fn check_deflated(&self) -> Result<(), PackError> {
        let State::Data(data) = &self.state else { return Ok(()) };
        if self.inflate.total_in() > data.size.saturating_add(data.size / 64 + DEFLATE_OVERHEAD) {
            return Err(PackError::Damaged("the compressed data of an object is longer than the object"));
        }
        Ok(())
    }

    /// Counts inflated bytes, and reads the sizes at the start of a delta.
    fn inflated(&mut self, count: usize) -> Result<(), PackError> {
        let State::Data(data) = &mut self.state else { return Ok(()) };
        data.inflated += count as u64;
        if data.inflated > data.size {
            return Err(PackError::Damaged("an object is larger than its header says"));
        }
        let Some(mut head) = data.delta else { return Ok(()) };
        for at in 0..count {
            let byte = self.output[at];
            head = match head {
                DeltaHead::Done => break,
                DeltaHead::Base(mut size) => match size.push(byte)? {
                    Some(size) => {
                        self.count_buffered(Part::DeltaBase, size)?;
                        DeltaHead::Result(Size::default())
                    }
                    None => DeltaHead::Base(size),
                },
                DeltaHead::Result(mut size) => match size.push(byte)? {
                    Some(size) => {
                        self.count_buffered(Part::DeltaResult, size)?;
                        self.count_total(size)?;
                        DeltaHead::Done
                    }
                    None => DeltaHead::Result(size),
                },
            };
        }
        if let State::Data(data) = &mut self.state {
            data.delta = Some(head);
        }
        Ok(())
    }

    fn end_object(&mut self) -> Result<(), PackError> {
        let State::Data(data) = &self.state else { return Ok(()) };
        if data.inflated != data.size {
            return Err(PackError::Damaged("an object is smaller than its header says"));
        }
        if data.delta.is_some_and(|head| !matches!(head, DeltaHead::Done)) {
            return Err(PackError::Damaged("a delta has no sizes"));
        }
        self.left -= 1;
        self.await_object();
        Ok(())
    }

    /// Checks the size of data that git holds in memory.
    fn count_buffered(&mut self, part: Part, size: u64) -> Result<(), PackError> {
        within(part, size, self.limits.buffered)?;
        self.summary.buffered = self.summary.buffered.max(size);
        Ok(())
    }

    fn count_total(&mut self, size: u64) -> Result<(), PackError> {
        self.summary.total = self.summary.total.saturating_add(size);
        let most = self.limits.total;
        if self.summary.total > most { Err(PackError::Total { most }) } else { Ok(()) }
    }
}

fn within(part: Part, size: u64, most: u64) -> Result<(), PackError> {
    if size > most { Err(PackError::Size { part, size, most }) } else { Ok(()) }
}

impl From<TooLong> for PackError {
    fn from(_: TooLong) -> Self {
        Self::Damaged("a number has more than 64 bits")
    }
}
