//! Another process beside the agent, for one client.

use std::sync::Arc;
use std::time::Duration;

use bottle_channel::{Event, Stream, StreamReceiver, StreamSender};
use bottle_contract::session::guest::{ClientMessage, GuestEvent, Process, STDIN};
use bytes::Bytes;
use rustix::process::{Pid, Signal};

use crate::guest::Guest;
use crate::host::answer;
use crate::process::{Input, Output, READ, Running, Terminal};

/// How long a process whose client is gone may take to end after SIGHUP.
const HANGUP_GRACE: Duration = Duration::from_secs(2);

/// Runs the process to its end. When the client gives up or is lost, the process is hung up: nobody could
/// ever hear of it again.
pub(crate) async fn exec(guest: Arc<Guest>, request: Process, stream: Stream) {
    let Running { pid, mut exit, input, outputs, terminal } = match guest.start(&request) {
        Ok(running) => running,
        Err(failure) => return answer(&stream, &GuestEvent::Failed(failure)).await,
    };
    let (sender, receiver) = stream.split();
    let listening = tokio::spawn(listen(guest.clone(), receiver, pid, input, terminal));
    let served = async {
        let mut sent = sender.message(&started(pid)).await.is_ok();
        sent &= pass_all(&sender, outputs).await;
        let ended = exit.ended().await;
        if sent && sender.message(&GuestEvent::Exited(ended)).await.is_ok() {
            // Fails when the client is gone, and then nobody is there to hear it.
            let _ = sender.end().await;
        }
    };
    tokio::select! {
        () = served => {}
        () = hang_up_after(&sender, &guest, pid) => {}
    }
    listening.abort();
}

/// The event that names a new process.
pub(crate) fn started(pid: Pid) -> GuestEvent {
    GuestEvent::Started { pid: u32::try_from(pid.as_raw_pid()).unwrap_or_default() }
}

/// Hangs the process up when its client is gone, and kills it if that is not enough. Never returns: the
/// process's end is noticed elsewhere.
async fn hang_up_after(sender: &StreamSender, guest: &Guest, pid: Pid) {
    sender.closed().await;
    guest.children.signal_group(pid, Signal::HUP);
    tokio::time::sleep(HANGUP_GRACE).await;
    guest.children.signal_group(pid, Signal::KILL);
    std::future::pending().await
}

/// Passes all output on; whether the client got it.
async fn pass_all(sender: &StreamSender, outputs: Vec<Output>) -> bool {
    let mut outputs = outputs.into_iter();
    // A terminal has one output, pipes have two.
    match (outputs.next(), outputs.next()) {
        (Some(one), Some(two)) => {
            let (one, two) = tokio::join!(pass(sender, one), pass(sender, two));
            one && two
        }
        (Some(one), None) => pass(sender, one).await,
        _ => true,
    }
}

/// Reads on when the client is gone: a process that tidies up after SIGHUP must not die of SIGPIPE.
async fn pass(sender: &StreamSender, mut output: Output) -> bool {
    let mut buffer = vec![0; READ];
    let mut heard = true;
    loop {
        let read = output.read(&mut buffer).await;
        match buffer.get(..read) {
            Some(bytes) if read > 0 => heard = heard && sender.data(output.fd, bytes).await.is_ok(),
            _ => return heard,
        }
    }
}

/// What the client sends: input, sizes, signals. Its end is the end of the input.
async fn listen(
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
                Err(error) => tracing::debug!(%error, "message to a process"),
            },
            Event::End | Event::Reset(_) => {
                input.write(Bytes::new()).await;
                return;
            }
        }
    }
}
