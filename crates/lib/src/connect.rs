//! Connects to a bottle's keeper, and describes why a connection or a request failed.

use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};

use bottle_archive::ReceiveError;
use bottle_backend::Access;
use bottle_channel::{Channel, Stream};
use bottle_host::Host;
use bottle_host::files::FileError;
use bottle_instance::environments::Environments;
use bottle_instance::record::{Record, Status};
use bottle_instance::{State, Store};
use bottle_keeper::client::{self, ClientError};
use bottle_keeper::protocol::{KeeperEvent, KeeperRequest, LaunchFailureKind};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{self, Exit, FailureKind, GuestRequest};

use super::failure::{Failure, Kind};

/// The hint for a bottle that has no keeper and that no new keeper can adopt.
const LEFT_TO_CLEANUP: &str = "`bottle cleanup` removes it, and preserves a workspace with work";

/// The maximum time to wait until a bottle that is being torn down has ended.
const ENDING: Duration = Duration::from_secs(30);

/// The pause between two checks of the bottle's state.
const POLL: Duration = Duration::from_millis(50);

/// Returns the record of a running or kept bottle. If the bottle is being torn down, first waits for its end, because
/// its files can be read again after that.
///
/// # Errors
/// When no bottle has this slug, or when the bottle's record cannot be read.
pub async fn record(host: &Host, slug: &Slug) -> Result<Record, Failure> {
    match settled(host, slug).await {
        Some(State::Alive(record) | State::Dead(record) | State::Kept(record)) => Ok(*record),
        _ => Err(unavailable(host, slug).await),
    }
}

/// Returns the state of a bottle. If the bottle is being torn down, waits a limited time for its end.
pub(crate) async fn settled(host: &Host, slug: &Slug) -> Option<State> {
    let patience = Instant::now() + ENDING;
    loop {
        match Store::of(host).state(slug) {
            Some(State::Alive(record))
                if matches!(record.status, Status::Ending | Status::Ended) && Instant::now() < patience =>
            {
                tokio::time::sleep(POLL).await;
            }
            state => return state,
        }
    }
}

/// Returns the failure to report for a command if its bottle has ended. The failure says how the agent ended, if that
/// is known. If the bottle is being torn down, waits for its end. `None` if the bottle has not ended.
pub(crate) async fn end_of(host: &Host, slug: &Slug) -> Option<Failure> {
    let record = match settled(host, slug).await {
        Some(State::Kept(record)) => Some(record),
        Some(State::Dead(record)) if record.status == Status::Ended => Some(record),
        None => None,
        Some(_) => return None,
    };
    let why = match record.as_ref().and_then(|record| record.agent_exit) {
        Some(Exit::Code(code)) => format!(": its agent exited with code {code}"),
        Some(Exit::Signal(signal)) => format!(": its agent was killed by signal {signal}"),
        None => String::new(),
    };
    let hint = match record {
        Some(_) if Environments::has(&host.home, slug) => format!(
            "the bottle of a task runs as long as its agent; remove it with `bottle env rm`, and choose `--agent idle` or \
             another agent that waits. `bottle logs {slug}` shows what this one wrote"
        ),
        Some(_) => format!("`bottle logs {slug}` shows what the agent wrote"),
        None => "`bottle list` shows all bottles".to_owned(),
    };
    Some(Failure::state(format!("{slug} ended{why}")).about(slug).hint(hint))
}

/// Connects to the keeper of this bottle.
pub async fn connect(host: &Host, slug: &Slug) -> Result<Channel, Failure> {
    host.open_runtime()?;
    client::connect(host, slug).await.map_err(|error| unreachable(error).about(slug))
}

/// Connects to the keeper of this bottle, to stop the bottle.
pub async fn connect_to_stop(host: &Host, slug: &Slug) -> Result<Channel, Failure> {
    host.open_runtime()?;
    client::connect_to_stop(host, slug).await.map_err(|error| unreachable(error).about(slug))
}

/// Connects to the keeper of this bottle. If the bottle ended, opens its kept files. In both cases, the channel accepts
/// requests for files and programs. All other requests need a running bottle.
pub async fn connect_or_open_files(host: &Host, slug: &Slug, access: Access) -> Result<Channel, Failure> {
    host.open_runtime()?;
    let connected = client::connect_or_open_files(host, slug, access).await;
    connected.map_err(|error| {
        let only_snapshot = matches!(error, ClientError::NotRunning { kept: true, .. });
        let error = unreachable(error).about(slug);
        if only_snapshot {
            return error.hint(format!(
                "`bottle resume {slug} --detach` starts it again; then run this command again"
            ));
        }
        error
    })
}

/// Opens the files of a running or kept bottle for reading. First calls `check`, which may refuse the bottle.
///
/// # Errors
/// When no bottle has this slug, or when the bottle's files cannot be read. The failure names the bottle.
pub async fn open_files(
    host: &Host,
    slug: &Slug,
    check: impl FnOnce(&Record) -> Result<(), Failure>,
) -> Result<(Record, Channel), Failure> {
    let opened = async {
        let record = record(host, slug).await?;
        check(&record)?;
        let channel = connect_or_open_files(host, slug, Access::Read).await?;
        Ok((record, channel))
    };
    opened.await.map_err(|error: Failure| error.about_if_unset(slug))
}

/// Returns the error that [`connect`] reports for a bottle without a keeper.
pub async fn unavailable(host: &Host, slug: &Slug) -> Failure {
    connect(host, slug).await.err().unwrap_or_else(|| keeper_lost("its state changed"))
}

/// Sends a request to the keeper, and waits until the keeper answers with [`KeeperEvent::Done`].
pub async fn carry_out(channel: &Channel, request: &KeeperRequest) -> Result<(), Failure> {
    let mut stream = channel.open(request).await.map_err(keeper_lost)?;
    match stream.receive().await.map_err(keeper_lost)? {
        KeeperEvent::Done => Ok(()),
        KeeperEvent::Failed(failure) => Err(Failure::failed(failure.message).hint_if(failure.hint)),
        KeeperEvent::Refused(why) => Err(Failure::state(why)),
        _ => Err(unexpected_answer()),
    }
}

/// Opens a stream to the guest, through the keeper.
pub async fn open_guest(channel: &Channel, request: GuestRequest) -> Result<Stream, Failure> {
    channel.open(&KeeperRequest::Guest(request)).await.map_err(keeper_lost)
}

/// The error when no bottle has this slug.
pub fn no_such_bottle(store: &Store, slug: &Slug) -> Failure {
    unreachable(client::no_such_bottle(store, slug)).about(slug)
}

/// The error when the connection to the keeper breaks.
pub fn keeper_lost(error: impl Display) -> Failure {
    Failure::failed(format!("lost the connection to the bottle's keeper: {error}"))
        .hint("`bottle list` shows its state")
}

/// The error when the keeper or the guest violates the protocol.
pub fn unexpected_answer() -> Failure {
    keeper_lost("it sent an unexpected answer")
}

/// Returns the failure of a request that the guest could not carry out.
pub fn guest_failure(failure: guest::Failure) -> Failure {
    let kind = match failure.kind {
        FailureKind::NotFound | FailureKind::NotExecutable => Kind::Program,
        FailureKind::BadPath | FailureKind::BadState | FailureKind::Other => Kind::Failed,
    };
    Failure::new(kind, failure.message)
}

/// The error when an archive from the guest cannot be received. `unpacked` creates the error for a failure on
/// the host.
pub fn receive_failed(
    error: ReceiveError,
    slug: &Slug,
    unpacked: impl FnOnce(io::Error) -> Failure,
) -> Failure {
    match error {
        ReceiveError::Refused(failure) => guest_failure(failure).about(slug),
        ReceiveError::Unpacked(error) => unpacked(error),
        ReceiveError::BrokeOff => keeper_lost(error).about(slug),
        ReceiveError::Stopped(_) => Failure::from_error(Kind::Failed, &error),
    }
}

/// The error when the directory with the bottles' state cannot be listed.
pub fn unlistable(error: FileError) -> Failure {
    let hint = error.hint();
    Failure::from_error(Kind::State, &error).about("BOTTLE_HOME").hint(hint)
}

fn unreachable(error: ClientError) -> Failure {
    let failed = |kind| Failure::from_error(kind, &error);
    match &error {
        ClientError::NoSuchBottle { near: Some(near), .. } => {
            failed(Kind::NoSuchBottle).hint(format!("did you mean `{near}`?"))
        }
        ClientError::NoSuchBottle { near: None, .. } => {
            failed(Kind::NoSuchBottle).hint("`bottle list` shows all bottles")
        }
        ClientError::NotRunning { slug, kept: true, .. } => {
            failed(Kind::State).hint(format!("`bottle resume {slug}` starts it again"))
        }
        ClientError::NotRunning { .. } => failed(Kind::State),
        ClientError::NotOpened(failure) => {
            let kind = match failure.kind {
                LaunchFailureKind::Backend => Kind::EngineUnavailable,
                _ => Kind::Failed,
            };
            Failure::from_launch(kind, (**failure).clone())
        }
        ClientError::Locked(_) => failed(Kind::State).hint("try again when the other command is done"),
        ClientError::Orphaned { slug } => Failure::new(
            Kind::State,
            format!("{slug} has lost its keeper, and the client that started it is gone"),
        )
        .hint(LEFT_TO_CLEANUP),
        ClientError::NotAdopted { .. } => failed(Kind::State).hint(LEFT_TO_CLEANUP),
        ClientError::Unusable { .. } => {
            failed(Kind::State).hint("`bottle cleanup` shows how to repair it")
        }
        ClientError::Unreached { .. } => failed(Kind::State).hint(
            "try again, since it may be starting or ending; if it was started with another XDG_RUNTIME_DIR, set that one",
        ),
        ClientError::Elsewhere { .. } => failed(Kind::State)
            .hint("set the XDG_RUNTIME_DIR that the bottle was started with"),
        _ => failed(Kind::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_the_socket_of_an_unreachable_keeper() {
        let error = unreachable(ClientError::Unreached {
            slug: "one".parse().expect("slug"),
            path: "/run/user/1000/one.sock".into(),
            source: std::io::ErrorKind::NotFound.into(),
        });
        assert_eq!(error.kind, Kind::State);
        assert_eq!(
            error.message,
            "cannot connect to the keeper of one at /run/user/1000/one.sock: entity not found"
        );
        assert!(error.hint.is_some_and(|hint| hint.contains("XDG_RUNTIME_DIR")));
    }
}
