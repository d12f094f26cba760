//! Requests about the processes of a bottle. For an ended bottle, the answers come from the logs that its keeper saved.

use std::collections::BTreeSet;
use std::time::Duration;

use bottle_channel::{Channel, Event, Stream, StreamReceiver};
use bottle_host::Host;
use bottle_instance::children::Parent;
use bottle_instance::output_pieces::OutputPieces;
use bottle_instance::process_logs::ProcessLogs;
use bottle_instance::{State, Store};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{self, Exit, GuestEvent, GuestRequest, STDERR, STDOUT, Size};
use bottle_protocol::session::process::{
    EndProcess, OutputRead, ProcessInfo, ProcessName, ProcessState, REDACTED, ReadFrom, ReadOutput,
    ResizeTerminal, SignalProcess, StartProcess, WriteInput,
};
use nix::sys::signal::Signal;
use regex::bytes::Regex;
use tokio::io::AsyncRead;

use super::connect::{connect, guest_failure, keeper_lost, open_guest, unexpected_answer};
use super::failure::Failure;
use super::input;
use super::lines::Lines;
use super::redaction::Redaction;
use super::report::{BottleProcess, MatchedLine, StartedProcess};

/// The maximum number of bytes that are read at once of a process's output.
pub const PART: u32 = 256 << 10;

/// How long one request waits for more output.
pub const FOLLOW: Duration = Duration::from_secs(30);

/// The default size of the terminal of a process that has no client.
pub const TERMINAL_SIZE: Size = Size { columns: 120, rows: 30 };

/// The processes of a bottle.
#[derive(Debug, Clone, Copy)]
pub struct Processes<'a> {
    host: &'a Host,
    slug: &'a Slug,
}

impl<'a> Processes<'a> {
    /// Creates a value for the processes of this bottle. Each request opens a new connection.
    pub fn new(host: &'a Host, slug: &'a Slug) -> Self {
        Self { host, slug }
    }

    /// Lists the agent and the processes that clients started. For a bottle that ended, lists the processes whose
    /// output was saved.
    ///
    /// # Errors
    /// When the bottle does not exist, or neither runs nor has saved processes.
    pub async fn list(&self) -> Result<Vec<BottleProcess>, Failure> {
        let processes = match Source::of(self.host, self.slug).await? {
            Source::Ended(saved) => saved_processes(&saved),
            Source::Running(channel) => match ask(&channel, GuestRequest::ListProcesses, self.slug).await? {
                GuestEvent::Processes { processes } => processes,
                _ => return Err(unexpected_answer()),
            },
        };
        Ok(processes.into_iter().map(|info| BottleProcess::of(self.slug, info)).collect())
    }

    /// Lists the processes of this bottle, as [`Processes::list`] does, and then those of the bottles that its agent
    /// started, of those that their agents started, and so on. `includes` says whether the list includes a bottle; the
    /// bottles that its agent started are then left out too. A bottle that ends during the call is left out.
    ///
    /// # Errors
    /// Returns the errors of [`Processes::list`] for this bottle, and an error if the bottles cannot be listed.
    pub async fn list_with_children(
        &self,
        includes: impl Fn(&Slug) -> bool,
    ) -> Result<Vec<BottleProcess>, Failure> {
        let mut all = self.list().await?;
        let store = Store::of(self.host);
        let mut bottles = vec![self.slug.clone()];
        let mut next = 0;
        while let Some(slug) = bottles.get(next).cloned() {
            next += 1;
            let mut children = children_of(&store, &slug)?;
            children.retain(|child| includes(child) && !bottles.contains(child));
            for child in &children {
                match Processes::new(self.host, child).list().await {
                    Ok(processes) => all.extend(processes),
                    Err(error) => tracing::debug!("the processes of {child} are not listed: {error:?}"),
                }
            }
            bottles.extend(children);
        }
        Ok(all)
    }

    /// Starts a process that continues without a client, and ends with the bottle.
    ///
    /// # Errors
    /// When the bottle does not run, or the guest cannot start the process.
    pub async fn start(&self, request: StartProcess) -> Result<StartedProcess, Failure> {
        match self.ask(GuestRequest::StartProcess(request)).await? {
            GuestEvent::ProcessStarted { handle, pid } => {
                Ok(StartedProcess { handle: handle.to_string(), pid })
            }
            _ => Err(unexpected_answer()),
        }
    }

    /// Writes `input` to the standard input of a process. With `close`, the standard input is then closed. If the
    /// process has a terminal, Ctrl-D is typed instead. If the process ends early, returns before all of `input` is
    /// read.
    ///
    /// # Errors
    /// When the bottle or the process does not run, or the input cannot be read.
    pub async fn write(
        &self,
        process: ProcessName,
        input: impl AsyncRead + Unpin,
        close: bool,
    ) -> Result<(), Failure> {
        let channel = connect(self.host, self.slug).await?;
        let request = GuestRequest::WriteInput(WriteInput { process, close });
        let (sender, receiver) = open_guest(&channel, request).await?.split();
        let mut answered = std::pin::pin!(answer(receiver));
        let answer = tokio::select! {
            answer = &mut answered => answer?,
            sent = input::send(&sender, input) => {
                sent?;
                sender.end().await.map_err(keeper_lost)?;
                answered.await?
            }
        };
        match answer {
            GuestEvent::Done => Ok(()),
            GuestEvent::Failed(failure) => Err(failed(failure, self.slug)),
            _ => Err(unexpected_answer()),
        }
    }

    /// Sends a signal to a process. If the process has a terminal, INT, QUIT and TSTP are sent to the program in the
    /// foreground.
    ///
    /// # Errors
    /// When the bottle or the process does not run.
    pub async fn signal(&self, process: ProcessName, signal: u8) -> Result<(), Failure> {
        match self.ask(GuestRequest::SignalProcess(SignalProcess { process, signal })).await? {
            GuestEvent::Done => Ok(()),
            _ => Err(unexpected_answer()),
        }
    }

    /// Sets the size of a process's terminal. The foreground program gets SIGWINCH if the size changes.
    ///
    /// # Errors
    /// When the bottle or the process does not run, or the process has no terminal.
    pub async fn resize(&self, process: ProcessName, size: Size) -> Result<(), Failure> {
        match self.ask(GuestRequest::ResizeTerminal(ResizeTerminal { process, size })).await? {
            GuestEvent::Done => Ok(()),
            _ => Err(unexpected_answer()),
        }
    }

    /// Ends a process and all programs that it started in its session: sends SIGTERM, and SIGKILL after `grace`.
    ///
    /// # Errors
    /// When the bottle or the process does not run.
    pub async fn end(&self, process: ProcessName, grace: Duration) -> Result<Exit, Failure> {
        let request = EndProcess { process, grace_ms: millis(grace) };
        exited(self.ask(GuestRequest::EndProcess(request)).await?)
    }

    /// Waits until one of these processes ends, at most for the time `limit`. Returns the process that ended first, or
    /// `None` if all of them still run.
    ///
    /// # Errors
    /// When the bottle does not run, or when it has no process of one of these names.
    pub async fn wait_for_first(
        &self,
        processes: &[ProcessName],
        limit: Option<Duration>,
    ) -> Result<Option<(ProcessName, Exit)>, Failure> {
        within(limit, async { self.ends(processes).await?.next().await }).await.transpose()
    }

    /// Waits until all these processes have ended, at most for the time `limit`. Returns the state of each process, in
    /// the order of `processes`.
    ///
    /// # Errors
    /// When the bottle does not run, or when it has no process of one of these names.
    pub async fn wait_for_all(
        &self,
        processes: &[ProcessName],
        limit: Option<Duration>,
    ) -> Result<Vec<(ProcessName, ProcessState)>, Failure> {
        let mut states: Vec<_> = processes.iter().map(|name| (name.clone(), ProcessState::Running)).collect();
        let waiting = async {
            let mut ends = self.ends(processes).await?;
            while states.iter().any(|(_, state)| *state == ProcessState::Running) {
                let (ended, exit) = ends.next().await?;
                let named = states.iter_mut().filter(|(name, _)| *name == ended);
                named.for_each(|(_, state)| *state = ProcessState::Exited(exit));
            }
            Ok::<(), Failure>(())
        };
        within(limit, waiting).await.transpose()?;
        Ok(states)
    }

    /// Begins to wait for the ends of these processes.
    async fn ends(&self, processes: &[ProcessName]) -> Result<Ends<'a>, Failure> {
        let channel = connect(self.host, self.slug).await?;
        let running: BTreeSet<ProcessName> = processes.iter().cloned().collect();
        let request = GuestRequest::WaitForProcesses { processes: running.iter().cloned().collect() };
        let stream = open_guest(&channel, request).await?;
        Ok(Ends { stream, slug: self.slug, running, _channel: channel })
    }

    /// Waits for a line of a process's output that matches `pattern`. Searches the output from the position `from`,
    /// including output that the process has already written.
    ///
    /// # Errors
    /// When the bottle does not run, when it has no process of this name, or when the process ended without a matching
    /// line.
    pub async fn wait_for_line(
        &self,
        process: &ProcessName,
        pattern: &Regex,
        from: u64,
    ) -> Result<MatchedLine, Failure> {
        let output = Source::Running(connect(self.host, self.slug).await?).output(self.slug, process);
        let mut lines = Lines::from(from);
        loop {
            let (pieces, read) = output.part(ReadFrom::Position(lines.next()), PART, FOLLOW).await?;
            let ended = read.state != ProcessState::Running && read.next >= read.end;
            if let Some((line, next)) = lines.find(&pieces.bytes(), read.next, ended, pattern) {
                return Ok(MatchedLine { line: String::from_utf8_lossy(&line).into_owned(), next });
            }
            if ended {
                let hint = format!("`bottle process log {} {process}` shows its output", self.slug);
                return Err(Failure::failed(format!("{process} ended, and no line of its output matches"))
                    .about(self.slug)
                    .hint(hint));
            }
        }
    }

    /// Returns the output of a process. All parts of the output are read through one connection.
    ///
    /// # Errors
    /// Returns the errors of [`Processes::list`].
    pub async fn output(&self, process: &ProcessName) -> Result<Output, Failure> {
        Ok(Source::of(self.host, self.slug).await?.output(self.slug, process))
    }

    async fn ask(&self, request: GuestRequest) -> Result<GuestEvent, Failure> {
        let channel = connect(self.host, self.slug).await?;
        ask(&channel, request, self.slug).await
    }
}

/// The ends of processes, in the order in which the processes end.
struct Ends<'a> {
    stream: Stream,
    slug: &'a Slug,
    /// The processes whose ends were not received yet.
    running: BTreeSet<ProcessName>,
    /// The connection of the stream.
    _channel: Channel,
}

impl Ends<'_> {
    /// Waits for the next end.
    async fn next(&mut self) -> Result<(ProcessName, Exit), Failure> {
        match self.stream.receive().await.map_err(keeper_lost)? {
            // The guest reports each process once.
            GuestEvent::ProcessEnded { process, exit } if self.running.remove(&process) => {
                Ok((process, exit))
            }
            GuestEvent::Failed(failure) => Err(failed(failure, self.slug)),
            _ => Err(unexpected_answer()),
        }
    }
}

/// Returns the result of `waiting`, or `None` if the time limit passes before.
async fn within<T>(limit: Option<Duration>, waiting: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, waiting).await.ok(),
        None => Some(waiting.await),
    }
}

/// The output of a process.
pub struct Output {
    source: Source,
    slug: Slug,
    process: ProcessName,
}

impl Output {
    /// Reads a part of the output, at most `max` bytes (at least 4). Waits at most `wait` if there is no output yet and
    /// the process runs. A part ends at the end of a UTF-8 character, so that the texts of all parts join to the text of
    /// the output. While the process runs, the beginning of a character waits for its rest.
    ///
    /// # Errors
    /// When the bottle has no process of this name, or when the output cannot be read.
    pub async fn part(
        &self,
        from: ReadFrom,
        max: u32,
        wait: Duration,
    ) -> Result<(OutputPieces, OutputRead), Failure> {
        match &self.source {
            Source::Running(channel) => self.ask(channel, from, max, wait).await,
            Source::Ended(logs) => self.saved(logs, from, max),
        }
    }

    /// Reads a part of the output as [`Output::part`] does, and redacts the values of the caller. For these values, the
    /// output around the part is read too.
    ///
    /// # Errors
    /// Returns the errors of [`Output::part`].
    pub async fn redacted_part(
        &self,
        from: ReadFrom,
        max: u32,
        wait: Duration,
        redaction: &Redaction,
    ) -> Result<(OutputPieces, OutputRead), Failure> {
        let (part, read) = self.part(from, max, wait).await?;
        if redaction.redactor().is_empty() || part.is_empty() {
            return Ok((part, read));
        }
        let reach = u32::try_from(redaction.redactor().reach()).unwrap_or(PART);
        let now = Duration::ZERO;
        let length = u64::from(reach).min(read.from);
        let before = match u32::try_from(length) {
            Ok(length) if length > 0 => {
                let from = ReadFrom::Position(read.from - u64::from(length));
                // A part has at least four bytes. The bytes before the position may be lost.
                Some(self.part(from, length, now).await?).filter(|(_, earlier)| earlier.next == read.from)
            }
            _ => None,
        };
        let before = before.map(|(pieces, _)| pieces.bytes()).unwrap_or_default();
        let (after, _) = self.part(ReadFrom::Position(read.next), reach, now).await?;
        Ok((redaction.pieces(&before, &part, &after.bytes()), read))
    }

    async fn ask(
        &self,
        channel: &Channel,
        from: ReadFrom,
        max: u32,
        wait: Duration,
    ) -> Result<(OutputPieces, OutputRead), Failure> {
        let process = self.process.clone();
        let request = ReadOutput { process, from, max, wait_ms: millis(wait), follow: false };
        let mut stream = open_guest(channel, GuestRequest::ReadOutput(request)).await?;
        // The text that replaces a secret may be longer than the piece of the secret in this part.
        let most = (max as usize + 1).saturating_mul(REDACTED.len());
        let (mut pieces, mut length) = (OutputPieces::default(), 0);
        loop {
            match stream.next().await {
                Some(Event::Data { fd: fd @ (STDOUT | STDERR), bytes }) => {
                    pieces.push(fd, &bytes);
                    length += bytes.len();
                }
                Some(Event::Data { .. }) => {}
                Some(Event::Message(json)) => {
                    return match serde_json::from_slice(&json) {
                        Ok(GuestEvent::Read(read)) => Ok((pieces, read)),
                        Ok(GuestEvent::Failed(failure)) => Err(failed(failure, &self.slug)),
                        _ => Err(unexpected_answer()),
                    };
                }
                Some(Event::Reset(why)) => return Err(keeper_lost(why)),
                Some(Event::End) | None => return Err(unexpected_answer()),
            }
            // The guest may send more than `max` bytes. This is checked, because all bytes are kept in memory.
            if length > most {
                return Err(unexpected_answer());
            }
        }
    }

    fn saved(
        &self,
        logs: &ProcessLogs,
        from: ReadFrom,
        max: u32,
    ) -> Result<(OutputPieces, OutputRead), Failure> {
        let Self { slug, process, .. } = self;
        let saved = logs.find(process).ok_or_else(|| {
            Failure::failed(format!("no output of a process {process} was saved before {slug} ended"))
                .about(slug)
                .hint(format!("`bottle ps {slug}` lists the processes whose output was saved"))
        })?;
        logs.read(&saved, from, max).map_err(|error| {
            Failure::cannot(format_args!("read the saved output of {process}"), error).about(slug)
        })
    }
}

/// The source of information about the processes of a bottle.
enum Source {
    /// The guest of the running bottle.
    Running(Channel),
    /// The logs that the keeper of an ended bottle saved.
    Ended(ProcessLogs),
}

impl Source {
    async fn of(host: &Host, slug: &Slug) -> Result<Self, Failure> {
        let store = Store::of(host);
        let saved = || ProcessLogs::of(&store.directory(slug));
        match store.state(slug) {
            Some(State::Kept(_)) => Ok(Self::Ended(saved())),
            Some(State::Dead(record)) if record.agent_exit.is_some() => Ok(Self::Ended(saved())),
            Some(State::Dead(_)) => match connect(host, slug).await {
                Ok(channel) => Ok(Self::Running(channel)),
                // The keeper and the guest were killed, and only the saved output remains.
                Err(_) if !saved().list().is_empty() => Ok(Self::Ended(saved())),
                Err(error) => Err(error),
            },
            _ => Ok(Self::Running(connect(host, slug).await?)),
        }
    }

    fn output(self, slug: &Slug, process: &ProcessName) -> Output {
        Output { source: self, slug: slug.clone(), process: process.clone() }
    }
}

/// Returns the bottles that the agent of this bottle started.
fn children_of(store: &Store, slug: &Slug) -> Result<Vec<Slug>, Failure> {
    let record = match store.state(slug) {
        Some(State::Alive(record) | State::Kept(record) | State::Dead(record)) => record,
        _ => return Ok(Vec::new()),
    };
    let children = Parent::of(&record).map_or(Ok(Vec::new()), |parent| parent.children(store));
    children.map_err(|error| Failure::cannot("list bottles", error).about(slug))
}

/// Returns the processes whose output a keeper saved, in the order of their start.
fn saved_processes(logs: &ProcessLogs) -> Vec<ProcessInfo> {
    let all = logs.list().into_iter();
    all.map(|saved| ProcessInfo { state: saved.state(), processes: 0, ..saved.process }).collect()
}

/// Waits for the message that contains the guest's answer.
async fn answer(mut receiver: StreamReceiver) -> Result<GuestEvent, Failure> {
    loop {
        match receiver.next().await {
            Some(event @ Event::Message(_)) => return event.parse().map_err(keeper_lost),
            Some(Event::Data { .. }) => {}
            Some(Event::Reset(why)) => return Err(keeper_lost(why)),
            Some(Event::End) | None => return Err(unexpected_answer()),
        }
    }
}

fn exited(event: GuestEvent) -> Result<Exit, Failure> {
    match event {
        GuestEvent::Exited(exit) => Ok(exit),
        _ => Err(unexpected_answer()),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Sends a request, and returns the only answer to it. A failure that the guest reports is returned as an error.
pub async fn ask(channel: &Channel, request: GuestRequest, slug: &Slug) -> Result<GuestEvent, Failure> {
    let mut stream = open_guest(channel, request).await?;
    match stream.receive().await.map_err(keeper_lost)? {
        GuestEvent::Failed(failure) => Err(failed(failure, slug)),
        event => Ok(event),
    }
}

/// Converts a failure that the guest reported to an error.
pub fn failed(failure: guest::Failure, slug: &Slug) -> Failure {
    guest_failure(failure).about(slug).hint(format!("`bottle ps {slug}` lists its processes"))
}

/// Parses a signal by its name, with or without SIG, or by its number.
///
/// # Errors
/// Returns a description of valid signals.
pub fn parse_signal(text: &str) -> Result<u8, String> {
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let named = name.parse::<Signal>().ok().map(|signal| signal as i32);
    let number = named.or_else(|| text.parse().ok()).and_then(|number| u8::try_from(number).ok());
    number.filter(|number| (1..=31).contains(number)).ok_or_else(|| {
        "write HUP, INT, QUIT, TERM, KILL, STOP, CONT, TSTP, USR1, USR2, WINCH or another name, or 1 to 31"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("TERM", 15), ("sigint", 2), ("Hup", 1), ("9", 9), ("31", 31)] {
            assert_eq!(parse_signal(text), Ok(number), "{text}");
        }
        for text in ["", "0", "32", "-1", "SIG", "NOPE", "99999999999"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
    }
}
