//! Sends the agent's buffered output, and optionally follows it.

use std::sync::Arc;

use bottle_channel::Stream;
use bottle_contract::session::guest::Logs;

use crate::guest::Guest;
use crate::output::Piece;

/// Sends the buffered output, or its last lines, and with `follow` all further output until the agent exits.
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
                // Stop at the end at the time of the request: later output could be endless.
                if cursor < end { log.try_next(&mut cursor) } else { None }
            };
            match piece {
                Some(Piece::Bytes { fd, bytes }) => sender.data_bytes(fd, bytes).await?,
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
