//! Smart HTTP: four addresses for each declared repository, and nothing else.
//!
//! git does the protocol (`git upload-pack` and `receive-pack`, stateless); bodies are streamed both ways and
//! never held.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bottle_contract::lock_out;
use bottle_daemon::Socket;
use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, EXPIRES, PRAGMA};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::body;
use crate::daemon::Gate;
use crate::git::{self, Running, finish};
use crate::push::{self, Hook};
use crate::repo::Repo;
use crate::report_status::{self, ReportStatus};

/// Between two pieces of a body; a client that makes a pack is quiet for a while.
pub(crate) const IDLE: Duration = Duration::from_secs(120);

/// The same while others wait for a place.
const IDLE_IN_THE_WAY: Duration = Duration::from_secs(15);

/// Until a request's head is there.
const HEAD: Duration = Duration::from_secs(15);

/// An advertisement of refs.
const ADVERTISED_WITHIN: Duration = Duration::from_secs(60);

/// The longest that one exchange may take, waiting for a user included.
const EXCHANGE: Duration = Duration::from_secs(2 * 3600);

/// Bytes that are carried at once, and pieces that wait for a reader.
const PIECE: usize = 64 << 10;
const WAITING: usize = 4;

type Answer = Response<Either<Full<Bytes>, Piped>>;

/// Serves one connection of the bottle.
pub(crate) async fn connection(gate: Arc<Gate>, socket: Socket, _place: OwnedSemaphorePermit) {
    let service = hyper::service::service_fn(move |request| {
        let gate = Arc::clone(&gate);
        async move { Ok::<_, Infallible>(answer(gate, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(PIECE)
        .serve_connection(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the bottle ended");
    }
}

/// The two services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Fetch,
    Push,
}

impl Service {
    fn of(word: &str) -> Option<Self> {
        match word {
            "git-upload-pack" => Some(Self::Fetch),
            "git-receive-pack" => Some(Self::Push),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Fetch => "upload-pack",
            Self::Push => "receive-pack",
        }
    }
}

async fn answer(gate: Arc<Gate>, request: Request<Incoming>) -> Answer {
    // As it is written: nothing in a repository's address needs an escape.
    let path = request.uri().path().to_owned();
    let Some((repo, rest)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return says(StatusCode::NOT_FOUND, &gate.list());
    };
    let Some(repo) = repo.strip_suffix(".git").and_then(|name| gate.repo(name)) else {
        return says(StatusCode::NOT_FOUND, &gate.list());
    };
    match (request.method(), rest) {
        (&Method::GET, "info/refs") => match service(request.uri().query().unwrap_or_default()) {
            Some(service) => advertise(&gate, &repo, service, version(&request)).await,
            None => says(StatusCode::FORBIDDEN, "the git gate speaks smart HTTP only"),
        },
        (&Method::POST, "git-upload-pack") => exchange(gate, repo, Service::Fetch, request).await,
        (&Method::POST, "git-receive-pack") => exchange(gate, repo, Service::Push, request).await,
        (_, rest) if rest == "info/lfs" || rest.starts_with("info/lfs/") => lfs(),
        _ => says(StatusCode::NOT_FOUND, "the git gate has nothing at this address"),
    }
}

/// The one service that a query asks for; none when it names another, or two: of those servers differ on which counts.
fn service(query: &str) -> Option<Service> {
    let mut named = query.split('&').filter_map(|pair| pair.strip_prefix("service=")).map(Service::of);
    let first = named.next()??;
    named.all(|other| other == Some(first)).then_some(first)
}

fn says(status: StatusCode, sentence: &str) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::from(format!("{sentence}\n")))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

fn lfs() -> Answer {
    let message =
        r#"{"message":"Git LFS has no way through the git gate; commit the file itself, or leave it out"}"#;
    let mut answer = Response::new(Either::Left(Full::new(Bytes::from_static(message.as_bytes()))));
    *answer.status_mut() = StatusCode::NOT_IMPLEMENTED;
    let kind = http::HeaderValue::from_static("application/vnd.git-lfs+json");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// `Git-Protocol`, where it asks for a version that git has.
fn version<B>(request: &Request<B>) -> Option<&'static str> {
    match request.headers().get("git-protocol")?.as_bytes() {
        b"version=1" => Some("version=1"),
        b"version=2" => Some("version=2"),
        _ => None,
    }
}

async fn advertise(gate: &Gate, repo: &Repo, service: Service, version: Option<&'static str>) -> Answer {
    let refreshed = match service {
        _ if gate.lockout.is_locked() => Err(lock_out::SENTENCE.to_owned()),
        Service::Fetch => repo.refresh_to_read(&gate.passage).await,
        Service::Push => repo.refresh(&gate.passage).await.map(drop),
    };
    let word = service.word();
    let mut body = packet(&format!("# service=git-{word}\n"));
    body.extend_from_slice(b"0000");
    match refreshed {
        Ok(()) => match refs(gate, repo, service, version).await {
            Ok(refs) => body.extend_from_slice(&refs),
            Err(why) => return says(StatusCode::INTERNAL_SERVER_ERROR, &why),
        },
        // Where the list would be; git shows it as what the remote says.
        Err(why) => body.extend_from_slice(&packet(&format!("ERR {why}\n"))),
    }
    streamed(Either::Left(Full::new(body.freeze())), &format!("application/x-git-{word}-advertisement"))
}

fn streamed(body: Either<Full<Bytes>, Piped>, kind: &str) -> Answer {
    let mut answer = Response::new(body);
    // As git's own server says it, for caches of every age.
    for (name, value) in [
        (EXPIRES, "Fri, 01 Jan 1980 00:00:00 GMT"),
        (PRAGMA, "no-cache"),
        (CACHE_CONTROL, "no-cache, max-age=0, must-revalidate"),
    ] {
        answer.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    if let Ok(kind) = http::HeaderValue::from_str(kind) {
        answer.headers_mut().insert(CONTENT_TYPE, kind);
    }
    answer
}

/// One packet line; a sentence is far below its bound.
fn packet(text: &str) -> BytesMut {
    let text: String = text.chars().take(4000).collect();
    let mut packet = BytesMut::from(format!("{:04x}", text.len() + 4).as_bytes());
    packet.extend_from_slice(text.as_bytes());
    packet
}

fn command(repo: &Repo, service: Service, version: Option<&'static str>) -> Command {
    let mut command = repo.git.command("git");
    command.arg(service.word()).arg("--stateless-rpc");
    if service == Service::Fetch {
        command.arg("--strict").arg(format!("--timeout={}", IDLE.as_secs()));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(version) = version {
        command.env("GIT_PROTOCOL", version);
    }
    command
}

async fn refs(
    gate: &Gate,
    repo: &Repo,
    service: Service,
    version: Option<&'static str>,
) -> Result<Vec<u8>, String> {
    let child = gate.passage.spawn(&[], |_| {
        let mut command = command(repo, service, version);
        command.args(["--advertise-refs", "."]).stdin(Stdio::null());
        command
    });
    let running = Running::new(child.map_err(|error| format!("git could not be run: {error}"))?);
    let ended = finish(running, service.word(), &[], ADVERTISED_WITHIN).await.map_err(|e| e.to_string())?;
    if ended.good { Ok(ended.output) } else { Err("git could not list the refs".to_owned()) }
}

/// Waits for a client to go on. None: it has been quiet for too long, which is sooner while every place is taken.
pub(crate) async fn patiently<T>(places: &Semaphore, next: impl Future<Output = T>) -> Option<T> {
    let mut next = std::pin::pin!(next);
    let quiet = Instant::now();
    loop {
        match timeout(IDLE_IN_THE_WAY, &mut next).await {
            Ok(next) => return Some(next),
            Err(_) if places.available_permits() == 0 || quiet.elapsed() >= IDLE => return None,
            Err(_) => {}
        }
    }
}

async fn exchange(gate: Arc<Gate>, repo: Arc<Repo>, service: Service, request: Request<Incoming>) -> Answer {
    let result = format!("application/x-git-{}-result", service.word());
    if gate.lockout.is_locked() {
        return streamed(Either::Left(Full::new(refusal(service, lock_out::SENTENCE))), &result);
    }
    let Ok(Ok(place)) = timeout(IDLE, Arc::clone(&gate.gits).acquire_owned()).await else {
        return says(StatusCode::SERVICE_UNAVAILABLE, "the git gate is busy; try again");
    };
    let version = version(&request);
    let packed = match request.headers().get(CONTENT_ENCODING).map(http::HeaderValue::as_bytes) {
        None | Some(b"identity") => false,
        Some(b"gzip" | b"x-gzip") => true,
        Some(_) => return says(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the git gate unpacks gzip only"),
    };
    // For as long as it is held, what lies in quarantine stays.
    let receiving = match service {
        Service::Fetch => None,
        Service::Push => Some(Arc::clone(&repo.receiving).read_owned().await),
    };
    let (mut running, asked) = match start(&gate, &repo, service, version) {
        Ok((child, asked)) => (Running::new(child), asked),
        Err(error) => {
            return says(StatusCode::INTERNAL_SERVER_ERROR, &format!("git could not be run: {error}"));
        }
    };
    let (Some(stdin), Some(mut stdout)) = (running.child.stdin.take(), running.child.stdout.take()) else {
        return says(StatusCode::INTERNAL_SERVER_ERROR, "git could not be spoken to");
    };
    let (pieces, body) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let _place = place;
        let carried = async {
            let fed = tokio::select! {
                // It ends with the body; what git answers goes on.
                fed = body::feed(request.into_body(), stdin, packed, service == Service::Push, &gate.gits) => fed,
                () = pieces.closed() => return,
            };
            match fed {
                Ok(()) => drain(&mut stdout, &pieces, service, &gate.gits).await,
                Err(why) => {
                    let _ = patiently(&gate.gits, pieces.send(refusal(service, &why))).await;
                }
            }
        };
        let _ = timeout(EXCHANGE, carried).await;
        drop(pieces);
        if let Some(asked) = asked {
            // Nobody is asked, and nothing goes up, for one that is gone: its hook hears no more, and refuses.
            asked.abort();
            running.end(stdout).await;
            drop(receiving);
            repo.sweep();
        }
    });
    streamed(Either::Right(Piped(body)), &result)
}

/// What the client of a service shows as the remote's word.
fn refusal(service: Service, why: &str) -> Bytes {
    match service {
        Service::Push => report_status::refusal(why),
        Service::Fetch => packet(&format!("ERR {why}\n")).freeze(),
    }
}

/// Starts a service, and for a push who answers its hook.
fn start(
    gate: &Arc<Gate>,
    repo: &Arc<Repo>,
    service: Service,
    version: Option<&'static str>,
) -> io::Result<(Child, Option<AbortHandle>)> {
    if service == Service::Push {
        return receive(gate, repo, version).map(|(child, asked)| (child, Some(asked)));
    }
    let child = gate.passage.spawn(&[], |_| {
        let mut command = command(repo, service, version);
        command.arg(".");
        command
    })?;
    Ok((child, None))
}

/// Starts receive-pack with a hook that asks this process.
fn receive(
    gate: &Arc<Gate>,
    repo: &Arc<Repo>,
    version: Option<&'static str>,
) -> io::Result<(Child, AbortHandle)> {
    let (ask, hook_asks) = git::pipe()?;
    let (hook_hears, tell) = git::pipe()?;
    let child = gate.passage.spawn(&[&hook_asks, &hook_hears], |places| {
        let mut command = command(repo, Service::Push, version);
        command.arg(".");
        for (name, place) in ["GATE_ASK", "GATE_TELL"].iter().zip(places) {
            command.env(name, place.to_string());
        }
        command
    })?;
    let asked = tokio::spawn(push::serve(Arc::clone(gate), Arc::clone(repo), Hook { ask, tell }));
    Ok((child, asked.abort_handle()))
}

/// Carries git's answer to the response, as long as somebody reads it.
async fn drain(stdout: &mut ChildStdout, pieces: &mpsc::Sender<Bytes>, service: Service, places: &Semaphore) {
    let mut told = (service == Service::Push).then(ReportStatus::default);
    loop {
        let mut piece = BytesMut::with_capacity(PIECE);
        let read = tokio::select! {
            read = stdout.read_buf(&mut piece) => read,
            () = pieces.closed() => return,
        };
        match read {
            Ok(length) if length > 0 => {
                let piece = piece.freeze();
                let piece = told.as_mut().map_or(piece.clone(), |told| told.feed(piece));
                if !piece.is_empty() && !matches!(patiently(places, pieces.send(piece)).await, Some(Ok(()))) {
                    return;
                }
            }
            _ => {
                if let Some(rest) = told.map(|mut told| told.rest()).filter(|rest| !rest.is_empty()) {
                    let _ = patiently(places, pieces.send(rest)).await;
                }
                return;
            }
        }
    }
}

/// A response's body, as git makes it.
pub(crate) struct Piped(mpsc::Receiver<Bytes>);

impl Body for Piped {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
