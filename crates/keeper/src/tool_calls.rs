//! Carries out the tool calls with which the agent starts other bottles.
//!
//! ```text
//! agent ─► supervise ─► bundle ─► keeper ─► a thread for each call ─► the handler: `src/mcp`
//! ```
//! The keeper does not depend on a front end, so `main` passes the handler to it. A call runs in this process, on a
//! separate thread that the call may block. A call is cancelled when the agent no longer waits for it or the bottle
//! ends.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bottle_channel::Channel;
use bottle_host::Host;
use bottle_policy::names::Slug;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_protocol::session::tools::{MAX_CONTENT, ToolAnswer, ToolRequest};
use tokio::sync::Semaphore;

use super::blocking;
use super::client::environment;

/// Carries out a tool call of the agent in the bottle with this slug. The future may block its thread. Dropping the
/// future cancels the call, and the call then undoes its unfinished work. A panic ends only the call.
pub type Handler = fn(Host, Slug, ToolRequest) -> Pin<Box<dyn Future<Output = ToolAnswer>>>;

/// The maximum number of tool calls of a bottle that run at the same time. Further calls wait at the supervise sidecar.
const CALLS: u32 = 4;

/// The time limit for one call. The handler sets shorter limits for most calls.
const LIMIT: Duration = Duration::from_secs(1920);

/// How long a cancelled call may take to undo its unfinished work.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// If the bundle answers a request without a call, the keeper waits for this time before the next request.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The result of a call that was not carried out.
const FAILED: &str = "bottle could not carry out the call; `bottle_list` shows what exists";

/// Carries out the tool calls of the agent in a bottle.
#[derive(Debug, Clone)]
pub(super) struct ToolCalls {
    host: Arc<Host>,
    slug: Slug,
    handler: Handler,
    /// Contains a permit for each call that may run. A cancelled call keeps its permit until it has undone its
    /// unfinished work.
    permits: Arc<Semaphore>,
}

impl ToolCalls {
    /// Creates the value for the bottle `slug`. The calls run with the environment of keepers, in the directory in
    /// which the bottle was started. If this directory no longer exists, the calls run in the home.
    pub(super) fn new(host: &Host, slug: Slug, started_in: &Path, handler: Handler) -> Self {
        let directory = started_in.canonicalize().ok().filter(|directory| directory.is_dir());
        let cwd = directory.unwrap_or_else(|| host.home.clone());
        let host = Arc::new(Host { env: environment(host), cwd, ..host.clone() });
        Self { host, slug, handler, permits: Arc::new(Semaphore::new(CALLS as usize)) }
    }

    /// Carries out calls until the bundle ends.
    pub(super) async fn serve(self, bundle: Channel) {
        let lines = (0..CALLS).map(|_| self.serve_each(&bundle));
        futures_util::future::join_all(lines).await;
    }

    /// Carries out calls one at a time.
    async fn serve_each(&self, bundle: &Channel) {
        loop {
            let Ok(mut stream) = bundle.open(&BundleRequest::ToolCall).await else { return };
            let Ok(BundleEvent::ToolCalled(request)) = stream.receive().await else {
                tokio::select! {
                    _ = bundle.closed() => return,
                    () = tokio::time::sleep(RETRY_DELAY) => continue,
                }
            };
            let answer = tokio::select! {
                answer = self.carry_out(request) => answer,
                // The agent no longer waits for the answer. Dropping the future of the call cancels the call.
                _ = stream.next() => continue,
            };
            if stream.message(&answer).await.is_ok() {
                let _ = stream.end().await;
            }
            // The keeper is idle again, and needs only a small part of the memory that the call used.
            bottle_heap::trim();
        }
    }

    /// Carries out a call on a separate thread. If the returned future is dropped, the call is cancelled.
    async fn carry_out(&self, request: ToolRequest) -> ToolAnswer {
        let permit = tokio::time::timeout(ENDS_WITHIN, Arc::clone(&self.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return ToolAnswer::mistake(FAILED) };
        let (host, slug, handler) = (Host::clone(&self.host), self.slug.clone(), self.handler);
        let call = blocking::run(async move |mut caller| {
            let _permit = permit;
            let call = tokio::time::timeout(LIMIT, handler(host, slug, request));
            caller.waits_for(call).await?.ok().map(bounded)
        });
        let answer = call.await.unwrap_or_else(|error| {
            tracing::warn!("a tool call failed: {error}");
            None
        });
        answer.unwrap_or_else(|| ToolAnswer::mistake(FAILED))
    }

    /// Waits for at most [`ENDS_WITHIN`] until cancelled calls have undone their unfinished work.
    pub(super) async fn ended(&self) {
        let _ = tokio::time::timeout(ENDS_WITHIN, self.permits.acquire_many(CALLS)).await;
    }
}

/// Returns the answer, or an error if the answer is too large for a message.
fn bounded(answer: ToolAnswer) -> ToolAnswer {
    match serde_json::to_vec(&answer) {
        Ok(json) if json.len() <= MAX_CONTENT => answer,
        Ok(_) => {
            let size = MAX_CONTENT >> 10;
            ToolAnswer::mistake(format!("the result is larger than {size} KiB; ask for a smaller part"))
        }
        Err(_) => ToolAnswer::mistake(FAILED),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The number of calls of [`answer`] that are waiting.
    static WAITING: AtomicUsize = AtomicUsize::new(0);

    struct Waits;

    impl Drop for Waits {
        fn drop(&mut self) {
            // Simulates that undoing a call blocks the thread for a short time.
            std::thread::sleep(Duration::from_millis(20));
            WAITING.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn answer(host: Host, slug: Slug, request: ToolRequest) -> Pin<Box<dyn Future<Output = ToolAnswer>>> {
        Box::pin(async move {
            let ToolRequest::Call { tool, .. } = request else { return ToolAnswer::mistake("no call") };
            match tool.as_str() {
                "panic" => panic!("a mistake of the program"),
                "large" => ToolAnswer::Text { text: "\n".repeat(MAX_CONTENT / 2) },
                "wait" => {
                    WAITING.fetch_add(1, Ordering::SeqCst);
                    let _waits = Waits;
                    std::future::pending().await
                }
                _ => {
                    let variables: Vec<&str> = host.env.keys().filter_map(|name| name.to_str()).collect();
                    ToolAnswer::Text { text: format!("{slug} {} {variables:?}", host.cwd.display()) }
                }
            }
        })
    }

    fn calls(started_in: &str) -> ToolCalls {
        let mut host = Host::of_home(Path::new("/nonexistent"));
        host.env = ["SECRET", "DOCKER_HOST", "BOTTLE_X"].map(|name| (name.into(), "x".into())).into();
        host.env.insert("PATH".into(), "bin:/bin".into());
        ToolCalls::new(&host, "one".parse().expect("a slug"), Path::new(started_in), answer)
    }

    fn call(tool: &str) -> ToolRequest {
        ToolRequest::Call { tool: tool.to_owned(), arguments: serde_json::Map::new() }
    }

    #[tokio::test]
    async fn a_call_that_panics_or_says_too_much_is_a_mistake_and_the_next_one_works() {
        let calls = calls("/");
        assert_eq!(calls.carry_out(call("panic")).await, ToolAnswer::mistake(FAILED));
        let large = calls.carry_out(call("large")).await;
        assert_eq!(large, ToolAnswer::mistake("the result is larger than 1020 KiB; ask for a smaller part"));
        let text = r#"one / ["BOTTLE_HOME", "BOTTLE_X", "DOCKER_HOST", "PATH"]"#.to_owned();
        assert_eq!(calls.carry_out(call("any")).await, ToolAnswer::Text { text });
        assert_eq!(calls.host.env[std::ffi::OsStr::new("PATH")], "/bin");
        assert_eq!(self::calls("/nonexistent/x").host.cwd, Path::new("/nonexistent"));
    }

    #[tokio::test]
    async fn a_dropped_call_is_undone_and_only_four_run() {
        let calls = calls("/");
        let many = futures_util::future::join_all((0..6).map(|_| calls.carry_out(call("wait"))));
        let shortly = Duration::from_millis(300);
        assert!(tokio::time::timeout(shortly, many).await.is_err());
        assert!(WAITING.load(Ordering::SeqCst) <= CALLS as usize);
        calls.ended().await;
        assert_eq!(WAITING.load(Ordering::SeqCst), 0);
        assert!(matches!(calls.carry_out(call("any")).await, ToolAnswer::Text { .. }));
    }
}
