//! The read and write loops of a connection, and its shutdown.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_protocol::session::frame::{CLOSING, HEADER, Header};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, watch};

use crate::batch::Batch;
use crate::table::{Table, Violation};
use crate::{Closed, Side};

/// The initial capacity of the buffer for a payload, in bytes. The buffer grows as bytes arrive.
const FIRST_ALLOCATION: usize = 32 * 1024;

/// How long this side continues to write queued frames after it closes the connection. Frames that are still queued
/// after this time are lost.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The state that the read and write loops share with the handles of the connection and its streams.
pub(crate) struct Shared {
    table: Mutex<Table>,
    /// Notified when frames wait to be written, or the connection is closing.
    pub(crate) writes: Notify,
    /// Notified when a request from the peer arrives.
    pub(crate) arrivals: Notify,
    /// Notified when all queued frames are written.
    pub(crate) idle: Notify,
    /// Notified when this side closes the connection.
    closing: Notify,
    closed: watch::Sender<Option<Closed>>,
}

impl Shared {
    pub(crate) fn new(side: Side) -> Self {
        Self {
            table: Mutex::new(Table::new(side)),
            writes: Notify::new(),
            arrivals: Notify::new(),
            idle: Notify::new(),
            closing: Notify::new(),
            closed: watch::Sender::new(None),
        }
    }

    /// Locks the table for a short access. The lock must not be held over an await.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        // The table is consistent even after a panic, because its methods keep it so. A poisoned lock can therefore be
        // used.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops accepting new frames. Queued frames are still written, for at most [`CLOSE_TIMEOUT`].
    pub(crate) fn close(&self, reason: &str) {
        let mut table = self.table();
        if table.closed.is_none() {
            table.closed = Some(Closed::because(reason));
        }
        drop(table);
        self.closing.notify_one();
        self.writes.notify_one();
    }

    pub(crate) async fn closed(&self) -> Closed {
        let mut watch = self.closed.subscribe();
        match watch.wait_for(Option::is_some).await {
            Ok(closed) => closed.clone().unwrap_or_else(|| Closed::because("closed")),
            // Unreachable, because `self` owns the sender of the watch channel.
            Err(_) => Closed::because("closed"),
        }
    }

    /// Ends all streams of the connection. Returns the reason why the connection closed: the reason in the table if
    /// there is one, and otherwise `closed`.
    fn lose(&self, closed: Closed) -> Closed {
        let mut table = self.table();
        let closed = table.closed.clone().unwrap_or(closed);
        table.lose(&closed);
        drop(table);
        self.arrivals.notify_one();
        self.idle.notify_waiters();
        closed
    }

    fn publish(&self, closed: Closed) {
        self.closed.send_replace(Some(closed));
    }
}

/// Marks the connection as lost when this guard is dropped, even if the runtime drops the connection's task.
struct Lost<'a>(&'a Shared);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        let closed = self.0.lose(Closed::because("its task was dropped"));
        self.0.publish(closed);
    }
}

/// Reads and writes the connection's frames until the connection closes.
pub(crate) async fn drive<R, W>(reader: R, mut writer: W, shared: &Shared)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let lost = Lost(shared);
    let closed = {
        let mut reads = pin!(read_loop(reader, shared));
        let mut writes = pin!(write_loop(&mut writer, shared));
        tokio::select! {
            closed = &mut reads => closed,
            closed = &mut writes => closed,
            () = deadline(shared) => Closed::because("closed by this side"),
        }
    };
    let by_this_side = shared.table().closed.is_some();
    let closed = shared.lose(closed);
    tracing::debug!(%closed, "channel closed");
    // If the peer has exited, the byte stream may accept no data, and the shutdown below may block. The close is
    // therefore published before the shutdown.
    if !by_this_side {
        shared.publish(closed);
    }
    if let Ok(Err(error)) = tokio::time::timeout(CLOSE_TIMEOUT, writer.shutdown()).await {
        tracing::trace!(%error, "connection not shut down");
    }
    drop(lost);
}

async fn deadline(shared: &Shared) {
    shared.closing.notified().await;
    tokio::time::sleep(CLOSE_TIMEOUT).await;
}

async fn read_loop<R: AsyncRead + Unpin>(mut reader: R, shared: &Shared) -> Closed {
    loop {
        let (header, payload) = match read_frame(&mut reader).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Closed::because("the peer closed the connection"),
            Err(closed) => return closed,
        };
        let received = shared.table().receive(header, payload);
        if let Err(violation) = received {
            return violation.into();
        }
        // If no task waits, both notifications are cheap: each `Notify` stores a permit for the next waiter.
        shared.arrivals.notify_one();
        shared.writes.notify_one();
    }
}

impl From<Violation> for Closed {
    fn from(violation: Violation) -> Self {
        Self::because(violation.to_string())
    }
}

/// Reads one frame, or returns `None` if the peer closed the connection between two frames.
async fn read_frame<R: AsyncRead + Unpin>(mut reader: &mut R) -> Result<Option<(Header, Bytes)>, Closed> {
    let mut header = [0; HEADER];
    let Some((first, rest)) = header.split_first_mut() else { return Ok(None) };
    let read = reader.read(std::slice::from_mut(first)).await;
    if read.map_err(|e| Closed::because(e.to_string()))? == 0 {
        return Ok(None);
    }
    reader.read_exact(rest).await.map_err(read_error)?;
    if header == CLOSING {
        // The peer has announced the end of the connection with zeros, and sends zeros until the connection ends. On a
        // byte stream that carries consecutive connections (`rejoin`), this side may confirm the end only after it has
        // read all these zeros. Zeros that arrive after the confirmation would end the next connection.
        let _ = tokio::io::copy(&mut reader, &mut tokio::io::sink()).await;
        return Ok(None);
    }
    let header = Header::decode(header).map_err(|e| Closed::because(format!("the peer sent {e}")))?;
    // Each payload gets a separate allocation, so that a short payload in a queue does not keep a long buffer alive.
    // The allocation grows only as bytes arrive, so that a peer that merely announces a large length cannot allocate
    // much.
    let mut payload = BytesMut::with_capacity(header.length.min(FIRST_ALLOCATION));
    let mut limited = reader.take(header.length as u64);
    while payload.len() < header.length {
        let read = limited.read_buf(&mut payload).await.map_err(read_error)?;
        if read == 0 {
            return Err(Closed::because("the peer closed the connection in the middle of a frame"));
        }
    }
    Ok(Some((header, payload.freeze())))
}

fn read_error(error: std::io::Error) -> Closed {
    Closed::because(format!("reading failed in the middle of a frame: {error}"))
}

async fn write_loop<W: AsyncWrite + Unpin>(writer: &mut W, shared: &Shared) -> Closed {
    let mut batch = Batch::default();
    loop {
        let closed = {
            let mut table = shared.table();
            batch.fill(&mut table);
            table.closed.clone()
        };
        let written = async {
            // If the stream supports vectored writes, one system call writes all parts of the batch.
            writer.write_all_buf(&mut batch).await?;
            writer.flush().await
        };
        if let Err(error) = written.await {
            return Closed::because(format!("writing failed: {error}"));
        }
        {
            // The table stays locked from the check until `idle` is notified, so that no frame is queued in between.
            let table = shared.table();
            if !table.is_idle() {
                continue;
            }
            shared.idle.notify_waiters();
        }
        if let Some(closed) = closed {
            return closed;
        }
        // Frees the buffers while the connection is idle.
        batch = Batch::default();
        shared.writes.notified().await;
    }
}
