//! Runs a command and keeps its output for a result, instead of writing it to this program's output.

use bottle_channel::Stream;
use bottle_lib::exec::{self, Captured, Deadline};

use super::Outcome;
use super::pump::pass_until_signal;
use crate::console::output::Output;
use crate::console::signals::Signals;

/// Runs a command with [`exec::capture`]. `stdin` says whether standard input is forwarded. Signals are forwarded to
/// the command.
pub(crate) async fn capture(
    stream: Stream,
    stdin: bool,
    limit: usize,
    deadline: &Deadline,
    signals: &mut Signals,
    output: &Output,
) -> (Outcome, Captured) {
    let input = stdin.then(tokio::io::stdin);
    let interrupted =
        async |sender: &_| Outcome::Interrupted(pass_until_signal(true, signals, sender, output).await);
    let (ended, captured) = exec::capture(stream, input, limit, deadline, None, interrupted).await;
    (ended.into(), captured)
}
