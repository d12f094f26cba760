//! How a command reaches a bottle's keeper: starts one, finds the living one, or has one adopt.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bottle_channel::{Channel, Side, StreamReceiver};
use bottle_contract::names::Slug;
use bottle_contract::session::{Hello, Role};
use tokio::net::UnixStream;

use super::protocol::{KeeperEvent, KeeperRequest};
use crate::host::Host;
use crate::host::process::ProcessId;
use crate::instance::deploy_keys::Tokens;
use crate::instance::record::{Record, Status};
use crate::instance::{State, Store};
use crate::launch::order::LaunchOrder;
use crate::suggest::suggest;

/// How long a keeper that holds its lock may take until its socket is there: it is launching.
const SOCKET_WITHIN: Duration = Duration::from_secs(30);

/// How long to wait between two attempts.
const AGAIN: Duration = Duration::from_millis(20);

/// Variables a keeper inherits. The rest of the user's environment stays with the user.
const INHERITED: [&str; 11] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_HOST",
    "HOME",
    "PATH",
    "USER",
    "XDG_RUNTIME_DIR",
    "TERM",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "TMPDIR",
    "RUST_BACKTRACE",
];

/// A launch under way.
#[derive(Debug)]
pub struct Launched {
    /// The first client's connection. Dropping it ends an attached bottle.
    pub channel: Channel,
    /// Brings [`KeeperEvent`]s: phases, then `Running` or `Failed`.
    pub progress: StreamReceiver,
}

/// Why there is no keeper to talk to.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No bottle has that slug.
    #[error("there is no bottle named {slug}")]
    NoSuchBottle {
        /// As asked for.
        slug: Slug,
        /// One that is nearly called so.
        near: Option<Slug>,
    },
    /// The bottle has ended.
    #[error("{slug} does not run: {why}")]
    NotRunning {
        /// The slug.
        slug: Slug,
        /// What became of it.
        why: String,
        /// Whether it can be gone on with.
        preserved: bool,
    },
    /// The bottle was attached and its keeper died.
    #[error("{slug} has lost its keeper")]
    Orphaned {
        /// The slug.
        slug: Slug,
    },
    /// The record is not usable.
    #[error("{slug}: {why}")]
    Unusable {
        /// The slug.
        slug: Slug,
        /// Why.
        why: String,
    },
    /// Its keeper lives and is not to be reached.
    #[error("{slug} runs, and its keeper does not answer at {}: {source}", path.display())]
    Unreached {
        /// The slug.
        slug: Slug,
        /// Where it was looked for.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Its keeper lives, and listens in another folder than this program looks in.
    #[error("{slug} runs, and its keeper listens in {}, not in {}", there.display(), here.display())]
    Elsewhere {
        /// The slug.
        slug: Slug,
        /// Where it listens.
        there: PathBuf,
        /// Where it was looked for.
        here: PathBuf,
    },
    /// The keeper could not be started or reached.
    #[error("{0}")]
    Failed(String),
}

/// Where a bottle's keeper listens.
#[must_use]
pub fn socket(host: &Host, slug: &Slug) -> PathBuf {
    host.runtime.join(format!("{slug}.sock"))
}

/// Starts a keeper and gives it the order.
///
/// # Errors
/// [`ClientError::Failed`] when the process cannot be started; what goes wrong later comes as an event.
pub async fn launch(host: &Host, order: &LaunchOrder) -> Result<Launched, ClientError> {
    let channel = spawn(host, &order.plan.identity.slug).await?;
    let request = KeeperRequest::Launch(Box::new(order.clone()));
    let failed = |error: bottle_channel::ChannelError| ClientError::Failed(error.to_string());
    let stream = channel.open(&request).await.map_err(failed)?;
    // Ended, not dropped: a sender that goes away without an end takes its request back.
    stream.end().await.map_err(failed)?;
    let (_, progress) = stream.split();
    Ok(Launched { channel, progress })
}

/// Connects to a bottle's keeper. A detached bottle whose keeper died gets a new one first.
///
/// # Errors
/// [`ClientError`], one for each state in which there is nobody to talk to.
pub async fn connect(host: &Host, slug: &Slug) -> Result<Channel, ClientError> {
    let store = Store::of(host);
    let end = tokio::time::Instant::now() + SOCKET_WITHIN;
    // Asked again each time: a keeper that is killed lets go of its socket before its lock, a cleanup holds the lock
    // while it looks, and somebody else's command may have the bottle adopted.
    loop {
        let failed = match store.state(slug) {
            Some(State::Alive(record)) => match dial(host, slug).await {
                Ok(channel) => return Ok(channel),
                Err(error) => match elsewhere(host, &record) {
                    Some(there) => {
                        let here = host.runtime.clone();
                        return Err(ClientError::Elsewhere { slug: slug.clone(), there, here });
                    }
                    None => error,
                },
            },
            Some(State::Dead(record)) => match revive(host, slug, &record).await? {
                Revived::Reached(channel) => return Ok(channel),
                Revived::Taken(why) => ClientError::Failed(why),
            },
            Some(State::Preserved(record)) => {
                let why = if record.kept {
                    "it ended, and its work was kept"
                } else {
                    "it ended, and there is a snapshot of it"
                };
                return Err(ClientError::NotRunning {
                    slug: slug.clone(),
                    why: why.to_owned(),
                    preserved: true,
                });
            }
            Some(State::Damaged(why)) => return Err(ClientError::Unusable { slug: slug.clone(), why }),
            Some(State::Newer(schema)) => {
                let why = format!("written by a newer bottle (schema {schema}); use that version");
                return Err(ClientError::Unusable { slug: slug.clone(), why });
            }
            None => return Err(no_such_bottle(&store, slug)),
        };
        if tokio::time::Instant::now() >= end {
            return Err(failed);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The other folder that the keeper of this record listens in, while that one lives: waiting would not help.
fn elsewhere(host: &Host, record: &Record) -> Option<PathBuf> {
    let keeper: ProcessId = record.keeper.as_ref()?.parse().ok()?;
    let there = record.runtime.as_ref()?;
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    (keeper.is_alive() && whole(there) != whole(&host.runtime)).then(|| there.clone())
}

/// What became of having a bottle adopted.
enum Revived {
    Reached(Channel),
    /// Somebody held its lock: another command's keeper, or a cleanup that looked for a moment.
    Taken(String),
}

async fn revive(host: &Host, slug: &Slug, record: &Record) -> Result<Revived, ClientError> {
    if record.status == Status::Ended {
        let why = "it ended; its output is in `bottle logs`".to_owned();
        return Err(ClientError::NotRunning { slug: slug.clone(), why, preserved: false });
    }
    if !record.is_adoptable() {
        return Err(ClientError::Orphaned { slug: slug.clone() });
    }
    let failed = |error: bottle_channel::ChannelError| ClientError::Failed(error.to_string());
    let channel = spawn(host, slug).await?;
    // The keeper has nothing of this command's environment.
    let tokens = Tokens::of_this_machine(host, &record.deploy_keys).await;
    let adopt = KeeperRequest::Adopt { slug: slug.clone(), tokens };
    let mut stream = channel.open(&adopt).await.map_err(failed)?;
    match stream.receive().await.map_err(failed)? {
        KeeperEvent::Running { .. } => Ok(Revived::Reached(channel)),
        KeeperEvent::Refused(why) => Ok(Revived::Taken(why)),
        KeeperEvent::Failed(failure) => {
            Err(ClientError::NotRunning { slug: slug.clone(), why: failure.message, preserved: false })
        }
        _ => Err(ClientError::Failed("the keeper answered out of turn".to_owned())),
    }
}

/// One attempt to reach a keeper that holds its lock.
async fn dial(host: &Host, slug: &Slug) -> Result<Channel, ClientError> {
    let path = socket(host, slug);
    let unreached = |source| ClientError::Unreached { slug: slug.clone(), path: path.clone(), source };
    let socket = UnixStream::connect(&path).await.map_err(unreached)?;
    greet(socket).await
}

async fn greet(socket: UnixStream) -> Result<Channel, ClientError> {
    let (channel, _, _) = Channel::establish(socket, Side::Dialed, Hello::of(Role::Client))
        .await
        .map_err(|error| ClientError::Failed(format!("the keeper did not greet: {error}")))?;
    Ok(channel)
}

async fn spawn(host: &Host, slug: &Slug) -> Result<Channel, ClientError> {
    let failed = |error: io::Error| ClientError::Failed(format!("cannot start the bottle's keeper: {error}"));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let mut command = Command::new(&host.program);
    command
        .args(["__keeper", &host.home_hash(), slug.as_str()])
        .env_clear()
        .env("BOTTLE_HOME", &host.home)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    for (name, value) in &host.env {
        let Some(text) = name.to_str() else { continue };
        if INHERITED.contains(&text) || (text.starts_with("BOTTLE_") && text != "BOTTLE_HOME") {
            command.env(name, value);
        }
    }
    // Not waited for: the keeper outlives its client, and one that ends earlier is reaped with us.
    command.spawn().map_err(failed)?;
    drop(command);
    greet(UnixStream::from_std(ours).map_err(failed)?).await
}

/// That there is none of this name, and what there is of a similar one.
pub(crate) fn no_such_bottle(store: &Store, slug: &Slug) -> ClientError {
    let slugs: Vec<Slug> = store.list().unwrap_or_default().into_iter().map(|listed| listed.slug).collect();
    let near = suggest(slug.as_str(), slugs.iter().map(Slug::as_str)).and_then(|near| near.parse().ok());
    ClientError::NoSuchBottle { slug: slug.clone(), near }
}
