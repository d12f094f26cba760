//! Forwards one stream to another without parsing its messages.

use crate::{ChannelError, Event, Stream, StreamReceiver, StreamSender};

/// Forwards messages, data, ends and resets between `a` and `b` in both directions. A slow receiver slows the
/// sender down. Returns when both directions are closed.
pub async fn splice(a: Stream, b: Stream) {
    let (to_a, from_a) = a.split();
    let (to_b, from_b) = b.split();
    tokio::join!(forward(from_a, to_b), forward(from_b, to_a));
}

async fn forward(mut from: StreamReceiver, to: StreamSender) {
    // If sending fails, the stream `to` is closed. The task for the other direction then resets the stream `from` with
    // the same reason, and the reset ends this loop.
    let mut far: Result<(), ChannelError> = Ok(());
    while let Some(event) = from.next().await {
        if let Event::Reset(why) = &event {
            to.reset(why).await;
        }
        if far.is_err() {
            continue;
        }
        far = match event {
            Event::Message(json) => to.message_bytes(json).await,
            Event::Data { fd, bytes } => to.data_bytes(fd, bytes).await,
            Event::End => to.end().await,
            Event::Reset(_) => Ok(()),
        };
    }
}
