//! Counts the keeper processes that are connected to one of the proxy's streams.

use std::time::Duration;

use tokio::sync::watch;

/// The number of connected keepers. There is usually one keeper. While one keeper hands a bottle over to another
/// keeper, two keepers are connected.
#[derive(Default)]
pub(crate) struct ConnectedKeepers(watch::Sender<usize>);

impl ConnectedKeepers {
    /// Counts a keeper until the returned value is dropped.
    pub(crate) fn connect(&self) -> ConnectedKeeper<'_> {
        self.0.send_modify(|count| *count += 1);
        ConnectedKeeper(&self.0)
    }

    /// Waits until no keeper is connected.
    pub(crate) async fn none(&self) {
        // `wait_for` cannot fail, because the sender exists as long as `self`.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Waits until no keeper has been connected for the duration `time`.
    pub(crate) async fn none_for(&self, time: Duration) {
        let mut count = self.0.subscribe();
        loop {
            self.none().await;
            if tokio::time::timeout(time, count.wait_for(|count| *count > 0)).await.is_err() {
                return;
            }
        }
    }
}

/// A connected keeper. Dropping the value reduces the number of connected keepers.
pub(crate) struct ConnectedKeeper<'l>(&'l watch::Sender<usize>);

impl Drop for ConnectedKeeper<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_comes_back_in_time_is_not_missed() {
        let keepers = ConnectedKeepers::default();
        let minute = Duration::from_secs(60);
        let first = keepers.connect();
        let second = keepers.connect();
        let missing = keepers.none_for(minute);
        tokio::pin!(missing);
        let passes = |time| tokio::time::timeout(time, std::future::pending::<()>());
        drop(first);
        tokio::select! {
            () = &mut missing => panic!("one is connected"),
            _ = passes(2 * minute) => drop(second),
        }
        tokio::select! {
            () = &mut missing => panic!("too early"),
            _ = passes(minute / 2) => {}
        }
        let back = keepers.connect();
        tokio::select! {
            () = &mut missing => panic!("it came back"),
            _ = passes(2 * minute) => drop(back),
        }
        missing.await;
    }
}
