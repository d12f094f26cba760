//! Compresses a stream with gzip on several threads.
//!
//! The stream is cut into chunks, and each chunk becomes one member of a gzip file, so the result does not depend on the
//! number of threads. A file may contain several members, which every decoder reads as one stream. The encoder is pure
//! Rust, because the agent chose the compressed bytes. Pure Rust also has an encoder for zstd, which is half as fast.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use flate2::{Compression, GzBuilder};

/// The size of a chunk in bytes. The encoder's window is smaller, so larger chunks would compress no better.
const CHUNK: usize = 1 << 20;

/// The maximum compression ratio of a chunk. A reader refuses a layer that expands to more than 200 times its size, but
/// a layer with large files of zeros is honest. A field in the header of a member fills it up to this ratio.
const RATIO_MAX: usize = 128;

/// The maximum number of threads. More threads wait for the thread that reads the files.
const MAX_THREADS: usize = 8;

type Job = (Arc<Vec<u8>>, SyncSender<Vec<u8>>);

/// A writer that passes the compressed stream to another writer.
pub(super) struct Compressor<W: Write> {
    out: W,
    chunk: Vec<u8>,
    jobs: SyncSender<Job>,
    /// The results of the chunks that are not written yet, in order.
    waiting: VecDeque<Receiver<Vec<u8>>>,
    threads: usize,
    is_empty: bool,
    /// Receives each chunk before it is compressed.
    tee: Option<SyncSender<Arc<Vec<u8>>>>,
}

impl<W: Write> Compressor<W> {
    /// Starts the threads. `tee` also receives the uncompressed chunks; it may stop to receive.
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
                    // The caller reports the missing result of a failed compression.
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

    /// Compresses the rest and returns the inner writer.
    ///
    /// # Errors
    /// When the inner writer fails.
    pub(super) fn finish(mut self) -> io::Result<W> {
        // An empty stream has one member too.
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

/// Compresses a chunk.
fn member(chunk: &[u8]) -> io::Result<Vec<u8>> {
    let compressed = |builder: GzBuilder| {
        let mut encoder = builder.write(Vec::with_capacity(chunk.len() / 2), Compression::fast());
        encoder.write_all(chunk)?;
        encoder.finish()
    };
    let member = compressed(GzBuilder::new())?;
    match (chunk.len() / RATIO_MAX).checked_sub(member.len()) {
        None | Some(0) => Ok(member),
        Some(missing) => compressed(GzBuilder::new().extra(vec![0; missing])),
    }
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
