//! The three directions of a session, at once, until one of them ends it.

use std::io::{self, IsTerminal};
use std::time::Duration;

use bottle_channel::{Event, StreamReceiver, StreamSender};
use bottle_contract::session::guest::{ClientMessage, GuestEvent, STDERR, STDIN, STDOUT};
use bottle_contract::terminal::{Filter, Pass};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::signals::{Caught, Signals};
use super::{Outcome, Session, Style};
use crate::cli::error::CliError;
use crate::cli::output::Output;
use crate::cli::terminal::{self, Detach, RawTerminal};

/// A second Ctrl-C within this long after the first wants the end, not the program's attention.
const AGAIN: Duration = Duration::from_secs(2);

/// What Ctrl-C is among keys.
const CTRL_C: u8 = 0x03;

/// Runs a session to its end. The terminal is given back before this returns.
///
/// # Errors
/// When the terminal cannot be taken over.
pub(crate) async fn run(
    session: Session,
    signals: &mut Signals,
    output: &Output,
) -> Result<Outcome, CliError> {
    let (sender, receiver) = session.stream.split();
    let mut screen = None;
    let outcome = match session.style {
        Style::Terminal { detach, title, color, watch_only } => {
            let title = title.map(|title| output.ink().letters(&title).into_owned());
            let raw = RawTerminal::enter(title.as_deref(), color.as_deref())
                .map_err(|error| CliError::failed(format!("cannot take over the terminal: {error}")))?;
            screen = Some(raw);
            let typed =
                async { if watch_only { watch(detach).await } else { type_keys(detach, &sender).await } };
            tokio::select! {
                outcome = show(receiver, session.pass, screen.as_ref(), title.zip(session.aside)) => outcome,
                outcome = typed => outcome,
                number = resize_until_signal(signals, &sender) => Outcome::Interrupted(number),
            }
        }
        Style::Pipes { stdin, pass_signals } => {
            tokio::select! {
                outcome = show(receiver, session.pass, None, None) => outcome,
                never = feed(stdin, &sender) => never,
                number = pass_until_signal(pass_signals, signals, &sender, output) => {
                    Outcome::Interrupted(number)
                }
            }
        }
    };
    drop(screen);
    Ok(outcome)
}

/// A title and what is said beside it.
type Titled = (String, watch::Receiver<String>);

/// Output until the program ends.
async fn show(
    mut receiver: StreamReceiver,
    pass: Pass,
    screen: Option<&RawTerminal>,
    mut titled: Option<Titled>,
) -> Outcome {
    let mut stdout = Sink::new(tokio::io::stdout(), io::stdout().is_terminal(), pass, screen);
    let mut stderr = Sink::new(tokio::io::stderr(), io::stderr().is_terminal(), pass, screen);
    loop {
        let event = tokio::select! {
            event = receiver.next() => event,
            title = changed(&mut titled) => {
                stdout.title = Some(title);
                if let Err(error) = stdout.write(&[]).await {
                    return Outcome::OutputClosed(error);
                }
                continue;
            }
        };
        let written = match event {
            Some(Event::Data { fd: STDOUT, bytes }) => stdout.write(&bytes).await,
            Some(Event::Data { fd: STDERR, bytes }) => stderr.write(&bytes).await,
            Some(Event::Data { .. }) => Ok(()),
            Some(Event::Message(json)) => match serde_json::from_slice::<GuestEvent>(&json) {
                Ok(GuestEvent::Exited(exit)) => return Outcome::Exited(exit),
                Ok(GuestEvent::Failed(failure)) => return Outcome::Failed(failure),
                Ok(_) => Ok(()),
                Err(_) => return Outcome::Reset("the bottle said something unreadable".to_owned()),
            },
            None | Some(Event::End) => break,
            Some(Event::Reset(why)) => return Outcome::Reset(why),
        };
        if let Err(error) = written {
            return Outcome::OutputClosed(error);
        }
    }
    Outcome::Reset("the bottle ended the session without a word".to_owned())
}

/// The title as it is to be from now on.
async fn changed(titled: &mut Option<Titled>) -> String {
    if let Some((title, aside)) = titled
        && aside.changed().await.is_ok()
    {
        return format!("{title} - {}", *aside.borrow_and_update());
    }
    // Nobody has more to say; the output goes on.
    std::future::pending().await
}

/// One of our standard streams: bytes as they come into a file or pipe, made harmless for a terminal.
struct Sink<'a, W> {
    stream: W,
    filter: Option<Filter>,
    screen: Option<&'a RawTerminal>,
    shown: Vec<u8>,
    /// To be set as soon as it cannot cut the program's output in two.
    title: Option<String>,
}

impl<'a, W: AsyncWrite + Unpin> Sink<'a, W> {
    fn new(stream: W, terminal: bool, pass: Pass, screen: Option<&'a RawTerminal>) -> Self {
        Self { stream, filter: terminal.then(|| Filter::new(pass)), screen, shown: Vec::new(), title: None }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.filter {
            Some(filter) => {
                self.shown.clear();
                filter.filter(bytes, &mut self.shown);
                if let Some(screen) = self.screen {
                    screen.note_output(&self.shown);
                }
                if filter.is_between()
                    && let Some(title) = self.title.take()
                {
                    self.shown.extend_from_slice(&terminal::title_sequence(&title));
                }
                self.stream.write_all(&self.shown).await?;
            }
            None => self.stream.write_all(bytes).await?,
        }
        self.stream.flush().await
    }
}

/// Keys to the program until the detach keys. A stream that is gone is the other direction's to report.
async fn type_keys(mut detach: Detach, sender: &StreamSender) -> Outcome {
    let mut typed = terminal::chunks();
    while let Some(keys) = typed.recv().await {
        let (keys, left) = detach.feed(&keys);
        if !keys.is_empty() && sender.data(STDIN, &keys).await.is_err() {
            break;
        }
        if left {
            return Outcome::Left;
        }
    }
    std::future::pending().await
}

/// Keys to nobody, until one that leaves.
async fn watch(mut detach: Detach) -> Outcome {
    let mut typed = terminal::chunks();
    while let Some(keys) = typed.recv().await {
        if keys.contains(&CTRL_C) || detach.feed(&keys).1 {
            return Outcome::Left;
        }
    }
    std::future::pending().await
}

/// Standard input to the program, its end included.
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

/// Sizes to the program, until a signal that ends the session.
async fn resize_until_signal(signals: &mut Signals, sender: &StreamSender) -> u8 {
    loop {
        match signals.next().await {
            Caught::Resize => drop(sender.message(&ClientMessage::Resize(terminal::size())).await),
            caught => return caught.number(),
        }
    }
}

/// Signals to the program; a second one soon after the first, or a lost terminal, ends the session.
async fn pass_until_signal(pass: bool, signals: &mut Signals, sender: &StreamSender, output: &Output) -> u8 {
    let mut last: Option<Instant> = None;
    loop {
        match signals.next().await {
            Caught::Resize => {}
            Caught::End(number) if pass && last.is_none_or(|at| at.elapsed() >= AGAIN) => {
                last = Some(Instant::now());
                output.note(format!(
                    "signal {number} passed on to the program; once more within {} s ends it",
                    AGAIN.as_secs()
                ));
                let _ = sender.message(&ClientMessage::Signal { signal: number }).await;
            }
            caught => return caught.number(),
        }
    }
}
