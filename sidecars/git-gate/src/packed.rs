//! What is inside of gzip and zip: unpacked as it streams by, one level deep, within bounds.

use std::io::{self, Write};

use bottle_scan::{Scanner, Stream};
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};

use crate::names;

/// What one file may become. Past it nobody knows what is in it.
const MOST: u64 = 1 << 30;

/// What is unpacked at once.
const PIECE: usize = 64 << 10;

/// A zip's local header, fixed part.
const HEADER: usize = 30;
const SIGNATURE: &[u8; 4] = b"PK\x03\x04";

/// What stands between the parts of a zip, the header of an entry first among them.
const SIGNATURES: [&[u8; 4]; 4] = [SIGNATURE, b"PK\x01\x02", b"PK\x05\x06", b"PK\x07\x08"];

/// The content of a file that is packed.
pub(crate) enum Packed<'s> {
    Gzip(Box<MultiGzDecoder<Sink<'s>>>),
    Zip(Box<Zip<'s>>),
}

/// What was found in it.
pub(crate) struct Inside<'s> {
    pub(crate) stream: Option<Stream<&'s Scanner>>,
    /// A file in it that holds secrets by its name.
    pub(crate) file: Option<String>,
    /// It becomes more than anybody looks at.
    pub(crate) bomb: bool,
}

impl<'s> Packed<'s> {
    /// By how a file begins; none for one that is not packed.
    pub(crate) fn by(first: &[u8], stream: Stream<&'s Scanner>) -> Option<Self> {
        let sink = Sink { stream: Some(stream), left: MOST };
        if first.starts_with(&[0x1f, 0x8b, 8]) {
            return Some(Self::Gzip(Box::new(MultiGzDecoder::new(sink))));
        }
        first.starts_with(SIGNATURE).then(|| {
            Self::Zip(Box::new(Zip {
                sink,
                state: State::Between,
                held: Vec::new(),
                file: None,
                bomb: false,
            }))
        })
    }

    /// The next piece. What is damaged ends the unpacking; the bytes themselves are read anyway.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        match self {
            Self::Gzip(decoder) => {
                let _ = decoder.write_all(piece);
            }
            Self::Zip(zip) => zip.feed(piece),
        }
    }

    /// What was found; nothing only when it was asked for before.
    pub(crate) fn finish(self) -> Inside<'s> {
        match self {
            Self::Gzip(mut decoder) => {
                // One that is cut short has been scanned as far as it goes.
                let _ = decoder.try_finish();
                let sink = decoder.get_mut();
                Inside { stream: sink.stream.take(), file: None, bomb: sink.left == 0 }
            }
            Self::Zip(mut zip) => {
                let bomb = zip.bomb || zip.sink.left == 0;
                Inside { stream: zip.sink.stream.take(), file: zip.file, bomb }
            }
        }
    }
}

/// Scans what it is given, and takes no more than may come.
pub(crate) struct Sink<'s> {
    stream: Option<Stream<&'s Scanner>>,
    left: u64,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let take = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        self.left -= take as u64;
        if take == 0 && !bytes.is_empty() {
            return Err(io::Error::other("it becomes too much"));
        }
        if let Some(stream) = &mut self.stream {
            stream.feed(&bytes[..take]);
        }
        Ok(take)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) struct Zip<'s> {
    sink: Sink<'s>,
    state: State,
    /// Of a header, or the last bytes between two entries.
    held: Vec<u8>,
    file: Option<String>,
    bomb: bool,
}

enum State {
    /// Looking for the next header.
    Between,
    /// In a deflated entry.
    Deflated(Box<Decompress>),
}

impl Zip<'_> {
    fn feed(&mut self, piece: &[u8]) {
        let mut input = piece;
        while !input.is_empty() && !self.bomb {
            match &mut self.state {
                State::Between => {
                    let take = input.len().min(PIECE);
                    self.held.extend_from_slice(&input[..take]);
                    input = &input[take..];
                    self.between();
                }
                State::Deflated(decoder) => {
                    let (used, ended) = inflate(decoder, input, &mut self.sink);
                    input = &input[used..];
                    self.bomb |= self.sink.left == 0;
                    if ended {
                        self.state = State::Between;
                    }
                }
            }
        }
    }

    /// Looks for a whole header in what is held.
    fn between(&mut self) {
        loop {
            let begins = |window: &[u8]| SIGNATURES.iter().any(|signature| window == *signature);
            let Some(at) = self.held.windows(4).position(begins) else {
                let keep = self.held.len().min(3);
                self.pass(self.held.len() - keep);
                return;
            };
            // What is only stored ends where the next part begins.
            self.pass(at);
            let _ = self.sink.write_all(b"\n");
            if !self.held.starts_with(SIGNATURE) {
                self.pass(4);
                continue;
            }
            let Some(header) = self.held.get(..HEADER) else { return };
            let word = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
            let (method, name, extra) = (word(8), word(26), word(28));
            let Some(entry) = self.held.get(HEADER..HEADER + name) else { return };
            if self.held.len() < HEADER + name + extra {
                return;
            }
            let (folder, base) = split(entry);
            if names::rule(folder, base).is_some() && self.file.is_none() {
                self.file = Some(String::from_utf8_lossy(entry).into_owned());
            }
            let _ = self.sink.write_all(entry).and_then(|()| self.sink.write_all(b"\n"));
            let rest = self.held.split_off(HEADER + name + extra);
            self.held.clear();
            if method == 8 {
                let mut decoder = Box::new(Decompress::new(false));
                let (used, ended) = inflate(&mut decoder, &rest, &mut self.sink);
                if ended {
                    self.held.extend_from_slice(&rest[used..]);
                } else {
                    self.state = State::Deflated(decoder);
                    return;
                }
            } else {
                self.held = rest;
            }
        }
    }

    /// Scans so many bytes of what is held as they are, and holds them no more.
    fn pass(&mut self, length: usize) {
        let rest = self.held.split_off(length);
        let _ = self.sink.write_all(&self.held);
        self.held = rest;
    }
}

/// Folder and name of a path: the last two of its parts.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = path.rsplit(|byte| *byte == b'/');
    let name = parts.next().unwrap_or_default();
    (parts.next().unwrap_or_default(), name)
}

/// Unpacks as much as there is. How much was taken, and whether the entry ended or is damaged.
fn inflate(decoder: &mut Decompress, mut input: &[u8], sink: &mut Sink<'_>) -> (usize, bool) {
    let (mut used, mut output) = (0, vec![0; PIECE]);
    loop {
        let (before_in, before_out) = (decoder.total_in(), decoder.total_out());
        let status = decoder.decompress(input, &mut output, FlushDecompress::None);
        let taken = usize::try_from(decoder.total_in() - before_in).unwrap_or(input.len());
        let made = usize::try_from(decoder.total_out() - before_out).unwrap_or(0);
        used += taken;
        input = &input[taken..];
        if sink.write_all(&output[..made]).is_err() {
            return (used, true);
        }
        match status {
            Ok(Status::StreamEnd) | Err(_) => return (used, true),
            Ok(_) if taken == 0 && made == 0 => return (used, false),
            Ok(_) if input.is_empty() && made < output.len() => return (used, false),
            Ok(_) => {}
        }
    }
}
