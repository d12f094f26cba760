//! Carries out the calls of tools with which the agent starts other bottles.
//!
//! ```text
//! agent ─► supervise ─► bundle ─► keeper ─► `bottle mcp relay SLUG` ─► `bottle start …`, `bottle exec …`
//! ```
//! Each call is a process of its own, whose standard input stays open while the call is wanted. If this process is killed,
//! the input ends too, and the call is cancelled.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bottle_channel::Channel;
use bottle_contract::names::Slug;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use bottle_contract::session::tools::{MAX_CONTENT, ToolAnswer, ToolRequest};
use bottle_host::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

use super::client::own_program;

/// The maximum number of calls of a bottle that run at the same time. Further ones wait at the supervise sidecar.
const CALLS: usize = 4;

/// The time limit for one call. The process limits most calls more.
const LIMIT: Duration = Duration::from_secs(1920);

/// How long the process of a call that is not wanted any more may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// The pause before the next request to a bundle that served none.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The result of a call that was not carried out.
const FAILED: &str = "bottle could not carry out the call; `bottle_list` shows what exists";

/// Carries out the calls of the bottle `slug` until the bundle ends. They run in the `cwd`.
pub(super) async fn serve(host: Host, slug: Slug, cwd: PathBuf, bundle: Channel) {
    let lines = (0..CALLS).map(|_| serve_each(&host, &slug, &cwd, &bundle));
    futures_util::future::join_all(lines).await;
}

/// Carries out one call after the other.
async fn serve_each(host: &Host, slug: &Slug, cwd: &Path, bundle: &Channel) {
    loop {
        let Ok(mut stream) = bundle.open(&BundleRequest::ToolCall).await else { return };
        let Ok(BundleEvent::ToolCalled(request)) = stream.receive().await else {
            tokio::select! {
                _ = bundle.closed() => return,
                () = tokio::time::sleep(RETRY_DELAY) => continue,
            }
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout(LIMIT, carry_out(host, slug, cwd, &request)) => answer,
            // The agent does not wait any more. Dropping the call ends its input.
            _ = stream.next() => continue,
        };
        let answer = answer.ok().flatten().unwrap_or_else(|| ToolAnswer::mistake(FAILED));
        if stream.message(&answer).await.is_ok() {
            let _ = stream.end().await;
        }
    }
}

/// The process of a call. If it is dropped before it ended, its input has ended, and the process has [`ENDS_WITHIN`] to
/// undo what it began before it is killed.
struct Relay(Option<Child>);

impl Drop for Relay {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        tokio::spawn(async move {
            if tokio::time::timeout(ENDS_WITHIN, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        });
    }
}

/// Runs the process of a call. `None` if it did not answer.
async fn carry_out(host: &Host, slug: &Slug, cwd: &Path, request: &ToolRequest) -> Option<ToolAnswer> {
    let directory = if cwd.is_dir() { cwd } else { host.home.as_path() };
    let mut command = own_program(host);
    command.args(["mcp", "relay", slug.as_str()]).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let spawned = command.spawn().inspect_err(|error| tracing::warn!("cannot run bottle: {error}"));
    let mut running = Relay(Some(spawned.ok()?));
    let child = running.0.as_mut()?;
    let (mut stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
    let mut line = serde_json::to_vec(request).ok()?;
    line.push(b'\n');
    stdin.write_all(&line).await.ok()?;
    let mut answer = Vec::new();
    // One byte more shows that there is more.
    stdout.take(MAX_CONTENT as u64 + 1).read_to_end(&mut answer).await.ok()?;
    drop(stdin);
    if answer.len() > MAX_CONTENT {
        let size = MAX_CONTENT >> 10;
        return Some(ToolAnswer::mistake(format!(
            "the result is larger than {size} KiB; ask for a smaller part"
        )));
    }
    let _ = child.wait().await;
    serde_json::from_slice(&answer).ok()
}
