//! `bottle attach`: connects the terminal to a running agent.

use std::time::Duration;

use bottle_channel::Channel;
use bottle_contract::names::{Name, Slug};
use bottle_contract::session::guest::{
    AgentState, Attach as AttachRequest, Exit, GuestEvent, GuestRequest, Limited, Overrun,
};

use bottle_contract::terminal::Pass;

use super::completions;
use super::connect::{connect, keeper_lost, open_guest};
use super::error::CliError;
use super::exit;
use super::live;
use super::output::{Output, counted, output_failed};
use super::select_bottle::{Question, is_running};
use super::session::{self, Deadline, HANGUP, Outcome, Session, Signals, Style, Watch};
use super::supervise::{Selected, show_selected};
use super::terminal::{self, Detach};
use super::unsaved_work;
use crate::host::budget::Policy;
use crate::host::byte_size::ByteSize;
use crate::host::{Host, Settings};
use crate::instance::{State, Store};
use crate::keeper::protocol::{EndCause, Ended, KeeperEvent, KeeperRequest, Resumable};

/// How long the keeper may take to confirm a detach. After that, detaching fails.
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);

/// The same after the terminal was lost, when no user waits.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the keeper may take to answer a status request: it may have to connect to the guest again, after the
/// container engine restarted. After that, the guest counts as dead.
const STATUS_TIMEOUT: Duration = Duration::from_secs(45);

/// Milliseconds between SIGTERM and SIGKILL for the agent when a signal interrupts this client.
const INTERRUPTED_GRACE_MS: u64 = 2000;

/// Attach to a running agent: show its recent output, then follow it
///
/// If the agent ends while you are attached, this command exits with the agent's exit code.
#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    /// The bottle, as `bottle list` shows it; asks when omitted
    #[arg(add = completions::running())]
    slug: Option<Slug>,
    /// Watch without sending input; Ctrl-C detaches
    #[arg(long)]
    read_only: bool,
}

const BOTTLE_QUESTION: Question = Question {
    prompt: "Attach to which bottle?",
    suits: is_running,
    none: "no bottle is running",
    hint: "`bottle start` starts one",
};

impl Attach {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let settings = Settings::load(host)?;
        let slug = BOTTLE_QUESTION.select(self.slug, host, output)?;
        super::block_on(async {
            let channel = connect(host, &slug).await?;
            let (terminal, title, color) = match Store::of(host).state(&slug) {
                Some(State::Alive(record)) => (
                    record.terminal,
                    title(record.label.as_deref(), &record.slug, &record.agent),
                    record.color,
                ),
                _ => (false, slug.to_string(), None),
            };
            if terminal && !terminal::is_terminal() && !self.read_only {
                return Err(CliError::usage("cannot attach: the agent needs a terminal, and there is none")
                    .about(&slug)
                    .hint(format!("`bottle logs --follow {slug}` shows its output")));
            }
            let style = if terminal && terminal::is_terminal() {
                on_terminal(&settings, title, color, self.read_only)
            } else {
                Style::Pipes { stdin: !self.read_only && !terminal, pass_signals: false }
            };
            let host = host.clone();
            let client = Client { host, channel, slug, owns_bottle: false, pass: settings.terminal_pass };
            client.run(style, self.read_only, &mut Signals::catch()?, output).await
        })
    }
}

/// Returns the style for a raw terminal with the user's detach keys.
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

/// Returns the window title: the bottle's label and agent, or its slug if it has no label. Such a slug begins with
/// the agent's name.
pub(crate) fn title(label: Option<&str>, slug: &Slug, agent: &Name) -> String {
    label.map_or_else(|| slug.to_string(), |label| format!("{label} ({agent})"))
}

/// A client connected to a running bottle.
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
        // Asks the keeper, before the agent can end, to let the user decide about unsaved work. If no client has
        // asked, the keeper preserves the work.
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
            // The terminal was closed, or its connection broke: the agent goes on.
            Outcome::Interrupted(HANGUP) if on_terminal => self.hung_up().await,
            Outcome::Interrupted(number) => self.interrupted(number, watch, signals, output).await,
            Outcome::Failed(failure) => Err(super::connect::guest_failure(failure).about(&self.slug)),
            Outcome::Reset(why) => self.reset(why, watch, output).await,
            Outcome::OutputClosed(_) if on_terminal => self.hung_up().await,
            Outcome::OutputClosed(error) => Err(output_failed(error)),
        }
    }

    /// Shows the proposals on the full screen. If none of this bottle is pending, offers to allow the host of the last
    /// denial. Returns the session's end if the terminal is lost meanwhile.
    async fn show_proposals(&self, watch: &Watch, output: &Output) -> Option<Outcome> {
        let selected = Selected { slug: self.slug.clone(), denied_host: watch.last_denied_host() };
        let (host, screen_output) = (self.host.clone(), output.clone());
        // The connection to the keeper goes on while the screen waits for keys.
        let screen = move || show_selected(&host, &screen_output, selected);
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

    /// Handles the agent's exit: waits until the bottle has ended, then reports the cause.
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

    /// Asks the keeper to keep the bottle running, and waits for its confirmation for at most this time. If the
    /// connection closed first, the keeper would end the bottle.
    async fn detach(&self, patience: Duration) -> Result<(), CliError> {
        let mut stream = self.channel.open(&KeeperRequest::Detach).await.map_err(keeper_lost)?;
        match tokio::time::timeout(patience, stream.receive::<KeeperEvent>()).await {
            Ok(Ok(KeeperEvent::Detached)) => Ok(()),
            Ok(Ok(KeeperEvent::Refused(why))) => Err(CliError::failed(format!("cannot detach: {why}"))),
            Ok(Err(error)) => Err(keeper_lost(error)),
            Ok(Ok(_)) | Err(_) => Err(keeper_lost("it did not answer")),
        }
    }

    /// Handles the loss of the terminal, on which nothing can be printed any more. The bottle keeps running.
    async fn hung_up(&self) -> Result<u8, CliError> {
        self.detach(HANG_UP_TIMEOUT).await?;
        Ok(128u8.saturating_add(HANGUP))
    }

    /// Handles a signal, which ends this client. If this client started the bottle, the bottle ends too.
    async fn interrupted(
        self,
        number: u8,
        watch: Watch,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<u8, CliError> {
        // After SIGHUP nothing reads the output, and the keeper ends the bottle itself.
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

/// Reports why a bottle ended.
pub(crate) fn report_end(slug: &Slug, ended: &Ended, output: &Output) {
    match ended.cause {
        EndCause::AgentExited => {}
        EndCause::Budget(Policy::Kill) => output.note(format!("{slug} was killed")),
        EndCause::Budget(_) => output.note(format!("{slug} was frozen")),
        EndCause::Stopped => output.note(format!("{slug} was stopped")),
        EndCause::ClientGone => output.note(format!("{slug} ended with the client that started it")),
        EndCause::GuestDied => output.note(format!("{slug} failed: its first process died")),
    }
    if let Some(overrun) = &ended.overrun {
        output.note(describe_overrun(slug, overrun));
    }
    if ended.lost {
        output.note("its files are lost: something else than bottle removed them");
    }
    match (&ended.kept, &ended.live) {
        (Some(path), None) => {
            output.note(format!("its workspace has work, preserved at {path}"));
            output.note(format!(
                "`bottle diff {slug}` shows it; `bottle apply {slug}` and `bottle pull {slug}` bring it out"
            ));
        }
        (kept, Some(live)) => live::report(slug, live, kept.is_some(), output),
        (None, None) => {}
    }
    if let Some(path) = &ended.transcript {
        output.note(format!("its conversations are in {path}"));
    }
    if let Some(hosts) = ended.learned.filter(|hosts| *hosts > 0) {
        let hosts = counted(hosts, "host");
        output.note(format!(
            "requests to {hosts} were denied: `bottle learn {slug}` shows routes that would allow them"
        ));
    }
    if let Some(head) = &ended.audit {
        output.note(format!("its audit log ends at {head}"));
    }
    match ended.resumable {
        Some(Resumable::Kept) => output.note(format!("`bottle resume {slug}` starts it again")),
        Some(Resumable::Snapshot) => output.note(format!("`bottle resume {slug}` starts from its snapshot")),
        None => {}
    }
    for left in &ended.left {
        output.note(format!("not removed: {left}; `bottle cleanup` tries again"));
    }
}

/// Describes the exceeded limit that ended a bottle, and names the manifest key that changes the limit.
fn describe_overrun(slug: &Slug, overrun: &Overrun) -> String {
    let (limit, mib) = (ByteSize(overrun.limit), overrun.limit >> 20);
    match (overrun.resource, overrun.asked) {
        (Limited::Memory, true) => format!("{slug} used up its memory, {limit} (`resources.memory`)"),
        (Limited::Memory, false) => format!(
            "{slug} used more than {mib}MiB, three quarters of this machine's memory, and was ended; \
             `resources.memory` sets another limit"
        ),
        (Limited::Disk, _) => format!("{slug} used up its disk, {limit} (`resources.disk`), and was ended"),
        (Limited::FreeDisk, _) => format!(
            "less than {mib}MiB of the disk were left and {slug} took more than that, so it was ended; \
             `resources.disk` sets a limit of its own"
        ),
    }
}
