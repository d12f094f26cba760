//! Forwards one stream to another without parsing it.

use crate::{ChannelError, Event, Stream, StreamReceiver, StreamSender};

/// Forwards `a` to `b` and back: messages, data, ends and resets, each direction at the pace of its slower
/// side. Returns when both directions are closed.
pub async fn splice(a: Stream, b: Stream) {
    let (to_a, from_a) = a.split();
    let (to_b, from_b) = b.split();
    tokio::join!(forward(from_a, to_b), forward(from_b, to_a));
}

async fn forward(mut from: StreamReceiver, to: StreamSender) {
    // A failed send means that the far side closed. Its receiver, in the other direction, reports the reason
    // to the near side, which ends this loop too.
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
