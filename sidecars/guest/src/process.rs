//! Starts a process, with a terminal or with pipes as its standard streams.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bottle_protocol::session::guest::{STDERR, STDOUT, Size};
use bytes::Bytes;
use rustix::process::{Pid, Signal};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetpgrp, tcgetwinsize, tcsetwinsize};
use tokio::sync::mpsc;

use crate::children::{Children, ExitWatch};
use crate::descriptor::Descriptor;
use crate::facts::Facts;
use crate::failure::Outcome;
use crate::{program, spawn};

/// The maximum number of bytes that are read from a process in one step.
pub(crate) const READ: usize = 28 * 1024;

/// The maximum number of queued input chunks for a process that does not read. A chunk is the content of one frame, up
/// to 32 KiB. If the queue is full, the client waits.
const INPUT_QUEUE: usize = 4;

/// The capacity of a pipe for output in bytes. With the default capacity of 64 KiB, a process with much output would
/// wait more often than it writes.
const PIPE: usize = 256 * 1024;

/// The idle time after which the output streams of an exited process count as ended. Another process may keep the
/// streams open.
const QUIET: Duration = Duration::from_millis(100);

/// The maximum number of bytes that are read after a process has exited, if another process keeps its streams open.
/// This limit exceeds the capacity of any pipe or terminal, so all output of the exited process is read.
const MOST_AFTER_EXIT: usize = 2 << 20;

/// The character that closes the input of a terminal by default (`VEOF`).
const END_OF_INPUT: &[u8] = &[4];

/// A process that was started.
pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) exit: ExitWatch,
    pub(crate) input: Input,
    pub(crate) outputs: Vec<Output>,
    pub(crate) terminal: Option<Terminal>,
}

/// The standard streams of a process without a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pipes {
    /// Whether the client sends input.
    pub(crate) stdin: bool,
    /// Whether standard error is the same pipe as standard output.
    pub(crate) merged: bool,
}

/// Starts `command` with a terminal of the given size, or with pipes.
pub(crate) fn start(
    children: &Children,
    mut command: Command,
    size: Option<Size>,
    pipes: Pipes,
    facts: &Facts,
) -> Outcome<Running> {
    spawn::separate(&mut command, size.is_some(), facts.files, facts.confine.clone());
    let running = match size {
        Some(size) => start_on_terminal(children, &mut command, size),
        None => start_on_pipes(children, &mut command, pipes),
    };
    running.map_err(|error| program::explain(command.get_program(), &error))
}

fn start_on_terminal(children: &Children, command: &mut Command, size: Size) -> io::Result<Running> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    let master = Arc::new(Descriptor::new(master)?);
    let terminal = Terminal(master.clone());
    terminal.resize(size);
    command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
    let (pid, child, exit) = children.spawn(command)?;
    drop(child);
    // `command` still holds the child's side of the terminal. If it were not closed here, the terminal's output would
    // never end.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let outputs = vec![Output::new(STDOUT, master.clone(), exit.clone())];
    let input = Input::feeding(master, true);
    Ok(Running { pid, exit, input, outputs, terminal: Some(terminal) })
}

fn start_on_pipes(children: &Children, command: &mut Command, pipes: Pipes) -> io::Result<Running> {
    command.stdin(if pipes.stdin { Stdio::piped() } else { Stdio::null() });
    let merged = if pipes.merged {
        let (reader, writer) = io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        Some(OwnedFd::from(reader))
    } else {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        None
    };
    let (pid, child, exit) = children.spawn(command)?;
    // `command` still holds the child's side of the pipe. If it were not closed here, the output would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    take_pipes(child, merged, pid, exit).inspect_err(|_| children.signal_group(pid, Signal::KILL))
}

fn take_pipes(mut child: Child, merged: Option<OwnedFd>, pid: Pid, exit: ExitWatch) -> io::Result<Running> {
    let input = match child.stdin.take() {
        Some(pipe) => Input::feeding(Arc::new(Descriptor::new(pipe.into())?), false),
        None => Input::closed(),
    };
    let stdout = merged.or_else(|| child.stdout.take().map(OwnedFd::from)).map(|pipe| (STDOUT, pipe));
    let stderr = child.stderr.take().map(|pipe| (STDERR, OwnedFd::from(pipe)));
    let mut outputs = Vec::new();
    for (fd, pipe) in stdout.into_iter().chain(stderr) {
        // The call may fail, because the kernel limits the pages of all pipes of a user. A smaller pipe works too.
        let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE);
        outputs.push(Output::new(fd, Arc::new(Descriptor::new(pipe)?), exit.clone()));
    }
    Ok(Running { pid, exit, input, outputs, terminal: None })
}

/// One output stream of a process.
pub(crate) struct Output {
    pub(crate) fd: u8,
    source: Arc<Descriptor>,
    exit: ExitWatch,
    left_after_exit: usize,
}

impl Output {
    fn new(fd: u8, source: Arc<Descriptor>, exit: ExitWatch) -> Self {
        Self { fd, source, exit, left_after_exit: MOST_AFTER_EXIT }
    }

    /// Reads the next bytes. Returns 0 if the process has exited and all of its output has been read.
    pub(crate) async fn read(&mut self, buffer: &mut [u8]) -> usize {
        let exited = self.exit.now().is_some();
        let read = tokio::select! {
            biased;
            read = self.source.read(buffer) => read.unwrap_or(0),
            () = quiet_after(&mut self.exit) => 0,
        };
        if exited {
            self.left_after_exit = self.left_after_exit.saturating_sub(read);
            if self.left_after_exit == 0 {
                return 0;
            }
        }
        read
    }
}

async fn quiet_after(exit: &mut ExitWatch) {
    exit.ended().await;
    tokio::time::sleep(QUIET).await;
}

/// The standard input of a process. All clones write to the same input.
#[derive(Debug, Clone)]
pub(crate) struct Input(mpsc::Sender<Bytes>);

impl Input {
    /// Creates an input that is already closed.
    pub(crate) fn closed() -> Self {
        Self(mpsc::channel(1).0)
    }

    fn feeding(target: Arc<Descriptor>, terminal: bool) -> Self {
        let (sender, queue) = mpsc::channel(INPUT_QUEUE);
        tokio::spawn(feed(queue, target, terminal));
        Self(sender)
    }

    /// Queues bytes for the process. An empty chunk closes the input. Waits while the queue is full. If the
    /// process no longer reads, the bytes are dropped.
    pub(crate) async fn write(&self, bytes: Bytes) {
        if self.0.send(bytes).await.is_err() {
            tracing::trace!("input after its end");
        }
    }
}

async fn feed(mut queue: mpsc::Receiver<Bytes>, target: Arc<Descriptor>, terminal: bool) {
    while let Some(bytes) = queue.recv().await {
        let written = match (bytes.is_empty(), terminal) {
            (false, _) => target.write_all(&bytes).await,
            (true, true) => target.write_all(END_OF_INPUT).await,
            (true, false) => return,
        };
        if written.is_err() {
            return;
        }
    }
}

/// The terminal of a process.
#[derive(Debug, Clone)]
pub(crate) struct Terminal(Arc<Descriptor>);

impl Terminal {
    /// Sets the size of the terminal. If the size changes, the kernel sends a signal to the foreground processes.
    pub(crate) fn resize(&self, size: Size) {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = tcsetwinsize(&*self.0, size) {
            tracing::debug!(%error, "terminal not resized");
        }
    }

    /// Returns the size of the terminal. Returns `None` if the size is unknown.
    pub(crate) fn size(&self) -> Option<Size> {
        let Winsize { ws_row: rows, ws_col: columns, .. } = tcgetwinsize(&*self.0).ok()?;
        Some(Size { rows, columns })
    }

    /// Makes the foreground processes redraw the screen.
    pub(crate) fn redraw(&self) {
        self.signal_foreground(Signal::WINCH);
    }

    /// Sends a signal to the foreground processes, as the terminal does for keys such as Ctrl-C.
    pub(crate) fn signal_foreground(&self, signal: Signal) {
        if let Ok(group) = tcgetpgrp(&*self.0) {
            // Sending the signal fails if the process group has just exited.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}
