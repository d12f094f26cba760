//! Sends the agent's buffered output to a client, and optionally the further output.

use std::sync::Arc;

use bottle_channel::Stream;
use bottle_protocol::session::guest::Logs;

use crate::guest::Guest;
use crate::redaction;
use crate::scrollback::Piece;

/// Sends the buffered output, or only its last lines. If the client asked to follow, sends further output
/// until the agent exits.
pub(crate) async fn logs(guest: Arc<Guest>, request: Logs, stream: Stream) {
    let log = &guest.agent.log;
    let mut cursor = request.tail.map_or_else(|| log.beginning(), |lines| log.last_lines(lines));
    let end = log.now();
    let (sender, _receiver) = stream.split();
    let send = async {
        loop {
            let piece = if request.follow {
                Some(log.next(&mut cursor).await)
            } else {
                // Without `follow`, sending stops at the last byte that existed at the time of the request, because
                // later output could be endless.
                if cursor < end { log.try_next(&mut cursor) } else { None }
            };
            match piece {
                Some(Piece::Bytes { fd, bytes }) => {
                    let start = cursor - bytes.len() as u64;
                    sender
                        .data_bytes(
                            fd,
                            redaction::in_log(guest.redaction().map(Arc::as_ref), log, start, bytes),
                        )
                        .await?;
                }
                Some(Piece::End(_)) | None => return sender.end().await,
            }
        }
    };
    tokio::select! {
        sent = send => if let Err(error) = sent {
            tracing::debug!(%error, "logs not sent");
        },
        () = sender.closed() => {}
    }
}
