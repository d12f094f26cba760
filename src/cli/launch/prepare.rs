//! Prepares a bottle's images after the user agreed to the start, and shows the progress.

use std::collections::BTreeMap;
use std::sync::Arc;

use bottle_contract::session::guest::SecretText;

use crate::backend::{Backend, BackendError, BackendErrorKind, Prepared, ProgressSink, Step};
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::session::{Signals, interrupted};
use crate::plan::Plan;

/// Finds or builds the images; Ctrl-C cancels a build. `shown_notes` are notes that the user has already read.
pub(crate) async fn prepare(
    backend: &dyn Backend,
    plan: &Plan,
    secrets: &BTreeMap<String, SecretText>,
    shown_notes: &[String],
    signals: &mut Signals,
    output: &Output,
) -> Result<Prepared, CliError> {
    let progress = Arc::new(Progress::start(output));
    let shown = progress.clone();
    let progress_sink = ProgressSink::new(move |step: Step| shown.step(&step));
    let prepared = tokio::select! {
        prepared = backend.prepare(plan, secrets, &progress_sink) => prepared,
        number = signals.end() => {
            return Err(interrupted(number)
                .hint("the next start reuses what was built; `bottle cleanup` removes it"));
        }
    };
    drop(progress_sink);
    drop(progress);
    let prepared = prepared.map_err(|error| prepare_failed(error, plan))?;
    for note in prepared.notes.iter().filter(|note| !shown_notes.contains(note)) {
        output.note(note);
    }
    Ok(prepared)
}

/// Maps a missing program to the shell's exit code, for scripts. On a terminal the exit code says that the
/// backend refused.
pub(crate) fn prepare_failed(error: BackendError, plan: &Plan) -> CliError {
    let missing = error.kind == BackendErrorKind::ProgramMissing;
    let error = CliError::from(error);
    if missing && plan.agent.terminal.is_none() { error.exit(exit::NOT_FOUND) } else { error }
}
