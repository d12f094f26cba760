//! Starts pid 1, provisions it, runs the isolation probe, and starts the agent.

use std::time::Instant;

use bottle_channel::{Channel, Event, Stream};
use bottle_host::Settings;
use bottle_plan::{LiveDirectory, Plan, PlannedFile};
use bottle_policy::names;
use bottle_protocol::session::guest::{
    CopyIn, Exit, FailureKind, GuestEvent, GuestRequest, Process, Provision, ProvisionedFile, Reach,
};

use super::connection::{answer, connect, done, open, send};
use super::context::{LaunchContext, Trust};
use super::error::{LaunchError, Peer};
use super::isolation::{self, Controls};
use super::{conversation, environment, truststore, workspace};

/// Starts pid 1 and opens a channel to it.
pub(super) async fn start(context: &LaunchContext<'_>) -> Result<Channel, LaunchError> {
    context.backend.start_guest(&context.launch(), &context.order.prepared).await?;
    connect(context.backend, &context.order.plan.identity.slug, Peer::Guest).await
}

/// Sends certificates, environment variables and files to pid 1.
pub(super) async fn provision(
    context: &LaunchContext<'_>,
    guest: &Channel,
    trust: &Trust,
) -> Result<(), LaunchError> {
    let plan = &context.order.plan;
    let own = |path: &str, content: &str| ProvisionedFile {
        path: path.to_owned(),
        mode: 0o644,
        content: content.into(),
    };
    let Trust { authority, roots } = trust;
    let all = format!("{roots}\n{authority}");
    let mut files = vec![own(names::CA_FILE, authority), own(names::CA_BUNDLE_FILE, &all)];
    files.push(own(names::GIT_CONFIG_FILE, &plan.git_system_config()));
    files.push(own(names::MACHINE_ID_FILE, &format!("{}\n", context.host.machine_id(&plan.identity.slug))));
    files.extend(plan.agent.prompt.as_ref().map(|text| own(names::PROMPT_FILE, text)));
    files.extend(plan.agent.task.as_ref().map(|text| own(names::TASK_FILE, text)));
    let request = GuestRequest::Provision(Provision {
        env: environment::build(context)?,
        secret: environment::secret_names(plan),
        files,
        work: work_directories(plan),
        processes: Some(Settings::load(context.host).unwrap_or_default().processes_keep),
    });
    done(&mut open(guest, &request).await?).await?;
    let truststore = PlannedFile {
        path: names::TRUSTSTORE_FILE.trim_start_matches(names::RUN_DIR).to_owned(),
        mode: 0o644,
        content: truststore::of_pem(&all).map_err(LaunchError::host("build Java's truststore"))?,
    };
    copy_in(guest, names::RUN_DIR, vec![truststore]).await?;
    if plan.files.is_empty() {
        return Ok(());
    }
    copy_in(guest, "/", plan.files.clone()).await
}

/// Returns the directories in which changes are unsaved work. Returns `None` if this is the whole workspace. A live
/// workspace without a repository has no such directories, because its files are the user's and cannot be lost with the
/// bottle.
fn work_directories(plan: &Plan) -> Option<Vec<String>> {
    let live = plan.live.as_ref()?;
    Some(live.repository.map(|_| LiveDirectory::work_directories()).unwrap_or_default())
}

/// Writes files into the bottle. Their paths are relative to `directory`. Unlike the files of [`Provision`], these
/// files can be binary.
async fn copy_in(guest: &Channel, directory: &str, files: Vec<PlannedFile>) -> Result<(), LaunchError> {
    let mut stream = open(guest, &GuestRequest::CopyIn(CopyIn { path: directory.to_owned() })).await?;
    send(&mut stream, workspace::planned_files_archive(files)).await
}

/// Runs the isolation probe, if the backend isolates bottles.
pub(super) async fn probe_isolation(context: &LaunchContext<'_>, guest: &Channel) -> Result<(), LaunchError> {
    if !context.backend.capabilities().isolates {
        return Ok(());
    }
    let begun = Instant::now();
    let slug = &context.order.plan.identity.slug;
    let (controls, others) = tokio::join!(Controls::listen(), context.backend.other_listeners(slug));
    let controls = controls.map_err(LaunchError::host("list this machine's addresses"))?;
    let request = GuestRequest::Probe(controls.request(others?, true));
    let mut stream = open(guest, &request).await?;
    let attempts = match answer(&mut stream).await? {
        GuestEvent::Probed { attempts } => attempts,
        GuestEvent::Failed(failure) => return Err(LaunchError::Refused(Peer::Guest, failure.message)),
        _ => return Err(LaunchError::Unexpected(Peer::Guest)),
    };
    let mut attempts: Vec<_> =
        controls.judge(attempts).await.into_iter().map(|tried| tried.attempt).collect();
    tracing::info!("isolation probe made {} attempts in {:?}", attempts.len(), begun.elapsed());
    if isolation::all_blocked(&attempts) {
        return Ok(());
    }
    attempts.retain(|attempt| attempt.result != Reach::Blocked);
    Err(LaunchError::Isolation(attempts))
}

/// Starts the agent. The returned stream reports the agent's exit.
pub(super) async fn start_agent(context: &LaunchContext<'_>, guest: &Channel) -> Result<Stream, LaunchError> {
    let agent = &context.order.plan.agent;
    let mut argv = match &context.order.resumed {
        // If no conversation exists, the agent is started without its resume option, because with this option it would
        // exit with an error.
        Some(resumed) if !conversation::exists(guest, &context.order.plan.transcript).await => {
            resumed.anew.clone()
        }
        _ => agent.argv.clone(),
    };
    if let (Some(program), Some(first)) = (&context.order.prepared.program, argv.first_mut()) {
        first.clone_from(program);
    }
    let inside = context.order.plan.identity.start_directory();
    let mut process = Process {
        argv,
        env: std::collections::BTreeMap::new(),
        cwd: inside.map(|inside| format!("{}/{}", names::WORKSPACE, inside.display())),
        terminal: agent.terminal,
        merged: false,
        redact: false,
        stdin: agent.stdin,
        user: None,
        awaited: !context.order.plan.detached,
    };
    let (mut stream, mut event) = request_start(guest, process.clone()).await?;
    if let GuestEvent::Failed(failure) = &event
        && failure.kind == FailureKind::BadPath
        && process.cwd.take().is_some()
    {
        // The working directory may not exist, because an earlier run of a resumed bottle may have removed it. The
        // agent is then started without a working directory.
        (stream, event) = request_start(guest, process).await?;
    }
    match event {
        GuestEvent::Started { .. } => Ok(stream),
        GuestEvent::Failed(failure) => Err(match failure.kind {
            FailureKind::NotFound => LaunchError::ProgramMissing {
                report: failure.message,
                in_image: context.order.prepared.inside.is_some(),
            },
            FailureKind::NotExecutable => LaunchError::ProgramRefused(failure.message),
            _ => LaunchError::Refused(Peer::Guest, failure.message),
        }),
        _ => Err(LaunchError::Unexpected(Peer::Guest)),
    }
}

async fn request_start(guest: &Channel, process: Process) -> Result<(Stream, GuestEvent), LaunchError> {
    let mut stream = open(guest, &GuestRequest::StartAgent(process)).await?;
    let event = answer(&mut stream).await?;
    Ok((stream, event))
}

/// Waits until the agent exits, and ignores the agent's output. `agent` is a stream from [`start_agent`] or from an
/// attach request. Returns `None` when pid 1 disconnects before the agent exits.
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
