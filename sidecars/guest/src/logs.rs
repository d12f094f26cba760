//! The agent's output for somebody who only wants to read it.

use std::sync::Arc;

use bottle_channel::Stream;
use bottle_contract::session::guest::Logs;

use crate::guest::Guest;
use crate::output::Piece;

/// Sends what is kept (its last lines, if so asked) and, when following, what comes until the agent ends.
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
                // What is written meanwhile is not asked for, and might never end.
                if cursor < end { log.ready(&mut cursor) } else { None }
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
