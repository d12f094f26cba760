//! A client of a running bottle. The client shows the agent's session until the agent or the client ends the session.

use std::time::Duration;

use bottle_channel::Channel;
use bottle_host::{Host, Settings};
use bottle_keeper::protocol::{KeeperEvent, KeeperRequest};
use bottle_lib::exec::Deadline;
use bottle_policy::names::{Name, Slug};
use bottle_protocol::session::guest::{AgentState, Attach as AttachRequest, Exit, GuestEvent, GuestRequest};
use bottle_text::terminal::Pass;

use super::connect::{guest_failure, keeper_lost, open_guest};
use super::ended::report_end;
use super::route_args::parse_typed;
use super::unsaved_work;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, output_failed};
use crate::console::signals::{HANGUP, Signals};
use crate::console::terminal::{self, Detach};
use crate::screens::session::{self, Outcome, Session, Style, Watch};
use crate::screens::supervise::{Selected, show_selected};

/// How long the keeper may take to confirm a detach. After this time, the detach fails.
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the keeper may take to confirm a detach after the terminal was lost. The limit is longer here, because no
/// user waits.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the keeper may take to answer a status request. The limit is long because the keeper may first have to
/// reconnect to the guest, after a restart of the container engine. If no answer arrives in this time, the guest is
/// regarded as dead.
const STATUS_TIMEOUT: Duration = Duration::from_secs(45);

/// Milliseconds between SIGTERM and SIGKILL for the agent when a signal interrupts this client.
const INTERRUPTED_GRACE_MS: u64 = 2000;

/// Returns the session style for a raw terminal, with the user's detach keys.
pub(crate) fn on_terminal(
    settings: &Settings,
    title: String,
    color: Option<String>,
    watch_only: bool,
) -> Style {
    let keys = settings.detach_keys.as_ref().map_or(&[][..], |keys| keys.bytes());
    let tint = settings.terminal_tint;
    let detach = Detach::new(keys).with_proposals();
    Style::Terminal { detach, title: Some(title), color, tint, watch_only }
}

/// Returns the window title: the bottle's label and agent, or its slug if it has no label. The slug of a bottle without
/// a label begins with the agent's name.
pub(crate) fn title(label: Option<&str>, slug: &Slug, agent: &Name) -> String {
    label.map_or_else(|| slug.to_string(), |label| format!("{label} ({agent})"))
}

/// A client that is connected to a running bottle.
pub(crate) struct Client {
    pub(crate) host: Host,
    pub(crate) channel: Channel,
    pub(crate) slug: Slug,
    /// Whether this client started the bottle without `--detach`. The bottle then ends with this client,
    /// unless the user detaches.
    pub(crate) owns_bottle: bool,
    /// The value of the setting `terminal.pass`.
    pub(crate) pass: Pass,
}

impl Client {
    /// Runs the session until the agent or this client ends it. Returns the exit code.
    pub(crate) async fn run(
        self,
        style: Style,
        read_only: bool,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<u8, CliError> {
        let on_terminal = matches!(style, Style::Terminal { .. });
        let watch = Watch::start(&self.channel, !on_terminal, output);
        // Asks the keeper to let the user decide about unsaved work when the agent exits. The request must arrive
        // before the agent exits. Without this request, the keeper keeps the unsaved work.
        let offer = if on_terminal && !read_only && terminal::interactive() {
            self.channel.open(&KeeperRequest::Offer).await.ok()
        } else {
            None
        };
        let outcome = loop {
            let size = on_terminal.then(terminal::size);
            let request = GuestRequest::Attach(AttachRequest { read_only, process: None, size });
            let stream = open_guest(&self.channel, request).await?;
            let title_notices = Some(watch.title_notices());
            let session = Session { stream, style: style.clone(), pass: self.pass, title_notices };
            match session::run(session, &Deadline::default(), signals, output).await? {
                Outcome::Proposals => {
                    if let Some(lost) = self.show_proposals(&watch, output).await {
                        break lost;
                    }
                }
                outcome => break outcome,
            }
        };
        match outcome {
            Outcome::Exited(exit) => {
                if let Some(offer) = offer {
                    unsaved_work::decide(&self.host, &self.slug, &self.channel, offer, signals, output).await;
                }
                self.ended(watch, Some(exit), output).await
            }
            Outcome::Detached | Outcome::Proposals => self.detached(watch, output).await,
            // The terminal was closed, or the connection to it broke. The agent continues.
            Outcome::Interrupted(HANGUP) if on_terminal => self.hung_up().await,
            Outcome::Interrupted(number) => self.interrupted(number, watch, signals, output).await,
            Outcome::Failed(failure) => Err(guest_failure(failure).about(&self.slug)),
            Outcome::Reset(why) => self.reset(why, watch, output).await,
            Outcome::OutputClosed(_) if on_terminal => self.hung_up().await,
            Outcome::OutputClosed(error) => Err(output_failed(error)),
        }
    }

    /// Shows the proposals on the full screen. If this bottle has no pending proposal, offers to allow the host of the
    /// last denied request. If the terminal is lost while the screen is open, returns the outcome that ends the
    /// session.
    async fn show_proposals(&self, watch: &Watch, output: &Output) -> Option<Outcome> {
        let selected = Selected { slug: self.slug.clone(), denied_host: watch.last_denied_host() };
        let (host, screen_output) = (self.host.clone(), output.clone());
        // The screen runs in a blocking thread, so that the connection to the keeper stays active while the screen
        // waits for keys.
        let screen = move || show_selected(&host, &screen_output, parse_typed, selected);
        let shown = tokio::task::spawn_blocking(screen).await;
        match shown {
            Ok(Err(error)) if error.exit == 128u8.saturating_add(HANGUP) => {
                Some(Outcome::Interrupted(HANGUP))
            }
            Ok(Err(error)) => {
                output.error(&error);
                None
            }
            Ok(Ok(())) | Err(_) => None,
        }
    }

    /// Handles the agent's exit. Waits until the bottle has ended, and reports why it ended.
    async fn ended(self, watch: Watch, seen: Option<Exit>, output: &Output) -> Result<u8, CliError> {
        let end = watch.wait_for_end().await;
        for line in end.summary() {
            output.note(line);
        }
        let agent = seen.or_else(|| end.ended.as_ref().and_then(|ended| ended.agent));
        if let Some(ended) = &end.ended {
            report_end(&self.slug, ended, output);
        }
        agent
            .map(Exit::shell_code)
            .ok_or_else(|| self.broken("the bottle ended without its agent's exit code"))
    }

    fn broken(&self, message: &str) -> CliError {
        CliError::failed(message).about(&self.slug).exit(exit::BOTTLE_FAILED)
    }

    /// Handles the detach keys. The bottle keeps running.
    async fn detached(self, watch: Watch, output: &Output) -> Result<u8, CliError> {
        self.detach(DETACH_TIMEOUT).await?;
        if terminal::is_terminal() && !output.quiet {
            output.clear_below();
        }
        for line in watch.summary_so_far() {
            output.note(line);
        }
        output.note(format!("{0} keeps running; `bottle attach {0}` returns to it", self.slug));
        Ok(exit::DONE)
    }

    /// Asks the keeper to keep the bottle running, and waits at most `patience` for the confirmation. If the connection
    /// closed before the confirmation, the keeper would end the bottle.
    async fn detach(&self, patience: Duration) -> Result<(), CliError> {
        let mut stream = self.channel.open(&KeeperRequest::Detach).await.map_err(keeper_lost)?;
        match tokio::time::timeout(patience, stream.receive::<KeeperEvent>()).await {
            Ok(Ok(KeeperEvent::Detached)) => Ok(()),
            Ok(Ok(KeeperEvent::Refused(why))) => Err(CliError::failed(format!("cannot detach: {why}"))),
            Ok(Err(error)) => Err(keeper_lost(error)),
            Ok(Ok(_)) | Err(_) => Err(keeper_lost("it did not answer")),
        }
    }

    /// Handles the loss of the terminal. Prints nothing, because the terminal is gone. The bottle keeps running.
    async fn hung_up(&self) -> Result<u8, CliError> {
        self.detach(HANG_UP_TIMEOUT).await?;
        Ok(128u8.saturating_add(HANGUP))
    }

    /// Handles a signal that ends this client. If this client started the bottle, the bottle ends too.
    async fn interrupted(
        self,
        number: u8,
        watch: Watch,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<u8, CliError> {
        // After SIGHUP, nothing reads the output. The keeper ends the bottle by itself when this client disconnects.
        if self.owns_bottle && number != HANGUP {
            output.note(format!("signal {number}: stopping {}", self.slug));
            let stop = KeeperRequest::Stop { grace_ms: INTERRUPTED_GRACE_MS };
            let _stop = self.channel.open(&stop).await.map_err(keeper_lost)?;
            tokio::select! {
                end = watch.wait_for_end() => {
                    if let Some(ended) = &end.ended {
                        report_end(&self.slug, ended, output);
                    }
                }
                _ = signals.end() => output.note("no longer waiting; the keeper continues to stop it"),
            }
        }
        Ok(128u8.saturating_add(number))
    }

    /// Handles a reset stream. Either another client took over the agent, or the bottle or its keeper died.
    async fn reset(self, why: String, watch: Watch, output: &Output) -> Result<u8, CliError> {
        if self.guest_answers().await {
            if self.owns_bottle {
                // The other client now owns the session, so the bottle must not end with this client.
                self.detach(DETACH_TIMEOUT).await?;
            }
            let slug = &self.slug;
            output.note(format!(
                "the session ended: {why}; {slug} keeps running, and `bottle attach {slug}` returns to it"
            ));
            return Ok(exit::DONE);
        }
        let Some(ended) = watch.wait_for_end().await.ended else {
            return Err(self.broken("the bottle's keeper died").hint(format!(
                "`bottle list` shows the state of {}; `bottle cleanup` removes leftovers",
                self.slug
            )));
        };
        report_end(&self.slug, &ended, output);
        let agent = ended.agent.map(Exit::shell_code);
        agent.ok_or_else(|| match ended.lost {
            true => self.broken("something else than bottle removed the container, and its files are lost"),
            false => self.broken("the bottle failed before its agent ended"),
        })
    }

    async fn guest_answers(&self) -> bool {
        let ask = async {
            let mut stream = open_guest(&self.channel, GuestRequest::Status).await.ok()?;
            stream.receive::<GuestEvent>().await.ok()
        };
        let answer = tokio::time::timeout(STATUS_TIMEOUT, ask).await;
        matches!(answer, Ok(Some(GuestEvent::Status { agent: AgentState::Running, .. })))
    }
}
