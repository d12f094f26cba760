//! Attaches one client to a process's terminal, either with control or read-only.

use std::sync::Arc;

use bottle_channel::{Event, Stream, StreamReceiver, StreamSender};
use bottle_protocol::session::guest::{Attach, ClientMessage, GuestEvent, STDIN};
use rustix::process::Signal;

use crate::guest::Guest;
use crate::hosted::Hosted;
use crate::scrollback::Piece;

/// Serves the client until the process exits or the client detaches. Detaching does not affect the process. A client
/// detaches when it ends or resets its stream, or when its connection is lost.
pub(crate) async fn attach(guest: Arc<Guest>, hosted: Arc<Hosted>, request: Attach, stream: Stream) {
    let (sender, receiver) = stream.split();
    let cursor = hosted.log.beginning();
    if request.read_only {
        tokio::select! {
            () = send_output(&hosted, &sender, cursor, None) => {}
            () = wait_for_detach(receiver) => {}
        }
        end(&sender).await;
    } else {
        let turn = hosted.take_control(sender.clone(), request.size).await;
        hosted.record_read(turn, cursor);
        tokio::select! {
            () = send_output(&hosted, &sender, cursor, Some(turn)) => {}
            () = receive_input(&guest, &hosted, receiver, turn) => {}
        }
        end(&sender).await;
        hosted.release_control(turn);
    }
}

async fn end(sender: &StreamSender) {
    // Ending the stream fails if the client has disconnected.
    let _ = sender.end().await;
}

/// Sends the process's output from the position `cursor` on, until the process has exited.
async fn send_output(hosted: &Hosted, sender: &StreamSender, mut cursor: u64, turn: Option<u64>) {
    loop {
        let sent = match hosted.log.next(&mut cursor).await {
            Piece::Bytes { fd, bytes } => sender.data_bytes(fd, bytes).await,
            Piece::End(exit) => {
                let _ = sender.message(&GuestEvent::Exited(exit)).await;
                return;
            }
        };
        if sent.is_err() {
            return;
        }
        if let Some(turn) = turn {
            hosted.record_read(turn, cursor);
        }
    }
}

/// Waits until a read-only client detaches.
async fn wait_for_detach(mut receiver: StreamReceiver) {
    while let Some(event) = receiver.next().await {
        if event.is_last() {
            return;
        }
    }
}

/// Handles the input, the terminal sizes and the signals of the controlling client until the client detaches.
async fn receive_input(guest: &Guest, hosted: &Hosted, mut receiver: StreamReceiver, turn: u64) {
    while let Some(event) = receiver.next().await {
        match event {
            Event::Data { fd: STDIN, bytes } => hosted.input().await.write(bytes).await,
            Event::Data { .. } => {}
            Event::Message(_) => match event.parse() {
                Ok(ClientMessage::Resize(size)) => hosted.resize(turn, size),
                Ok(ClientMessage::Signal { signal }) => {
                    if let Some(signal) = Signal::from_named_raw(signal.into()) {
                        hosted.signal(&guest.children, signal);
                    }
                }
                Ok(ClientMessage::Detach) => return,
                Err(error) => tracing::debug!(%error, "invalid message of an attached client"),
            },
            Event::End | Event::Reset(_) => return,
        }
    }
}
