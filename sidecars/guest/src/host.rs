//! Serves the host, which connects several times in succession. Each request is handled by its own task.
//!
//! A new connection replaces the previous connection. The agent, its output and its environment are not affected when a
//! host connects or disconnects.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bottle_channel::{Channel, Incoming, Rejoinable, Request, Side, Stdio, Stream};
use bottle_policy::names::WORKSPACE;
use bottle_protocol::session::guest::{Changed, FailureKind, GuestEvent, GuestRequest};
use bottle_protocol::session::{Hello, Role};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::answer::{answer, started};
use crate::attach::attach;
use crate::changed_files;
use crate::config::Transport;
use crate::copy::{copy_in, copy_out};
use crate::exec::exec;
use crate::failure::{Outcome, failed, other};
use crate::file_clock;
use crate::files;
use crate::guest::Guest;
use crate::logs::logs;
use crate::probe;
use crate::processes;
use crate::provision::provision;
use crate::services;
use crate::stop::stop;

/// The pause after a failed accept, for example if too many files are open.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves connections of the host. A listener is served without end, and standard streams are served until they end.
pub(crate) async fn serve(guest: &Arc<Guest>, transport: Opened) -> io::Result<()> {
    match transport {
        Opened::Listener(listener) => accept(guest, listener).await,
        Opened::Stdio(mut streams) => {
            while let Some(stream) = streams.accept().await? {
                serve_host(guest, stream).await;
            }
        }
    }
    Ok(())
}

/// A transport that is registered with the async runtime.
pub(crate) enum Opened {
    Listener(UnixListener),
    Stdio(Rejoinable<Receiver, Sender>),
}

impl Opened {
    /// Takes ownership of the transport. This function must be called before any process is started.
    pub(crate) fn open(transport: Transport) -> io::Result<Self> {
        Ok(match transport {
            Transport::Listener(listener) => {
                listener.set_nonblocking(true)?;
                Self::Listener(UnixListener::from_std(listener)?)
            }
            Transport::Stdio => Self::Stdio(Stdio::take()?.on_runtime()?),
        })
    }
}

async fn accept(guest: &Arc<Guest>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => serve_host(guest, stream).await,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of the host");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Performs the handshake on a new connection, and serves its requests.
async fn serve_host<IO>(guest: &Arc<Guest>, stream: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if let Some((channel, incoming)) = handshake(stream).await {
        guest.connect_host(channel);
        tokio::spawn(serve_requests(guest.clone(), incoming));
    }
}

async fn handshake<IO>(stream: IO) -> Option<(Channel, Incoming)>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match Channel::establish(stream, Side::Accepted, Hello::of(Role::Guest)).await {
        Ok((channel, incoming, hello)) if hello.role == Role::Keeper => Some((channel, incoming)),
        Ok((channel, _, hello)) => {
            tracing::warn!(role = ?hello.role, "the peer is not a keeper");
            channel.close();
            None
        }
        Err(error) => {
            tracing::warn!(%error, "handshake with the host failed");
            None
        }
    }
}

async fn serve_requests(guest: Arc<Guest>, mut incoming: Incoming) {
    while let Some(request) = incoming.next().await {
        // The channel limits the number of open streams, and thereby the number of tasks.
        tokio::spawn(handle(guest.clone(), request));
    }
}

async fn handle(guest: Arc<Guest>, request: Request) {
    let parsed = match request.parse::<GuestRequest>() {
        Ok(parsed) => parsed,
        Err(error) => return request.refuse(&error.to_string()).await,
    };
    let stream = request.accept();
    match parsed {
        GuestRequest::Provision(request) => {
            finish(&stream, provision(&guest, request).map(|()| GuestEvent::Done)).await;
        }
        GuestRequest::StartAgent(process) => match guest.agent.start(process, |process| guest.start(process))
        {
            Ok((pid, mut exit)) => {
                let _ = stream.message(&started(pid)).await;
                // All files for the start of the agent have been written, so the memory of their contents can be
                // returned to the system.
                bottle_heap::trim();
                let exited = GuestEvent::Exited(exit.ended().await);
                answer(&stream, &exited).await;
            }
            Err(failure) => answer(&stream, &GuestEvent::Failed(failure)).await,
        },
        GuestRequest::Attach(request) => match guest.environment() {
            Ok(_) => match guest.processes.hosted_or(&guest.agent, request.process.as_ref()) {
                Ok(hosted) => attach(guest.clone(), hosted, request, stream).await,
                Err(failure) => answer(&stream, &GuestEvent::Failed(failure)).await,
            },
            Err(failure) => answer(&stream, &GuestEvent::Failed(failure)).await,
        },
        GuestRequest::Exec(process) => exec(guest, process, stream).await,
        GuestRequest::StartProcess(request) => finish(&stream, processes::start_for(&guest, request)).await,
        GuestRequest::ListProcesses => answer(&stream, &processes::list(&guest).await).await,
        GuestRequest::WatchProcesses => processes::watch(&guest, stream).await,
        GuestRequest::ReadOutput(request) => processes::read(&guest, request, stream).await,
        GuestRequest::WriteInput(request) => processes::write(&guest, request, stream).await,
        GuestRequest::SignalProcess(request) => finish(&stream, processes::signal(&guest, &request)).await,
        GuestRequest::ResizeTerminal(request) => finish(&stream, processes::resize(&guest, &request)).await,
        GuestRequest::EndProcess(request) => finish(&stream, processes::end(&guest, &request).await).await,
        GuestRequest::WaitForProcesses { processes } => processes::wait(&guest, &processes, stream).await,
        GuestRequest::StartService(service) => finish(&stream, services::start(&guest, service).await).await,
        GuestRequest::StartServiceAgain { service } => {
            finish(&stream, services::start_again(&guest, &service).await).await;
        }
        GuestRequest::ListServices => answer(&stream, &services::list(&guest)).await,
        GuestRequest::StopService(request) => finish(&stream, services::stop(&guest, &request).await).await,
        GuestRequest::WatchServices => services::watch(&guest, stream).await,
        GuestRequest::Logs(request) => logs(guest, request, stream).await,
        GuestRequest::Stop(request) => {
            stop(&guest, Duration::from_millis(request.grace_ms)).await;
            let ended = match request.work {
                Some(request) => find_changes(&guest, request).await,
                None => Ok(GuestEvent::Done),
            };
            finish(&stream, ended).await;
            guest.finish();
        }
        GuestRequest::EndProcesses { grace_ms } => {
            stop(&guest, Duration::from_millis(grace_ms)).await;
            answer(&stream, &GuestEvent::Done).await;
        }
        GuestRequest::Pause => {
            guest.children.pause_all(true);
            answer(&stream, &GuestEvent::Done).await;
        }
        GuestRequest::Continue => {
            guest.children.pause_all(false);
            answer(&stream, &GuestEvent::Done).await;
        }
        GuestRequest::Status => {
            let (agent, troubles, overrun) = (guest.agent.state(), guest.problems(), guest.overrun());
            let quiet = guest.agent.log.quiet();
            let quiet_ms = quiet.map(|quiet| u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX));
            let terminal = guest.agent.terminal_size();
            let status = GuestEvent::Status { agent, troubles, overrun, quiet_ms, terminal };
            answer(&stream, &status).await;
        }
        GuestRequest::Probe(request) => {
            let probed = match guest.environment() {
                // The isolation can be probed before the bottle is provisioned, and therefore without environment
                // variables.
                Err(_) if request.isolation_only => Ok(probe::run(&request, &BTreeMap::new()).await),
                Ok(environment) => Ok(probe::run(&request, environment).await),
                Err(failure) => Err(failure),
            };
            finish(&stream, probed.map(|attempts| GuestEvent::Probed { attempts })).await;
        }
        GuestRequest::Moment => {
            answer(&stream, &GuestEvent::Moment { at: file_clock::between().await }).await
        }
        GuestRequest::Now => {
            answer(&stream, &GuestEvent::Moment { at: file_clock::before_any_change() }).await
        }
        GuestRequest::Changed(request) => finish(&stream, find_changes(&guest, request).await).await,
        GuestRequest::Files(request) => files::serve(&guest, request, stream).await,
        GuestRequest::CopyOut(request) => copy_out(guest, request, stream).await,
        GuestRequest::CopyIn(request) => copy_in(guest, request, stream).await,
    }
}

/// Searches for unsaved work. The search runs on a blocking thread, because the workspace may be large.
async fn find_changes(guest: &Guest, request: Changed) -> Outcome<GuestEvent> {
    let directories = match &request.directories[..] {
        [] => guest.work(),
        directories => directories.iter().map(|directory| guest.facts.inside(directory)).collect(),
    };
    let workspace = guest.facts.inside(WORKSPACE);
    let search =
        tokio::task::spawn_blocking(move || changed_files::search(&workspace, &directories, &request));
    match search.await.map_err(|error| other(error.to_string()))? {
        Ok(changes) => Ok(GuestEvent::Changed(changes)),
        Err(error) => Err(failed(FailureKind::BadPath, format!("cannot read the workspace: {error}"))),
    }
}

async fn finish(stream: &Stream, outcome: Outcome<GuestEvent>) {
    answer(stream, &outcome.unwrap_or_else(GuestEvent::Failed)).await;
}
