//! Runs a command and keeps its output for a result, instead of writing it to this program's output.

use bottle_channel::{Event, Stream, StreamReceiver};
use bottle_contract::session::guest::{STDERR, STDOUT};
use bottle_lib::clip::Clip;

use super::pump::{Deadline, end, feed, pass_until_signal};
use super::{Outcome, Signals};
use crate::cli::output::Output;

/// What a command wrote.
pub(crate) struct Captured {
    pub(crate) stdout: Clip,
    pub(crate) stderr: Clip,
}

/// Runs a command until it exits or is ended. Keeps at most `limit` bytes of each of its output streams. `stdin` says
/// whether standard input is forwarded.
pub(crate) async fn capture(
    stream: Stream,
    stdin: bool,
    limit: usize,
    deadline: &Deadline,
    signals: &mut Signals,
    output: &Output,
) -> (Outcome, Captured) {
    let (sender, receiver) = stream.split();
    let mut captured = Captured { stdout: Clip::new(limit), stderr: Clip::new(limit) };
    let outcome = tokio::select! {
        outcome = keep(receiver, &mut captured) => outcome,
        never = feed(stdin, &sender) => never,
        outcome = deadline.enforce(&sender) => outcome,
        number = pass_until_signal(true, signals, &sender, output) => Outcome::Interrupted(number),
    };
    (outcome, captured)
}

async fn keep(mut receiver: StreamReceiver, captured: &mut Captured) -> Outcome {
    loop {
        match receiver.next().await {
            Some(Event::Data { fd: STDOUT, bytes }) => captured.stdout.push(&bytes),
            Some(Event::Data { fd: STDERR, bytes }) => captured.stderr.push(&bytes),
            Some(Event::Data { .. }) => {}
            event => {
                if let Some(outcome) = end(event) {
                    return outcome;
                }
            }
        }
    }
}
