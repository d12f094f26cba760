//! A request's body on its way to git: unpacked, and its head read along.

use std::io::Write;

use flate2::write::GzDecoder;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::Semaphore;

use crate::head::Head;
use crate::http::patiently;

/// What a packed body may become. git packs what it negotiates, and small pushes.
const UNPACKED: u64 = 256 << 20;

/// Carries a request's body to git. The error is a sentence for the agent, who has been heard to the end.
pub(crate) async fn feed(
    mut body: Incoming,
    stdin: ChildStdin,
    packed: bool,
    pushes: bool,
    places: &Semaphore,
) -> Result<(), String> {
    let mut way = GitInput {
        stdin,
        decoder: packed.then(|| GzDecoder::new(Vec::new())),
        unpacked: 0,
        head: pushes.then(Head::default),
    };
    while let Some(Some(Ok(frame))) = patiently(places, body.frame()).await {
        let Ok(data) = frame.into_data() else { continue };
        if let Err(stop) = way.carry(&data).await {
            drop(way);
            // Who still sends would not hear why.
            while let Some(Some(Ok(_))) = patiently(places, body.frame()).await {}
            return match stop {
                Stop::Git => Ok(()),
                Stop::Refused(why) => Err(why),
            };
        }
    }
    match way.end().await {
        Err(Stop::Refused(why)) => Err(why),
        _ => Ok(()),
    }
}

/// Why a body is not carried further.
enum Stop {
    /// git takes no more; it says why.
    Git,
    /// The gate does not pass it on.
    Refused(String),
}

/// From a request's body to git.
struct GitInput {
    stdin: ChildStdin,
    decoder: Option<GzDecoder<Vec<u8>>>,
    unpacked: u64,
    head: Option<Head>,
}

impl GitInput {
    async fn carry(&mut self, data: &[u8]) -> Result<(), Stop> {
        if self.decoder.is_none() {
            return self.pass(data).await;
        }
        // In small pieces: one may become a thousand times as much.
        for piece in data.chunks(4096) {
            let damaged = |_| Stop::Refused("what it is packed in is damaged; try again".to_owned());
            let made = match &mut self.decoder {
                Some(decoder) => {
                    decoder.write_all(piece).map_err(damaged)?;
                    std::mem::take(decoder.get_mut())
                }
                None => Vec::new(),
            };
            self.unpacked += made.len() as u64;
            if self.unpacked > UNPACKED {
                return Err(Stop::Refused("unpacked, it becomes too much; send it as it is".to_owned()));
            }
            self.pass(&made).await?;
        }
        Ok(())
    }

    async fn pass(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        if let Some(head) = &mut self.head {
            head.feed(bytes).map_err(Stop::Refused)?;
        }
        self.stdin.write_all(bytes).await.map_err(|_| Stop::Git)
    }

    /// What the decoder still held, and the end.
    async fn end(&mut self) -> Result<(), Stop> {
        if let Some(mut decoder) = self.decoder.take()
            && decoder.try_finish().is_ok()
        {
            self.pass(&std::mem::take(decoder.get_mut())).await?;
        }
        self.stdin.shutdown().await.map_err(|_| Stop::Git)
    }
}
