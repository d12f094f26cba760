//! Response bodies of the fake servers: sent completely, with delays, or interrupted.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

/// A response body of a fake server. An error in the body closes the connection (HTTP/1.1) or resets the
/// stream (HTTP/2), as if the server had crashed.
pub type Body = http_body_util::combinators::BoxBody<Bytes, io::Error>;

/// The delay before an interruption. During this time, the chunks before the interruption are sent.
const FLUSH: Duration = Duration::from_millis(30);

/// How a streamed body is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// The delay before every chunk.
    pub delay: Duration,
    /// The number of chunks after which the body is interrupted. With `None`, the body is sent completely.
    pub cut_after: Option<usize>,
}

/// Returns a body that is sent completely and without delay.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// Returns a body that is sent chunk by chunk.
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
            // An error without a delay would discard the data that is not sent yet.
            tokio::time::sleep(FLUSH).await;
            return Some((Err(io::Error::other("cut on purpose")), None));
        }
        Some((Ok(Frame::data(chunk)), Some(chunks)))
    });
    StreamBody::new(frames).boxed()
}
