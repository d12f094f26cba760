//! Buffers a body until the scan has a verdict. Short bodies stay in memory. Longer bodies go to an unnamed file. The
//! file is encrypted with a key that exists only in this process, so nobody can read the bodies from the disk later.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use bottle_protocol::session::bundle::Limits;

/// The most bytes of one body that are kept in memory. The rest goes to an encrypted file.
const IN_MEMORY: usize = 1 << 20;
/// The limit that replaces [`IN_MEMORY`] while all bodies together exceed [`TOTAL_IN_MEMORY`].
const IN_MEMORY_WHEN_FULL: usize = BLOCK;
/// Total size of all bodies in memory, in bytes, above which each body may keep only [`IN_MEMORY_WHEN_FULL`] bytes in
/// memory.
const TOTAL_IN_MEMORY: u64 = 64 << 20;
/// Size of a block before encryption, in bytes.
const BLOCK: usize = 256 << 10;
/// Number of blocks that are read ahead from the file while a body is sent.
const READ_AHEAD: usize = 2;

/// The directory for buffered bodies, and their total size.
pub(crate) struct Spools {
    directory: PathBuf,
    limits: Limits,
    memory: Arc<AtomicU64>,
    disk: Arc<AtomicU64>,
}

/// Why a body cannot be buffered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    #[error("the limit is {}", size(*.0))]
    TooLong(u64),
    #[error("too many bodies are buffered already")]
    Full,
    #[error("it cannot be buffered")]
    Disk(#[from] io::Error),
}

fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes => format!("{bytes} bytes"),
    }
}

impl Spools {
    pub(crate) fn new(directory: &Path, limits: Limits) -> Self {
        Self { directory: directory.to_owned(), limits, memory: Arc::default(), disk: Arc::default() }
    }

    /// Checks the declared length of a body against `egress.body_limit`.
    ///
    /// # Errors
    /// [`SpoolError::TooLong`] if the body is longer.
    pub(crate) fn check_length(&self, length: u64) -> Result<(), SpoolError> {
        if length > self.limits.body { Err(SpoolError::TooLong(self.limits.body)) } else { Ok(()) }
    }

    /// Creates an empty spool.
    pub(crate) fn spool(&self) -> Spool {
        let share = |total: &Arc<AtomicU64>| Share { total: Arc::clone(total), used: 0 };
        Spool {
            directory: self.directory.clone(),
            limits: self.limits,
            memory: share(&self.memory),
            disk: share(&self.disk),
            buffer: BytesMut::new(),
            file: None,
            length: 0,
        }
    }
}

/// One body's part of a shared total. Dropping the value subtracts the part from the total.
struct Share {
    total: Arc<AtomicU64>,
    used: u64,
}

impl Share {
    fn set(&mut self, used: u64) {
        if used >= self.used {
            self.total.fetch_add(used - self.used, Ordering::Relaxed);
        } else {
            self.total.fetch_sub(self.used - used, Ordering::Relaxed);
        }
        self.used = used;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A buffered body.
pub(crate) struct Spool {
    directory: PathBuf,
    limits: Limits,
    memory: Share,
    disk: Share,
    /// The last bytes received, which are not in the encrypted file.
    buffer: BytesMut,
    file: Option<Sealed>,
    length: u64,
}

/// The encrypted file and its key. The key is stored nowhere else.
struct Sealed {
    file: File,
    key: LessSafeKey,
    /// Number of blocks. Each block contains [`BLOCK`] bytes of text.
    blocks: u64,
}

impl Spool {
    /// Number of bytes received so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends a chunk of the body.
    ///
    /// # Errors
    /// [`SpoolError`] if the body cannot be buffered and must not be forwarded.
    pub(crate) async fn push(&mut self, chunk: &[u8]) -> Result<(), SpoolError> {
        self.length += chunk.len() as u64;
        if self.length > self.limits.body {
            return Err(SpoolError::TooLong(self.limits.body));
        }
        self.buffer.extend_from_slice(chunk);
        self.memory.set(self.buffer.capacity() as u64);
        let full = self.memory.total.load(Ordering::Relaxed) > TOTAL_IN_MEMORY;
        let limit = if full { IN_MEMORY_WHEN_FULL } else { IN_MEMORY };
        let due = self.file.is_some() && self.buffer.len() >= BLOCK;
        if self.buffer.len() > limit || due {
            self.spill().await?;
        }
        Ok(())
    }

    /// Writes the buffer's full blocks to the file.
    async fn spill(&mut self) -> Result<(), SpoolError> {
        let mut sealed = match self.file.take() {
            Some(sealed) => sealed,
            None => Sealed::create(&self.directory)?,
        };
        let mut blocks = Vec::new();
        while self.buffer.len() >= BLOCK {
            blocks.push(self.buffer.split_to(BLOCK));
        }
        let bytes: u64 = blocks.iter().map(|block| block.len() as u64).sum();
        self.disk.set(self.disk.used + bytes);
        if self.disk.total.load(Ordering::Relaxed) > self.limits.spool {
            return Err(SpoolError::Full);
        }
        let written = spawn_blocking(move || {
            for block in blocks {
                sealed.append(block)?;
            }
            Ok::<_, io::Error>(sealed)
        });
        self.file = Some(written.await.map_err(io::Error::other)??);
        // Moves the remaining bytes to a smaller buffer.
        self.buffer = BytesMut::from(&self.buffer[..]);
        self.memory.set(self.buffer.capacity() as u64);
        Ok(())
    }

    /// The complete body, if none of it is in the file.
    pub(crate) fn in_memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(&self.buffer[..])
    }

    /// Returns the complete body if it has at most `limit` bytes.
    ///
    /// # Errors
    /// I/O errors when reading the file.
    pub(crate) async fn whole(&self, limit: usize) -> io::Result<Option<Vec<u8>>> {
        if self.length > limit as u64 {
            return Ok(None);
        }
        let mut text = Vec::with_capacity(usize::try_from(self.length).unwrap_or(0));
        if let Some(sealed) = &self.file {
            for block in 0..sealed.blocks {
                text.extend_from_slice(&sealed.read(block)?);
            }
        }
        text.extend_from_slice(&self.buffer);
        Ok(Some(text))
    }

    /// Returns a stream of the body, after the verdict of the scan.
    pub(crate) fn read(self) -> SpoolReader {
        let Self { buffer, file, memory, disk, .. } = self;
        let buffer = buffer.freeze();
        let Some(sealed) = file else {
            return SpoolReader { blocks: None, last: Some(buffer), _shares: (memory, disk) };
        };
        let (sender, blocks) = mpsc::channel(READ_AHEAD);
        spawn_blocking(move || {
            for block in 0..sealed.blocks {
                let text = sealed.read(block).map(Bytes::from);
                let failed = text.is_err();
                if sender.blocking_send(text).is_err() || failed {
                    return;
                }
            }
        });
        SpoolReader { blocks: Some(blocks), last: Some(buffer), _shares: (memory, disk) }
    }
}

/// A stream of the buffered body.
pub(crate) struct SpoolReader {
    pub(crate) blocks: Option<mpsc::Receiver<io::Result<Bytes>>>,
    /// The bytes after the file's blocks.
    pub(crate) last: Option<Bytes>,
    _shares: (Share, Share),
}

impl Sealed {
    fn create(directory: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(directory)?;
        let mut key = zeroize::Zeroizing::new([0; 32]);
        let failed = |_| io::Error::other("cannot generate a key");
        SystemRandom::new().fill(&mut *key).map_err(failed)?;
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*key).map_err(failed)?;
        Ok(Self { file, key: LessSafeKey::new(key), blocks: 0 })
    }

    /// The nonce is unique because every block has a different number and each file has its own key.
    fn nonce(block: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&block.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn offset(block: u64) -> u64 {
        block * (BLOCK + CHACHA20_POLY1305.tag_len()) as u64
    }

    fn append(&mut self, block: BytesMut) -> io::Result<()> {
        let mut text = Vec::from(&block[..]);
        self.key
            .seal_in_place_append_tag(Self::nonce(self.blocks), Aad::empty(), &mut text)
            .map_err(|_| io::Error::other("cannot encrypt a block"))?;
        self.file.write_all_at(&text, Self::offset(self.blocks))?;
        self.blocks += 1;
        Ok(())
    }

    fn read(&self, block: u64) -> io::Result<Vec<u8>> {
        let mut text = vec![0; BLOCK + CHACHA20_POLY1305.tag_len()];
        self.file.read_exact_at(&mut text, Self::offset(block))?;
        let opened = self.key.open_in_place(Self::nonce(block), Aad::empty(), &mut text);
        let length = opened.map_err(|_| io::Error::other("the file was changed on disk"))?.len();
        text.truncate(length);
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(spool: Spool) -> Vec<u8> {
        let mut reading = spool.read();
        let mut text = Vec::new();
        if let Some(blocks) = &mut reading.blocks {
            while let Some(block) = blocks.recv().await {
                text.extend_from_slice(&block.expect("block"));
            }
        }
        text.extend_from_slice(&reading.last.take().expect("last"));
        text
    }

    #[tokio::test]
    async fn returns_buffered_bytes_and_frees_their_space() {
        let directory = tempfile::tempdir().expect("directory");
        let spools = Spools::new(directory.path(), Limits { body: 8 << 20, spool: 8 << 20 });
        for length in [0, 1, IN_MEMORY, IN_MEMORY + 1, (5 << 20) + 77] {
            let text: Vec<u8> = (0..length).map(|n| u8::try_from(n % 251).expect("small")).collect();
            for chunk in [1000, 64 << 10, 3 << 20] {
                let mut spool = spools.spool();
                for chunk in text.chunks(chunk) {
                    spool.push(chunk).await.expect("push");
                }
                assert_eq!(spool.length(), length as u64);
                let whole = spool.whole(8 << 20).await.expect("whole").expect("short enough");
                assert!(whole == text && read(spool).await == text, "{length} in {chunk}");
            }
        }
        assert_eq!(std::fs::read_dir(directory.path()).expect("list").count(), 0);
        assert_eq!((spools.memory.load(Ordering::Relaxed), spools.disk.load(Ordering::Relaxed)), (0, 0));
    }

    #[tokio::test]
    async fn enforces_limits_per_body_and_in_total() {
        let directory = tempfile::tempdir().expect("directory");
        let spools = Spools::new(directory.path(), Limits { body: 4 << 20, spool: 5 << 20 });
        let chunk = vec![b'x'; 1 << 20];
        let mut one = spools.spool();
        for _ in 0..4 {
            one.push(&chunk).await.expect("push");
        }
        assert!(matches!(one.push(b"x").await, Err(SpoolError::TooLong(_))));
        let mut other = spools.spool();
        let outcome = async {
            for _ in 0..4 {
                other.push(&chunk).await?;
            }
            Ok::<_, SpoolError>(())
        };
        assert!(matches!(outcome.await, Err(SpoolError::Full)));
        assert!(spools.check_length(4 << 20).is_ok() && spools.check_length((4 << 20) + 1).is_err());
    }

    #[tokio::test]
    async fn encrypts_the_file() {
        let directory = tempfile::tempdir().expect("directory");
        let mut sealed = Sealed::create(directory.path()).expect("file");
        let text = vec![b'S'; BLOCK];
        sealed.append(BytesMut::from(&text[..])).expect("append");
        let mut raw = vec![0; BLOCK];
        sealed.file.read_exact_at(&mut raw, 0).expect("read");
        assert!(memchr::memmem::find(&raw, b"SSSS").is_none());
        sealed.file.write_all_at(&[raw[5] ^ 1], 5).expect("change");
        assert!(sealed.read(0).is_err());
    }
}
