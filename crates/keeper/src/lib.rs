//! The keeper process. It launches, provisions, serves and tears down one bottle, or adopts a running bottle.
//!
//! ```text
//!  bottle start ══ inherited socket ══╗                      ╔══ guest (pid 1)
//!                                     ╠═ clients ─► owner ───╣
//!  bottle attach/exec/… ══ own socket ╝      commands        ╚══ bundle (the sidecars)
//! ```
//! Only one task, [`owner`], changes the bottle's state. Client connections send commands to this task. Only the keeper
//! has the channels to the guest and the bundle. It forwards clients' requests to the guest frame by frame. The keeper
//! holds the bottle's lock until it exits, so the lock shows whether a bottle has a keeper.
//!
//! - `client`: starts a keeper, connects to a running keeper, or starts a keeper that adopts a bottle
//! - `first`: the connection of the command that started the keeper · `new_bottle`: launches a bottle · `adoption`:
//!   adopts a bottle that lost its keeper · `opened`: opens the files of a kept bottle for commands
//! - `protocol`: the messages on the keeper's socket
//! - `listener`: accepts clients · `permission`: the requests that clients may send · `clients`: answers the requests
//!   about a running bottle · `shared`: the state that client connections share with the owner
//! - `owner`: handles the events of a running bottle until the bottle ends, as `owner::transition` decides
//! - `jobs`: snapshot jobs that run while the bottle runs
//! - `teardown`: tears the bottle down and keeps unsaved work · `transcript`: copies the agent's conversations out of
//!   the bottle
//! - `failure`: converts failures to reports for the client · `log`: the keeper's log
//! - `watcher`: the process that starts a new keeper when the keeper dies
//! - `mask`: masks secrets in texts · `credentials`: replaces the values of credentials
//! - `notices`: buffers notices for the user · `questions`: queues proposals · `notify`: runs notification commands ·
//!   `usage`: records token usage · `access_log`: writes the proxy's log · `process_logs`: saves the output of
//!   processes
//! - `tool_calls`: carries out the tool calls with which the agent starts bottles · `parent`: stops a bottle when its
//!   parent ends · `family`: sends the user's changes of a parent to its children
//! - `activity`: reports what the agent does, and the bottle's size · `health`: queries the health of the sidecars
//! - `blocking`: runs long work on separate threads
//! - `decisions`: applies the user's answers, including new routes · `budget`: grants leases, and enforces budgets

mod access_log;
mod activity;
mod adoption;
pub mod blocking;
mod budget;
pub mod client;
mod clients;
mod credentials;
pub mod decisions;
mod failure;
mod family;
mod first;
mod health;
mod jobs;
pub mod launch;
pub mod ledger;
mod listener;
mod log;
mod mask;
mod new_bottle;
mod notices;
mod notify;
mod opened;
mod owner;
mod owning_process;
mod parent;
mod permission;
mod process_logs;
pub mod protocol;
mod questions;
mod shared;
mod teardown;
pub mod tool_calls;
mod transcript;
mod usage;
pub mod watcher;

use std::process::ExitCode;
use std::time::Duration;

use bottle_backend::Backend;
use bottle_host::Host;
use tracing::Instrument as _;

use first::First;
use protocol::KeeperRequest;

/// How long the command that started a keeper may take to send its first request. After this time, the keeper exits.
const ORDER_WITHIN: Duration = Duration::from_secs(10);

/// Runs the keeper until its bottle ends. Standard input is the socket to the command that started the keeper.
/// `handler` carries out the tool calls of the bottle's agent.
#[must_use]
pub fn run(host: &Host, backends: &[Box<dyn Backend>], handler: tool_calls::Handler) -> ExitCode {
    // The keeper's memory contains every secret of its bottle. No other process may read this memory, and a crash must
    // not write the memory to disk.
    if bottle_harden::process::seal().is_err() {
        return ExitCode::FAILURE;
    }
    // The keeper starts a new session, so that signals of the terminal reach only the client. An error means that the
    // keeper already leads a session.
    let _ = rustix::process::setsid();
    log::start();
    // The runtime has one thread. The keeper mostly waits for events and forwards data, and several threads would only
    // add the cost of switching between them. Long work runs on blocking threads.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(_) => return ExitCode::FAILURE,
    };
    let served = runtime.block_on(serve(host, backends, handler));
    // A blocking thread that copies files may still wait for a file. The process exits without waiting for this thread.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(
    host: &Host,
    backends: &[Box<dyn Backend>],
    handler: tool_calls::Handler,
) -> anyhow::Result<()> {
    let mut first = First::inherited().await?;
    let request = tokio::time::timeout(ORDER_WITHIN, first.incoming.next())
        .await?
        .ok_or_else(|| anyhow::anyhow!("the client disconnected before its first request"))?;
    match request.parse()? {
        KeeperRequest::Launch(order) => {
            let span = tracing::debug_span!("keeper", slug = %order.plan.identity.slug);
            new_bottle::keep(host, backends, handler, *order, first, request).instrument(span).await
        }
        KeeperRequest::Adopt { slug, inherited, unpauses } => {
            let span = tracing::debug_span!("keeper", %slug);
            let inherited = (inherited, unpauses);
            let adoption = adoption::keep(host, backends, handler, &slug, inherited, first, request);
            adoption.instrument(span).await
        }
        KeeperRequest::Open { slug, access } => {
            let span = tracing::debug_span!("keeper", %slug);
            opened::run(host, backends, &slug, access, first, request).instrument(span).await
        }
        _ => {
            request.refuse("a keeper's first request must be launch, adopt or open").await;
            first.channel.flush().await;
            Ok(())
        }
    }
}

fn find<'a>(backends: &'a [Box<dyn Backend>], name: &str) -> anyhow::Result<&'a dyn Backend> {
    let found = backends.iter().find(|backend| backend.name() == name);
    found.map(AsRef::as_ref).ok_or_else(|| anyhow::anyhow!("there is no backend named {name}"))
}
