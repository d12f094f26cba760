//! Files in and out of the bottle, as tar streams.
//!
//! Regular files, folders and symbolic links travel, and nothing else: no devices, no pipes, no hard
//! links, no set-id bits. Nothing is opened by a path that a process of the bottle could bend: see
//! [`crate::rooted`]. The files are handled on a few threads, a copy each, because disks block; the
//! streams stay on the runtime and give the pace.
//!
//! - `out`: a tree becomes an archive · `into`: an archive ([`crate::archive`]) becomes a tree
//! - `bridge`: between a thread and a stream

mod bridge;
mod into;
mod out;

use std::sync::Arc;

use bottle_channel::{Event, Stream, StreamReceiver};
use bottle_contract::session::guest::{CopyIn, CopyOut, FailureKind, GuestEvent, STDIN, STDOUT};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::failure::{Outcome, failed, other};
use crate::guest::{Guest, relative_to_root};
use crate::host::answer;

/// Copies at once, a thread each.
pub(crate) const MAX_COPIES: usize = 4;

/// The places for copies.
pub(crate) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_COPIES)))
    }
}

impl Places {
    fn take(&self) -> Outcome<OwnedSemaphorePermit> {
        let place = self.0.clone().try_acquire_owned();
        place.map_err(|_| other(format!("{MAX_COPIES} copies run already")))
    }
}

/// Sends a file or folder as an archive.
pub(crate) async fn copy_out(guest: Arc<Guest>, request: CopyOut, stream: Stream) {
    let place = match guest.copies.take() {
        Ok(place) => place,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let (writer, mut chunks) = bridge::outward();
    let (root, path) = (guest.facts.root.clone(), relative_to_root(&request.path));
    let archiving = tokio::task::spawn_blocking(move || {
        let archived = out::archive(&root, &path, writer);
        drop(place);
        archived
    });
    while let Some(chunk) = chunks.recv().await {
        if stream.data_bytes(STDOUT, chunk).await.is_err() {
            // The thread fails at its next piece.
            return;
        }
    }
    conclude(&stream, &request.path, "copied out", archiving.await).await;
}

/// Unpacks an archive into a folder.
pub(crate) async fn copy_in(guest: Arc<Guest>, request: CopyIn, stream: Stream) {
    let place = match guest.copies.take() {
        Ok(place) => place,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let (sender, mut receiver) = stream.split();
    let (feeder, reader) = bridge::inward();
    let target = into::Target { root: guest.facts.root.clone(), folder: relative_to_root(&request.path) };
    let unpacking = tokio::task::spawn_blocking(move || {
        let unpacked = into::unpack(&target, reader);
        drop(place);
        unpacked
    });
    feed(&mut receiver, feeder).await;
    let unpacked = unpacking.await;
    let event = event_of(&request.path, "copied in", unpacked);
    let sent = async {
        sender.message(&event).await?;
        sender.end().await
    };
    if let Err(error) = sent.await {
        tracing::debug!(%error, "answer to a copy not sent");
    }
}

/// Hands the client's bytes to the thread. Without the client's end the thread never sees one.
async fn feed(receiver: &mut StreamReceiver, feeder: mpsc::Sender<bridge::Piece>) {
    loop {
        let event = tokio::select! {
            event = receiver.next() => event,
            // The thread has failed, and the client may be waiting to hear of it.
            () = feeder.closed() => return,
        };
        let piece = match event {
            Some(Event::Data { fd: STDIN, bytes }) => bridge::Piece::Bytes(bytes),
            Some(Event::End) => bridge::Piece::End,
            Some(Event::Data { .. } | Event::Message(_)) => continue,
            Some(Event::Reset(_)) | None => return,
        };
        // Fails when the thread has; the next turn notices.
        let _ = feeder.send(piece).await;
    }
}

type Joined = Result<std::io::Result<()>, tokio::task::JoinError>;

fn event_of(path: &str, what: &str, done: Joined) -> GuestEvent {
    match done.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
        Ok(()) => GuestEvent::Done,
        Err(error) => {
            GuestEvent::Failed(failed(FailureKind::BadPath, format!("{path:?} cannot be {what}: {error}")))
        }
    }
}

async fn conclude(stream: &Stream, path: &str, what: &str, done: Joined) {
    answer(stream, &event_of(path, what, done)).await;
}
