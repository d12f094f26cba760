//! Passes calls of the keeper's tools to the keeper, and returns the keeper's answers to the client. The keeper carries
//! out the calls.
//!
//! The number of calls that wait is limited. A call whose client stops waiting is cancelled.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bottle_channel::Stream;
use bottle_protocol::session::bundle::BundleEvent;
use bottle_protocol::session::tools::{MAX_CONTENT, ToolAnswer, ToolRequest};
use serde_json::Value;
use tokio::sync::{Mutex, mpsc, oneshot};

/// The maximum number of calls that no keeper has taken yet. Further ones are refused.
const MOST_WAITING: usize = 16;

/// How long a call waits for a keeper that is ready for it. Each keeper carries out only a few calls at the same time.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// The time limit for a keeper to list its tools.
const LISTED_WITHIN: Duration = Duration::from_secs(20);

/// The calls that wait for a keeper.
pub(crate) struct KeeperTools {
    calls: mpsc::Sender<Waiting>,
    waiting: Arc<Mutex<mpsc::Receiver<Waiting>>>,
    /// The tools, which are the same as long as the bottle runs.
    listed: OnceLock<Vec<Value>>,
}

/// A call, and the channels to its client.
struct Waiting {
    request: ToolRequest,
    /// Notifies the client when a keeper takes the call. The keeper's answer goes to `answer`.
    taken: oneshot::Sender<()>,
    answer: oneshot::Sender<ToolAnswer>,
}

impl KeeperTools {
    pub(crate) fn new() -> Self {
        let (calls, waiting) = mpsc::channel(MOST_WAITING);
        Self { calls, waiting: Arc::new(Mutex::new(waiting)), listed: OnceLock::new() }
    }

    /// The tools, in the format of MCP. None if no keeper lists them in time.
    pub(crate) async fn list(&self) -> &[Value] {
        if self.listed.get().is_none() {
            match tokio::time::timeout(LISTED_WITHIN, self.ask(ToolRequest::List)).await {
                Ok(ToolAnswer::Tools { tools }) => drop(self.listed.set(tools)),
                other => tracing::warn!(?other, "cannot list the tools of the keeper"),
            }
        }
        self.listed.get().map_or(&[], Vec::as_slice)
    }

    /// Sends a request to a keeper, and waits for the answer. Dropping the future cancels the call.
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

    /// The next call whose client still waits.
    async fn next(waiting: &Mutex<mpsc::Receiver<Waiting>>) -> Option<Waiting> {
        let mut waiting = waiting.lock().await;
        loop {
            let call = waiting.recv().await?;
            if !call.answer.is_closed() {
                return Some(call);
            }
        }
    }

    /// Sends the next call to a keeper, and receives its answer.
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
