//! Prepares a bottle's images after the user agreed to the start, and shows the progress.

use std::sync::Arc;

use bottle_backend::{ProgressSink, Step};
use bottle_lib::failure::Failure;

use super::launch_failed;
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::progress::Progress;
use crate::console::signals::{Signals, interrupted};

/// Finds or builds the images with `prepare`. Ctrl-C cancels a build.
///
/// # Errors
/// Returns the failure of `prepare`, or an error if a signal interrupted `prepare`.
pub(crate) async fn with_progress<T>(
    on_terminal: bool,
    signals: &mut Signals,
    output: &Output,
    prepare: impl AsyncFnOnce(ProgressSink<Step>) -> Result<T, Failure>,
) -> Result<T, CliError> {
    let progress = Arc::new(Progress::start(output));
    let shown = progress.clone();
    let sink = ProgressSink::new(move |step: Step| shown.step(&step));
    let prepared = tokio::select! {
        prepared = prepare(sink) => prepared,
        number = signals.end() => {
            return Err(interrupted(number)
                .hint("the next start reuses what was built; `bottle cleanup` removes it"));
        }
    };
    drop(progress);
    prepared.map_err(|failure| launch_failed(failure, on_terminal))
}
