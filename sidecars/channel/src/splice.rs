//! One stream passed through to another, without a look at what is in it.

use crate::{ChannelError, Event, Stream, StreamReceiver, StreamSender};

/// Passes `a` through to `b` and back: messages, data, ends and resets, each direction at the pace of its
/// slower side. Returns when both are over.
pub async fn splice(a: Stream, b: Stream) {
    let (to_a, from_a) = a.split();
    let (to_b, from_b) = b.split();
    tokio::join!(pass(from_a, to_b), pass(from_b, to_a));
}

async fn pass(mut from: StreamReceiver, to: StreamSender) {
    // A failed send means that the far side gave up: its own receiver, in the other direction, tells the
    // near side why, and that ends this loop too.
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
