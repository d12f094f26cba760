//! Fetches one reference from a `git upload-pack` that an agent controls, which is called the other side below.
//!
//! The protocol is version 0 of gitprotocol-pack(5). This side does not negotiate. It sends only the id that the other
//! side offered, and at most one commit that the other side is known to have.
//!
//! ```text
//! them: ID HEAD\0capabilities, ID refs/heads/main, … ──►
//!                          ◄── want ID capabilities, have COMMIT, done
//! them: ACK or NAK, pack ──► sizes checked ──► a file of ours ──► git index-pack, each object checked
//! ```

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use bottle_pack_check::{ObjectFormat, PackChecker, PackError, PackLimits};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::git::GitError;
use crate::id::ObjectId;
use crate::store::{Store, StoreError};

/// The maximum number of bytes that one fetch reads.
const MAX_BYTES: u64 = 8 << 30;

/// How long the other side may send nothing before the fetch fails. Git sends nothing while it makes a large pack.
const IDLE: Duration = Duration::from_secs(300);

/// The time limit for the whole conversation. Without this limit, the other side could extend the conversation forever
/// with single packets.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The maximum number of lines before the pack. Most of these lines offer a reference.
const MAX_LINES: usize = 2_000_000;

/// The maximum number of progress packets. The request asks git not to send progress. Git otherwise sends a few packets
/// in a second.
const MAX_PROGRESS: usize = 50_000;

/// The bounds of a pack. Git makes no deltas for files of more than 512 MiB.
const LIMITS: PackLimits =
    PackLimits { objects: 50_000_000, blob: 4 << 30, buffered: 512 << 20, total: 512 << 30 };

/// The maximum number of commits whose parents the other side does not have.
const MAX_SHALLOW: usize = 100_000;

/// The channels of the response (gitprotocol-pack(5), "Packfile Data").
const PACK: u8 = 1;
const PROGRESS: u8 = 2;

/// The maximum length in bytes of a message of the other side that is kept.
const MAX_MESSAGE: usize = 2000;

/// The request of one fetch.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The full name of the reference.
    pub reference: &'a str,
    /// A commit that the other side received earlier, and that the store has with all its history. The other side does
    /// not send the objects of this commit again.
    pub have: Option<&'a ObjectId>,
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The object of the reference.
    pub tip: ObjectId,
    /// The commits whose parents the other side does not have, because its clone is shallow.
    pub shallow: Vec<ObjectId>,
}

/// Why nothing was fetched. The messages can contain text of an agent.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The other side ended the conversation.
    #[error("the bottle closed the connection")]
    Closed,
    /// The other side sent nothing for 300 s, or the conversation took more than an hour.
    #[error("git in the bottle timed out")]
    Late,
    /// The other side sent more than 8 GiB.
    #[error("the bottle sent more than {} GiB", MAX_BYTES >> 30)]
    TooMuch,
    /// The other side broke the protocol.
    #[error("git in the bottle broke the protocol: {0}")]
    Protocol(&'static str),
    /// The other side reported an error.
    #[error("git in the bottle failed: {0}")]
    Remote(String),
    /// The object ids of the other side use another hash function than those of the store.
    #[error("the bottle's repository has another hash function")]
    Format,
    /// The pack of the other side exceeds a size limit.
    #[error("the bottle's pack is refused: {0}")]
    Pack(#[from] PackError),
    /// The pack of the other side is damaged or incomplete.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<GitError> for FetchError {
    fn from(error: GitError) -> Self {
        Self::Store(error.into())
    }
}

impl Store {
    /// Fetches a reference with all its objects. `None` if the other side has no such reference. After success, every
    /// object that the reference needs is in this store or among its borrowed objects.
    ///
    /// # Errors
    /// Returns a [`FetchError`] of any kind. No reference of the store points to objects of a failed fetch.
    pub async fn fetch(
        &self,
        request: Request<'_>,
        from: impl AsyncRead + Unpin,
        to: impl AsyncWrite + Unpin,
    ) -> Result<Option<Fetched>, FetchError> {
        let conversation = self.converse(request, from, to);
        let received = tokio::time::timeout(DEADLINE, conversation).await.map_err(|_| FetchError::Late)??;
        let Some((Fetched { tip, shallow }, pack)) = received else { return Ok(None) };
        if !shallow.is_empty() {
            self.set_shallow(&shallow)?;
        }
        self.index(pack).await?;
        if self.commit(tip.as_str()).await?.is_none() {
            return Err(FetchError::Protocol("the pack lacks the commit"));
        }
        Ok(Some(Fetched { tip, shallow }))
    }

    /// Runs the conversation to its end. Returns the name of the pack too if the other side sent objects.
    async fn converse(
        &self,
        request: Request<'_>,
        from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> Result<Option<(Fetched, Option<String>)>, FetchError> {
        let mut lines =
            Lines { from, bytes: MAX_BYTES, lines: MAX_LINES, progress: MAX_PROGRESS, payload: Vec::new() };
        let offered = Offer::read(&mut lines, request.reference).await?;
        let mut pack = None;
        if let Some(tip) = &offered.tip {
            if tip.format() != self.kind().format {
                return Err(FetchError::Format);
            }
            if request.have != Some(tip) {
                let ask = offered.request(tip, request.have)?;
                to.write_all(ask.as_bytes()).await.map_err(|_| FetchError::Closed)?;
                to.flush().await.map_err(|_| FetchError::Closed)?;
                pack = self.receive(&mut lines).await?;
            }
        }
        // The other side may already have ended the conversation.
        let _ = to.write_all(b"0000").await;
        let _ = to.shutdown().await;
        Ok(offered.tip.map(|tip| (Fetched { tip, shallow: offered.shallow }, pack)))
    }

    /// Writes the pack into a file of the store. Returns the file's name without a suffix, or `None` if the pack has no
    /// objects.
    async fn receive(&self, lines: &mut Lines<impl AsyncRead + Unpin>) -> Result<Option<String>, FetchError> {
        // Reads the answer to the `have` line.
        loop {
            match lines.line().await? {
                Some(line) if line == b"NAK" || line.starts_with(b"ACK ") => break,
                Some(line) if line.starts_with(b"shallow ") || line.starts_with(b"unshallow ") => {}
                None => {}
                Some(line) => return Err(remote_error(&line)),
            }
        }
        let unwritten = |error| FetchError::Store(self.unwritten(error));
        let name = "objects/pack/tmp_pack_received";
        let path = self.path().join(name);
        let mut file = File::create(&path).map_err(unwritten)?;
        let format = self.kind().format;
        let mut checker = PackChecker::new(LIMITS, format);
        let mut end = Vec::new();
        while lines.packet().await? {
            match lines.payload.split_first() {
                Some((&PACK, bytes)) => {
                    checker.feed(bytes)?;
                    file.write_all(bytes).map_err(unwritten)?;
                    // The last bytes of the pack are its checksum.
                    end.extend_from_slice(&bytes[bytes.len().saturating_sub(format.width())..]);
                    end.drain(..end.len().saturating_sub(format.width()));
                }
                Some((&PROGRESS, _)) => {
                    let left = lines.progress.checked_sub(1);
                    lines.progress = left.ok_or(FetchError::Protocol("too much progress"))?;
                }
                Some((_, message)) => return Err(FetchError::Remote(text(message))),
                None => return Err(FetchError::Protocol("an empty packet")),
            }
        }
        if checker.finish()?.objects == 0 {
            std::fs::remove_file(path).map_err(unwritten)?;
            return Ok(None);
        }
        let checksum: String = end.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("objects/pack/pack-{checksum}");
        std::fs::rename(path, self.path().join(format!("{name}.pack"))).map_err(unwritten)?;
        Ok(Some(name))
    }

    /// Checks each object of a pack, and that all objects to which it refers exist.
    async fn index(&self, pack: Option<String>) -> Result<(), FetchError> {
        let Some(pack) = pack else { return Ok(()) };
        let strict = if self.kind().partial { "--fsck-objects" } else { "--strict" };
        let file = format!("{pack}.pack");
        let indexed = self.git().expect(&["index-pack", strict, &file]).await;
        if indexed.is_err() {
            let _ = std::fs::remove_file(self.path().join(&file));
        }
        indexed?;
        Ok(())
    }
}

/// The offer of the other side: the object of the requested reference, the capabilities and the shallow commits.
#[derive(Debug)]
struct Offer {
    tip: Option<ObjectId>,
    capabilities: String,
    shallow: Vec<ObjectId>,
}

impl Offer {
    async fn read(lines: &mut Lines<impl AsyncRead + Unpin>, reference: &str) -> Result<Self, FetchError> {
        let mut offer = Self { tip: None, capabilities: String::new(), shallow: Vec::new() };
        let mut is_first = true;
        while let Some(line) = lines.line().await? {
            let (line, capabilities) = match line.iter().position(|byte| *byte == 0) {
                Some(at) => (&line[..at], Some(&line[at + 1..])),
                None => (&line[..], None),
            };
            if is_first && line == b"version 1" {
                continue;
            }
            if std::mem::take(&mut is_first) {
                offer.capabilities = String::from_utf8_lossy(capabilities.unwrap_or_default()).into_owned();
            }
            let Some(space) = line.iter().position(|byte| *byte == b' ') else {
                return Err(remote_error(line));
            };
            let (id, name) = (&line[..space], &line[space + 1..]);
            if id == b"shallow" {
                let id = ObjectId::from_bytes(name).ok_or(FetchError::Protocol("a malformed id"))?;
                offer.shallow.push(id);
                if offer.shallow.len() > MAX_SHALLOW {
                    return Err(FetchError::Protocol("too many shallow commits"));
                }
                continue;
            }
            let id = ObjectId::from_bytes(id).ok_or_else(|| remote_error(line))?;
            if name == reference.as_bytes() {
                offer.tip = Some(id);
            }
        }
        Ok(offer)
    }

    /// Returns the lines that this side sends.
    fn request(&self, tip: &ObjectId, have: Option<&ObjectId>) -> Result<String, FetchError> {
        let has = |wanted: &str| self.capabilities.split(' ').any(|capability| capability == wanted);
        if !has("side-band-64k") {
            return Err(FetchError::Protocol("it has no side bands"));
        }
        let mut want = format!("want {tip} side-band-64k");
        for optional in ["ofs-delta", "no-progress"] {
            if has(optional) {
                want += &format!(" {optional}");
            }
        }
        if tip.format() == ObjectFormat::Sha256 {
            want += " object-format=sha256";
        }
        let have = have.map(|have| packet(&format!("have {have}\n"))).unwrap_or_default();
        Ok(format!("{}0000{have}{}", packet(&(want + "\n")), packet("done\n")))
    }
}

/// Formats a line as a packet: its length, then the line (gitprotocol-common(5), "pkt-line").
fn packet(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}

/// Reads the packets of the other side. The counters limit how many bytes, lines and progress packets may still be
/// read.
struct Lines<R> {
    from: R,
    bytes: u64,
    lines: usize,
    progress: usize,
    payload: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Reads the next packet into `payload`. Returns false if the packet ends a list.
    async fn packet(&mut self) -> Result<bool, FetchError> {
        let mut head = [0; 4];
        self.read(&mut head).await?;
        let digits = head.iter().map(|byte| char::from(*byte).to_digit(16));
        let length = digits.reduce(|high, low| Some(high? << 4 | low?)).flatten();
        let length = length.ok_or(FetchError::Protocol("a malformed length"))? as usize;
        if length == 0 {
            return Ok(false);
        }
        let length = length.checked_sub(4).ok_or(FetchError::Protocol("a malformed length"))?;
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(length, 0);
        let read = self.read(&mut payload).await;
        self.payload = payload;
        read.map(|()| true)
    }

    /// Returns the next line without its line feed; `None` at the end of a list.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, FetchError> {
        self.lines = self.lines.checked_sub(1).ok_or(FetchError::Protocol("too many lines"))?;
        if !self.packet().await? {
            return Ok(None);
        }
        if self.payload.starts_with(b"ERR ") {
            return Err(FetchError::Remote(text(&self.payload[4..])));
        }
        Ok(Some(self.payload.strip_suffix(b"\n").unwrap_or(&self.payload).to_vec()))
    }

    async fn read(&mut self, into: &mut [u8]) -> Result<(), FetchError> {
        self.bytes = self.bytes.checked_sub(into.len() as u64).ok_or(FetchError::TooMuch)?;
        let read = tokio::time::timeout(IDLE, self.from.read_exact(into)).await;
        read.map_err(|_| FetchError::Late)?.map(drop).map_err(|_| FetchError::Closed)
    }
}

/// Returns the error for a line that is not part of the protocol, such as the output of another program.
fn remote_error(line: &[u8]) -> FetchError {
    FetchError::Remote(text(line))
}

fn text(message: &[u8]) -> String {
    String::from_utf8_lossy(&message[..message.len().min(MAX_MESSAGE)]).trim().to_owned()
}

#[cfg(test)]
mod tests;
