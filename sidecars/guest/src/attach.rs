//! One client at the agent's terminal, or watching it.

use std::sync::Arc;

use bottle_channel::{Event, Stream, StreamReceiver, StreamSender};
use bottle_contract::session::guest::{Attach, ClientMessage, GuestEvent, STDIN};
use rustix::process::Signal;

use crate::guest::Guest;
use crate::output::Piece;

/// Serves the client until the agent ends or the client leaves. Leaving (an end, a reset, a lost
/// connection) changes nothing for the agent.
pub(crate) async fn attach(guest: Arc<Guest>, request: Attach, stream: Stream) {
    let (sender, receiver) = stream.split();
    let cursor = guest.agent.log.beginning();
    if request.read_only {
        tokio::select! {
            () = show(&guest, &sender, cursor, None) => {}
            () = watch(receiver) => {}
        }
        end(&sender).await;
    } else {
        let turn = guest.agent.sit_down(sender.clone(), request.size).await;
        guest.agent.lead(turn, cursor);
        tokio::select! {
            () = show(&guest, &sender, cursor, Some(turn)) => {}
            () = type_in(&guest, receiver, turn) => {}
        }
        end(&sender).await;
        guest.agent.stand_up(turn);
    }
}

async fn end(sender: &StreamSender) {
    // Fails when the stream is gone, and then nobody is there to hear it.
    let _ = sender.end().await;
}

/// What the agent wrote and writes, to its end.
async fn show(guest: &Guest, sender: &StreamSender, mut cursor: u64, turn: Option<u64>) {
    loop {
        let sent = match guest.agent.log.next(&mut cursor).await {
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
            guest.agent.lead(turn, cursor);
        }
    }
}

/// Waits until a client that only watches leaves.
async fn watch(mut receiver: StreamReceiver) {
    while let Some(event) = receiver.next().await {
        if event.is_last() {
            return;
        }
    }
}

/// What the client with the seat types, resizes and signals, until it leaves.
async fn type_in(guest: &Guest, mut receiver: StreamReceiver, turn: u64) {
    while let Some(event) = receiver.next().await {
        match event {
            Event::Data { fd: STDIN, bytes } => guest.agent.input().await.write(bytes).await,
            Event::Data { .. } => {}
            Event::Message(_) => match event.parse() {
                Ok(ClientMessage::Resize(size)) => guest.agent.resize(turn, size),
                Ok(ClientMessage::Signal { signal }) => {
                    if let Some(signal) = Signal::from_named_raw(signal.into()) {
                        guest.agent.signal(guest, signal);
                    }
                }
                Ok(ClientMessage::Detach) => return,
                Err(error) => tracing::debug!(%error, "message at the terminal"),
            },
            Event::End | Event::Reset(_) => return,
        }
    }
}
