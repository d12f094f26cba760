//! Starts and stops the guest.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bottle_policy::names::DNS_PORT;
use bottle_resolver::Resolver;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_child_subreaper, set_dumpable_behavior, setrlimit,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::GuestConfig;
use crate::copy::slots::MAX_COPIES;
use crate::facts::Facts;
use crate::guest::Guest;
use crate::host::Opened;
use crate::stop::{DEFAULT_GRACE, stop};
use crate::{forward, host, spawn, watch};

/// The guest's limit on open files. The limit allows two files for each connection to the proxy, and some files for
/// other purposes.
const OPEN_FILES: u64 = 4096;

/// The time after which an idle thread for blocking work ends. The time is short because copies are rare.
const THREAD_KEEP: Duration = Duration::from_secs(1);

/// Runs the guest until the bottle stops. The bottle stops after [`Stop`](bottle_protocol::session::guest::Stop) or
/// SIGTERM. If the transport is the standard streams, the bottle also stops when the streams end. When this function
/// returns, no other process of the bottle is running, except processes that are stuck in the kernel.
///
/// The calling process must have a single thread. If the guest is not pid 1, it becomes a subreaper, so that
/// it can still kill all processes of the bottle.
#[must_use]
pub fn run(config: GuestConfig) -> ExitCode {
    bottle_sidecar_log::start();
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the guest failed");
            ExitCode::FAILURE
        }
    }
}

fn start(config: GuestConfig) -> std::io::Result<()> {
    // This function must be called first. After this call, no other process of the same user can read this process's
    // memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_child_subreaper(Some(rustix::process::getpid()))?;
    spawn::close_on_exec_from(3)?;
    let files = raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_COPIES)
        .thread_keep_alive(THREAD_KEEP)
        .build()?;
    let result = runtime.block_on(serve(config, files));
    // A copy that is waiting for a client must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Raises the soft limit on open files. Returns the previous limits, which processes of the bottle get.
fn raise_open_files() -> Rlimit {
    let files = getrlimit(Resource::Nofile);
    let most = files.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if files.current.is_some_and(|soft| soft < most) {
        let raised = Rlimit { current: Some(most), maximum: files.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "cannot raise the limit on open files");
        }
    }
    files
}

async fn serve(config: GuestConfig, files: Rlimit) -> std::io::Result<()> {
    let GuestConfig { transport, root, proxy, resolver, programs, limits, changed, confine } = config;
    let transport = Opened::open(transport)?;
    let guest = Arc::new(Guest::new(Facts { root, programs, files, confine }));
    let mut terminate = signal(SignalKind::terminate())?;
    ignore_others()?;
    let reaper = guest.clone();
    let reaping = tokio::spawn(async move { reaper.children.reap().await });
    if let Some(overrun) = watch::start(limits, changed)? {
        let guest = guest.clone();
        tokio::spawn(async move {
            // Waiting for the watch thread fails only while the guest exits.
            if let Ok(overrun) = overrun.await {
                guest.end_for(overrun).await;
            }
        });
    }
    if let Some(proxy) = &proxy {
        forward::start(proxy).await.into_iter().for_each(|problem| guest.report_problem(problem));
        if resolver {
            match Resolver::bind(proxy.address, DNS_PORT, None).await {
                Ok(resolver) => resolver.serve(),
                Err(error) => guest.report_problem(error.to_string()),
            }
        }
    }
    let ended = tokio::select! {
        ended = host::serve(&guest, transport) => {
            stop(&guest, DEFAULT_GRACE).await;
            ended
        }
        _ = terminate.recv() => {
            stop(&guest, DEFAULT_GRACE).await;
            Ok(())
        }
        () = guest.finished() => Ok(()),
        reaped = reaping => reaped.unwrap_or_else(|panic| Err(std::io::Error::other(panic))),
    };
    guest.disconnect_host().await;
    ended
}

/// Ignores the signals of a terminal. On backends without a pid namespace, the guest shares a terminal with other
/// processes. This function installs handlers instead of setting the signals to ignored, because child processes would
/// inherit ignored signals.
fn ignore_others() -> std::io::Result<()> {
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()] {
        // The handler remains installed after the stream is dropped.
        drop(signal(kind)?);
    }
    Ok(())
}
