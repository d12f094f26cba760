//! Whether a bottle's workspace holds work, asked of its own pid 1.
//!
//! The engine shows times that an agent can set, and only by sending everything. So a container that has
//! stopped is started once more for the question: nothing but pid 1 runs in one that nobody provisioned.

use std::time::Duration;

use bollard::errors::Error as Bollard;
use bollard::query_parameters::{KillContainerOptions, WaitContainerOptions};
use bottle_channel::{Channel, ChannelError, Side, rejoin};
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{Changed, GuestEvent, GuestRequest};
use bottle_contract::session::{Hello, Role};
use futures_util::StreamExt;
use jiff::Timestamp;

use super::attach::{Attached, attach};
use super::container::{find_agent, start};
use super::engine::{Engine, EngineError};
use super::names::Names;
use crate::backend::BackendError;

/// How often pid 1 is asked anew: what a killed keeper had left in the engine's buffers may come out amid the
/// answer, and costs that connection.
const ASKED_AGAIN: usize = 3;

/// How long the look may take: millions of files.
const LOOKED_WITHIN: Duration = Duration::from_secs(60);

/// See [`crate::backend::Backend::holds_work`]. A container that is gone holds none.
///
/// # Errors
/// [`BackendError`] when pid 1 does not come up or does not answer.
pub(super) async fn holds_work(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    since: Timestamp,
) -> Result<bool, BackendError> {
    let failed = |error: EngineError| error.during(&format!("look for work in {slug}"));
    let Some(container) = find_agent(engine, names, slug).await.map_err(failed)? else {
        return Ok(false);
    };
    let silent =
        |why: String| BackendError::failed(format!("the guest of {slug} cannot look for work: {why}"));
    let looked = async {
        if container.running {
            tokio::select! {
                Ok(work) = ask_running(engine, &container.id, since) => return Ok(work),
                // It was about to end, and answers no more.
                () = stopped(engine, &container.id) => {}
            }
        }
        let attached = attach(engine, &container.id, None).await.map_err(failed)?;
        start(engine, &container.id).await.map_err(failed)?;
        let looked = ask(attached, since).await.map_err(silent);
        let killed = engine.docker().kill_container(&container.id, None::<KillContainerOptions>);
        // Whoever removes it next ends it all the same.
        let _ = engine.ask(killed).await;
        looked
    };
    let late = |_| silent("it takes too long".to_owned());
    tokio::time::timeout(LOOKED_WITHIN, looked).await.map_err(late)?
}

/// An answer of pid 1 as it is; an error when it has none to give.
async fn ask_running(engine: &Engine, id: &str, since: Timestamp) -> Result<bool, String> {
    let mut asked = Err(String::new());
    for _ in 0..=ASKED_AGAIN {
        let attached = attach(engine, id, None).await.map_err(|error| error.to_string())?;
        asked = ask(attached, since).await;
        match &asked {
            Ok(_) => break,
            Err(why) => tracing::debug!("pid 1 does not say whether there is work: {why}"),
        }
    }
    asked
}

/// Resolves when the container does not run; with an engine that cannot say so, never.
async fn stopped(engine: &Engine, id: &str) {
    let mut ends = engine.docker().wait_container(id, None::<WaitContainerOptions>);
    match ends.next().await {
        Some(Ok(_) | Err(Bollard::DockerContainerWaitError { .. })) => {}
        _ => std::future::pending().await,
    }
}

async fn ask(attached: Attached, since: Timestamp) -> Result<bool, String> {
    let said = |error: ChannelError| error.to_string();
    let stream = rejoin(attached).await.map_err(said)?;
    let (channel, _, _) =
        Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper)).await.map_err(said)?;
    let mut stream = channel.open(&GuestRequest::Changed(Changed { since })).await.map_err(said)?;
    match stream.receive::<GuestEvent>().await.map_err(said)? {
        GuestEvent::Changed { work } => Ok(work),
        GuestEvent::Failed(failure) => Err(failure.message),
        _ => Err("it answered out of turn".to_owned()),
    }
}
