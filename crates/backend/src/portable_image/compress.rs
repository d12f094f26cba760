//! Compresses a stream with gzip on several threads.
//!
//! The stream is cut into chunks, and each chunk becomes one member of a gzip file. The result therefore does not
//! depend on the number of threads. Every decoder reads all members of a gzip file as one stream. The encoder is pure
//! Rust, because the agent chose the bytes to compress. The encoder is from `zlib-rs`, because it is faster than the
//! encoder of `miniz_oxide`. `miniz_oxide` decodes untrusted streams, because it contains no unsafe code.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use zlib_rs::crc32::crc32;
use zlib_rs::{DeflateConfig, ReturnCode, compress_bound, compress_slice};

/// The size of a chunk in bytes. The encoder's window is smaller, so larger chunks would compress no better.
const CHUNK: usize = 1 << 20;

/// The maximum compression ratio of a chunk. A reader refuses a layer that expands to more than 200 times its size, but
/// an honest layer can contain large files of zeros. If a chunk compresses better than this ratio, an extra field in
/// the member's header pads the member to this ratio.
const RATIO_MAX: usize = 128;

/// The maximum number of threads. More threads would only wait for the thread that reads the files.
const MAX_THREADS: usize = 8;

/// The header of a gzip member without a name and a time, from an unknown operating system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// The index of the flags byte in the header.
const FLAGS: usize = 3;

/// The flag for an extra field in the header.
const EXTRA: u8 = 4;

/// The compression level. Level 2 makes archives a sixth smaller than level 1, but takes 1.8 times as long.
const LEVEL: i32 = 1;

/// Selects raw deflate data with the largest window, as `windowBits` of zlib.
const RAW: i32 = -15;

type Job = (Arc<Vec<u8>>, SyncSender<Vec<u8>>);

/// A writer that passes the compressed stream to another writer.
pub(super) struct Compressor<W: Write> {
    out: W,
    chunk: Vec<u8>,
    jobs: SyncSender<Job>,
    /// The channels that receive the compressed chunks, in the order of the stream.
    waiting: VecDeque<Receiver<Vec<u8>>>,
    threads: usize,
    is_empty: bool,
    /// Receives each chunk before it is compressed.
    tee: Option<SyncSender<Arc<Vec<u8>>>>,
}

impl<W: Write> Compressor<W> {
    /// Starts the threads. `tee` also receives the uncompressed chunks; the receiver of `tee` may stop early.
    pub(super) fn new(out: W, tee: Option<SyncSender<Arc<Vec<u8>>>>) -> Self {
        let threads = thread::available_parallelism().map_or(2, usize::from).clamp(1, MAX_THREADS);
        let (jobs, queue) = sync_channel::<Job>(threads);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..threads {
            let queue = queue.clone();
            // A thread ends when the sender of the jobs is dropped.
            thread::spawn(move || {
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((chunk, result)) = job else { return };
                    // If the compression fails, the thread sends no result, and the caller reports the missing result.
                    let _ = member(&chunk).map(|member| result.send(member));
                }
            });
        }
        Self {
            out,
            chunk: Vec::with_capacity(CHUNK),
            jobs,
            waiting: VecDeque::new(),
            threads,
            is_empty: true,
            tee,
        }
    }

    /// Compresses the remaining bytes and returns the inner writer.
    ///
    /// # Errors
    /// When the inner writer fails.
    pub(super) fn finish(mut self) -> io::Result<W> {
        // An empty stream also has one member.
        if !self.chunk.is_empty() || self.is_empty {
            self.submit()?;
        }
        while !self.waiting.is_empty() {
            self.write_next()?;
        }
        Ok(self.out)
    }

    fn submit(&mut self) -> io::Result<()> {
        while self.waiting.len() >= self.threads * 2 {
            self.write_next()?;
        }
        self.is_empty = false;
        let chunk = Arc::new(std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK)));
        if let Some(tee) = &self.tee
            && tee.send(chunk.clone()).is_err()
        {
            self.tee = None;
        }
        let (sender, result) = sync_channel(1);
        self.jobs.send((chunk, sender)).map_err(|_| stopped())?;
        self.waiting.push_back(result);
        Ok(())
    }

    fn write_next(&mut self) -> io::Result<()> {
        let Some(next) = self.waiting.pop_front() else { return Ok(()) };
        self.out.write_all(&next.recv().map_err(|_| stopped())?)
    }
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK {
            self.submit()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compresses a chunk into one member (RFC 1952).
fn member(chunk: &[u8]) -> io::Result<Vec<u8>> {
    let config = DeflateConfig { window_bits: RAW, ..DeflateConfig::new(LEVEL) };
    let mut buffer = vec![0; compress_bound(chunk.len())];
    let (data, ReturnCode::Ok) = compress_slice(&mut buffer, chunk, config) else {
        return Err(io::Error::other("a part of the archive cannot be compressed"));
    };
    let missing = (chunk.len() / RATIO_MAX).saturating_sub(data.len());
    let mut member = Vec::with_capacity(HEADER.len() + 2 + missing + data.len() + 8);
    member.extend_from_slice(&HEADER);
    if let Some(length) = u16::try_from(missing).ok().filter(|length| *length > 0) {
        member[FLAGS] = EXTRA;
        member.extend_from_slice(&length.to_le_bytes());
        member.resize(member.len() + missing, 0);
    }
    member.extend_from_slice(data);
    member.extend_from_slice(&crc32(0, chunk).to_le_bytes());
    // The format requires the size modulo 2^32. A chunk is smaller than 2^32 bytes.
    member.extend_from_slice(&u32::try_from(chunk.len()).unwrap_or(u32::MAX).to_le_bytes());
    Ok(member)
}

fn stopped() -> io::Error {
    io::Error::other("a thread that compresses the archive stopped")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::MultiGzDecoder;

    use super::*;

    fn compressed(content: &[u8]) -> Vec<u8> {
        let mut compressor = Compressor::new(Vec::new(), None);
        compressor.write_all(content).expect("compressed");
        compressor.finish().expect("finished")
    }

    #[test]
    fn a_decoder_reads_the_chunks_as_one_stream() {
        let mut content = Vec::new();
        for number in 0..800_000_u32 {
            content.extend_from_slice(&(number.wrapping_mul(number) % 1000).to_le_bytes());
        }
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, content.len()] {
            let compressed = compressed(&content[..length]);
            let mut back = Vec::new();
            MultiGzDecoder::new(compressed.as_slice()).read_to_end(&mut back).expect("decoded");
            assert_eq!(back, content[..length], "{length}");
        }
    }

    #[test]
    fn zeros_are_not_compressed_beyond_what_readers_accept() {
        let compressed = compressed(&vec![0; 8 * CHUNK]);
        assert!(compressed.len() >= 8 * CHUNK / RATIO_MAX, "{}", compressed.len());
        let mut back = Vec::new();
        MultiGzDecoder::new(compressed.as_slice()).read_to_end(&mut back).expect("decoded");
        assert_eq!(back, vec![0; 8 * CHUNK]);
    }
}
