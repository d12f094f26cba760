//! Fetches a reference of a bottle's repository into a temporary git directory.
//!
//! ```text
//!  Store::fetch ◄── pipes in this process ──► stream ── keeper ──► exec in the bottle: git upload-pack
//! ```

use std::cell::RefCell;

use bottle_channel::{Channel, Event, StreamReceiver, StreamSender};
use bottle_protocol::session::guest::{Exit, GuestEvent, GuestRequest, Process, STDERR, STDIN, STDOUT};
use bottle_repository::Store;
use bottle_repository::fetch::{FetchError, Fetched, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::bottle_git::copy_out_hint;
use super::{ObjectId, Root};
use crate::connect::open_guest;
use crate::failure::Failure;
use crate::text::inert;

/// The capacity in bytes of each pipe between this process and the bottle.
const BUFFER: usize = 256 << 10;

/// The maximum number of bytes kept of the standard error of git in the bottle. The rest is dropped.
const MAX_STDERR: usize = 4096;

/// The source of a fetch.
pub(super) struct Source<'a> {
    pub(super) channel: &'a Channel,
    pub(super) root: &'a Root,
    /// The full name of the reference.
    pub(super) reference: &'a str,
}

/// Fetches a reference. `None` if the bottle has no reference of this name. `have` is a commit that the bottle received
/// at its start. The store can read this commit and its history.
///
/// # Errors
/// When the fetch fails. The bottle's git may be the cause.
pub(super) async fn fetch(
    store: &Store,
    Source { channel, root, reference }: Source<'_>,
    have: Option<&ObjectId>,
) -> Result<Option<Fetched>, Failure> {
    let process = Process {
        argv: ["git", "upload-pack", &root.path()].map(str::to_owned).to_vec(),
        env: [("LC_ALL".to_owned(), "C".to_owned())].into(),
        stdin: true,
        ..Process::default()
    };
    let (sender, receiver) = open_guest(channel, GuestRequest::Exec(process)).await?.split();
    let (from_bottle, received) = tokio::io::duplex(BUFFER);
    let (sent, to_bottle) = tokio::io::duplex(BUFFER);
    let failure = RefCell::new(None);
    let passing = async {
        let received = receive(receiver, received, &failure);
        let ((), ()) = tokio::join!(send(&sender, sent), received);
        std::future::pending().await
    };
    let fetched = tokio::select! {
        fetched = store.fetch(Request { reference, have }, from_bottle, to_bottle) => fetched,
        never = passing => never,
    };
    fetched.map_err(|error| {
        let cause = match (&error, failure.into_inner()) {
            // Git in the bottle ended first, and its error message contains the reason.
            (FetchError::Closed | FetchError::Pack(_), Some(failure)) => failure,
            _ => error.to_string(),
        };
        Failure::failed(format!("cannot fetch: {}", inert(&cause))).hint(copy_out_hint(&root.slug))
    })
}

/// Forwards the output of [`Store::fetch`] to git in the bottle, and then signals the end of the output.
async fn send(sender: &StreamSender, mut from: DuplexStream) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if sender.data(STDIN, &buffer[..read]).await.is_err() || read == 0 {
            return;
        }
    }
}

/// Forwards the output of git in the bottle to [`Store::fetch`]. If git in the bottle fails, stores the reason in
/// `failure`.
async fn receive(mut receiver: StreamReceiver, mut to: DuplexStream, failure: &RefCell<Option<String>>) {
    let mut stderr = Vec::new();
    while let Some(event) = receiver.next().await {
        match event {
            Event::Data { fd: STDOUT, bytes } => {
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Event::Data { fd: STDERR, bytes } => {
                let room = MAX_STDERR - stderr.len();
                stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Event::Data { .. } => {}
            Event::Message(json) => match serde_json::from_slice(&json) {
                Ok(GuestEvent::Exited(Exit::Code(0))) => return,
                Ok(GuestEvent::Exited(_)) => {
                    let text = String::from_utf8_lossy(&stderr);
                    *failure.borrow_mut() = Some(format!("git in the bottle failed: {}", text.trim()));
                    return;
                }
                Ok(GuestEvent::Failed(failed)) => {
                    *failure.borrow_mut() = Some(failed.message);
                    return;
                }
                _ => {}
            },
            Event::End | Event::Reset(_) => return,
        }
    }
}
