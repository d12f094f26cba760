//! Copies data in the three directions of a session (input, output, signals) until one direction ends the session.

use std::io::{self, IsTerminal};
use std::time::Duration;

use bottle_channel::{Event, StreamReceiver, StreamSender};
use bottle_lib::exec::{Deadline, Ended};
use bottle_protocol::session::guest::{ClientMessage, STDERR, STDIN, STDOUT};
use bottle_text::terminal::{Filter, Pass};
use tokio::io::{AsyncWrite, AsyncWriteExt, Stderr, Stdout};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Outcome, Session, Style, TitleNotices};
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::signals::{Caught, HANGUP, Signals};
use crate::console::terminal::{self, ClientKey, Detach, RawTerminal};

/// A second Ctrl-C within this time ends the session. The first Ctrl-C is sent to the program.
const REPEAT_WITHIN: Duration = Duration::from_secs(2);

/// The time limit for a terminal to accept the last output.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// The byte that rings the terminal's bell.
const BELL: u8 = 0x07;

/// The byte that the terminal sends for Ctrl-C.
const CTRL_C: u8 = 0x03;

/// Runs a session until it ends, or until the program is ended at the deadline. Restores the terminal before returning.
///
/// # Errors
/// Returns an error if the terminal cannot be put into raw mode.
pub(crate) async fn run(
    session: Session,
    deadline: &Deadline,
    signals: &mut Signals,
    output: &Output,
) -> Result<Outcome, CliError> {
    let (sender, receiver) = session.stream.split();
    let mut screen = None;
    let outcome = match session.style {
        Style::Terminal { detach, title, color, tint, watch_only } => {
            let title = title.map(|title| output.styles().displayable(&title).into_owned());
            let tint =
                tint && output.styles().color && terminal::supports_tint(|name| std::env::var(name).ok());
            let raw = RawTerminal::enter(title.as_deref(), color.as_deref(), tint)
                .map_err(|error| CliError::cannot("take over the terminal", error))?;
            screen = Some(raw);
            let agent_may_set = session.pass.title;
            let window_title = title.zip(session.title_notices);
            let window_title = window_title.map(|(title, title_notices)| WindowTitle {
                title,
                title_notices,
                rung_for: 0,
                locked: false,
                shows_notices: false,
                agent_may_set,
            });
            let typed =
                async { if watch_only { watch(detach).await } else { type_keys(detach, &sender).await } };
            let mut shown = Shown::new(session.pass, screen.as_ref());
            let outcome = tokio::select! {
                outcome = shown.show(receiver, window_title) => outcome,
                outcome = typed => outcome,
                why = deadline.enforce(&sender) => Outcome::Reset(why),
                number = resize_until_signal(signals, &sender) => Outcome::Interrupted(number),
            };
            shown.finish().await;
            outcome
        }
        Style::Pipes { stdin, pass_signals } => {
            let mut shown = Shown::new(session.pass, None);
            tokio::select! {
                outcome = shown.show(receiver, None) => outcome,
                never = feed(stdin, &sender) => never,
                why = deadline.enforce(&sender) => Outcome::Reset(why),
                number = pass_until_signal(pass_signals, signals, &sender, output) => {
                    Outcome::Interrupted(number)
                }
            }
        }
    };
    drop(screen);
    Ok(outcome)
}

/// The window's title, and the notices shown in it.
struct WindowTitle {
    title: String,
    title_notices: watch::Receiver<TitleNotices>,
    /// The number of proposals for which the bell has rung.
    rung_for: u64,
    /// Whether the bell has rung because the bottle was locked out.
    locked: bool,
    /// Whether the title currently shows notices.
    shows_notices: bool,
    /// Whether the agent may set the title. If so, the agent's title is restored when the title no longer shows
    /// notices.
    agent_may_set: bool,
}

/// The outputs on which the program's output is shown.
struct Shown<'a> {
    screen: Option<&'a RawTerminal>,
    stdout: Sink<'a, Stdout>,
    stderr: Sink<'a, Stderr>,
}

impl<'a> Shown<'a> {
    fn new(pass: Pass, screen: Option<&'a RawTerminal>) -> Self {
        Self {
            screen,
            stdout: Sink::new(tokio::io::stdout(), io::stdout().is_terminal(), pass, screen),
            stderr: Sink::new(tokio::io::stderr(), io::stderr().is_terminal(), pass, screen),
        }
    }

    /// Copies the program's output until the program ends.
    async fn show(&mut self, mut receiver: StreamReceiver, mut window_title: Option<WindowTitle>) -> Outcome {
        let Self { screen, stdout, stderr } = self;
        loop {
            let event = tokio::select! {
                event = receiver.next() => event,
                // Handles the next update only after the previous one was written. Otherwise, updates would accumulate
                // while the agent's output is inside an escape sequence.
                title_notices = changed(&mut window_title), if stdout.own.is_empty() => {
                    if let (Some(window_title), Some(screen)) = (&mut window_title, *screen) {
                        stdout.own.extend(window_title.update(&title_notices, screen));
                    }
                    if let Err(error) = stdout.write(&[]).await {
                        return Outcome::OutputClosed(error);
                    }
                    continue;
                }
            };
            let written = match event {
                Some(Event::Data { fd: STDOUT, bytes }) => stdout.write(&bytes).await,
                Some(Event::Data { fd: STDERR, bytes }) => stderr.write(&bytes).await,
                event => match Ended::<Outcome>::of(event) {
                    Some(ended) => return ended.into(),
                    None => Ok(()),
                },
            };
            if let Err(error) = written {
                return Outcome::OutputClosed(error);
            }
        }
    }

    /// Waits for the end of a write that [`Self::show`] began before its future was dropped. Another thread performs
    /// this write. A write after the restoration of the terminal would switch modes on again.
    async fn finish(&mut self) {
        let written = async { tokio::join!(self.stdout.stream.flush(), self.stderr.stream.flush()) };
        // A terminal can block output without end, for example after Ctrl-S.
        let _ = tokio::time::timeout(FINISH_TIMEOUT, written).await;
    }
}

/// Waits for the next change of the title's notices.
async fn changed(window_title: &mut Option<WindowTitle>) -> TitleNotices {
    if let Some(WindowTitle { title_notices, .. }) = window_title
        && title_notices.changed().await.is_ok()
    {
        return title_notices.borrow_and_update().clone();
    }
    // The sender was dropped, so there are no more changes. This future then never resolves, and the output continues.
    std::future::pending().await
}

impl WindowTitle {
    /// Returns the bytes for the terminal. The bytes ring the bell for a new proposal or lock-out, and set the new
    /// title or restore the previous title.
    fn update(&mut self, title_notices: &TitleNotices, screen: &RawTerminal) -> Vec<u8> {
        let mut bytes = Vec::new();
        // The bell does not ring for proposals that were answered before this client attached.
        let asks = title_notices.proposals > std::mem::replace(&mut self.rung_for, title_notices.proposals)
            && title_notices.pending > 0;
        if asks || (title_notices.locked && !std::mem::replace(&mut self.locked, true)) {
            bytes.push(BELL);
        }
        let has_notices = !title_notices.text.is_empty();
        if self.agent_may_set && has_notices != self.shows_notices {
            bytes.extend_from_slice(if has_notices { screen.push_title() } else { screen.pop_title() });
        }
        if has_notices {
            bytes.extend(terminal::title_sequence(&format!("{} - {}", self.title, title_notices.text)));
        } else if !self.agent_may_set && self.shows_notices {
            bytes.extend(terminal::title_sequence(&self.title));
        }
        self.shows_notices = has_notices;
        bytes
    }
}

/// Standard output or standard error of this client. Bytes for a file or pipe are unchanged; bytes for a
/// terminal are filtered.
struct Sink<'a, W> {
    stream: W,
    filter: Option<Filter>,
    screen: Option<&'a RawTerminal>,
    shown: Vec<u8>,
    /// Bytes that this client adds. They are sent when the program's output is not inside an escape sequence.
    own: Vec<u8>,
}

impl<'a, W: AsyncWrite + Unpin> Sink<'a, W> {
    fn new(stream: W, terminal: bool, pass: Pass, screen: Option<&'a RawTerminal>) -> Self {
        Self {
            stream,
            filter: terminal.then(|| Filter::new(pass)),
            screen,
            shown: Vec::new(),
            own: Vec::new(),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.filter {
            Some(filter) => {
                self.shown.clear();
                filter.filter(bytes, &mut self.shown);
                if let Some(screen) = self.screen {
                    screen.track_output(&self.shown);
                }
                if filter.is_between() {
                    self.shown.append(&mut self.own);
                }
                self.stream.write_all(&self.shown).await?;
            }
            None => self.stream.write_all(bytes).await?,
        }
        self.stream.flush().await
    }
}

/// Forwards keys to the program until the user presses the detach keys. If the stream is closed, this function never
/// returns, because [`Shown::show`] reports the closed stream.
async fn type_keys(mut detach: Detach, sender: &StreamSender) -> Outcome {
    let mut typed = terminal::chunks();
    while let Some(keys) = typed.recv().await {
        let (keys, pressed) = detach.feed(&keys);
        if !keys.is_empty() && sender.data(STDIN, &keys).await.is_err() {
            break;
        }
        match pressed {
            Some(ClientKey::Detach) => return Outcome::Detached,
            Some(ClientKey::Proposals) => return Outcome::Proposals,
            None => {}
        }
    }
    std::future::pending().await
}

/// Reads and drops keys until the user presses Ctrl-C or the detach keys.
async fn watch(mut detach: Detach) -> Outcome {
    let mut typed = terminal::chunks();
    while let Some(keys) = typed.recv().await {
        match detach.feed(&keys).1 {
            Some(ClientKey::Proposals) => return Outcome::Proposals,
            Some(ClientKey::Detach) => return Outcome::Detached,
            None if keys.contains(&CTRL_C) => return Outcome::Detached,
            None => {}
        }
    }
    std::future::pending().await
}

/// Forwards standard input and its end to the program.
async fn feed(wanted: bool, sender: &StreamSender) -> Outcome {
    if wanted {
        let mut input = terminal::chunks();
        while let Some(bytes) = input.recv().await {
            if sender.data_bytes(STDIN, bytes).await.is_err() {
                return std::future::pending().await;
            }
        }
        let _ = sender.data(STDIN, &[]).await;
    }
    std::future::pending().await
}

/// Forwards changes of the terminal's size, until a signal ends the session.
async fn resize_until_signal(signals: &mut Signals, sender: &StreamSender) -> u8 {
    loop {
        match signals.next().await {
            Caught::Resize => drop(sender.message(&ClientMessage::Resize(terminal::size())).await),
            Caught::End(number) => return number,
        }
    }
}

/// Forwards signals to the program. A second signal soon after the first, or SIGHUP, ends the session.
pub(super) async fn pass_until_signal(
    pass: bool,
    signals: &mut Signals,
    sender: &StreamSender,
    output: &Output,
) -> u8 {
    let mut last: Option<Instant> = None;
    loop {
        let signal = signals.end().await;
        if !pass || signal == HANGUP || last.is_some_and(|at| at.elapsed() < REPEAT_WITHIN) {
            return signal;
        }
        last = Some(Instant::now());
        output.note(format!(
            "signal {signal} forwarded to the program; another one within {} s ends the session",
            REPEAT_WITHIN.as_secs()
        ));
        let _ = sender.message(&ClientMessage::Signal { signal }).await;
    }
}
