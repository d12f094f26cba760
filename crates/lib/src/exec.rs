//! Runs a command in a bottle to its end, and keeps the beginning and the end of its output.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bottle_backend::Access;
use bottle_channel::{Channel, Event, Stream, StreamReceiver, StreamSender};
use bottle_host::Host;
use bottle_instance::{State, Store};
use bottle_keeper::protocol::KeeperRequest;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{
    self, ClientMessage, Exit, GuestEvent, GuestRequest, Process, STDERR, STDIN, STDOUT,
};
use bottle_scan::StreamRedactor;
use tokio::io::AsyncRead;

use super::clip::Clip;
use super::connect::{connect, connect_or_open_files, end_of, guest_failure, keeper_lost};
use super::failure::Failure;
use super::input;
use super::redaction::Redaction;
use super::report::Executed;

/// The exit code that is reported for a command whose time limit passed. `timeout` of GNU coreutils 9.1 reports the
/// same code.
pub const TIMED_OUT: u8 = 124;

/// The default maximum number of bytes that are kept of a command's standard output, and of its standard error.
pub const OUTPUT_KEPT: usize = 50_000;

/// The time between SIGTERM and SIGKILL for a program whose time limit has passed.
const TERM_GRACE: Duration = Duration::from_secs(3);

/// The maximum time to wait, after SIGKILL, for the report that the program ended. A paused bottle reports the end
/// later.
const KILL_GRACE: Duration = Duration::from_secs(5);

const SIGTERM: u8 = 15;
const SIGKILL: u8 = 9;

/// How a program ended. `T` describes the interruption.
#[derive(Debug)]
pub enum Ended<T> {
    /// The program exited.
    Exited(Exit),
    /// The guest could not start the program.
    Failed(guest::Failure),
    /// The end of the program was not reported, for this reason.
    Lost(String),
    /// The program was interrupted.
    Interrupted(T),
}

impl<T> Ended<T> {
    /// Returns the end of the program that an event of its stream reports. `None` if the program continues to run.
    pub fn of(event: Option<Event>) -> Option<Self> {
        match event {
            Some(Event::Data { .. }) => None,
            Some(Event::Message(json)) => match serde_json::from_slice::<GuestEvent>(&json) {
                Ok(GuestEvent::Exited(exit)) => Some(Self::Exited(exit)),
                Ok(GuestEvent::Failed(failure)) => Some(Self::Failed(failure)),
                Ok(_) => None,
                Err(_) => Some(Self::Lost("the bottle sent an invalid message".to_owned())),
            },
            None | Some(Event::End) => {
                Some(Self::Lost("the bottle closed the session without an exit code".to_owned()))
            }
            Some(Event::Reset(why)) => Some(Self::Lost(why)),
        }
    }
}

/// The output of a command.
#[derive(Debug)]
pub struct Captured {
    /// The standard output.
    pub stdout: Clip,
    /// The standard error.
    pub stderr: Clip,
}

/// The time limit of a program.
#[derive(Debug, Default)]
pub struct Deadline {
    after: Option<Duration>,
    passed: AtomicBool,
}

impl Deadline {
    /// Creates a time limit of this duration. `None` means no limit.
    pub fn after(after: Option<Duration>) -> Self {
        Self { after, passed: AtomicBool::new(false) }
    }

    /// When the limit passes, sends SIGTERM to the program's process group, and later SIGKILL. The caller drops the
    /// future when the program ends. Otherwise returns the error message that the program did not end.
    pub async fn enforce(&self, sender: &StreamSender) -> String {
        let Some(after) = self.after else { return std::future::pending().await };
        tokio::time::sleep(after).await;
        self.passed.store(true, Ordering::Relaxed);
        for (signal, grace) in [(SIGTERM, TERM_GRACE), (SIGKILL, KILL_GRACE)] {
            // Sending fails only if the stream has ended, and the stream's receiver reports that.
            let _ = sender.message(&ClientMessage::Signal { signal }).await;
            tokio::time::sleep(grace).await;
        }
        "the command did not end after SIGKILL".to_owned()
    }

    /// Whether the limit has passed, so that the program is ended.
    pub fn has_passed(&self) -> bool {
        self.passed.load(Ordering::Relaxed)
    }
}

/// Waits until the command of `stream` exits, its time limit passes or `interrupted` returns. Sends `input` to the
/// command, if there is any. `redaction` replaces values in the output. Keeps at most `limit` bytes of the command's
/// standard output, and of its standard error.
pub async fn capture<T>(
    stream: Stream,
    input: Option<impl AsyncRead + Unpin>,
    limit: usize,
    deadline: &Deadline,
    redaction: Option<&Redaction>,
    interrupted: impl AsyncFnOnce(&StreamSender) -> T,
) -> (Ended<T>, Captured) {
    let (sender, receiver) = stream.split();
    let mut captured = Captured { stdout: Clip::new(limit), stderr: Clip::new(limit) };
    let ended = tokio::select! {
        ended = keep(receiver, &mut captured, redaction) => ended,
        never = feed(input, &sender) => match never {},
        why = deadline.enforce(&sender) => Ended::Lost(why),
        interrupted = interrupted(&sender) => Ended::Interrupted(interrupted),
    };
    (ended, captured)
}

async fn keep<T>(
    mut receiver: StreamReceiver,
    captured: &mut Captured,
    redaction: Option<&Redaction>,
) -> Ended<T> {
    // The output is redacted before it is clipped, because a clipped value would not be found.
    let stream = || redaction.map(|redaction| redaction.redactor().stream());
    let (mut stdout, mut stderr) = (stream(), stream());
    let push = |clip: &mut Clip, stream: &mut Option<StreamRedactor<'_>>, bytes: &[u8]| match stream {
        Some(stream) => clip.push(&stream.push(bytes)),
        None => clip.push(bytes),
    };
    loop {
        match receiver.next().await {
            Some(Event::Data { fd: STDOUT, bytes }) => push(&mut captured.stdout, &mut stdout, &bytes),
            Some(Event::Data { fd: STDERR, bytes }) => push(&mut captured.stderr, &mut stderr, &bytes),
            event => {
                if let Some(ended) = Ended::of(event) {
                    let rest = |stream: Option<StreamRedactor<'_>>| stream.map(|mut it| it.finish());
                    captured.stdout.push(&rest(stdout).unwrap_or_default());
                    captured.stderr.push(&rest(stderr).unwrap_or_default());
                    return ended;
                }
            }
        }
    }
}

/// Sends the input to the program, and then signals the end of the input. If the input cannot be read, the input ends
/// early. If the stream is closed, the stream's receiver reports that.
async fn feed(input: Option<impl AsyncRead + Unpin>, sender: &StreamSender) -> std::convert::Infallible {
    let Some(input) = input else { return std::future::pending().await };
    let _ = input::send(sender, input).await;
    let _ = sender.data(STDIN, &[]).await;
    std::future::pending().await
}

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a running bottle.
    Running,
    /// In a running bottle, or on the kept files of an ended bottle. On kept files, the command runs alone and without
    /// a network.
    RunningOrPreserved,
}

/// The connection to the bottle in which a command runs.
#[derive(Debug)]
pub struct Connection<'a> {
    host: &'a Host,
    slug: &'a Slug,
    was_running: bool,
    channel: Channel,
}

impl<'a> Connection<'a> {
    /// Connects to a bottle.
    ///
    /// # Errors
    /// When the bottle does not exist, when it ended and `place` requires a running bottle, or when its kept files
    /// cannot be used.
    pub async fn open(host: &'a Host, slug: &'a Slug, place: Place) -> Result<Self, Failure> {
        let is_alive = matches!(Store::of(host).state(slug), Some(State::Alive(_)));
        let connected = match place {
            Place::RunningOrPreserved => connect_or_open_files(host, slug, Access::Write).await?,
            Place::Running => match connect(host, slug).await {
                Ok(channel) => channel,
                Err(failure) => return Err(end_of(host, slug).await.unwrap_or(failure)),
            },
        };
        let was_running = is_alive || place == Place::Running;
        Ok(Self { host, slug, was_running, channel: connected })
    }

    /// The channel to the keeper.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Starts a command in the bottle.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn start(&self, process: Process) -> Result<Stream, Failure> {
        match self.channel.open(&KeeperRequest::Guest(GuestRequest::Exec(process))).await {
            Ok(stream) => Ok(stream),
            Err(error) => Err(self.lost(error).await),
        }
    }

    /// Returns the failure for a lost connection. If the bottle has ended, the failure says how its agent ended.
    pub async fn lost(&self, error: impl Display) -> Failure {
        self.end_of_bottle().await.unwrap_or_else(|| keeper_lost(error)).about(self.slug)
    }

    /// If the bottle, and the command with it, ended after this connection was opened, returns a failure that says how
    /// the agent ended.
    pub async fn end_of_bottle(&self) -> Option<Failure> {
        if self.was_running { end_of(self.host, self.slug).await } else { None }
    }
}

/// Runs a command in a bottle with this input, for at most the duration `limit`. `redaction` replaces values in the
/// output; [`Process::redact`] redacts the bottle's own secrets. If the future is dropped, the command is ended.
///
/// # Errors
/// When the bottle does not exist, when its files cannot be used, when its agent ends, or when the guest cannot start
/// the command.
pub async fn run(
    (host, slug, place): (&Host, &Slug, Place),
    process: Process,
    input: Option<&[u8]>,
    limit: Duration,
    redaction: Option<&Redaction>,
) -> Result<Executed, Failure> {
    let merged = process.merged;
    let process = Process { stdin: input.is_some(), ..process };
    let connection = Connection::open(host, slug, place).await?;
    let stream = connection.start(process).await?;
    let deadline = Deadline::after(Some(limit));
    let begun = Instant::now();
    let never = async |_: &StreamSender| std::future::pending::<std::convert::Infallible>().await;
    let (ended, captured) = capture(stream, input, OUTPUT_KEPT, &deadline, redaction, never).await;
    let exit = match ended {
        Ended::Exited(exit) => Some(exit),
        Ended::Failed(failure) => return Err(guest_failure(failure).about(slug)),
        Ended::Lost(_) if deadline.has_passed() => None,
        Ended::Lost(why) => return Err(connection.lost(why).await),
        Ended::Interrupted(never) => match never {},
    };
    let code = match exit {
        Some(exit) if !deadline.has_passed() => exit.shell_code(),
        _ => TIMED_OUT,
    };
    Ok(Executed::of(code, exit, deadline.has_passed(), begun.elapsed(), &captured, merged))
}

#[cfg(test)]
mod tests {
    use bottle_channel::Side;
    use bottle_protocol::session::{Hello, Role};

    use super::*;
    use crate::input::PIECE;

    /// Returns the two ends of a program's stream, first the client's and then the guest's, and their channels.
    async fn streams() -> (Stream, Stream, [Channel; 2]) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (ours, theirs) = tokio::join!(
            Channel::establish(ours, Side::Dialed, Hello::of(Role::Keeper)),
            Channel::establish(theirs, Side::Accepted, Hello::of(Role::Guest)),
        );
        let ((ours, ..), (theirs, mut incoming, _)) = (ours.expect("channel"), theirs.expect("channel"));
        let stream = ours.open(&()).await.expect("stream");
        let request = incoming.next().await.expect("request");
        (stream, request.accept(), [ours, theirs])
    }

    async fn never(_: &StreamSender) {
        std::future::pending().await
    }

    #[tokio::test]
    async fn keeps_both_outputs_and_sends_the_whole_input() {
        let (stream, guest, _channels) = streams().await;
        let (sender, mut receiver) = guest.split();
        let program = async {
            let mut input = Vec::new();
            while let Some(Event::Data { fd: STDIN, bytes }) = receiver.next().await {
                if bytes.is_empty() {
                    break;
                }
                input.extend_from_slice(&bytes);
            }
            sender.data(STDOUT, &input).await.expect("output");
            sender.data(STDERR, b"warning").await.expect("output");
            sender.message(&GuestEvent::Exited(Exit::Code(3))).await.expect("end");
        };
        let input = vec![b'x'; 3 * PIECE + 1];
        let deadline = Deadline::default();
        let ((ended, captured), ()) =
            tokio::join!(capture(stream, Some(&input[..]), 10, &deadline, None, never), program);
        assert!(matches!(ended, Ended::Exited(Exit::Code(3))), "{ended:?}");
        assert_eq!((captured.stdout.bytes(), &*captured.stderr.text()), (input.len() as u64, "warning"));
        assert!(!deadline.has_passed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_ignores_its_time_limit_is_killed_and_reported() {
        let (stream, guest, _channels) = streams().await;
        let (_sender, mut receiver) = guest.split();
        let deadline = Deadline::after(Some(Duration::from_secs(60)));
        let begun = tokio::time::Instant::now();
        let none = None::<tokio::io::Empty>;
        let (ended, _) = capture(stream, none, 10, &deadline, None, never).await;
        assert!(matches!(&ended, Ended::Lost(why) if why.contains("SIGKILL")), "{ended:?}");
        assert!(deadline.has_passed() && begun.elapsed() >= Duration::from_secs(68), "{:?}", begun.elapsed());
        for number in [SIGTERM, SIGKILL] {
            let event = receiver.next().await.expect("a signal");
            let message: ClientMessage = event.parse().expect("a message");
            assert!(matches!(message, ClientMessage::Signal { signal } if signal == number), "{message:?}");
        }
    }

    #[tokio::test]
    async fn an_interruption_ends_the_wait() {
        let (stream, _guest, _channels) = streams().await;
        let none = None::<tokio::io::Empty>;
        let (ended, _) = capture(stream, none, 10, &Deadline::default(), None, async |_| 2).await;
        assert!(matches!(ended, Ended::Interrupted(2)), "{ended:?}");
    }
}
