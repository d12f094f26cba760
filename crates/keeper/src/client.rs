//! Connects a command to a bottle's keeper process. Finds the running keeper, or starts a keeper: for a new bottle, to
//! adopt a bottle that lost its keeper, or to open the files of a kept bottle.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bottle_backend::Access;
use bottle_channel::{Channel, ChannelError, Side, StreamReceiver};
use bottle_host::Host;
use bottle_host::process::ProcessId;
use bottle_instance::deploy_keys::Tokens;
use bottle_instance::record::{Record, Status};
use bottle_instance::{State, Store};
use bottle_policy::names::Slug;
use bottle_protocol::session::{Hello, Role};
use bottle_repository::program::absolute_path;
use tokio::net::UnixStream;
use tokio::process::Command;

use super::protocol::{Activity, Inherited, KeeperEvent, KeeperRequest, LaunchFailure, LaunchFailureKind};
use crate::launch::TERMINAL_HINTS;
use crate::launch::order::LaunchOrder;
use bottle_text::suggest::suggest;

/// How long a command tries to connect to a keeper before the command fails. The keeper may still be launching the
/// bottle, or another process may hold the bottle's lock for a short time.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval between two attempts to connect.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Environment variables that keepers and watchers inherit, besides `BOTTLE_*` and [`TERMINAL_HINTS`].
const INHERITED: [&str; 14] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
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
    "RUST_LOG",
];

/// A launch in progress.
#[derive(Debug)]
pub struct Launched {
    /// The connection of the first client. Dropping this connection ends an attached bottle.
    pub channel: Channel,
    /// Receives [`KeeperEvent`]s: one event for each launch phase, and then `Running` or `Failed`.
    pub progress: StreamReceiver,
}

/// Why a command cannot connect to a keeper.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No bottle has this slug.
    #[error("there is no bottle named {slug}")]
    NoSuchBottle {
        /// The slug that the user gave.
        slug: Slug,
        /// The existing bottle with the most similar name.
        near: Option<Slug>,
    },
    /// The bottle has ended.
    #[error("{slug} is not running: {why}")]
    NotRunning {
        /// The bottle's slug.
        slug: Slug,
        /// How the bottle ended.
        why: String,
        /// Whether the bottle can be resumed.
        kept: bool,
    },
    /// The bottle's keeper died, and no keeper can adopt the bottle: it was attached, starting or ending, or its agent
    /// had exited.
    #[error("{slug} has lost its keeper")]
    Orphaned {
        /// The bottle's slug.
        slug: Slug,
    },
    /// The bottle's keeper died, and a new keeper could not adopt the bottle.
    #[error("{slug} is not running: {why}")]
    NotAdopted {
        /// The bottle's slug.
        slug: Slug,
        /// Why the adoption failed.
        why: String,
    },
    /// The bottle's record cannot be used.
    #[error("{slug}: {why}")]
    Unusable {
        /// The bottle's slug.
        slug: Slug,
        /// Why the record cannot be used.
        why: String,
    },
    /// The bottle's keeper is alive but does not accept connections.
    #[error("cannot connect to the keeper of {slug} at {}", path.display())]
    Unreached {
        /// The bottle's slug.
        slug: Slug,
        /// The path of the keeper's socket.
        path: PathBuf,
        /// Why the connection failed.
        source: io::Error,
    },
    /// The bottle's keeper is alive but listens in another runtime directory.
    #[error("cannot connect to the keeper of {slug}: it listens in {}, not in {}", there.display(), here.display())]
    Elsewhere {
        /// The bottle's slug.
        slug: Slug,
        /// The keeper's runtime directory.
        there: PathBuf,
        /// This process's runtime directory.
        here: PathBuf,
    },
    /// The keeper could not be started.
    #[error("cannot start the bottle's keeper")]
    Spawn(#[source] io::Error),
    /// The keeper did not complete the handshake.
    #[error("the keeper did not complete the handshake")]
    Handshake(#[source] ChannelError),
    /// The connection to the keeper was lost.
    #[error(transparent)]
    Lost(#[from] ChannelError),
    /// Another process holds the bottle's lock.
    #[error("{0}")]
    Locked(String),
    /// The files of a kept bottle could not be opened, the bottle is paused, or the container engine on which the
    /// bottle exists cannot be used.
    #[error("{}", .0.message)]
    NotOpened(Box<LaunchFailure>),
    /// The keeper sent a message that does not answer the request.
    #[error("the keeper sent an unexpected message")]
    Unexpected,
}

/// How long a keeper may take to report what its bottle's agent does.
const ACTIVITY_WITHIN: Duration = Duration::from_millis(1500);

/// Returns what the agent of a running bottle does. Returns `None` if the bottle's keeper does not answer in time, or
/// if an older version of this program started the keeper. Starts no keeper.
pub async fn activity(host: &Host, slug: &Slug) -> Option<Activity> {
    let query = async {
        let channel = dial(host, slug).await.ok()?;
        match channel.open(&KeeperRequest::Activity).await.ok()?.receive().await.ok()? {
            KeeperEvent::Activity(activity) => Some(activity),
            _ => None,
        }
    };
    tokio::time::timeout(ACTIVITY_WITHIN, query).await.ok().flatten()
}

/// Starts a keeper and sends it the launch order.
///
/// # Errors
/// [`ClientError`] when the process cannot start. Later failures arrive as events in [`Launched::progress`].
pub async fn launch(host: &Host, order: &LaunchOrder) -> Result<Launched, ClientError> {
    let channel = spawn(host, &order.plan.identity.slug).await?;
    let request = KeeperRequest::Launch(Box::new(order.clone()));
    let stream = channel.open(&request).await?;
    // The stream is ended explicitly, because dropping the sender would cancel the request.
    stream.end().await?;
    let (_, progress) = stream.split();
    Ok(Launched { channel, progress })
}

/// Connects to a bottle's keeper. If the keeper of a detached bottle died, first starts a new keeper, which adopts the
/// bottle.
///
/// # Errors
/// [`ClientError`], with a separate variant for each state in which no keeper can be reached.
pub async fn connect(host: &Host, slug: &Slug) -> Result<Channel, ClientError> {
    connect_or_open(host, slug, Needs::default()).await
}

/// Connects to a bottle's keeper as [`connect`] does, to stop the bottle. If the keeper died and the bottle is paused,
/// the new keeper continues the bottle.
///
/// # Errors
/// The errors of [`connect`].
pub async fn connect_to_stop(host: &Host, slug: &Slug) -> Result<Channel, ClientError> {
    connect_or_open(host, slug, Needs { unpauses: true, ..Needs::default() }).await
}

/// Connects to a bottle's keeper as [`connect`] does. If the keeper died, the new keeper receives `inherited`, the
/// secrets of the dead keeper.
///
/// # Errors
/// The errors of [`connect`].
pub(super) async fn connect_or_replace(
    host: &Host,
    slug: &Slug,
    inherited: Option<&Inherited>,
) -> Result<Channel, ClientError> {
    connect_or_open(host, slug, Needs { inherited, ..Needs::default() }).await
}

/// Connects to a bottle's keeper as [`connect`] does. If the bottle ended and its files are kept, opens these files
/// instead: uses the keeper of another command, or starts a keeper, which exits when its last client disconnects. If
/// the other keeper only reads and `access` is [`Access::Write`], waits until the other keeper has exited.
///
/// # Errors
/// [`ClientError`], with a separate variant for each state in which neither a keeper nor kept files can be used.
pub async fn connect_or_open_files(host: &Host, slug: &Slug, access: Access) -> Result<Channel, ClientError> {
    connect_or_open(host, slug, Needs { files: Some(access), ..Needs::default() }).await
}

/// What a command needs from a keeper that it starts.
#[derive(Debug, Clone, Copy, Default)]
struct Needs<'n> {
    /// If set, the keeper opens the files of a kept bottle with this access.
    files: Option<Access>,
    /// The secrets of the previous keeper, which the new keeper needs.
    inherited: Option<&'n Inherited>,
    /// Whether the keeper continues a bottle that the user paused.
    unpauses: bool,
}

async fn connect_or_open(host: &Host, slug: &Slug, needs: Needs<'_>) -> Result<Channel, ClientError> {
    let store = Store::of(host);
    let end = tokio::time::Instant::now() + SOCKET_TIMEOUT;
    // The state is read again on each attempt, because it can change: a killed keeper closes its socket before it
    // releases its lock, a cleanup holds the lock while it inspects the bottle, and another command may start an
    // adoption.
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
            Some(State::Dead(record)) => match adopt(host, slug, &record, needs).await? {
                Adoption::Connected(channel) => return Ok(channel),
                Adoption::Locked(why) => ClientError::Locked(why),
            },
            Some(State::Kept(record)) if record.kept && needs.files.is_some() => {
                match open(host, slug, needs.files.unwrap_or(Access::Read)).await? {
                    Adoption::Connected(channel) => return Ok(channel),
                    Adoption::Locked(why) => ClientError::Locked(why),
                }
            }
            Some(State::Kept(record)) => {
                let why = if record.kept {
                    "it ended, and its files are kept"
                } else if record.has_only_conversation() {
                    "it ended, and only its conversation is kept"
                } else {
                    "it ended, and it has a snapshot"
                };
                return Err(ClientError::NotRunning { slug: slug.clone(), why: why.to_owned(), kept: true });
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
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Returns the runtime directory in which the recorded keeper listens, if the keeper is alive and this process uses
/// another runtime directory. In this case, waiting for the keeper would not help.
fn elsewhere(host: &Host, record: &Record) -> Option<PathBuf> {
    let keeper: ProcessId = record.keeper.as_ref()?.parse().ok()?;
    let there = record.runtime.as_ref()?;
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    (keeper.is_alive() && canonical(there) != canonical(&host.runtime)).then(|| there.clone())
}

/// The result of an adoption, or of opening kept files.
enum Adoption {
    Connected(Channel),
    /// Another process holds the bottle's lock: a keeper that another command started, or a cleanup.
    Locked(String),
}

async fn adopt(host: &Host, slug: &Slug, record: &Record, needs: Needs<'_>) -> Result<Adoption, ClientError> {
    if record.status == Status::Ended {
        let why = "it ended; see its output with `bottle logs`".to_owned();
        return Err(ClientError::NotRunning { slug: slug.clone(), why, kept: false });
    }
    if !record.is_adoptable() {
        return Err(ClientError::Orphaned { slug: slug.clone() });
    }
    let channel = spawn(host, slug).await?;
    let inherited = match needs.inherited {
        Some(inherited) => inherited.clone(),
        // The tokens are read here, because the keeper inherits only a part of this command's environment.
        None => Inherited {
            tokens: Tokens::of_this_machine(host, &record.deploy_keys).await,
            ..Inherited::default()
        },
    };
    let request = KeeperRequest::Adopt { slug: slug.clone(), inherited, unpauses: needs.unpauses };
    let mut stream = channel.open(&request).await?;
    match stream.receive().await? {
        KeeperEvent::Running { .. } => Ok(Adoption::Connected(channel)),
        KeeperEvent::Refused(why) => Ok(Adoption::Locked(why)),
        // The bottle is paused, its container engine does not answer, or this command uses another engine.
        KeeperEvent::Failed(failure) if failure.is_busy || failure.kind == LaunchFailureKind::Backend => {
            Err(ClientError::NotOpened(Box::new(failure)))
        }
        KeeperEvent::Failed(failure) => {
            Err(ClientError::NotAdopted { slug: slug.clone(), why: failure.message })
        }
        _ => Err(ClientError::Unexpected),
    }
}

/// Tries once to open the files of a kept bottle, through the keeper of another command or through a new keeper.
async fn open(host: &Host, slug: &Slug, access: Access) -> Result<Adoption, ClientError> {
    let request = KeeperRequest::Open { slug: slug.clone(), access };
    let ask = async |channel: Channel| {
        let mut stream = channel.open(&request).await?;
        match stream.receive().await? {
            KeeperEvent::Opened => Ok(Adoption::Connected(channel)),
            KeeperEvent::Refused(why) => Ok(Adoption::Locked(why)),
            KeeperEvent::Failed(failure) => Err(ClientError::NotOpened(Box::new(failure))),
            _ => Err(ClientError::Unexpected),
        }
    };
    // A keeper that is about to exit may not answer. In this case, the code below reports that the lock is taken or
    // starts a new keeper.
    if let Ok(channel) = dial(host, slug).await
        && let Ok(opened) = ask(channel).await
    {
        return Ok(opened);
    }
    if Store::of(host).is_locked(slug) {
        return Ok(Adoption::Locked(format!("another command uses the files of {slug}")));
    }
    ask(spawn(host, slug).await?).await
}

/// Tries once to connect to a keeper that holds its bottle's lock.
async fn dial(host: &Host, slug: &Slug) -> Result<Channel, ClientError> {
    let path = host.keeper_socket(slug);
    let unreached = |source| ClientError::Unreached { slug: slug.clone(), path: path.clone(), source };
    let socket = UnixStream::connect(&path).await.map_err(unreached)?;
    greet(socket).await
}

async fn greet(socket: UnixStream) -> Result<Channel, ClientError> {
    let established = Channel::establish(socket, Side::Dialed, Hello::of(Role::Client)).await;
    established.map(|(channel, _, _)| channel).map_err(ClientError::Handshake)
}

async fn spawn(host: &Host, slug: &Slug) -> Result<Channel, ClientError> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(ClientError::Spawn)?;
    ours.set_nonblocking(true).map_err(ClientError::Spawn)?;
    let mut command = role(host, "__keeper", slug);
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    // The keeper usually runs longer than this process. If the keeper exits earlier, the tokio runtime reaps it.
    command.spawn().map_err(ClientError::Spawn)?;
    drop(command);
    greet(UnixStream::from_std(ours).map_err(ClientError::Spawn)?).await
}

/// Builds the command line and the environment of an internal process of a bottle.
pub(super) fn role(host: &Host, role: &str, slug: &Slug) -> Command {
    let mut command = background(host, role);
    command.arg(slug.as_str());
    command
}

/// Builds the command line and the environment of an internal process of a home. The standard streams of the process
/// are connected to `/dev/null`.
pub fn background(host: &Host, role: &str) -> Command {
    let mut command = Command::new(&host.program);
    command
        .args([role, &host.home_hash()])
        .env_clear()
        .envs(environment(host))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Builds the environment of keepers. It contains the inherited variables and a `PATH` without relative directories,
/// because a program may run in a directory to which an agent wrote.
pub(super) fn environment(host: &Host) -> BTreeMap<OsString, OsString> {
    let mut variables = BTreeMap::from([("BOTTLE_HOME".into(), host.home.clone().into())]);
    for (name, value) in &host.env {
        let Some(text) = name.to_str() else { continue };
        if text == "PATH" {
            variables.insert(name.clone(), absolute_path(value));
        } else if INHERITED.contains(&text)
            || TERMINAL_HINTS.contains(&text)
            || (text.starts_with("BOTTLE_") && text != "BOTTLE_HOME")
        {
            variables.insert(name.clone(), value.clone());
        }
    }
    variables
}

/// Creates the error for an unknown slug. The error contains the most similar existing slug.
pub fn no_such_bottle(store: &Store, slug: &Slug) -> ClientError {
    let slugs: Vec<Slug> = store.list().unwrap_or_default().into_iter().map(|listed| listed.slug).collect();
    let near = suggest(slug.as_str(), slugs.iter().map(Slug::as_str)).and_then(|near| near.parse().ok());
    ClientError::NoSuchBottle { slug: slug.clone(), near }
}
