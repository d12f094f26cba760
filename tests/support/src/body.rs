//! Response bodies of the fake servers: complete, paced, or cut off.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

/// A response body of a fake server. An error in it closes the connection (HTTP/1.1) or resets the stream (HTTP/2),
/// like a server that crashes.
pub type Body = http_body_util::combinators::BoxBody<Bytes, io::Error>;

/// The delay before the interruption, in which chunks are sent.
const FLUSH: Duration = Duration::from_millis(30);

/// How a streamed body is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// The wait before every chunk.
    pub delay: Duration,
    /// Interrupts the body after this many chunks.
    pub cut_after: Option<usize>,
}

/// A body that is sent at once.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// A body sent chunk by chunk.
pub fn paced<I>(chunks: I, pace: Pace) -> Body
where
    I: IntoIterator<Item = Bytes>,
    I::IntoIter: Send + Sync + 'static,
{
    let chunks = chunks.into_iter().enumerate();
    let frames = stream::unfold(Some(chunks), move |chunks| async move {
        let mut chunks = chunks?;
        let (number, chunk) = chunks.next()?;
        if !pace.delay.is_zero() {
            tokio::time::sleep(pace.delay).await;
        }
        if pace.cut_after.is_some_and(|limit| number >= limit) {
            // An immediate error would discard the send buffer.
            tokio::time::sleep(FLUSH).await;
            return Some((Err(io::Error::other("cut on purpose")), None));
        }
        Some((Ok(Frame::data(chunk)), Some(chunks)))
    });
    StreamBody::new(frames).boxed()
}
