//! The one process a bottle exists for.
//!
//! ```text
//!   Waiting ── start ──► Running ── its process ended ──► Ended
//!      │                    │                               │
//!      └── attach ──────────┴── attach, logs ───────────────┘   (the output outlives the process)
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bottle_channel::StreamSender;
use bottle_contract::session::guest::{AgentState, Process, Size};
use rustix::process::{Pid, Signal};
use tokio::sync::Notify;

use crate::children::ExitWatch;
use crate::failure::{Outcome, bad_state};
use crate::guest::Guest;
use crate::output::OutputLog;
use crate::process::{Input, Output, READ, Running, Terminal};

/// See the module.
#[derive(Default)]
pub(crate) struct Agent {
    pub(crate) log: OutputLog,
    stage: Mutex<Stage>,
    started: Notify,
    seat: Mutex<Seat>,
    left: Notify,
}

#[derive(Default)]
enum Stage {
    #[default]
    Waiting,
    Started {
        pid: Pid,
        exit: ExitWatch,
        input: Input,
        terminal: Option<Terminal>,
    },
}

/// Who types.
#[derive(Default)]
struct Seat {
    /// Counts take-overs, so that one that has left does not unseat its successor.
    turn: u64,
    holder: Option<StreamSender>,
    /// The holder's terminal.
    size: Option<Size>,
}

impl Agent {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether and how it ended.
    pub(crate) fn state(&self) -> AgentState {
        match &*self.stage() {
            Stage::Waiting => AgentState::Waiting,
            Stage::Started { exit, .. } => exit.now().map_or(AgentState::Running, AgentState::Exited),
        }
    }

    /// Starts it, once. A client that is attached already gives the terminal its size.
    pub(crate) fn start(guest: &Arc<Guest>, mut process: Process) -> Outcome<(Pid, ExitWatch)> {
        let agent = &guest.agent;
        let mut stage = agent.stage();
        if matches!(*stage, Stage::Started { .. }) {
            return Err(bad_state("the agent was started already"));
        }
        if let (Some(size), Some(seated)) = (&mut process.terminal, agent.seat().size) {
            *size = seated;
        }
        let Running { pid, exit, input, outputs, terminal } = guest.start(&process)?;
        *stage = Stage::Started { pid, exit: exit.clone(), input, terminal };
        if process.awaited && agent.seat().holder.is_none() {
            agent.log.lead(Some(0));
        }
        drop(stage);
        agent.started.notify_waiters();
        tokio::spawn(record(guest.clone(), outputs, exit.clone()));
        Ok((pid, exit))
    }

    /// Takes the terminal over: whoever held it loses its stream with a sentence. Returns the turn.
    pub(crate) async fn sit_down(&self, client: StreamSender, size: Option<Size>) -> u64 {
        let (turn, before) = {
            let mut seat = self.seat();
            seat.turn += 1;
            seat.size = size;
            (seat.turn, seat.holder.replace(client))
        };
        if let Some(before) = before {
            before.reset("another client took the terminal over").await;
        }
        if let (Some(size), Some(terminal)) = (size, self.terminal()) {
            terminal.resize(size);
            // The same size as before tells nobody, and the new client's screen is empty.
            terminal.redraw();
        }
        turn
    }

    /// Leaves the seat, unless somebody else has it by now.
    pub(crate) fn stand_up(&self, turn: u64) {
        let mut seat = self.seat();
        if seat.turn == turn {
            seat.holder = None;
            self.log.lead(None);
            self.left.notify_waiters();
        }
    }

    /// Nobody will come any more to read what was held back for a first client.
    pub(crate) fn await_nobody(&self) {
        if self.seat().holder.is_none() {
            self.log.lead(None);
        }
    }

    /// Waits until nobody has the seat: after the agent's end, until its last output and its exit are on
    /// their way.
    pub(crate) async fn vacant(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.seat().holder.is_none() {
                return;
            }
            left.await;
        }
    }

    /// Says how far the client of this turn has read.
    pub(crate) fn lead(&self, turn: u64, cursor: u64) {
        if self.seat().turn == turn {
            self.log.lead(Some(cursor));
        }
    }

    /// The way in, for the client that has the seat; waits until the agent is started, so that nothing
    /// piped into it is lost.
    pub(crate) async fn input(&self) -> Input {
        loop {
            let mut started = std::pin::pin!(self.started.notified());
            started.as_mut().enable();
            if let Stage::Started { input, .. } = &*self.stage() {
                return input.clone();
            }
            started.await;
        }
    }

    fn terminal(&self) -> Option<Terminal> {
        match &*self.stage() {
            Stage::Waiting => None,
            Stage::Started { terminal, .. } => terminal.clone(),
        }
    }

    /// The terminal of the client with the seat changed; remembered when the agent is yet to start.
    pub(crate) fn resize(&self, turn: u64, size: Size) {
        let mut seat = self.seat();
        if seat.turn == turn {
            seat.size = Some(size);
            drop(seat);
            if let Some(terminal) = self.terminal() {
                terminal.resize(size);
            }
        }
    }

    /// Its process, while there is one.
    pub(crate) fn process(&self) -> Option<(Pid, ExitWatch)> {
        match &*self.stage() {
            Stage::Waiting => None,
            Stage::Started { pid, exit, .. } => Some((*pid, exit.clone())),
        }
    }

    /// Signals its process group.
    pub(crate) fn signal(&self, guest: &Guest, signal: Signal) {
        if let Some((pid, _)) = self.process() {
            guest.children.signal_group(pid, signal);
        }
    }
}

/// Moves what the agent writes into the log; ends the log after the last byte.
async fn record(guest: Arc<Guest>, outputs: Vec<Output>, mut exit: ExitWatch) {
    let streams: Vec<_> = outputs
        .into_iter()
        .map(|mut output| {
            let guest = guest.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; READ];
                loop {
                    let read = output.read(&mut buffer).await;
                    match buffer.get(..read) {
                        Some(bytes) if read > 0 => guest.agent.log.push(output.fd, bytes).await,
                        _ => return,
                    }
                }
            })
        })
        .collect();
    for stream in streams {
        // A reader that was stopped has nothing more to add.
        let _ = stream.await;
    }
    guest.agent.log.end(exit.ended().await);
}
