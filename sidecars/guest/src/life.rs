//! From the first call to the last kill.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::DNS_PORT;
use bottle_resolver::Resolver;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_child_subreaper, set_dumpable_behavior, setrlimit,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::GuestConfig;
use crate::copy::MAX_COPIES;
use crate::guest::{Facts, Guest};
use crate::host::Opened;
use crate::stop::{DEFAULT_GRACE, stop};
use crate::{forward, host, spawn, watch};

/// Open files the guest allows itself: two for every connection through the proxy and some.
const OPEN_FILES: u64 = 4096;

/// Idle threads are given back soon; copies are rare.
const THREAD_KEEP: Duration = Duration::from_secs(1);

/// Is the guest until the bottle ends: returns after [`Stop`](bottle_contract::session::guest::Stop), after
/// SIGTERM, or when its standard streams were its transport and end, and then nothing else runs in the bottle.
///
/// Call it in a process without other threads. As pid 1 it is the whole life of a bottle; elsewhere it
/// becomes a subreaper, so that the processes of the bottle still end with it.
#[must_use]
pub fn run(config: GuestConfig) -> ExitCode {
    bottle_sidecar_log::start();
    match live(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the guest cannot live");
            ExitCode::FAILURE
        }
    }
}

fn live(config: GuestConfig) -> std::io::Result<()> {
    // First of all: from here on nothing of the same user can read this memory.
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
    // A copy that waits for a client must not keep a stopped bottle.
    runtime.shutdown_background();
    result
}

/// Raises the soft limit; returns the limits as they were, for the bottle's processes.
fn raise_open_files() -> Rlimit {
    let files = getrlimit(Resource::Nofile);
    let most = files.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if files.current.is_some_and(|soft| soft < most) {
        let raised = Rlimit { current: Some(most), maximum: files.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit on open files stays");
        }
    }
    files
}

async fn serve(config: GuestConfig, files: Rlimit) -> std::io::Result<()> {
    let GuestConfig { transport, root, proxy, resolver, programs, limits, changed } = config;
    let transport = Opened::of(transport)?;
    let guest = Arc::new(Guest::new(Facts { root, programs, files }));
    let mut terminate = signal(SignalKind::terminate())?;
    ignore_others()?;
    let reaper = guest.clone();
    let reaping = tokio::spawn(async move { reaper.children.reap().await });
    if let Some(overrun) = watch::start(limits, changed)? {
        let guest = guest.clone();
        tokio::spawn(async move {
            // The watch ends without a word only with this process.
            if let Ok(overrun) = overrun.await {
                guest.end_for(overrun).await;
            }
        });
    }
    if let Some(proxy) = &proxy {
        forward::start(proxy).await.into_iter().for_each(|problem| guest.trouble(problem));
        if resolver {
            match Resolver::bind(proxy.address, DNS_PORT, None).await {
                Ok(resolver) => resolver.serve(),
                Err(error) => guest.trouble(error.to_string()),
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
    guest.part().await;
    ended
}

/// A terminal that goes away or a key pressed in it must not end a guest that shares it (backends without
/// a pid namespace). Handlers instead of "ignore", which processes would inherit.
fn ignore_others() -> std::io::Result<()> {
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()] {
        // The handler stays when the stream is dropped.
        drop(signal(kind)?);
    }
    Ok(())
}
