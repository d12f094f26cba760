//! Passes calls of the keeper's tools to the keeper, and returns the keeper's answers to the client. The keeper
//! executes the calls.
//!
//! The number of waiting calls is limited. If the client of a call stops waiting, the call is cancelled.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bottle_channel::Stream;
use bottle_protocol::session::bundle::BundleEvent;
use bottle_protocol::session::tools::{MAX_CONTENT, ToolAnswer, ToolRequest};
use serde_json::Value;
use tokio::sync::{Mutex, mpsc, oneshot};

/// The maximum number of calls that no keeper has received yet. Further calls are refused.
const MOST_WAITING: usize = 16;

/// The time limit for a keeper to receive a call. A call may have to wait, because a keeper executes only a few calls
/// at the same time.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// The time limit for a keeper to list its tools.
const LISTED_WITHIN: Duration = Duration::from_secs(20);

/// The calls of the keeper's tools that wait for a keeper.
pub(crate) struct KeeperTools {
    calls: mpsc::Sender<Waiting>,
    waiting: Arc<Mutex<mpsc::Receiver<Waiting>>>,
    /// The list of the keeper's tools. The list does not change while the bottle runs, so it is requested only once.
    listed: OnceLock<Vec<Value>>,
}

/// A call that waits for a keeper, and the channels to the call's client.
struct Waiting {
    request: ToolRequest,
    /// Notifies the client when a keeper receives the call. The keeper's answer is sent to `answer`.
    taken: oneshot::Sender<()>,
    answer: oneshot::Sender<ToolAnswer>,
}

impl KeeperTools {
    pub(crate) fn new() -> Self {
        let (calls, waiting) = mpsc::channel(MOST_WAITING);
        Self { calls, waiting: Arc::new(Mutex::new(waiting)), listed: OnceLock::new() }
    }

    /// Returns the keeper's tools, in the format of MCP. Returns an empty slice if no keeper lists its tools in time.
    pub(crate) async fn list(&self) -> &[Value] {
        if self.listed.get().is_none() {
            match tokio::time::timeout(LISTED_WITHIN, self.ask(ToolRequest::List)).await {
                Ok(ToolAnswer::Tools { tools }) => drop(self.listed.set(tools)),
                other => tracing::warn!(?other, "cannot list the tools of the keeper"),
            }
        }
        self.listed.get().map_or(&[], Vec::as_slice)
    }

    /// Sends a request to a keeper, and waits for the answer. Dropping the returned future cancels the call.
    pub(crate) async fn ask(&self, request: ToolRequest) -> ToolAnswer {
        let size = serde_json::to_vec(&request).map_or(usize::MAX, |json| json.len());
        if size > MAX_CONTENT {
            return ToolAnswer::mistake("the arguments are too large; send less at once");
        }
        let (taken, is_taken) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        if self.calls.try_send(Waiting { request, taken, answer }).is_err() {
            return ToolAnswer::mistake("too many calls wait already; try again when one has returned");
        }
        if !matches!(tokio::time::timeout(TAKEN_WITHIN, is_taken).await, Ok(Ok(()))) {
            return ToolAnswer::mistake("bottle is busy, and did not begin the call; try again later");
        }
        answered.await.unwrap_or_else(|_| {
            ToolAnswer::mistake(
                "the connection to bottle was lost; check what the call did before you repeat it",
            )
        })
    }

    /// Returns the next call. Skips calls for which the client has stopped waiting.
    async fn next(waiting: &Mutex<mpsc::Receiver<Waiting>>) -> Option<Waiting> {
        let mut waiting = waiting.lock().await;
        loop {
            let call = waiting.recv().await?;
            if !call.answer.is_closed() {
                return Some(call);
            }
        }
    }

    /// Sends the next call to a keeper, and receives the keeper's answer.
    pub(crate) fn serve(&self, mut keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        let waiting = Arc::clone(&self.waiting);
        async move {
            let call = tokio::select! {
                call = Self::next(&waiting) => call,
                _ = keeper.next() => return,
            };
            let Some(Waiting { request, taken, mut answer }) = call else { return };
            let _ = taken.send(());
            if keeper.message(&BundleEvent::ToolCalled(request)).await.is_err() {
                return;
            }
            tokio::select! {
                received = keeper.receive::<ToolAnswer>() => {
                    if let Ok(received) = received {
                        // Sending fails if the client has just stopped waiting.
                        let _ = answer.send(received);
                        let _ = keeper.end().await;
                    }
                }
                () = answer.closed() => keeper.reset("the call was cancelled").await,
            }
        }
    }
}
