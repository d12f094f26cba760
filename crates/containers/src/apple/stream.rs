//! The format in which a process in a container sends an archive over a socket.
//!
//! ```text
//!   sender:    length, 4 bytes big-endian ─► that many bytes ─► … ─► length 0, the end
//!   receiver:                                                        one byte ─►
//! ```
//! Relays of `container` connect the two sides. A relay that ends looks like a sender that has closed its socket, so only
//! the length 0 says that the archive is complete. The sender waits for the receiver's byte, because a relay may lose data
//! after the sender has ended.

use std::io::{self, Read, Write};

/// The maximum length in bytes of a piece.
const PIECE_MAX: u32 = 1 << 20;

/// Copies what the sender sends to `out`, and confirms the end to the sender.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] when the connection ends before the end of the archive. Otherwise when a piece is too
/// long, or `out` cannot be written.
pub(super) fn receive(mut stream: impl Read + Write, out: &mut dyn Write) -> io::Result<()> {
    let cut = |error| io::Error::new(io::ErrorKind::UnexpectedEof, format!("the archive was cut: {error}"));
    let mut piece = vec![0; PIECE_MAX as usize];
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).map_err(cut)?;
        let length = u32::from_be_bytes(length);
        if length == 0 {
            return stream.write_all(b"\n").map_err(cut);
        }
        if length > PIECE_MAX {
            return Err(io::Error::other(format!("a piece of the archive has {length} bytes")));
        }
        let piece = &mut piece[..length as usize];
        stream.read_exact(piece).map_err(cut)?;
        out.write_all(piece)?;
    }
}

/// Sends everything that is written to it in pieces.
#[cfg(target_os = "linux")]
pub(super) struct Sender<S: Read + Write>(io::BufWriter<Pieces<S>>);

/// Sends each write as one piece.
#[cfg(target_os = "linux")]
struct Pieces<S>(S);

#[cfg(target_os = "linux")]
impl<S: Read + Write> Sender<S> {
    /// Sends to this stream.
    pub(super) fn new(stream: S) -> Self {
        Self(io::BufWriter::with_capacity(PIECE_MAX as usize, Pieces(stream)))
    }

    /// Sends the end, and waits until the receiver has received everything.
    ///
    /// # Errors
    /// When the receiver does not confirm the end.
    pub(super) fn finish(self) -> io::Result<()> {
        let Pieces(mut stream) = self.0.into_inner().map_err(io::IntoInnerError::into_error)?;
        stream.write_all(&0_u32.to_be_bytes())?;
        stream.read_exact(&mut [0])
    }
}

#[cfg(target_os = "linux")]
impl<S: Read + Write> Write for Sender<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(target_os = "linux")]
impl<S: Write> Write for Pieces<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(PIECE_MAX);
        // A piece of length 0 would be the end.
        if length > 0 {
            self.0.write_all(&length.to_be_bytes())?;
            self.0.write_all(&bytes[..length as usize])?;
        }
        Ok(length as usize)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn large_and_small_writes_arrive_and_the_end_is_confirmed() {
        let (inside, host) = UnixStream::pair().expect("a pair");
        let large: Vec<u8> = (0..3_000_001_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
        let sent = large.clone();
        let sending = thread::spawn(move || {
            let mut sender = Sender::new(inside);
            sender.write_all(b"a")?;
            sender.write_all(b"")?;
            sender.flush()?;
            sender.write_all(&sent)?;
            sender.finish()
        });
        let mut received = Vec::new();
        receive(host, &mut received).expect("received");
        sending.join().expect("joined").expect("confirmed");
        assert!(received[0] == b'a' && received[1..] == large[..]);
    }

    #[test]
    fn an_archive_without_its_end_is_an_error_on_both_sides() {
        let (inside, host) = UnixStream::pair().expect("a pair");
        let mut sender = Sender::new(inside);
        sender.write_all(b"the first file").expect("sent");
        sender.flush().expect("sent");
        drop(sender);
        let mut received = Vec::new();
        let error = receive(host, &mut received).expect_err("cut");
        assert_eq!((error.kind(), received.len()), (io::ErrorKind::UnexpectedEof, 14));

        let (inside, host) = UnixStream::pair().expect("a pair");
        drop(host);
        let sender = Sender::new(inside);
        assert!(sender.finish().is_err(), "nobody confirmed the end");
    }

    #[test]
    fn a_length_without_measure_is_refused() {
        let (mut inside, host) = UnixStream::pair().expect("a pair");
        inside.write_all(&u32::MAX.to_be_bytes()).expect("sent");
        let error = receive(host, &mut Vec::new()).expect_err("too long");
        assert!(error.to_string().contains("4294967295 bytes"), "{error}");
    }

    #[test]
    fn an_output_that_cannot_be_written_is_named() {
        let (mut inside, host) = UnixStream::pair().expect("a pair");
        inside.write_all(b"\0\0\0\x01x").expect("sent");
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("open");
        let error = receive(host, &mut full).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
