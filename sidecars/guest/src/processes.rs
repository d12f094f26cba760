//! Serves requests about processes that outlive the client that started them, such as shells, servers and long builds.
//!
//! ```text
//!   start ─► handle ─► list, watch, read (by position), write, signal, attach, wait, end
//! ```
//! The guest keeps these processes while keepers and clients connect and disconnect. If there are as many
//! processes as the guest may keep ([`processes`](bottle_protocol::session::guest::Provision::processes)), the next start removes the oldest process that has ended from the registry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bottle_channel::{ChannelError, Event, Stream, StreamSender};
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::{Exit, GuestEvent, Process, STDIN};
use bottle_protocol::session::process::{
    EndProcess, OutputRead, PROCESSES_MAX, ProcessInfo, ProcessName, ProcessState, ReadFrom, ReadOutput,
    ResizeTerminal, SignalProcess, StartProcess, WriteInput,
};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::process::{Pid, Signal};

use crate::answer::{answer, raw_pid};
use crate::children::ExitWatch;
use crate::failure::{Outcome, bad_state, other};
use crate::guest::Guest;
use crate::hosted::Hosted;
use crate::process_registry::Started;
use crate::redaction;
use crate::scrollback::Piece;
use crate::session_processes::{self, Usage};

/// The time limit for a killed process to be reaped. After this time, the process is assumed to be stuck in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two parts of the output that are sent to a following client. Because of the pause, a process with
/// much output does not occupy the guest, and several lines of a slow process are sent in one part. During the pause,
/// the log stores the output of the process.
const FOLLOW_PAUSE: Duration = Duration::from_millis(20);

/// The variable with which Python writes its output at once. Without it, Python collects several KiB before it writes
/// into a pipe, so the log of a server stays empty.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// Starts a process for a client.
pub(crate) fn start_for(guest: &Guest, request: StartProcess) -> Outcome<GuestEvent> {
    let Started { handle, pid, .. } = start(guest, request.process, request.name)?;
    Ok(GuestEvent::ProcessStarted { handle, pid: raw_pid(pid) })
}

/// Starts a process and registers it. The guest stores the output of the process.
pub(crate) fn start(guest: &Guest, mut process: Process, name: Option<ProcessName>) -> Outcome<Started> {
    set_unbuffered(&mut process, guest.environment()?);
    guest.processes.start(name, |hosted| hosted.start(process, |process| guest.start(process)))
}

/// Sets the variable [`UNBUFFERED`], unless the request or the environment of the bottle sets it. A process in a
/// terminal does not need it.
fn set_unbuffered(process: &mut Process, provisioned: &BTreeMap<String, Secret>) {
    if process.terminal.is_none() && !provisioned.contains_key(UNBUFFERED) {
        process.env.entry(UNBUFFERED.to_owned()).or_insert_with(|| "1".to_owned());
    }
}

/// Lists the agent and all processes that clients and services started.
pub(crate) async fn list(guest: &Guest) -> GuestEvent {
    // Reading `/proc` takes some milliseconds if the bottle has many processes, so a blocking thread reads it.
    let sessions = tokio::task::spawn_blocking(session_processes::measure).await.unwrap_or_default();
    let usage = |pid: Pid| sessions.get(&pid.as_raw_pid()).copied().unwrap_or_default();
    let agent = info(None, None, &guest.agent, usage);
    GuestEvent::Processes { processes: agent.into_iter().chain(started_by_clients(guest, usage)).collect() }
}

/// Sends the list of processes that clients started, immediately and whenever another process starts, until the client
/// ends the stream.
pub(crate) async fn watch(guest: &Guest, stream: Stream) {
    let mut starts = guest.processes.starts();
    let (sender, _receiver) = stream.split();
    let sending = async {
        loop {
            starts.mark_unchanged();
            let processes = started_by_clients(guest, |_| Usage::default());
            let sent = sender.message(&GuestEvent::Processes { processes }).await;
            if sent.is_err() || starts.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = sending => {}
        () = sender.closed() => {}
    }
}

fn started_by_clients(guest: &Guest, usage: impl Fn(Pid) -> Usage) -> Vec<ProcessInfo> {
    let all = guest.processes.all();
    all.into_iter().filter_map(|e| info(Some(e.handle), e.name, &e.hosted, &usage)).collect()
}

/// Describes a process. Returns `None` if the process has not started.
fn info(
    handle: Option<ProcessName>,
    name: Option<ProcessName>,
    hosted: &Hosted,
    usage: impl Fn(Pid) -> Usage,
) -> Option<ProcessInfo> {
    let ((pid, exit), origin) = hosted.process().zip(hosted.origin())?;
    let Usage { processes, cpu_ms, memory_bytes } = usage(pid);
    let cpu_ms = cpu_ms + session_processes::ticks_to_ms(exit.reaped_ticks());
    Some(ProcessInfo {
        handle,
        name,
        pid: raw_pid(pid),
        argv: origin.argv,
        started_at: origin.started_at,
        ended_at: hosted.ended_at(),
        state: exit.now().map_or(ProcessState::Running, ProcessState::Exited),
        terminal: origin.in_terminal,
        processes,
        cpu_ms,
        memory_bytes,
    })
}

/// Sends one part of a process's output. If the request has `follow`, sends all further parts too.
pub(crate) async fn read(guest: &Guest, request: ReadOutput, stream: Stream) {
    let hosted = match guest.processes.find(&request.process) {
        Ok(hosted) => hosted,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let log = &hosted.log;
    let wanted = match request.from {
        ReadFrom::Position(position) => position,
        ReadFrom::LastLines(lines) => log.last_lines(lines),
    };
    let wanted = wanted.min(readable_end(&hosted));
    let (sender, _receiver) = stream.split();
    let sending = async {
        if request.follow {
            return follow(guest, &hosted, wanted, request.max, &sender).await;
        }
        let waiting = tokio::time::timeout(Duration::from_millis(request.wait_ms), log.grown_beyond(wanted));
        // A timeout is ignored: if no output arrives in time, the part is empty.
        let _ = waiting.await;
        let _ = send_part(guest, &hosted, wanted, request.max, &sender).await?;
        sender.end().await
    };
    tokio::select! {
        sent = sending => if let Err(error) = sent {
            tracing::debug!(%error, "output not sent");
        },
        () = sender.closed() => {}
    }
}

/// Sends all output from the position `from` on, until the process has ended.
async fn follow(
    guest: &Guest,
    hosted: &Hosted,
    mut from: u64,
    max: u32,
    sender: &StreamSender,
) -> Result<(), ChannelError> {
    let _following = hosted.follow();
    loop {
        hosted.log.grown_beyond(from).await;
        let read = send_part(guest, hosted, from, max, sender).await?;
        if read.state != ProcessState::Running && read.next >= read.end {
            return sender.end().await;
        }
        from = read.next;
        tokio::time::sleep(FOLLOW_PAUSE).await;
    }
}

/// Sends a part of the output from the position `wanted` on. Then sends the range of positions that the part covers.
async fn send_part(
    guest: &Guest,
    hosted: &Hosted,
    wanted: u64,
    max: u32,
    sender: &StreamSender,
) -> Result<OutputRead, ChannelError> {
    let log = &hosted.log;
    let state = state(hosted);
    let part = log.part(wanted, max, readable_end(hosted).max(wanted));
    let (mut from, mut next) = (None, part.start);
    let mut lost = part.start - wanted;
    while next < part.end {
        let mut behind = next;
        let Some(Piece::Bytes { fd, bytes }) = log.try_next(&mut behind) else { break };
        // The log may drop its oldest bytes during the read. In this case, `start` is greater than `next`.
        let start = behind - bytes.len() as u64;
        lost += start - next;
        let left = usize::try_from(part.end.saturating_sub(start)).unwrap_or(usize::MAX);
        let taken = bytes.len().min(left);
        next = start + taken as u64;
        from.get_or_insert(start);
        let redactor = guest.redaction().map(Arc::as_ref);
        sender.data_bytes(fd, redaction::in_log(redactor, log, start, bytes.slice(..taken))).await?;
    }
    let end = readable_end(hosted).max(next);
    let cpu_ms = match (state, hosted.process()) {
        (ProcessState::Exited(_), Some((_, exit))) => {
            Some(session_processes::ticks_to_ms(exit.reaped_ticks()))
        }
        _ => None,
    };
    let read = OutputRead { from: from.unwrap_or(part.start), next, lost, end, state, cpu_ms };
    sender.message(&GuestEvent::Read(read.clone())).await?;
    Ok(read)
}

/// Returns the state of a process. The process counts as exited only after its last output is in the log.
fn state(hosted: &Hosted) -> ProcessState {
    match hosted.process().and_then(|(_, exit)| exit.now()) {
        Some(exit) if hosted.ended_at().is_some() => ProcessState::Exited(exit),
        _ => ProcessState::Running,
    }
}

/// Returns the position up to which clients can read the output of a process. While the process runs, the beginning of
/// a character waits for its rest.
fn readable_end(hosted: &Hosted) -> u64 {
    match state(hosted) {
        ProcessState::Running => hosted.log.end_of_characters(),
        ProcessState::Exited(_) => hosted.log.now(),
    }
}

/// Finds a process that has not ended.
fn find_running(guest: &Guest, process: &ProcessName) -> Outcome<Arc<Hosted>> {
    let hosted = guest.processes.find(process)?;
    let runs = hosted.process().is_some_and(|(_, exit)| exit.now().is_none());
    if runs { Ok(hosted) } else { Err(bad_state(format!("{process} has ended"))) }
}

/// Writes the client's data to the input of a process.
pub(crate) async fn write(guest: &Guest, request: WriteInput, stream: Stream) {
    let hosted = match find_running(guest, &request.process) {
        Ok(hosted) => hosted,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let (sender, mut receiver) = stream.split();
    let input = hosted.input().await;
    let taken = async {
        loop {
            match receiver.next().await {
                Some(Event::Data { fd: STDIN, bytes }) => {
                    if !bytes.is_empty() {
                        input.write(bytes).await;
                    }
                }
                Some(Event::Data { .. } | Event::Message(_)) => {}
                Some(Event::End) => break,
                None | Some(Event::Reset(_)) => return,
            }
        }
        if request.close {
            input.write(Bytes::new()).await;
        }
        let done = async {
            sender.message(&GuestEvent::Done).await?;
            sender.end().await
        };
        if let Err(error) = done.await {
            tracing::debug!(%error, "answer not sent");
        }
    };
    // A process that does not read its input blocks the write until the client disconnects.
    tokio::select! {
        () = taken => {}
        () = sender.closed() => {}
    }
}

/// Sends a signal to a process. For the signals of terminal keys, sends the signal to the foreground processes of the
/// terminal.
pub(crate) fn signal(guest: &Guest, request: &SignalProcess) -> Outcome<GuestEvent> {
    let hosted = find_running(guest, &request.process)?;
    let signal = Signal::from_named_raw(request.signal.into())
        .ok_or_else(|| other(format!("there is no signal {}", request.signal)))?;
    let keys = [Signal::INT, Signal::QUIT, Signal::TSTP];
    match hosted.terminal() {
        Some(terminal) if keys.contains(&signal) => terminal.signal_foreground(signal),
        _ => hosted.signal(&guest.children, signal),
    }
    Ok(GuestEvent::Done)
}

/// Sets the size of a process's terminal.
pub(crate) fn resize(guest: &Guest, request: &ResizeTerminal) -> Outcome<GuestEvent> {
    let hosted = find_running(guest, &request.process)?;
    let terminal =
        hosted.terminal().ok_or_else(|| bad_state(format!("{} has no terminal", request.process)))?;
    terminal.resize(request.size);
    Ok(GuestEvent::Done)
}

/// Ends a process and all other processes of its session.
pub(crate) async fn end(guest: &Guest, request: &EndProcess) -> Outcome<GuestEvent> {
    let hosted = guest.processes.find(&request.process)?;
    let (pid, mut exit) = hosted.process().ok_or_else(|| bad_state("it has not started"))?;
    let ended = end_session(pid, &mut exit, Duration::from_millis(request.grace_ms)).await;
    ended
        .map(GuestEvent::Exited)
        .ok_or_else(|| other(format!("{} does not end, because it waits in the kernel", request.process)))
}

/// Ends all processes of the session of `leader`. If `leader` runs, sends SIGTERM first, and waits up to `grace` for
/// its exit. Then sends SIGKILL. Returns the exit status of `leader`, or `None` if `leader` is stuck in the kernel.
pub(crate) async fn end_session(leader: Pid, exit: &mut ExitWatch, grace: Duration) -> Option<Exit> {
    if exit.now().is_none() {
        session_processes::signal(leader, Signal::TERM);
        // A stopped process does not act on SIGTERM.
        session_processes::signal(leader, Signal::CONT);
        let _ = tokio::time::timeout(grace, exit.ended()).await;
    }
    let killed = async {
        session_processes::kill(leader).await;
        exit.ended().await
    };
    tokio::time::timeout(KILL_TIMEOUT, killed).await.ok()
}

/// Sends the exit status of each process when it has ended and all its output is in the log. Sends the exit statuses in
/// the order in which the processes ended.
pub(crate) async fn wait(guest: &Guest, names: &[ProcessName], stream: Stream) {
    let waited = match find_all(guest, names) {
        Ok(waited) => waited,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let (sender, _receiver) = stream.split();
    tokio::select! {
        sent = send_ends(waited, &sender) => if let Err(error) = sent {
            tracing::debug!(%error, "exit status not sent");
        },
        () = sender.closed() => {}
    }
}

/// Finds the processes with these names.
fn find_all(guest: &Guest, names: &[ProcessName]) -> Outcome<Vec<(ProcessName, Arc<Hosted>)>> {
    if names.len() > PROCESSES_MAX {
        return Err(other(format!("one request waits for at most {PROCESSES_MAX} processes")));
    }
    names.iter().map(|name| Ok((name.clone(), guest.processes.find(name)?))).collect()
}

async fn send_ends(
    waited: Vec<(ProcessName, Arc<Hosted>)>,
    sender: &StreamSender,
) -> Result<(), ChannelError> {
    let (mut ended, running): (Vec<_>, Vec<_>) =
        waited.into_iter().partition(|(_, hosted)| hosted.ended_at().is_some());
    ended.sort_by_key(|(_, hosted)| hosted.ended_at());
    for (process, hosted) in ended {
        let exit = end_of(&hosted).await;
        sender.message(&GuestEvent::ProcessEnded { process, exit }).await?;
    }
    let mut ends: FuturesUnordered<_> = running
        .into_iter()
        .map(|(process, hosted)| async move { (process, end_of(&hosted).await) })
        .collect();
    while let Some((process, exit)) = ends.next().await {
        sender.message(&GuestEvent::ProcessEnded { process, exit }).await?;
    }
    sender.end().await
}

/// Waits until a process has ended and all its output is in the log.
async fn end_of(hosted: &Hosted) -> Exit {
    loop {
        let mut end = hosted.log.now();
        if let Piece::End(exit) = hosted.log.next(&mut end).await {
            return exit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_of_the_bottle_decides_whether_python_buffers() {
        let mut process = Process::default();
        let provisioned = BTreeMap::from([(UNBUFFERED.to_owned(), Secret::new(String::new()))]);
        set_unbuffered(&mut process, &provisioned);
        assert_eq!(process.env, BTreeMap::new());
        set_unbuffered(&mut process, &BTreeMap::new());
        assert_eq!(process.env, BTreeMap::from([(UNBUFFERED.to_owned(), "1".to_owned())]));
    }
}
