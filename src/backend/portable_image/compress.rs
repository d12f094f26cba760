//! Compresses a stream with zstd on several threads.
//!
//! The stream is cut into chunks, and each chunk becomes one zstd frame, so the result does not depend on the number of
//! threads. A file may contain several frames, which every decoder reads as one stream. The encoder is pure Rust, because
//! the agent chose the compressed bytes.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// The size of a chunk in bytes. The encoder's window is smaller, so larger chunks would compress no better.
const CHUNK: usize = 1 << 20;

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
                    let _ = result.send(compress_to_vec(chunk.as_slice(), CompressionLevel::Fastest));
                }
            });
        }
        Self { out, chunk: Vec::with_capacity(CHUNK), jobs, waiting: VecDeque::new(), threads, tee }
    }

    /// Compresses the rest and returns the inner writer.
    ///
    /// # Errors
    /// When the inner writer fails.
    pub(super) fn finish(mut self) -> io::Result<W> {
        if !self.chunk.is_empty() {
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

fn stopped() -> io::Error {
    io::Error::other("a thread that compresses the archive stopped")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn other_decoders_read_the_chunks_as_one_stream() {
        let mut content = Vec::new();
        for number in 0..400_000_u32 {
            content.extend_from_slice(&(number.wrapping_mul(number) % 1000).to_le_bytes());
        }
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, content.len()] {
            let mut compressor = Compressor::new(Vec::new(), None);
            compressor.write_all(&content[..length]).expect("compressed");
            let compressed = compressor.finish().expect("finished");
            let mut rest = compressed.as_slice();
            let mut back = Vec::new();
            while !rest.is_empty() {
                let mut decoder = ruzstd::decoding::StreamingDecoder::new(&mut rest).expect("a frame");
                decoder.read_to_end(&mut back).expect("decoded");
            }
            assert_eq!(back, content[..length], "{length}");
        }
    }
}
