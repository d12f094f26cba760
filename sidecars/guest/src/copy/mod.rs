//! Copies files into and out of the bottle as tar streams.
//!
//! Only regular files, directories and links are copied: no devices, pipes or set-id bits. A hard link of an archive stays
//! a hard link if its target is a file of the target directory. A hard link of the bottle is packed as a file. All files
//! are opened in such a way that processes of the bottle cannot redirect a path ([`crate::rooted`]). Each copy uses a
//! blocking thread for file access. Streams are handled on the async runtime. If the client is slow, the bounded queues
//! slow down the thread.
//!
//! - `out`: packs a directory tree · `into`: unpacks an archive ([`crate::archive`])
//! - `bridge`: connects a blocking thread and an async stream · `slots`: the limit on concurrent copies

pub(crate) mod bridge;
pub(crate) mod into;
pub(crate) mod out;
pub(crate) mod slots;

use std::sync::Arc;

use bottle_channel::{Event, Stream, StreamReceiver};
use bottle_protocol::session::guest::{CopyIn, CopyOut, FailureKind, GuestEvent, STDIN, STDOUT};
use tokio::sync::mpsc;

use crate::answer::answer;
use crate::facts::relative_to_root;
use crate::failure::failed;
use crate::guest::Guest;

/// Sends a file or directory as an archive.
pub(crate) async fn copy_out(guest: Arc<Guest>, request: CopyOut, stream: Stream) {
    let slot = match guest.copies.take() {
        Ok(slot) => slot,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let (writer, mut chunks) = bridge::outward();
    let (root, path) = (guest.facts.root.clone(), relative_to_root(&request.path));
    let archiving = tokio::task::spawn_blocking(move || {
        let archived = out::archive(&root, &path, writer);
        drop(slot);
        archived
    });
    while let Some(chunk) = chunks.recv().await {
        if stream.data_bytes(STDOUT, chunk).await.is_err() {
            // The thread also stops, because it fails when it writes its next chunk.
            return;
        }
    }
    conclude(&stream, &request.path, "out", archiving.await).await;
}

/// Unpacks an archive into a directory.
pub(crate) async fn copy_in(guest: Arc<Guest>, request: CopyIn, stream: Stream) {
    let slot = match guest.copies.take() {
        Ok(slot) => slot,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let (sender, mut receiver) = stream.split();
    let (feeder, reader) = bridge::inward();
    let target = into::Target { root: guest.facts.root.clone(), directory: relative_to_root(&request.path) };
    let unpacking = tokio::task::spawn_blocking(move || {
        let unpacked = into::unpack(&target, reader).map(|_| ());
        drop(slot);
        unpacked
    });
    feed(&mut receiver, feeder).await;
    let unpacked = unpacking.await;
    let event = event_of(&request.path, "in", unpacked);
    let sent = async {
        sender.message(&event).await?;
        sender.end().await
    };
    if let Err(error) = sent.await {
        tracing::debug!(%error, "answer to a copy not sent");
    }
}

/// Passes the client's bytes to the blocking thread. The thread sees the end of the data only if the client sends an
/// end message.
pub(crate) async fn feed(receiver: &mut StreamReceiver, feeder: mpsc::Sender<bridge::Piece>) {
    loop {
        let event = tokio::select! {
            event = receiver.next() => event,
            // The thread has failed, and the client may be waiting for the result.
            () = feeder.closed() => return,
        };
        let piece = match event {
            Some(Event::Data { fd: STDIN, bytes }) => bridge::Piece::Bytes(bytes),
            Some(Event::End) => bridge::Piece::End,
            Some(Event::Data { .. } | Event::Message(_)) => continue,
            Some(Event::Reset(_)) | None => return,
        };
        // Sending fails if the thread has failed. The next iteration detects this.
        let _ = feeder.send(piece).await;
    }
}

type Joined = Result<std::io::Result<()>, tokio::task::JoinError>;

fn event_of(path: &str, what: &str, done: Joined) -> GuestEvent {
    match done.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
        Ok(()) => GuestEvent::Done,
        Err(error) => {
            GuestEvent::Failed(failed(FailureKind::BadPath, format!("cannot copy {what} {path:?}: {error}")))
        }
    }
}

async fn conclude(stream: &Stream, path: &str, what: &str, done: Joined) {
    answer(stream, &event_of(path, what, done)).await;
}
