//! Serves git's smart HTTP protocol with four endpoints for each declared repository.
//!
//! The gate runs `git upload-pack` and `git receive-pack` in stateless mode, and these commands implement the protocol.
//! Request and response bodies are streamed, and never buffered in memory completely.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bottle_daemon::Socket;
use bottle_policy::lock_out;
use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, EXPIRES, LOCATION, PRAGMA};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::agent_messages;
use crate::body_error::BodyError;
use crate::gate::Gate;
use crate::git::{self, GitError, Running, UPSTREAM_MEMORY, finish};
use crate::idle::{IDLE, idle_timeout};
use crate::ls_refs::{self, ListRequest};
use crate::mirror;
use crate::push::{self, Hook};
use crate::push_check::PushCheck;
use crate::received::{Received, UnpackTurn};
use crate::refusal::Refusal;
use crate::repo::Repo;
use crate::report_status::{self, Reasons, ReportStatus};
use crate::request_body::{self, Beginning, read_beginning};
use crate::upstream::Features;
use crate::wants;

/// The time limit for a client to send a request's head. When the limit is reached, the connection is closed.
const HEAD: Duration = Duration::from_secs(15);

/// The time limit for git to list the refs of the mirror. When the limit is reached, the request fails.
const ADVERTISED_WITHIN: Duration = Duration::from_secs(60);

/// The time limit for one exchange with git, including the wait for the user's approval. A longer exchange is
/// aborted.
const EXCHANGE: Duration = Duration::from_secs(2 * 3600);

/// The time limit for a fetch to wait for a permit. The limit is long enough for other fetches of large repositories to
/// end.
const FETCH_TURN: Duration = Duration::from_secs(600);

/// The maximum memory in bytes of a process that serves a fetch from a small mirror.
const SERVED_MEMORY: u64 = 512 << 20;

/// The size of a chunk of a response in bytes.
const CHUNK: usize = 64 << 10;
/// The maximum number of chunks of a response that are buffered for a slow client.
const QUEUED: usize = 4;

type HttpResponse = Response<Either<Full<Bytes>, StreamedBody>>;

/// Serves one connection from the bottle.
pub(crate) async fn connection(gate: Arc<Gate>, socket: Socket, _permit: OwnedSemaphorePermit) {
    let service = hyper::service::service_fn(move |request| {
        let gate = Arc::clone(&gate);
        async move { Ok::<_, Infallible>(respond(gate, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(CHUNK)
        .serve_connection(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the bottle ended");
    }
}

/// The two services of git's smart HTTP protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Fetch,
    Push,
}

impl Service {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "git-upload-pack" => Some(Self::Fetch),
            "git-receive-pack" => Some(Self::Push),
            _ => None,
        }
    }

    /// Returns the git command that implements the service.
    fn command(self) -> &'static str {
        match self {
            Self::Fetch => "upload-pack",
            Self::Push => "receive-pack",
        }
    }

    /// Creates the tracing span of a request. The span contains no names of refs or files, because these may
    /// contain secrets.
    fn span(self, repo: &Repo) -> Span {
        let (repository, refs) = (repo.name.as_str(), Empty);
        match self {
            Self::Fetch => tracing::info_span!("fetch", repository, refs),
            Self::Push => tracing::info_span!("push", repository, refs),
        }
    }
}

async fn respond(gate: Arc<Gate>, request: Request<Incoming>) -> HttpResponse {
    let uri = request.uri().clone();
    let Some((repo, rest)) = gate.repo(&uri) else {
        if let Some(location) = gate.elsewhere(&uri) {
            return redirect(&location);
        }
        return text_response(StatusCode::NOT_FOUND, &gate.unknown_repo());
    };
    match (request.method(), rest) {
        (&Method::GET, "info/refs") => match service(request.uri().query().unwrap_or_default()) {
            Some(service) => {
                let span = service.span(&repo);
                advertise(&gate, &repo, service, version(&request)).instrument(span).await
            }
            None => text_response(StatusCode::FORBIDDEN, "the git gate supports smart HTTP only"),
        },
        (&Method::POST, "git-upload-pack" | "git-receive-pack") => {
            let service = if rest == "git-upload-pack" { Service::Fetch } else { Service::Push };
            let span = service.span(&repo);
            exchange(gate, repo, service, request).instrument(span).await
        }
        (_, rest) if rest == "info/lfs" || rest.starts_with("info/lfs/") => lfs_unsupported(),
        _ => text_response(StatusCode::NOT_FOUND, "the git gate has no such endpoint"),
    }
}

/// Returns the service that the query of a request names. Returns `None` if the service is unknown, or if the query
/// names two different services, because servers disagree on which of them applies.
fn service(query: &str) -> Option<Service> {
    let mut named = query.split('&').filter_map(|pair| pair.strip_prefix("service=")).map(Service::from_name);
    let first = named.next()??;
    named.all(|other| other == Some(first)).then_some(first)
}

fn text_response(status: StatusCode, message: &str) -> HttpResponse {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(format!("{message}\n")))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Redirects git to another URL. git follows the redirect for the first request to a repository.
fn redirect(location: &str) -> HttpResponse {
    let mut response =
        text_response(StatusCode::TEMPORARY_REDIRECT, "this repository is not behind the git gate");
    match http::HeaderValue::from_str(location) {
        Ok(location) => drop(response.headers_mut().insert(LOCATION, location)),
        Err(_) => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    response
}

fn lfs_unsupported() -> HttpResponse {
    let message =
        r#"{"message":"the git gate does not support Git LFS; commit the file itself, or leave it out"}"#;
    let mut response = Response::new(Either::Left(Full::new(Bytes::from_static(message.as_bytes()))));
    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
    let kind = http::HeaderValue::from_static("application/vnd.git-lfs+json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Returns the protocol version in the request's `Git-Protocol` header. Returns `None` if the gate does not support
/// this version.
fn version<B>(request: &Request<B>) -> Option<&'static str> {
    match request.headers().get("git-protocol")?.as_bytes() {
        b"version=1" => Some("version=1"),
        b"version=2" => Some("version=2"),
        _ => None,
    }
}

async fn advertise(
    gate: &Gate,
    repo: &Repo,
    service: Service,
    version: Option<&'static str>,
) -> HttpResponse {
    let refreshed = match service {
        _ if gate.lockout.is_locked() => Err(Refusal::Locked),
        Service::Fetch => repo.refresh_to_read(&gate.fds).await.map_err(Refusal::from),
        Service::Push => {
            let (refreshed, ()) = tokio::join!(repo.refresh(&gate.fds), repo.learn_features(&gate.fds));
            refreshed.map(drop).map_err(Refusal::from)
        }
    };
    if service == Service::Fetch {
        Span::current().record("refs", repo.ref_count());
    }
    tracing::debug!(refreshed = refreshed.is_ok(), "lists the refs");
    let command = service.command();
    let mut body = packet(&format!("# service=git-{command}\n"));
    body.extend_from_slice(b"0000");
    match refreshed {
        Ok(()) => match refs(gate, repo, service, version).await {
            Ok(refs) => body.extend_from_slice(&refs),
            Err(error) => {
                return text_response(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    &agent_messages::sentence(&error, None),
                );
            }
        },
        // The error is sent instead of the ref list. git shows the error as a message of the remote.
        Err(refusal) => body.extend_from_slice(&packet(&format!("ERR {}\n", refusal.sentence()))),
    }
    streamed(Either::Left(Full::new(body.freeze())), &format!("application/x-git-{command}-advertisement"))
}

fn streamed(body: Either<Full<Bytes>, StreamedBody>, kind: &str) -> HttpResponse {
    let mut response = Response::new(body);
    // Sends the same headers as `git http-backend`, which old and new caches respect.
    for (name, value) in [
        (EXPIRES, "Fri, 01 Jan 1980 00:00:00 GMT"),
        (PRAGMA, "no-cache"),
        (CACHE_CONTROL, "no-cache, max-age=0, must-revalidate"),
    ] {
        response.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    if let Ok(kind) = http::HeaderValue::from_str(kind) {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}

/// Encodes one packet line. The text is cut off after 4000 characters, which always fit into one packet line.
fn packet(text: &str) -> BytesMut {
    let text: String = text.chars().take(4000).collect();
    let mut packet = BytesMut::from(format!("{:04x}", text.len() + 4).as_bytes());
    packet.extend_from_slice(text.as_bytes());
    packet
}

/// Returns the maximum memory in bytes of a process that serves a fetch from `mirror`. git needs about 250 bytes for
/// each object.
fn served_memory(mirror: &Path) -> u64 {
    (SERVED_MEMORY + 8 * mirror::index_bytes(mirror)).min(UPSTREAM_MEMORY)
}

fn command(repo: &Repo, service: Service, version: Option<&'static str>) -> Command {
    let git = match service {
        Service::Fetch => repo.git.with_memory(served_memory(&repo.git.mirror)),
        Service::Push => repo.git.clone(),
    };
    let mut command = git.command("git");
    if service == Service::Push {
        // The gate offers only the features that the upstream supports.
        let Features { atomic, push_options } = repo.features();
        command.args(["-c", &format!("receive.advertiseAtomic={atomic}")]);
        command.args(["-c", &format!("receive.advertisePushOptions={push_options}")]);
    }
    command.arg(service.command()).arg("--stateless-rpc");
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
) -> Result<Vec<u8>, GitError> {
    let child = gate.fds.spawn(&[], |_| {
        let mut command = command(repo, service, version);
        command.args(["--advertise-refs", "."]).stdin(Stdio::null());
        command
    });
    let running = Running::new(child.map_err(|error| GitError::Run("git".to_owned(), error))?);
    let output = finish(running, service.command(), &[], ADVERTISED_WITHIN).await?;
    if output.success { Ok(output.stdout) } else { Err(GitError::Refs) }
}

async fn exchange(
    gate: Arc<Gate>,
    repo: Arc<Repo>,
    service: Service,
    request: Request<Incoming>,
) -> HttpResponse {
    let result = format!("application/x-git-{}-result", service.command());
    if gate.lockout.is_locked() {
        return streamed(Either::Left(Full::new(refusal(service, lock_out::SENTENCE))), &result);
    }
    let (permits, patience) = match service {
        Service::Fetch => (Arc::clone(&gate.fetches), FETCH_TURN),
        Service::Push => (Arc::clone(&gate.pushes), IDLE),
    };
    let Ok(Ok(permit)) = timeout(patience, Arc::clone(&permits).acquire_owned()).await else {
        return text_response(StatusCode::SERVICE_UNAVAILABLE, "the git gate is busy; try again");
    };
    let version = version(&request);
    let gzip = match request.headers().get(CONTENT_ENCODING).map(http::HeaderValue::as_bytes) {
        None | Some(b"identity") => false,
        Some(b"gzip" | b"x-gzip") => true,
        Some(_) => {
            return text_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the git gate decodes gzip only");
        }
    };
    let mut body = request.into_body();
    let mut beginning = Beginning::default();
    if service == Service::Fetch && version == Some("version=2") {
        beginning = read_beginning(&mut body, beginning, gzip, ls_refs::FIRST, &permits).await;
        if ls_refs::is_ls_refs(&beginning.decoded) || wants::is_fetch(&beginning.decoded) {
            beginning = read_beginning(&mut body, beginning, gzip, ls_refs::MOST_REQUEST, &permits).await;
            if let Some(answer) = answer_without_git(&gate, &repo, &beginning.decoded).await {
                return streamed(Either::Left(Full::new(answer)), &result);
            }
        }
    }
    let (chunks, response) = mpsc::channel(QUEUED);
    let client = Client { beginning, body, gzip, version, chunks, permits };
    let work = async move {
        let _permit = permit;
        match service {
            Service::Fetch => fetch(&gate, &repo, client).await,
            Service::Push => receive(&gate, &repo, client).await,
        }
        tracing::debug!("the exchange has ended");
    };
    tokio::spawn(work.in_current_span());
    streamed(Either::Right(StreamedBody(response)), &result)
}

/// The request of one exchange, and the channel to which the response is sent.
struct Client {
    beginning: Beginning,
    body: Incoming,
    gzip: bool,
    version: Option<&'static str>,
    chunks: mpsc::Sender<Bytes>,
    /// The permits that limit the exchanges of this service.
    permits: Arc<Semaphore>,
}

/// Sends an error to the client instead of a response of git.
async fn send_refusal(chunks: &mpsc::Sender<Bytes>, permits: &Semaphore, service: Service, why: &str) {
    let _ = idle_timeout(permits, chunks.send(refusal(service, why))).await;
}

/// Serves a fetch from the mirror.
async fn fetch(gate: &Gate, repo: &Repo, client: Client) {
    Span::current().record("refs", repo.ref_count());
    let Client { beginning, body, gzip, version, chunks, permits } = client;
    let exchange = async {
        let spawned = gate.fds.spawn(&[], |_| {
            let mut command = command(repo, Service::Fetch, version);
            command.arg(".");
            command
        });
        let mut running = match spawned {
            Ok(child) => Running::new(child),
            Err(error) => {
                let why = format!("cannot run git: {error}");
                return send_refusal(&chunks, &permits, Service::Fetch, &why).await;
            }
        };
        let (Some(stdin), Some(mut stdout)) = (running.child.stdin.take(), running.child.stdout.take())
        else {
            return;
        };
        let forwarded = tokio::select! {
            // The request body has been forwarded, but the response continues.
            result = request_body::forward(beginning, body, stdin, gzip, None, &permits) => result,
            () = chunks.closed() => return,
        };
        tracing::debug!(forwarded = forwarded.is_ok(), "the request body has ended");
        match forwarded {
            Ok(()) | Err(BodyError::Closed) => forward_response(&mut stdout, &chunks, None, &permits).await,
            Err(why) => send_refusal(&chunks, &permits, Service::Fetch, &why.to_string()).await,
        }
    };
    let _ = timeout(EXCHANGE, exchange).await;
}

/// Stores a push in a file. When the push has arrived completely and no other push is being unpacked, passes it to git.
async fn receive(gate: &Arc<Gate>, repo: &Arc<Repo>, client: Client) {
    let Client { beginning, body, gzip, version, chunks, permits } = client;
    let until = Instant::now() + EXCHANGE;
    let prepare = async {
        let received = Received::create(&repo.git.mirror)?;
        let space = gate.disk_space.begin_push();
        let mut check = PushCheck::new(mirror::format(&repo.git.mirror).into(), space);
        let file = received.writer()?;
        request_body::forward(beginning, body, file, gzip, Some(&mut check), &permits).await?;
        let turn = Arc::clone(&gate.unpacking).acquire_owned().await.map_err(|_| BodyError::Closed)?;
        Ok::<_, BodyError>((received, check.into_space(), UnpackTurn::new(turn)))
    };
    let prepared = tokio::select! {
        prepared = timeout_at(until, prepare) => prepared,
        () = chunks.closed() => return,
    };
    let (received, _space, turn) = match prepared {
        Ok(Ok(prepared)) => prepared,
        Ok(Err(why)) => return send_refusal(&chunks, &permits, Service::Push, &why.to_string()).await,
        Err(_) => return,
    };
    tracing::debug!("the push has arrived");
    let turn = Arc::new(turn);
    // The lock prevents `clean_up` from removing the quarantine of this push.
    let receiving = Arc::clone(&repo.receiving).read_owned().await;
    let reasons = Reasons::default();
    let spawned = spawn_receive_pack(gate, repo, version, &reasons, received, &turn);
    let (mut running, hook) = match spawned {
        Ok((child, hook)) => (Running::new(child), hook),
        Err(error) => {
            let why = format!("cannot run git: {error}");
            return send_refusal(&chunks, &permits, Service::Push, &why).await;
        }
    };
    let Some(mut stdout) = running.child.stdout.take() else { return };
    let report = Some(ReportStatus::new(reasons));
    let _ = timeout_at(until, forward_response(&mut stdout, &chunks, report, &permits)).await;
    drop(chunks);
    // If the client has disconnected, `abort` withdraws the question to the user and prevents the push from being
    // forwarded. The hook receives no verdict and therefore refuses the push.
    hook.abort();
    running.drain_and_wait(stdout).await;
    drop(receiving);
    turn.end();
    repo.clean_up();
}

/// Lists the refs, or prepares the mirror for a fetch. Returns `None` if git has to answer from the mirror.
async fn answer_without_git(gate: &Gate, repo: &Repo, request: &[u8]) -> Option<Bytes> {
    if ls_refs::is_ls_refs(request) {
        return list_refs(gate, repo, request).await;
    }
    let error = repo.fetch_wanted(&gate.fds, wants::wanted_ids(request)).await.err()?;
    Some(refusal(Service::Fetch, &Refusal::from(Arc::new(error)).sentence()))
}

/// Lists the refs of the upstream. If the client names refs that are not mirrored, fetches the objects of these refs
/// first. Returns `None` if git has to answer from the mirror, because the upstream could not be reached.
async fn list_refs(gate: &Gate, repo: &Repo, request: &[u8]) -> Option<Bytes> {
    let (request, upstream) = (ListRequest::parse(request)?, repo.upstream().await.ok()?);
    match repo.fetch_others(&gate.fds, &request.others(&upstream)).await {
        Ok(()) => Some(request.answer(&upstream, repo.head().as_deref())),
        Err(error) => Some(refusal(Service::Fetch, &Refusal::from(Arc::new(error)).sentence())),
    }
}

/// Encodes an error so that a client of `service` shows it as a message of the remote.
fn refusal(service: Service, why: &str) -> Bytes {
    match service {
        Service::Push => report_status::refusal(why),
        Service::Fetch => packet(&format!("ERR {why}\n")).freeze(),
    }
}

/// Spawns receive-pack with a pre-receive hook that communicates with this process. Also spawns the task that replies
/// to the hook and sets `reasons`. receive-pack reads the push from `received`, after the gate has received it
/// completely.
fn spawn_receive_pack(
    gate: &Arc<Gate>,
    repo: &Arc<Repo>,
    version: Option<&'static str>,
    reasons: &Reasons,
    received: Received,
    turn: &Arc<UnpackTurn>,
) -> io::Result<(Child, AbortHandle)> {
    let input = received.into_reader()?;
    let (request, hook_request) = git::pipe()?;
    let (hook_reply, reply) = git::pipe()?;
    let child = gate.fds.spawn(&[&hook_request, &hook_reply], |fds| {
        let mut command = command(repo, Service::Push, version);
        command.arg(".").stdin(Stdio::from(input));
        for (name, fd) in ["GATE_ASK", "GATE_TELL"].iter().zip(fds) {
            command.env(name, fd.to_string());
        }
        command
    })?;
    let hook = Hook { request, reply, reasons: Arc::clone(reasons), turn: Arc::clone(turn) };
    let hook = push::serve(Arc::clone(gate), Arc::clone(repo), hook);
    let hook = tokio::spawn(hook.in_current_span());
    Ok((child, hook.abort_handle()))
}

/// Forwards git's output to the response until the output ends or the client disconnects. `report` parses the
/// output of a push.
async fn forward_response(
    stdout: &mut ChildStdout,
    chunks: &mpsc::Sender<Bytes>,
    mut report: Option<ReportStatus>,
    permits: &Semaphore,
) {
    loop {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        let read = tokio::select! {
            read = stdout.read_buf(&mut chunk) => read,
            () = chunks.closed() => return,
        };
        match read {
            Ok(length) if length > 0 => {
                let chunk = chunk.freeze();
                let chunk = report.as_mut().map_or(chunk.clone(), |report| report.feed(chunk));
                if !chunk.is_empty()
                    && !matches!(idle_timeout(permits, chunks.send(chunk)).await, Some(Ok(())))
                {
                    return;
                }
            }
            _ => {
                if let Some(rest) = report.map(|mut report| report.finish()).filter(|rest| !rest.is_empty()) {
                    let _ = idle_timeout(permits, chunks.send(rest)).await;
                }
                return;
            }
        }
    }
}

/// A response body that streams git's output.
pub(crate) struct StreamedBody(mpsc::Receiver<Bytes>);

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}
