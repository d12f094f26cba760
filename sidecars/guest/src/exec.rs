//! Runs a process in addition to the agent, for one client.

use std::sync::Arc;
use std::time::Duration;

use bottle_channel::{Event, Stream, StreamReceiver, StreamSender};
use bottle_protocol::session::frame::MAX_DATA;
use bottle_protocol::session::guest::{ClientMessage, GuestEvent, Process, STDIN};
use bottle_scan::{OutputRedactor, StreamRedactor};
use bytes::Bytes;
use rustix::process::{Pid, Signal};

use crate::answer::{answer, started};
use crate::guest::Guest;
use crate::process::{Input, Output, Running, Terminal};

/// The maximum number of bytes that are read from a process in one step. This limit is the size of two data frames.
/// Large reads reduce the number of context switches between the processes that forward the output.
const READ: usize = 2 * (MAX_DATA - 1);

/// The time between SIGHUP and SIGKILL for a process after its client has disconnected.
const HANGUP_GRACE: Duration = Duration::from_secs(2);

/// Runs the process until it exits. If the client disconnects, the process gets SIGHUP, because no other
/// client can attach to it.
pub(crate) async fn exec(guest: Arc<Guest>, request: Process, stream: Stream) {
    let Running { pid, mut exit, input, outputs, terminal } = match guest.start(&request) {
        Ok(running) => running,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let redaction = guest.redaction().filter(|_| request.redact).map(Arc::as_ref);
    let (sender, receiver) = stream.split();
    let receiving = tokio::spawn(receive(guest.clone(), receiver, pid, input, terminal));
    let served = async {
        let mut sent = sender.message(&started(pid)).await.is_ok();
        sent &= send_all(&sender, outputs, redaction).await;
        let ended = exit.ended().await;
        if sent && sender.message(&GuestEvent::Exited(ended)).await.is_ok() {
            // Ending the stream fails if the client has disconnected.
            let _ = sender.end().await;
        }
    };
    tokio::select! {
        () = served => {}
        () = hang_up_after(&sender, &guest, pid) => {}
    }
    receiving.abort();
}

/// When the client disconnects, sends SIGHUP to the process, and SIGKILL after [`HANGUP_GRACE`]. Never returns, because
/// the caller detects the exit of the process.
async fn hang_up_after(sender: &StreamSender, guest: &Guest, pid: Pid) {
    sender.closed().await;
    guest.children.signal_group(pid, Signal::HUP);
    tokio::time::sleep(HANGUP_GRACE).await;
    guest.children.signal_group(pid, Signal::KILL);
    std::future::pending().await
}

/// Sends all output of the process to the client. Returns whether the client received all output.
async fn send_all(sender: &StreamSender, outputs: Vec<Output>, redaction: Option<&OutputRedactor>) -> bool {
    let mut outputs = outputs.into_iter();
    // A terminal has one output stream, and pipes have two.
    match (outputs.next(), outputs.next()) {
        (Some(one), Some(two)) => {
            let send = |output| send_output(sender, output, redaction.map(OutputRedactor::stream));
            let (one, two) = tokio::join!(send(one), send(two));
            one && two
        }
        (Some(one), None) => send_output(sender, one, redaction.map(OutputRedactor::stream)).await,
        _ => true,
    }
}

/// Sends one output stream to the client. `redaction`, if given, replaces secret values in the stream. Reading
/// continues after the client disconnects, because otherwise SIGPIPE would kill a process that cleans up after SIGHUP.
async fn send_output(
    sender: &StreamSender,
    mut output: Output,
    mut redaction: Option<StreamRedactor<'_>>,
) -> bool {
    let mut buffer = vec![0; READ];
    let mut received = true;
    loop {
        let read = output.read(&mut buffer).await;
        let bytes = buffer.get(..read).unwrap_or_default();
        received = received
            && match &mut redaction {
                None => bytes.is_empty() || sender.data(output.fd, bytes).await.is_ok(),
                Some(redaction) => {
                    let sent = if bytes.is_empty() { redaction.finish() } else { redaction.push(bytes) };
                    send_bytes(sender, output.fd, sent.into()).await
                }
            };
        if bytes.is_empty() {
            return received;
        }
    }
}

/// Sends bytes in parts of at most [`READ`] bytes. Returns whether the client received them.
async fn send_bytes(sender: &StreamSender, fd: u8, mut bytes: Bytes) -> bool {
    while !bytes.is_empty() {
        let part = bytes.split_to(bytes.len().min(READ));
        if sender.data_bytes(fd, part).await.is_err() {
            return false;
        }
    }
    true
}

/// Handles the input, the terminal sizes and the signals of the client. When the client's stream ends, closes the
/// process's input.
async fn receive(
    guest: Arc<Guest>,
    mut receiver: StreamReceiver,
    pid: Pid,
    input: Input,
    terminal: Option<Terminal>,
) {
    while let Some(event) = receiver.next().await {
        match event {
            Event::Data { fd: STDIN, bytes } => input.write(bytes).await,
            Event::Data { .. } => {}
            Event::Message(_) => match event.parse() {
                Ok(ClientMessage::Resize(size)) => {
                    if let Some(terminal) = &terminal {
                        terminal.resize(size);
                    }
                }
                Ok(ClientMessage::Signal { signal }) => {
                    if let Some(signal) = Signal::from_named_raw(signal.into()) {
                        guest.children.signal_group(pid, signal);
                    }
                }
                Ok(ClientMessage::Detach) => {}
                Err(error) => tracing::debug!(%error, "invalid message to a process"),
            },
            Event::End | Event::Reset(_) => {
                input.write(Bytes::new()).await;
                return;
            }
        }
    }
}
