//! Manages the state, the output and the terminal of a process that outlives its clients. The process is the agent (the
//! main process of a bottle) or a process that a client started.
//!
//! ```text
//!   Waiting ── start ──► Running ──── process exits ────► Exited
//!      │                    │                               │
//!      └── attach ──────────┴── attach, logs ───────────────┘   (the output outlives the process)
//! ```

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bottle_channel::StreamSender;
use bottle_protocol::session::guest::{AgentState, Process, Size};
use bottle_protocol::session::process::unfinished_character;
use jiff::Timestamp;
use rustix::process::{Pid, Signal};
use tokio::sync::{Notify, watch};

use crate::children::{Children, ExitWatch};
use crate::failure::{Outcome, bad_state};
use crate::process::{Input, Output, READ, Running, Terminal};
use crate::scrollback::OutputLog;

/// The process, its output, and the client that controls its terminal.
#[derive(Default)]
pub(crate) struct Hosted {
    pub(crate) log: OutputLog,
    stage: Mutex<Stage>,
    started: Notify,
    control: Mutex<Control>,
    released: Notify,
    /// The number of clients that follow the output until it ends.
    followers: watch::Sender<usize>,
    ended_at: OnceLock<Timestamp>,
}

/// The command line of a process, and how and when the process was started.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The program and its first arguments, with at most [`ARGV_MAX`] bytes in total.
    pub(crate) argv: Vec<String>,
    pub(crate) started_at: Timestamp,
    pub(crate) in_terminal: bool,
}

/// The maximum total size of a program and its arguments in a list of processes, in bytes.
const ARGV_MAX: usize = 4096;

#[derive(Default)]
enum Stage {
    #[default]
    Waiting,
    Started {
        pid: Pid,
        origin: Origin,
        exit: ExitWatch,
        input: Input,
        /// The terminal. `None` if the process has no terminal, or has ended.
        terminal: Option<Terminal>,
        /// The last size of the terminal. This field is set when the process ends.
        last_size: Option<Size>,
    },
}

/// The control of the terminal. At most one client controls it.
#[derive(Default)]
struct Control {
    /// The number of times that a client took control. With this number, a detached client cannot release the control
    /// of a later client.
    turn: u64,
    client: Option<StreamSender>,
    /// The size of the controlling client's terminal.
    size: Option<Size>,
}

impl Hosted {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of the process. The state of an exited process includes the exit status.
    pub(crate) fn state(&self) -> AgentState {
        match &*self.stage() {
            Stage::Waiting => AgentState::Waiting,
            Stage::Started { exit, .. } => exit.now().map_or(AgentState::Running, AgentState::Exited),
        }
    }

    /// Starts the process with the function `start`. Fails if the process was started before. The terminal of the
    /// process gets the size of the controlling client's terminal.
    pub(crate) fn start(
        self: &Arc<Self>,
        mut process: Process,
        start: impl FnOnce(&Process) -> Outcome<Running>,
    ) -> Outcome<(Pid, ExitWatch)> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Started { .. }) {
            return Err(bad_state("the agent was started already"));
        }
        if let (Some(size), Some(attached)) = (&mut process.terminal, self.control().size) {
            *size = attached;
        }
        let Running { pid, exit, input, outputs, terminal } = start(&process)?;
        let in_terminal = terminal.is_some();
        let origin = Origin { argv: clipped(process.argv), started_at: Timestamp::now(), in_terminal };
        *stage = Stage::Started { pid, origin, exit: exit.clone(), input, terminal, last_size: None };
        if process.awaited && self.control().client.is_none() {
            self.log.set_controller(Some(0));
        }
        drop(stage);
        self.started.notify_waiters();
        tokio::spawn(record(self.clone(), outputs, exit.clone()));
        Ok((pid, exit))
    }

    /// Gives a client control of the terminal, and resets the stream of the previous client. Returns the new value of
    /// `turn`, which identifies the client.
    pub(crate) async fn take_control(&self, client: StreamSender, size: Option<Size>) -> u64 {
        let (turn, before) = {
            let mut control = self.control();
            control.turn += 1;
            control.size = size;
            (control.turn, control.client.replace(client))
        };
        if let Some(before) = before {
            before.reset("another client has attached to the terminal").await;
        }
        if let (Some(size), Some(terminal)) = (size, self.terminal()) {
            terminal.resize(size);
            // The new client's screen is empty, and programs do not redraw if the size is unchanged, so a redraw is
            // requested explicitly.
            terminal.redraw();
        }
        turn
    }

    /// Releases a client's control, unless another client has taken it.
    pub(crate) fn release_control(&self, turn: u64) {
        let mut control = self.control();
        if control.turn == turn {
            control.client = None;
            self.log.set_controller(None);
            self.released.notify_waiters();
        }
    }

    /// Allows the process to write if the first client has not attached yet. Otherwise, the process would wait for this
    /// client.
    pub(crate) fn expect_no_client(&self) {
        if self.control().client.is_none() {
            self.log.set_controller(None);
        }
    }

    /// Waits until no client controls the terminal. After the process has exited, this means that the last output and
    /// the exit status were sent.
    pub(crate) async fn released(&self) {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if self.control().client.is_none() {
                return;
            }
            released.await;
        }
    }

    /// Counts a client as a follower of the output until the returned value is dropped.
    pub(crate) fn follow(&self) -> Following<'_> {
        self.followers.send_modify(|count| *count += 1);
        Following(&self.followers)
    }

    /// Waits until no client follows the output. After the process has exited, this means that every following client
    /// has received all output.
    pub(crate) async fn unfollowed(&self) {
        // The sender belongs to `self`, so it is not dropped during the wait.
        let _ = self.followers.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Records the position up to which a client has read, if the client still has control.
    pub(crate) fn record_read(&self, turn: u64, cursor: u64) {
        if self.control().turn == turn {
            self.log.set_controller(Some(cursor));
        }
    }

    /// Returns the standard input for the controlling client. Waits until the process has started, so that no input is
    /// lost.
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

    /// Closes the input and the terminal of a process that has ended. After this, the entry of the process in the list
    /// holds no open files.
    fn close(&self) {
        if let Stage::Started { input, terminal, last_size, .. } = &mut *self.stage() {
            *last_size = terminal.take().and_then(|terminal| terminal.size());
            *input = Input::closed();
        }
    }

    /// Returns the size of the terminal. After the process has ended, returns the last size.
    pub(crate) fn terminal_size(&self) -> Option<Size> {
        match &*self.stage() {
            Stage::Waiting => None,
            Stage::Started { terminal, last_size, .. } => {
                terminal.as_ref().map_or(*last_size, Terminal::size)
            }
        }
    }

    /// Returns the terminal, if the process runs in a terminal.
    pub(crate) fn terminal(&self) -> Option<Terminal> {
        match &*self.stage() {
            Stage::Waiting => None,
            Stage::Started { terminal, .. } => terminal.clone(),
        }
    }

    /// Applies a new size of the controlling client's terminal. If the process has not started, the
    /// size is stored for its start.
    pub(crate) fn resize(&self, turn: u64, size: Size) {
        let mut control = self.control();
        if control.turn == turn {
            control.size = Some(size);
            drop(control);
            if let Some(terminal) = self.terminal() {
                terminal.resize(size);
            }
        }
    }

    /// Returns the process id and the exit status watch, if the process has started.
    pub(crate) fn process(&self) -> Option<(Pid, ExitWatch)> {
        match &*self.stage() {
            Stage::Waiting => None,
            Stage::Started { pid, exit, .. } => Some((*pid, exit.clone())),
        }
    }

    /// Returns the command line of the process, and how and when the process was started.
    pub(crate) fn origin(&self) -> Option<Origin> {
        match &*self.stage() {
            Stage::Waiting => None,
            Stage::Started { origin, .. } => Some(origin.clone()),
        }
    }

    /// Returns the time when the process had ended and its last output was read.
    pub(crate) fn ended_at(&self) -> Option<Timestamp> {
        self.ended_at.get().copied()
    }

    /// Sends a signal to the process group.
    pub(crate) fn signal(&self, children: &Children, signal: Signal) {
        if let Some((pid, _)) = self.process() {
            children.signal_group(pid, signal);
        }
    }
}

/// A client that follows the output of a process.
pub(crate) struct Following<'h>(&'h watch::Sender<usize>);

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Copies the output to the log. Ends the log after the last byte.
async fn record(hosted: Arc<Hosted>, outputs: Vec<Output>, mut exit: ExitWatch) {
    // A terminal gets every byte at once, because a program may use another encoding than UTF-8.
    let holds = outputs.len() > 1;
    let streams: Vec<_> =
        outputs.into_iter().map(|output| tokio::spawn(record_one(hosted.clone(), output, holds))).collect();
    for stream in streams {
        // An error is ignored: a cancelled task has no more output.
        let _ = stream.await;
    }
    let ended = exit.ended().await;
    let _ = hosted.ended_at.set(Timestamp::now());
    hosted.close();
    hosted.log.end(ended);
}

/// Copies one output stream to the log. With `holds`, the beginning of a character waits for its rest, so that no output
/// of another stream gets between the bytes of a character.
async fn record_one(hosted: Arc<Hosted>, mut output: Output, holds: bool) {
    let mut buffer = vec![0; READ];
    let mut held = 0;
    loop {
        let read = output.read(buffer.get_mut(held..).unwrap_or_default()).await;
        let length = held + read;
        let bytes = buffer.get(..length).unwrap_or_default();
        held = if holds && read > 0 { unfinished_character(bytes) } else { 0 };
        let whole = length - held;
        if whole > 0 {
            hosted.log.push(output.fd, bytes.get(..whole).unwrap_or_default()).await;
        }
        if read == 0 {
            return;
        }
        buffer.copy_within(whole..length, 0);
    }
}

/// Returns the first arguments that together fit into [`ARGV_MAX`].
fn clipped(argv: Vec<String>) -> Vec<String> {
    let mut left = ARGV_MAX;
    let fits = |argument: &String| {
        let fits = argument.len() <= left;
        left = left.saturating_sub(argument.len());
        fits
    };
    argv.into_iter().take_while(fits).collect()
}
