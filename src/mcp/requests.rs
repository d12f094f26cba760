//! The requests that carry out tool calls. Each request calls the library in this process.

use std::time::Duration;

use bottle_backend::ProgressSink;
use bottle_host::environment_settings::Choices;
use bottle_host::process::ProcessId;
use bottle_host::{Host, Settings};
use bottle_instance::snapshots::CommitOptions;
use bottle_lib::bottle::Bottle;
use bottle_lib::bottles::active_bottles;
use bottle_lib::environments::{Environments, Use};
use bottle_lib::failure::Failure;
use bottle_lib::file_lines::LineRange;
use bottle_lib::launch::fork::ForkOrder;
use bottle_lib::launch::resume::ResumeOrder;
use bottle_lib::launch::start::{CopyIn, StartOrder};
use bottle_lib::launch::unattended::{self, Forked};
use bottle_lib::lines::pattern;
use bottle_lib::manifests::listed;
use bottle_lib::notice::unheard;
use bottle_lib::processes::{Processes, parse_signal};
use bottle_lib::redaction::Redaction;
use bottle_lib::report::{Committed, Discarded, ProcessEnd, ProcessOutput, Stopped, WaitedProcess};
use bottle_lib::save_snapshot::{self, Saving};
use bottle_lib::services::Services;
use bottle_lib::snapshot_selector::SnapshotSelector;
use bottle_lib::work::Wanted;
use bottle_manifest::Kind;
use bottle_manifest::services::{BadCheck, ReadinessCheck, ServiceLayer, Time};
use bottle_plan::Flags;
use bottle_policy::names::{Name, Slug};
use bottle_protocol::session::files::{FilePath, FileRequest};
use bottle_protocol::session::guest::{Process, Size};
use bottle_protocol::session::process::{ProcessName, ProcessState, ReadFrom, StartProcess};
use bottle_protocol::session::service::{Restart, StopService};
use serde::Serialize;
use serde_json::{Value, json};

use super::result::{CallResult, RESULT_MAX, too_large};
use super::scope::Scope;
use crate::console::agent_log::lines;

/// The time between the request to stop a service and the kill of the service.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A request to the library. The names in the request are checked when the request is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Lists all bottles.
    Bottles,
    /// Lists the agents that can be started.
    Agents,
    /// Starts a bottle in the background.
    Start(Box<Start>),
    /// Lists the tasks that have a bottle.
    Environments,
    /// Runs a command in the bottle of a task. The bottle is made if it does not exist.
    RunInEnvironment(Box<RunInEnvironment>),
    /// Stops the bottle of this task, and deletes its files.
    RemoveEnvironment(String),
    /// A request to a bottle, or about a bottle.
    Bottle(BottleRequest),
}

/// A request to a bottle, or about a bottle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BottleRequest {
    /// Resumes the bottle in the background, with this task if there is one.
    Resume(Option<String>),
    /// Stops the bottle. The duration is the grace period of its agent.
    Stop(Duration),
    /// Deletes everything that is kept of the bottle.
    Discard,
    /// Saves a snapshot, with this name if there is one.
    Commit(Option<String>),
    /// Starts new bottles from the bottle's files.
    Fork(Fork),
    /// Compares the workspace, or only this directory of the workspace, with its state at the start.
    Diff(Option<String>),
    /// Fetches the bottle's work.
    Pull(Pull),
    /// Restores these files to their state at the start. Without paths, restores all files.
    Reset { paths: Vec<String>, dry_run: bool },
    /// Reads the last lines of the agent's output.
    Log(u64),
    /// Reads the last decisions of the egress proxy.
    AccessLog(u64),
    /// A request about the bottle's files.
    Files(FileRequest),
    /// Reads lines of a file.
    FileLines(FilePath, LineRange),
    /// Lists the bottle's processes. With `children`, also lists those of the bottles that its agent started, as far as
    /// the client may use these bottles.
    Processes { children: bool },
    /// Runs a command until it ends, for at most this duration, with the input of the call.
    Exec(Process, Duration),
    /// Starts a process, with this name if there is one.
    StartProcess(Process, Option<String>),
    /// Reads a part of the output of a process, or of one stream of the output.
    Output { process: String, from: ReadFrom, max: u32, wait: Duration, only: Option<u8> },
    /// Waits for the first end of these processes, for the ends of all of them, or for a line of the output of one.
    Wait { processes: Vec<String>, all: bool, limit: Duration, until: Option<String>, from: u64 },
    /// Writes the input of the call to a process. Sets the size of the process's terminal first, if there is one.
    Write { process: String, close: bool, size: Option<Size> },
    /// Sends a signal to a process.
    Signal { process: String, signal: String },
    /// Ends a process.
    End { process: String, grace: Duration },
    /// Lists the bottle's services.
    Services,
    /// Starts a service.
    StartService(Box<StartService>),
    /// Restarts a service that has ended.
    StartServiceAgain(String),
    /// Stops a service.
    StopService(String),
}

/// A bottle to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) agent: String,
    pub(super) label: Option<String>,
    pub(super) bottles: Vec<String>,
    /// Whether the working directory is copied into the workspace.
    pub(super) copies_cwd: bool,
    pub(super) prompt: Option<String>,
    /// Whether the bottle ends with this process, which serves the connection of the client.
    pub(super) is_owned: bool,
}

/// A command in the bottle of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunInEnvironment {
    pub(super) task: String,
    pub(super) program: Process,
    /// The time limit of the command.
    pub(super) limit: Duration,
    /// Whether the bottle must be one that the client started.
    pub(super) is_own: bool,
}

/// New bottles to start from the files of another bottle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fork {
    /// The name of the snapshot. `None` selects the current files.
    pub(super) snapshot: Option<String>,
    pub(super) count: u16,
    pub(super) label: Option<String>,
    pub(super) prompt: Option<String>,
}

/// The work to fetch from a bottle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pull {
    /// The branch to fetch instead of the bottle's HEAD.
    pub(super) branch: Option<String>,
    pub(super) uncommitted: bool,
    /// The only directory of the workspace to fetch from.
    pub(super) directory: Option<String>,
}

/// A service to start. At most one of `http`, `tcp`, `file` and `check` is set, and defines when the service is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartService {
    pub(super) name: String,
    pub(super) program: Process,
    pub(super) http: Option<String>,
    pub(super) tcp: Option<String>,
    pub(super) file: Option<String>,
    /// A shell script that checks whether the service is ready. The command policy applies to this script as it does to
    /// the program.
    pub(super) check: Option<String>,
    pub(super) start_period: Option<Duration>,
    pub(super) restart: Restart,
}

impl Request {
    /// Returns the program that the request starts.
    pub(super) fn program(&self) -> Option<&Process> {
        match self {
            Self::Bottle(request) => request.program(),
            Self::RunInEnvironment(run) => Some(&run.program),
            _ => None,
        }
    }

    /// Returns the program of [`Request::program`] as a mutable reference.
    pub(super) fn program_mut(&mut self) -> Option<&mut Process> {
        match self {
            Self::Bottle(request) => request.program_mut(),
            Self::RunInEnvironment(run) => Some(&mut run.program),
            _ => None,
        }
    }
}

impl BottleRequest {
    /// Returns the program that the request starts.
    fn program(&self) -> Option<&Process> {
        match self {
            Self::Exec(program, _) | Self::StartProcess(program, _) => Some(program),
            Self::StartService(start) => Some(&start.program),
            _ => None,
        }
    }

    /// Returns the program of [`BottleRequest::program`] as a mutable reference.
    fn program_mut(&mut self) -> Option<&mut Process> {
        match self {
            Self::Exec(program, _) | Self::StartProcess(program, _) => Some(program),
            Self::StartService(start) => Some(&mut start.program),
            _ => None,
        }
    }

    /// Returns the script that runs in addition to the program.
    pub(super) fn script_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::StartService(start) => start.check.as_mut(),
            _ => None,
        }
    }
}

/// The client of a call.
#[derive(Clone, Copy)]
pub(super) struct Client<'a> {
    pub(super) host: &'a Host,
    pub(super) scope: &'a Scope,
    /// The values that are replaced in every result.
    pub(super) redaction: &'a Redaction,
}

/// Carries out the request of a client's call with the input of the call. If the request is cancelled or takes longer
/// than `limit`, the bottle drops the data that it received, and the library undoes unfinished work.
///
/// # Errors
/// Returns a sentence for the model.
pub(super) async fn carry_out(
    client: Client<'_>,
    bottle: &str,
    request: Request,
    (input, limit): (Option<&str>, Duration),
    cancelled: impl Future<Output = ()>,
) -> Result<CallResult, String> {
    let input = input.map(str::as_bytes);
    let result = tokio::select! {
        result = answer(client, bottle, request, input) => result.map_err(|why| client.redaction.text(&why))?,
        () = cancelled => return Err("the call was cancelled".to_owned()),
        () = tokio::time::sleep(limit) => {
            return Err(format!("the call took longer than {} seconds", limit.as_secs()));
        }
    };
    let result = match result {
        CallResult::Document(mut document) => {
            client.redaction.document(&mut document);
            CallResult::Document(document)
        }
        CallResult::Text(text) => CallResult::Text(client.redaction.text(&text)),
    };
    let size = match &result {
        CallResult::Document(document) => document.to_string().len(),
        CallResult::Text(text) => text.len(),
    };
    if size as u64 > RESULT_MAX { Err(too_large()) } else { Ok(result) }
}

async fn answer(
    client: Client<'_>,
    bottle: &str,
    request: Request,
    input: Option<&[u8]>,
) -> Result<CallResult, String> {
    let Client { host, scope, redaction } = client;
    let document = match request {
        Request::Bottles => {
            let mut bottles = active_bottles(host, true).await.map_err(said)?;
            bottles.retain(|listed| scope.bottle(host, &listed.slug).is_ok());
            shown(Ok(bottles))
        }
        Request::Agents => shown(Ok(listed(host, Kind::Agent, &unheard))),
        Request::Start(start) => shown(launch(host, *start).await),
        Request::Environments => {
            let all = Environments::of(host).map_err(said)?;
            let mut environments = all.list_measured().await.map_err(said)?;
            environments.retain(|listed| scope.environment(host, &listed.task).is_ok());
            shown(Ok(environments))
        }
        Request::RunInEnvironment(run) => {
            let RunInEnvironment { task, program, limit, is_own } = *run;
            let environments = Environments::of(host).map_err(said)?;
            let wanted = Use { task, choices: Choices::default(), is_own };
            shown(environments.run(wanted, program, (input, limit), Some(redaction), &unheard).await)
        }
        Request::RemoveEnvironment(task) => {
            let environments = Environments::of(host).map_err(said)?;
            shown(environments.remove(&task, |_| ()).await.map(|removed| [removed]))
        }
        Request::Bottle(request) => {
            let slug: Slug = bottle.parse().map_err(|_| format!("{bottle:?} is not a bottle"))?;
            match request {
                BottleRequest::Log(lines) => return log(host, slug, lines).await.map(CallResult::Text),
                BottleRequest::AccessLog(lines) => {
                    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
                    let read = Bottle::new(host, slug).access_log(lines).await;
                    return Ok(CallResult::Text(text(read.map_err(said)?)));
                }
                request => send(client, &slug, request, input).await,
            }
        }
    };
    document.map(CallResult::Document)
}

/// Returns the last lines of an agent's output.
async fn log(host: &Host, slug: Slug, tail: u64) -> Result<String, String> {
    let mut log = Bottle::new(host, slug).log().await.map_err(said)?;
    if let Some(lost) = log.lost.take() {
        return Err(said(lost));
    }
    let rendered = tokio::task::spawn_blocking(move || text(lines(&log, Some(tail))));
    rendered.await.map_err(|error| format!("cannot render the log: {error}"))
}

fn text(lines: Vec<String>) -> String {
    lines.into_iter().map(|line| line + "\n").collect()
}

async fn send(
    Client { host, scope, redaction }: Client<'_>,
    slug: &Slug,
    request: BottleRequest,
    input: Option<&[u8]>,
) -> Result<Value, String> {
    let content = input.unwrap_or_default();
    let bottle = Bottle::new(host, slug.clone()).redacting(redaction);
    let (processes, services) = (bottle.processes(), bottle.services());
    match request {
        BottleRequest::Resume(prompt) => shown(resume(host, slug, prompt).await),
        BottleRequest::Stop(grace) => {
            let stopped = bottle.stop(grace).await;
            shown(stopped.map(|ended| Stopped::of(slug, &ended)))
        }
        BottleRequest::Discard => {
            let discarded = bottle.discard().await;
            shown(discarded.map(|snapshot| Discarded { slug: slug.to_string(), snapshot }))
        }
        BottleRequest::Commit(name) => shown(commit(host, slug, name).await),
        BottleRequest::Fork(forked) => shown(fork(&bottle, forked).await),
        BottleRequest::Diff(directory) => shown(bottle.diff(directory.as_deref()).await),
        BottleRequest::Pull(Pull { branch: Some(_), uncommitted: true, .. }) => {
            Err("at most one of `branch` and `uncommitted` says what to fetch".to_owned())
        }
        BottleRequest::Pull(Pull { branch, uncommitted, directory }) => {
            let (branch, directory) = (branch.as_deref(), directory.as_deref());
            let pulled = bottle.pull(Wanted { branch, uncommitted, directory, roots: None }).await;
            shown(pulled.map(|pulled| pulled.document()))
        }
        BottleRequest::Reset { paths, dry_run } => shown(bottle.reset(&paths, dry_run).await),
        BottleRequest::Log(_) | BottleRequest::AccessLog(_) => Err("a log is no document".to_owned()),
        BottleRequest::Files(request) => shown(bottle.files().document(request, content).await),
        BottleRequest::FileLines(path, range) => shown(bottle.files().lines(&path, range).await),
        BottleRequest::Exec(process, limit) => shown(bottle.exec(process, input, limit).await),
        BottleRequest::Processes { children: false } => shown(processes.list().await),
        BottleRequest::Processes { children: true } => {
            let includes = |slug: &Slug| scope.bottle(host, slug.as_str()).is_ok();
            shown(processes.list_with_children(includes).await)
        }
        BottleRequest::StartProcess(process, name) => {
            let name = name.map(|name| parsed("name", &name)).transpose()?;
            shown(processes.start(StartProcess { process, name }).await)
        }
        BottleRequest::Output { process, from, max, wait, only } => {
            let output = processes.output(&parsed("process", &process)?).await.map_err(said)?;
            shown(output.redacted_part(from, max, wait, redaction).await.map(|(pieces, read)| {
                let pieces = only.map_or(pieces.clone(), |fd| pieces.only(fd));
                ProcessOutput::of(&pieces, read)
            }))
        }
        BottleRequest::Wait { processes: named, all, limit, until, from } => {
            let named = named.iter().map(|name| parsed("process", name)).collect::<Result<Vec<_>, _>>()?;
            match until {
                Some(_) if all => Err("at most one of `until` and `all` says what to wait for".to_owned()),
                Some(until) => wait_for_line(processes, &named, &until, from, limit).await,
                None if all => shown(processes.wait_for_all(&named, Some(limit)).await.map(|states| {
                    let of =
                        |(process, state): &(ProcessName, ProcessState)| WaitedProcess::of(process, *state);
                    states.iter().map(of).collect::<Vec<_>>()
                })),
                None => {
                    let ended = processes.wait_for_first(&named, Some(limit)).await;
                    shown(ended.map(|ended| WaitedProcess::first(&named, ended.as_ref())))
                }
            }
        }
        BottleRequest::Write { process, close, size } => {
            let process = parsed("process", &process)?;
            if let Some(size) = size {
                processes.resize(process.clone(), size).await.map_err(said)?;
            }
            done(processes.write(process, content, close).await)
        }
        BottleRequest::Signal { process, signal } => {
            let signal = parse_signal(&signal).map_err(|wanted| format!("`signal`: {wanted}"))?;
            done(processes.signal(parsed("process", &process)?, signal).await)
        }
        BottleRequest::End { process, grace } => {
            let ended = processes.end(parsed("process", &process)?, grace).await;
            shown(ended.map(ProcessState::Exited).map(ProcessEnd::from))
        }
        BottleRequest::Services => shown(services.list().await),
        BottleRequest::StartService(start) => start_service(services, *start).await,
        BottleRequest::StartServiceAgain(name) => shown(services.start_again(parsed("name", &name)?).await),
        BottleRequest::StopService(name) => {
            let grace_ms = u64::try_from(STOP_GRACE.as_millis()).unwrap_or(u64::MAX);
            shown(services.stop(StopService { name: parsed("name", &name)?, grace_ms }).await)
        }
    }
}

/// Starts a bottle. The parent of the bottle is the client in [`bottle_host::PARENT`].
async fn launch(host: &Host, start: Start) -> Result<Value, Failure> {
    let name = |name: &String| {
        name.parse().map_err(|error| Failure::usage(format!("{name:?} is no name of a manifest: {error}")))
    };
    let mut order = StartOrder::new(name(&start.agent)?);
    order.bottles = start.bottles.iter().map(name).collect::<Result<_, _>>()?;
    order.workspace.mode = start.copies_cwd.then_some(CopyIn::Tracked);
    let server =
        || ProcessId::own().map_err(|error| Failure::cannot("find the process of this server", error));
    let ends_with = start.is_owned.then(server).transpose()?;
    order.flags = Flags { label: start.label, task: start.prompt, ends_with, ..Flags::default() };
    let bottle = Bottle::start(host, order, &unheard).await?;
    Ok(json!({"slug": bottle.slug()}))
}

async fn resume(host: &Host, slug: &Slug, prompt: Option<String>) -> Result<Value, Failure> {
    let flags = Flags { task: prompt, ..Flags::default() };
    let order = ResumeOrder { slug: slug.clone(), snapshot: None, bottles: Vec::new(), flags };
    let resumed = unattended::resume(host, &Settings::load(host)?, order, &unheard).await;
    resumed.map_err(|failure| failure.about_if_unset(slug))?;
    Ok(json!({"slug": slug}))
}

async fn commit(host: &Host, slug: &Slug, name: Option<String>) -> Result<Committed, Failure> {
    let name: Option<Name> = name
        .map(|name| name.parse())
        .transpose()
        .map_err(|error| Failure::usage(format!("the name of the snapshot is invalid: {error}")))?;
    let options = CommitOptions { name, removed_by: None };
    let committed = async {
        let saving = Saving::begin(host, slug, options, &unheard).await?;
        saving.run(ProgressSink::discard()).await
    };
    let committed = committed.await.map_err(|failure| failure.about(slug))?;
    Ok(save_snapshot::document(host, committed))
}

async fn fork(bottle: &Bottle<'_>, fork: Fork) -> Result<Value, Failure> {
    let name = fork.snapshot.map(|name| name.parse()).transpose();
    let name =
        name.map_err(|error| Failure::usage(format!("the name of the snapshot is invalid: {error}")))?;
    let from = SnapshotSelector { slug: bottle.slug().clone(), name };
    let flags = Flags { task: fork.prompt, ..Flags::default() };
    let order = ForkOrder { from, count: fork.count, label: fork.label, flags };
    let Forked { slugs, failure } = bottle.fork(order).await?;
    let mut document = json!({"forked_from": bottle.slug(), "slugs": slugs});
    if let Some(failure) = failure {
        document["failed"] = said(failure).into();
    }
    Ok(document)
}

async fn start_service(services: Services<'_>, start: StartService) -> Result<Value, String> {
    let StartService { name, program, http, tcp, file, check, start_period, restart } = start;
    let refused = |error: BadCheck| error.to_string();
    let readiness = match (http, tcp, file, check) {
        (None, None, None, None) => ReadinessCheck::started(),
        (Some(url), None, None, None) => ReadinessCheck::http(&url).map_err(refused)?,
        (None, Some(address), None, None) => ReadinessCheck::tcp(&address).map_err(refused)?,
        (None, None, Some(path), None) => ReadinessCheck::file(&path).map_err(refused)?,
        (None, None, None, Some(script)) => {
            ReadinessCheck::command(["sh".to_owned(), "-c".to_owned(), script].to_vec()).map_err(refused)?
        }
        _ => return Err("at most one of `http`, `tcp`, `file` and `check` says when it is ready".to_owned()),
    };
    let mut layer = ServiceLayer { restart, ..ServiceLayer::new(program.argv.clone(), readiness) };
    layer.start_period = start_period.map_or(layer.start_period, Time);
    let mut service = layer.service(parsed("name", &name)?);
    service.process = program;
    shown(services.start(service).await)
}

/// Waits for a line of the output of one process.
async fn wait_for_line(
    processes: Processes<'_>,
    named: &[ProcessName],
    until: &str,
    from: u64,
    limit: Duration,
) -> Result<Value, String> {
    let [process] = named else { return Err("`until` waits for a line of one process".to_owned()) };
    let pattern = pattern(until).map_err(|error| format!("`until`: {error}"))?;
    let line = processes.wait_for_line(process, &pattern, from);
    match tokio::time::timeout(limit, line).await {
        Ok(matched) => shown(matched),
        Err(_) => shown(Ok(ProcessEnd::from(ProcessState::Running))),
    }
}

fn parsed(argument: &str, name: &str) -> Result<ProcessName, String> {
    name.parse().map_err(|error| format!("`{argument}`: {error}"))
}

/// Converts an answer to the JSON document of the result.
fn shown(answer: Result<impl Serialize, Failure>) -> Result<Value, String> {
    serde_json::to_value(answer.map_err(said)?).map_err(|error| format!("cannot write the result: {error}"))
}

fn done(answer: Result<(), Failure>) -> Result<Value, String> {
    answer.map_err(said)?;
    Ok(json!({"done": true, "notes": ""}))
}

/// Returns a sentence about a failure. Adds the subject of the failure only if the message does not name it.
fn said(Failure { subject, message, hint, .. }: Failure) -> String {
    let is_named =
        |subject: &str| message.split([' ', '`', ':', ',', ';', '(', ')']).any(|word| word == subject);
    let subject = subject.filter(|subject| !is_named(subject));
    let about = subject.map(|subject| format!("{subject}: ")).unwrap_or_default();
    let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{about}{message}{hint}")
}
