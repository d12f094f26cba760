//! Pid 1: started, greeted, provisioned, and asked to start the agent.

use std::time::{Duration, Instant};

use bottle_channel::{Channel, ChannelError, Event, Side, Stream};
use bottle_contract::names;
use bottle_contract::session::guest::{
    CopyIn, Exit, FailureKind, GuestEvent, GuestRequest, Process, Provision, ProvisionedFile, Reach,
};
use bottle_contract::session::{Hello, Role};

use super::isolation::{self, Controls};
use super::{LaunchError, Trust, Work, conversation, environment, workspace};

/// How long pid 1 may take to write a few files, or to start a program.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Starts pid 1 and greets it.
pub(super) async fn start(work: &Work<'_>) -> Result<Channel, LaunchError> {
    work.backend.start_guest(&work.site(), &work.order.prepared).await?;
    let stream = work.backend.connect_guest(&work.order.plan.identity.slug).await?;
    let (channel, _, _) = Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper))
        .await
        .map_err(|error| LaunchError::guest(format!("did not greet: {error}")))?;
    Ok(channel)
}

/// Certificates, environment and files.
pub(super) async fn provision(work: &Work<'_>, guest: &Channel, trust: &Trust) -> Result<(), LaunchError> {
    let plan = &work.order.plan;
    let own = |path: &str, content: &str| ProvisionedFile {
        path: path.to_owned(),
        mode: 0o644,
        content: content.into(),
    };
    let Trust { authority, roots } = trust;
    let all = format!("{roots}\n{authority}");
    let mut files = vec![own(names::CA_FILE, authority), own(names::CA_BUNDLE_FILE, &all)];
    files.extend(plan.agent.prompt.as_ref().map(|text| own(names::PROMPT_FILE, text)));
    files.extend(plan.agent.task.as_ref().map(|text| own(names::TASK_FILE, text)));
    let request = GuestRequest::Provision(Provision { env: environment::of(work)?, files });
    expect_done(guest, &request).await?;
    if plan.files.is_empty() {
        return Ok(());
    }
    let mut stream = open(guest, &GuestRequest::CopyIn(CopyIn { path: "/".to_owned() })).await?;
    workspace::send(&mut stream, workspace::archive_of(&plan.files)).await
}

/// Has pid 1 try every way out, where the backend promises that there is none but the proxy.
pub(super) async fn measure(work: &Work<'_>, guest: &Channel) -> Result<(), LaunchError> {
    if !work.backend.capabilities().isolates {
        return Ok(());
    }
    let begun = Instant::now();
    let slug = &work.order.plan.identity.slug;
    let (controls, others) = tokio::join!(Controls::stand(), work.backend.others(slug));
    let controls = controls
        .map_err(|error| LaunchError::Host(format!("cannot list this machine's addresses: {error}")))?;
    let request = GuestRequest::Probe(controls.request(others?, true));
    let mut stream = open(guest, &request).await?;
    let attempts = match answer(&mut stream).await? {
        GuestEvent::Probed { attempts } => attempts,
        GuestEvent::Failed(failure) => return Err(LaunchError::guest(failure.message)),
        _ => return Err(LaunchError::guest("answered out of turn")),
    };
    let mut attempts: Vec<_> =
        controls.judge(attempts).await.into_iter().map(|tried| tried.attempt).collect();
    tracing::info!("isolation measured by {} attempts in {:?}", attempts.len(), begun.elapsed());
    if isolation::holds(&attempts) {
        return Ok(());
    }
    attempts.retain(|attempt| attempt.result != Reach::Blocked);
    Err(LaunchError::Isolation(attempts))
}

/// Asks for the agent; the stream that comes back brings its end.
pub(super) async fn start_agent(work: &Work<'_>, guest: &Channel) -> Result<Stream, LaunchError> {
    let agent = &work.order.plan.agent;
    let mut argv = match &work.order.resumed {
        // An agent that finds no conversation to go on with ends with an error.
        Some(resumed) if !conversation::is_there(guest, &work.order.plan.transcript).await => {
            resumed.anew.clone()
        }
        _ => agent.argv.clone(),
    };
    if let (Some(program), Some(first)) = (&work.order.prepared.program, argv.first_mut()) {
        first.clone_from(program);
    }
    let request = GuestRequest::StartAgent(Process {
        argv,
        env: std::collections::BTreeMap::new(),
        cwd: None,
        terminal: agent.terminal,
        stdin: agent.stdin,
        user: None,
        awaited: !work.order.plan.detached,
    });
    let mut stream = open(guest, &request).await?;
    match answer(&mut stream).await? {
        GuestEvent::Started { .. } => Ok(stream),
        GuestEvent::Failed(failure) => Err(match failure.kind {
            FailureKind::NotFound => LaunchError::ProgramMissing(failure.message),
            FailureKind::NotExecutable => LaunchError::ProgramRefused(failure.message),
            _ => LaunchError::guest(failure.message),
        }),
        _ => Err(LaunchError::guest("answered out of turn")),
    }
}

/// Waits for the agent's end on the stream of [`start_agent`] or of an attach, whose output is passed
/// over; absent when pid 1 went away first.
pub async fn agent_end(agent: &mut Stream) -> Option<Exit> {
    loop {
        match agent.next().await? {
            Event::Message(message) => {
                if let Ok(GuestEvent::Exited(exit)) = serde_json::from_slice(&message) {
                    return Some(exit);
                }
            }
            Event::Data { .. } => {}
            Event::End | Event::Reset(_) => return None,
        }
    }
}

pub(super) async fn open(guest: &Channel, request: &GuestRequest) -> Result<Stream, LaunchError> {
    guest.open(request).await.map_err(lost)
}

/// Opens a stream whose only answer is that it was carried out.
async fn expect_done(guest: &Channel, request: &GuestRequest) -> Result<(), LaunchError> {
    let mut stream = open(guest, request).await?;
    done(&mut stream).await
}

/// Reads that answer.
pub(super) async fn done(stream: &mut Stream) -> Result<(), LaunchError> {
    match answer(stream).await? {
        GuestEvent::Done => Ok(()),
        GuestEvent::Failed(failure) => Err(LaunchError::guest(format!("could not: {}", failure.message))),
        _ => Err(LaunchError::guest("answered out of turn")),
    }
}

pub(super) async fn answer(stream: &mut Stream) -> Result<GuestEvent, LaunchError> {
    tokio::time::timeout(ANSWER_WITHIN, stream.receive())
        .await
        .map_err(|_| LaunchError::guest("did not answer in time"))?
        .map_err(lost)
}

pub(super) fn lost(error: ChannelError) -> LaunchError {
    LaunchError::guest(format!("went away: {error}"))
}
