//! Detects changes in a bottle's workspace by querying its pid 1.
//!
//! The engine cannot detect changes in a workspace. It would have to send all files, and it reports only modification
//! times, which an agent can set. The container of a stopped bottle is therefore started again for the query. Because
//! the container is not provisioned, only pid 1 runs in it.

use std::time::Duration;

use bollard::errors::Error as Bollard;
use bollard::query_parameters::{KillContainerOptions, WaitContainerOptions};
use bottle_backend::BackendError;
use bottle_channel::{Channel, ChannelError, Side, rejoin};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Changed, Changes, GuestEvent, GuestRequest};
use bottle_protocol::session::{Hello, Role};
use futures_util::StreamExt;

use super::attach::{Attached, attach};
use super::container::{find_agent, start};
use super::engine::{Engine, EngineError};
use super::live;
use super::names::Names;

/// The maximum number of retries. Bytes that a killed keeper left in the engine's buffers can corrupt an answer and
/// break the connection.
const RETRIES: usize = 3;

/// Time limit of the query, which may have to visit millions of files. After this time, the query fails, and the caller
/// assumes that there are changes.
const LOOKED_WITHIN: Duration = Duration::from_secs(60);

/// Why pid 1 did not answer the query.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    Failed(String),
    #[error("pid 1 sent an unexpected answer")]
    Unexpected,
    #[error("no answer in time")]
    TimedOut,
}

/// Implements [`bottle_backend::Lifecycle::find_work`]. Returns no changes if the container does not exist.
///
/// # Errors
/// [`BackendError`] when pid 1 does not start or does not answer.
pub(super) async fn find_work(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    request: &Changed,
) -> Result<Changes, BackendError> {
    let failed = |error: EngineError| error.during(&format!("look for changes in the workspace of {slug}"));
    let Some(container) = find_agent(engine, names, slug).await.map_err(failed)? else {
        return Ok(Changes::default());
    };
    let mounted = live::mounted(engine, &container.id).await.map_err(failed)?;
    mounted.require_covered(slug, &format!("look for changes in the workspace of {slug}"))?;
    if mounted.has_nothing_to_lose() {
        return Ok(Changes::default());
    }
    let request = Changed { directories: mounted.work_directories(), ..request.clone() };
    let guest_failed = |why: NoAnswer| {
        BackendError::failed(format!("cannot look for changes in the workspace of {slug}")).because(why)
    };
    let result = async {
        if container.running {
            tokio::select! {
                Ok(changes) = ask_running(engine, &container.id, &request) => return Ok(changes),
                // The container stopped, so pid 1 cannot answer.
                () = stopped(engine, &container.id) => {}
            }
        }
        let attached = attach(engine, &container.id, None).await.map_err(failed)?;
        start(engine, &container.id).await.map_err(failed)?;
        let result = ask(attached, &request).await.map_err(guest_failed);
        let killed = engine.docker().kill_container(&container.id, None::<KillContainerOptions>);
        // If stopping the container fails here, a later removal stops it.
        let _ = engine.call(killed).await;
        result
    };
    let timed_out = |_| guest_failed(NoAnswer::TimedOut);
    tokio::time::timeout(LOOKED_WITHIN, result).await.map_err(timed_out)?
}

/// Queries the running pid 1. Retries after a failure.
async fn ask_running(engine: &Engine, id: &str, request: &Changed) -> Result<Changes, NoAnswer> {
    for _ in 0..RETRIES {
        match ask(attach(engine, id, None).await?, request).await {
            Ok(changes) => return Ok(changes),
            Err(error) => tracing::debug!("pid 1 did not answer the query for changes: {error}"),
        }
    }
    ask(attach(engine, id, None).await?, request).await
}

/// Returns when the container has stopped. Never returns if the engine cannot report the exit.
async fn stopped(engine: &Engine, id: &str) {
    let mut ends = engine.docker().wait_container(id, None::<WaitContainerOptions>);
    match ends.next().await {
        Some(Ok(_) | Err(Bollard::DockerContainerWaitError { .. })) => {}
        _ => std::future::pending().await,
    }
}

async fn ask(attached: Attached, request: &Changed) -> Result<Changes, NoAnswer> {
    let stream = rejoin(attached).await?;
    let (channel, _, _) = Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper)).await?;
    let mut stream = channel.open(&GuestRequest::Changed(request.clone())).await?;
    match stream.receive::<GuestEvent>().await? {
        GuestEvent::Changed(changes) => Ok(changes),
        GuestEvent::Failed(failure) => Err(NoAnswer::Failed(failure.message)),
        _ => Err(NoAnswer::Unexpected),
    }
}
