//! Decides how the owner of a bottle reacts to an event. This module is pure: it reads no clock, sends no messages and
//! starts no processes.

use std::time::Duration;

use bottle_backend::RunState;
use bottle_host::budget::OnSpent;
use bottle_instance::record::Mode;
use bottle_protocol::session::guest::Exit;

use crate::protocol::{EndCause, EndChoice};
use crate::shared::{Command, Fact};
use crate::teardown::End;

/// The default time between SIGTERM and SIGKILL for the agent. `docker stop` has the same default.
const GRACE: Duration = Duration::from_secs(10);

/// If the channel to the bottle closes soon after it was opened this many times in a row, the bottle ends.
const RECONNECTS: u32 = 5;

/// A channel that was open for at least this time is not counted by [`RECONNECTS`].
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How long the keeper waits for a paused bottle after the bottle's channel closed. After this time, the keeper ends
/// the bottle.
const PAUSED_WITHIN: Duration = Duration::from_secs(60);

/// The current activity of a bottle's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The bottle runs.
    Runs,
    /// The agent exited. Clients read its output or decide about unsaved work.
    Waits,
    /// The channel to the bottle closed, and the keeper reconnects.
    Reconnects,
    /// The bottle ends when the running snapshot job has finished, because the job needs the bottle's files.
    Ends,
}

impl Stage {
    /// Whether this stage ends when pid 1 ends.
    pub(super) fn needs_guest(self) -> bool {
        matches!(self, Self::Runs | Self::Waits)
    }
}

/// A snapshot job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Making {
    /// The job saves a snapshot.
    Commit,
    /// The job removes snapshots.
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
    /// A client or a task of the keeper sent a command.
    Sent(Command),
}

/// The owner's reaction to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The owner ends the bottle. If the bottle is already ending, the first cause stays in force.
    End(End),
    /// The owner carries out the command.
    CarryOut,
    /// The owner refuses the command for this reason.
    Refuse(&'static str),
    /// The owner does nothing. If the client of a command waits for an answer, it is told that the bottle is ending.
    Nothing,
}

/// The facts that determine the reaction to an event or a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation {
    pub(super) stage: Stage,
    /// The mode of the bottle. An attached bottle ends when its first client disconnects.
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
            // The command is dropped, so that a client that keeps requesting snapshots cannot prevent the bottle's end.
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

/// Returns the end of a bottle after the agent's stream ended. `exit` is `None` if the stream closed before it reported
/// the agent's exit.
pub(super) fn agent_ended(exit: Option<Exit>) -> End {
    match exit {
        Some(exit) => End { exit: Some(exit), ..end(EndCause::AgentExited) },
        None => end(EndCause::GuestDied),
    }
}

/// Returns an end with this cause. All other fields have their defaults.
fn end(cause: EndCause) -> End {
    End { cause, exit: None, grace: GRACE, attached: false, choice: EndChoice::Keep }
}

/// The number of times in a row that the bottle's channel closed soon after it opened.
#[derive(Debug, Default)]
pub(super) struct Reconnects(u32);

impl Reconnects {
    /// Whether the keeper tries to reconnect after the connection ended for this cause. `connected` is the time for
    /// which the connection was open.
    pub(super) fn allow(&mut self, cause: EndCause, connected: Duration) -> bool {
        self.0 = if connected < STABLE_AFTER { self.0 + 1 } else { 0 };
        cause == EndCause::GuestDied && self.0 < RECONNECTS
    }
}

/// The keeper's decision after the channel to a bottle closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reconnect {
    /// The bottle runs. The keeper reconnects.
    Now,
    /// The bottle is paused. The keeper checks again later.
    Later,
    /// The keeper ends the bottle.
    Never,
}

impl Reconnect {
    /// Decides from the bottle's state. `waited` is the time since the channel closed.
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
