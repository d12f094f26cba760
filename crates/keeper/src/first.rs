//! The keeper's connection to the command that started the keeper.

use bottle_channel::{Channel, Incoming, Side, Stream};
use bottle_protocol::session::{Hello, Role};

use super::protocol::{KeeperEvent, LaunchFailure};
use super::shared::send_last;

/// This keeper's connection to the command that started it.
pub(super) struct First {
    pub(super) channel: Channel,
    pub(super) incoming: Incoming,
}

impl First {
    /// Uses the socket on standard input as the connection.
    pub(super) async fn inherited() -> anyhow::Result<Self> {
        let fd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let socket = std::os::unix::net::UnixStream::from(fd);
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UnixStream::from_std(socket)?;
        let (channel, incoming, _) =
            Channel::establish(socket, Side::Accepted, Hello::of(Role::Keeper)).await?;
        Ok(Self { channel, incoming })
    }

    /// Sends the final event of a keeper that serves no bottle, and waits until the event is written.
    pub(super) async fn answer_only(&self, report: &Stream, event: KeeperEvent) {
        send_last(report, &event).await;
        self.channel.flush().await;
    }

    /// Sends a failure as the final event.
    pub(super) async fn refuse(&self, report: &Stream, failure: LaunchFailure) {
        self.answer_only(report, KeeperEvent::Failed(failure)).await;
    }
}
