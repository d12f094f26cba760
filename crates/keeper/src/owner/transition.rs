//! Decides what the owner of a bottle does about an event. Pure: no clock, no message, no process.

use std::time::Duration;

use bottle_backend::RunState;
use bottle_host::budget::OnSpent;
use bottle_instance::record::Mode;
use bottle_protocol::session::guest::Exit;

use crate::protocol::{EndCause, EndChoice};
use crate::shared::{Command, Fact};
use crate::teardown::End;

/// The agent's default time between SIGTERM and SIGKILL, which equals that of `docker stop`.
const GRACE: Duration = Duration::from_secs(10);

/// The bottle ends when its channel has closed at once this many times in a row.
const RECONNECTS: u32 = 5;

/// A channel that was open for this long does not count as closed at once.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How long the keeper waits for a paused bottle whose channel closed. After that, it ends the bottle.
const PAUSED_WITHIN: Duration = Duration::from_secs(60);

/// What the owner of a bottle does at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The bottle runs.
    Runs,
    /// The agent exited, and clients read its output or decide about unsaved work.
    Waits,
    /// The keeper connects again to the bottle, whose channel closed.
    Reconnects,
    /// The bottle ends when the running snapshot job has finished, because the job needs the bottle's files.
    Ends,
}

impl Stage {
    /// Whether the end of pid 1 ends the stage.
    pub(super) fn needs_guest(self) -> bool {
        matches!(self, Self::Runs | Self::Waits)
    }
}

/// A snapshot job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Making {
    /// It saves a snapshot.
    Commit,
    /// It removes snapshots.
    Removal,
}

/// Something that happens to a bottle.
#[derive(Debug)]
pub(super) enum Event {
    /// The channel to pid 1 closed.
    GuestClosed,
    /// The keeper received SIGTERM.
    Terminated,
    /// A snapshot job or a measurement finished.
    JobDone,
    /// A client sent a command, or a task of the keeper did.
    Sent(Command),
}

/// What the owner does about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It ends the bottle. A bottle that is already ending keeps its first cause.
    End(End),
    /// It carries out the command.
    CarryOut,
    /// It refuses the command for this reason.
    Refuse(&'static str),
    /// Nothing. The client of a command that waits for an answer learns that the bottle is ending.
    Nothing,
}

/// The facts that decide about an event and a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation {
    pub(super) stage: Stage,
    /// Whether the bottle ends with its first client.
    pub(super) mode: Mode,
    pub(super) job: Option<Making>,
}

impl Situation {
    pub(super) fn next(self, event: &Event) -> Step {
        match (self.stage, event) {
            (_, Event::Sent(command)) => self.command(command),
            (Stage::Runs | Stage::Waits, Event::GuestClosed) => Step::End(end(EndCause::GuestDied)),
            (Stage::Runs | Stage::Waits | Stage::Reconnects, Event::Terminated) => {
                Step::End(end(EndCause::Stopped))
            }
            (Stage::Reconnects | Stage::Ends, Event::GuestClosed)
            | (Stage::Ends, Event::Terminated)
            | (_, Event::JobDone) => Step::Nothing,
        }
    }

    fn command(self, command: &Command) -> Step {
        match (self.stage, command) {
            (Stage::Runs | Stage::Waits | Stage::Reconnects, Command::Stop { grace_ms, .. }) => {
                Step::End(End { grace: Duration::from_millis(*grace_ms), ..end(EndCause::Stopped) })
            }
            (Stage::Runs | Stage::Reconnects, Command::Enforce { policy, .. }) => {
                let choice = if *policy == OnSpent::Kill { EndChoice::Discard } else { EndChoice::Keep };
                Step::End(End { choice, ..end(EndCause::Budget(*policy)) })
            }
            (Stage::Runs | Stage::Reconnects, Command::FirstGone) if self.mode == Mode::Attached => {
                Step::End(end(EndCause::ClientGone))
            }
            (Stage::Runs | Stage::Reconnects, Command::Record { fact: Fact::Detached, .. }) => Step::CarryOut,
            (
                _,
                Command::Stop { .. }
                | Command::Enforce { .. }
                | Command::FirstGone
                | Command::Record { fact: Fact::Detached, .. },
            ) => Step::Nothing,
            (_, Command::Commit { .. } | Command::RemoveSnapshot { .. }) if self.job.is_some() => {
                Step::Refuse("another command makes or removes a snapshot of this bottle")
            }
            (Stage::Reconnects, Command::Commit { .. } | Command::RemoveSnapshot { .. }) => {
                Step::Refuse("the connection to this bottle is lost; try again when the bottle runs on")
            }
            // A client that keeps requesting snapshots cannot keep the bottle from ending.
            (Stage::Ends, Command::Commit { .. } | Command::RemoveSnapshot { .. }) => Step::Nothing,
            (
                _,
                Command::Record { .. }
                | Command::Commit { .. }
                | Command::RemoveSnapshot { .. }
                | Command::Measure
                | Command::FindDelay { .. }
                | Command::FindPause { .. },
            ) => Step::CarryOut,
        }
    }
}

/// The end of a bottle whose agent exited. `exit` is `None` if the agent's stream closed before it reported the exit.
pub(super) fn agent_ended(exit: Option<Exit>) -> End {
    match exit {
        Some(exit) => End { exit: Some(exit), ..end(EndCause::AgentExited) },
        None => end(EndCause::GuestDied),
    }
}

/// The end of a bottle for this cause, while nothing else about the end is known yet.
fn end(cause: EndCause) -> End {
    End { cause, exit: None, grace: GRACE, attached: false, choice: EndChoice::Keep }
}

/// The number of times in a row that the bottle's channel closed soon after it opened.
#[derive(Debug, Default)]
pub(super) struct Reconnects(u32);

impl Reconnects {
    /// Whether the keeper reconnects to a bottle that ended for this cause. The last connection was open for the time
    /// `connected`.
    pub(super) fn allow(&mut self, cause: EndCause, connected: Duration) -> bool {
        self.0 = if connected < STABLE_AFTER { self.0 + 1 } else { 0 };
        cause == EndCause::GuestDied && self.0 < RECONNECTS
    }
}

/// What the keeper does about a bottle whose channel closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reconnect {
    /// It connects: the bottle runs.
    Now,
    /// It checks again later: the bottle is paused.
    Later,
    /// It ends the bottle.
    Never,
}

impl Reconnect {
    /// Decides by the bottle's state. `waited` is the time since the channel closed.
    pub(super) fn of(state: &RunState, waited: Duration) -> Self {
        match state {
            RunState::Running => Self::Now,
            RunState::Paused { .. } if waited < PAUSED_WITHIN => Self::Later,
            RunState::Paused { .. } | RunState::Ended => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use bottle_instance::snapshots::{CommitOptions, Removal};
    use jiff::Timestamp;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    const LOST: Step =
        Step::Refuse("the connection to this bottle is lost; try again when the bottle runs on");
    const BUSY: Step = Step::Refuse("another command makes or removes a snapshot of this bottle");

    fn command(name: &str) -> Command {
        let events = || mpsc::channel(1).0;
        match name {
            "stop" => Command::Stop { grace_ms: 7, events: events() },
            "freeze" => Command::Enforce { policy: OnSpent::Freeze, why: String::new() },
            "kill" => Command::Enforce { policy: OnSpent::Kill, why: String::new() },
            "first gone" => Command::FirstGone,
            "detach" => Command::Record { fact: Fact::Detached, recorded: oneshot::channel().0 },
            "record" => {
                Command::Record { fact: Fact::Pulled(Timestamp::MIN), recorded: oneshot::channel().0 }
            }
            "commit" => Command::Commit { options: CommitOptions::default(), events: events() },
            "remove" => Command::RemoveSnapshot { which: Removal::All, events: events() },
            "measure" => Command::Measure,
            "find delay" => Command::FindDelay { events: events() },
            "find pause" => Command::FindPause { answer: oneshot::channel().0 },
            _ => panic!("{name}"),
        }
    }

    #[test]
    fn each_stage_decides_about_each_command() {
        let stopped = Step::End(End { grace: Duration::from_millis(7), ..end(EndCause::Stopped) });
        let budget = |policy| End { choice: EndChoice::Keep, ..end(EndCause::Budget(policy)) };
        let (frozen, gone) = (Step::End(budget(OnSpent::Freeze)), Step::End(end(EndCause::ClientGone)));
        let killed = Step::End(End { choice: EndChoice::Discard, ..budget(OnSpent::Kill) });
        let (run, no) = (Step::CarryOut, Step::Nothing);
        let situations = [
            (Stage::Runs, Mode::Attached, None),
            (Stage::Runs, Mode::Detached, Some(Making::Removal)),
            (Stage::Waits, Mode::Attached, None),
            (Stage::Waits, Mode::Detached, Some(Making::Commit)),
            (Stage::Reconnects, Mode::Attached, None),
            (Stage::Reconnects, Mode::Detached, Some(Making::Commit)),
            (Stage::Ends, Mode::Attached, None),
            (Stage::Ends, Mode::Attached, Some(Making::Commit)),
        ];
        for (name, steps) in [
            ("stop", [stopped, stopped, stopped, stopped, stopped, stopped, no, no]),
            ("freeze", [frozen, frozen, no, no, frozen, frozen, no, no]),
            ("kill", [killed, killed, no, no, killed, killed, no, no]),
            ("first gone", [gone, no, no, no, gone, no, no, no]),
            ("detach", [run, run, no, no, run, run, no, no]),
            ("record", [run; 8]),
            ("commit", [run, BUSY, run, BUSY, LOST, BUSY, no, BUSY]),
            ("remove", [run, BUSY, run, BUSY, LOST, BUSY, no, BUSY]),
            ("measure", [run; 8]),
            ("find delay", [run; 8]),
            ("find pause", [run; 8]),
        ] {
            for ((stage, mode, job), step) in situations.into_iter().zip(steps) {
                let situation = Situation { stage, mode, job };
                assert_eq!(situation.next(&Event::Sent(command(name))), step, "{name}: {situation:?}");
            }
        }
    }

    #[test]
    fn each_stage_decides_about_the_end_of_pid_1_and_a_signal() {
        let (died, stopped) = (Step::End(end(EndCause::GuestDied)), Step::End(end(EndCause::Stopped)));
        for (stage, steps) in [
            (Stage::Runs, [died, stopped, Step::Nothing]),
            (Stage::Waits, [died, stopped, Step::Nothing]),
            (Stage::Reconnects, [Step::Nothing, stopped, Step::Nothing]),
            (Stage::Ends, [Step::Nothing; 3]),
        ] {
            for (event, step) in [Event::GuestClosed, Event::Terminated, Event::JobDone].iter().zip(steps) {
                for (mode, job) in [(Mode::Attached, None), (Mode::Detached, Some(Making::Commit))] {
                    let situation = Situation { stage, mode, job };
                    assert_eq!(situation.next(event), step, "{event:?}: {situation:?}");
                }
            }
            assert_eq!(stage.needs_guest(), steps[0] == died, "{stage:?}");
        }
    }

    #[test]
    fn an_agent_exits_or_its_bottle_dies() {
        let exited = agent_ended(Some(Exit::Code(3)));
        assert_eq!((exited.cause, exited.exit), (EndCause::AgentExited, Some(Exit::Code(3))));
        assert_eq!(agent_ended(None), end(EndCause::GuestDied));
        assert_eq!(end(EndCause::GuestDied).choice, EndChoice::Keep, "only the user discards work");
    }

    #[test]
    fn a_keeper_connects_again_to_a_bottle_that_lost_its_channel() {
        let (at_once, stable) = (Duration::ZERO, STABLE_AFTER);
        let died = EndCause::GuestDied;
        for (ends, allowed) in [
            (vec![(died, at_once); 6], vec![true, true, true, true, false, false]),
            (vec![(died, at_once), (died, stable), (died, at_once)], vec![true; 3]),
            (vec![(died, stable); 9], vec![true; 9]),
            (vec![(EndCause::AgentExited, stable)], vec![false]),
            (vec![(EndCause::Stopped, at_once)], vec![false]),
            (vec![(EndCause::ClientGone, at_once)], vec![false]),
            (vec![(EndCause::Budget(OnSpent::Kill), stable)], vec![false]),
        ] {
            let mut reconnects = Reconnects::default();
            let found: Vec<bool> =
                ends.iter().map(|(cause, connected)| reconnects.allow(*cause, *connected)).collect();
            assert_eq!(found, allowed, "{ends:?}");
        }
        let paused = RunState::Paused { hint: String::new() };
        for (state, waited, wanted) in [
            (&RunState::Running, PAUSED_WITHIN * 2, Reconnect::Now),
            (&paused, Duration::ZERO, Reconnect::Later),
            (&paused, PAUSED_WITHIN, Reconnect::Never),
            (&RunState::Ended, Duration::ZERO, Reconnect::Never),
        ] {
            assert_eq!(Reconnect::of(state, waited), wanted, "{state:?} {waited:?}");
        }
    }
}
