//! Shows the preflight before a launch, and asks whether to start.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use bottle_lib::launch::preflight::{Preflight, of_project};
use bottle_lib::report::SecretUse;
use bottle_lib::text::from_home;
use bottle_manifest::resolve::explain;

use crate::cli::summary::{Summary, Tone};
use crate::console::error::{CliError, require_answer};
use crate::console::output::{Output, Styles, inert};
use crate::console::signals::{Signals, interrupted};
use crate::console::terminal::{Decision, TerminalUser, interactive};

/// The maximum number of lines of a row in the one-screen summary. Further lines are counted but not shown.
const MOST: usize = 7;

/// The note about what happens when the user closes the agent's terminal.
const CLOSING: &str = "Closing the terminal detaches you, and the agent goes on; `bottle attach` returns.";

/// Prints the full preview without starting anything.
pub(crate) fn show_dry_run(
    launch: &Preflight,
    home: &Path,
    labelled: bool,
    output: &Output,
) -> Result<(), CliError> {
    if !output.json {
        return output.print(&page(launch, home, output.styles()));
    }
    output.print_json(&launch.document(labelled))
}

/// Decides whether to start the bottle. On a terminal, shows one screen and asks the user. Without a terminal, starts
/// the bottle without asking, and prints only warnings.
pub(crate) async fn confirm(
    launch: &Preflight,
    home: &Path,
    yes: bool,
    signals: &mut Signals,
    output: &Output,
) -> Result<Decision, CliError> {
    if yes || !interactive() {
        for line in launch.warnings() {
            output.note(line);
        }
        return Ok(Decision::Yes);
    }
    let styles = output.err_styles();
    output.write_error_lines(&summary(launch, home).text(styles, Some(MOST)));
    if launch.plan.agent.terminal.is_some() && !launch.plan.detached {
        output.write_error_lines(&styles.hanging(CLOSING, 0));
    }
    let question = format!("Start {} on {}?", launch.plan.identity.agent, launch.plan.backend);
    loop {
        let asked = question.clone();
        match answer(signals, move || TerminalUser::find()?.decide(&asked)).await? {
            Decision::Explain => {
                output.write_error_lines(&page(launch, home, styles));
                output.write_error_lines("y starts it, e changes the choice, anything else cancels");
            }
            decision => return Ok(decision),
        }
    }
}

/// Formats the one-screen summary of what will run.
pub(crate) fn shown(launch: &Preflight, home: &Path, styles: Styles) -> String {
    summary(launch, home).text(styles, Some(MOST))
}

/// Asks a yes/no question about whether to start.
pub(crate) async fn ask(question: String, signals: &mut Signals) -> Result<bool, CliError> {
    answer(signals, move || TerminalUser::find()?.confirm(&question)).await
}

/// Asks on a separate thread, so that signals are handled while the question waits for the user.
pub(crate) async fn answer<T: Send + 'static>(
    signals: &mut Signals,
    question: impl FnOnce() -> io::Result<Option<T>> + Send + 'static,
) -> Result<T, CliError> {
    let asking = tokio::task::spawn_blocking(question);
    let answer = tokio::select! {
        answer = asking => answer,
        number = signals.end() => return Err(interrupted(number)),
    };
    require_answer(answer.unwrap_or_else(|error| Err(error.into())), "nothing was started")
}

/// Builds the one-screen summary, without default values.
fn summary(launch: &Preflight, home: &Path) -> Summary {
    let mut summary = Summary::new(&launch.resolved, home);
    summary.row("runs", Tone::Plain, launch.started_as());
    summary.row("workspace", Tone::Plain, launch.works_in(home));
    summary.row("copies", Tone::Notice, launch.copy_warnings());
    summary.row("mounts", Tone::Notice, launch.live.clone());
    summary.row("commits", Tone::Plain, launch.commits_as());
    summary.inside(&launch.resolved.manifest, home);
    let weaker = launch.weaker_beside_the_manifest().into_iter().map(|line| from_home(&line, home));
    summary.reach(&launch.resolved.manifest, home, weaker.collect());
    summary.row("secrets", Tone::Plain, secrets(launch));
    let seen = launch.exposed().into_iter().map(|line| from_home(&line, home));
    summary.row("exposed", Tone::Plain, seen.collect());
    summary.row("builds", Tone::Plain, launch.preview.makes.clone());
    summary.row("changed", Tone::Notice, launch.preview.changed.clone());
    summary.row("image", Tone::Notice, launch.preview.notes.clone());
    summary.row("limits", Tone::Notice, launch.preview.limits.clone());
    summary.project(&launch.resolved);
    summary.row("warnings", Tone::Notice, launch.resolved.warnings.clone());
    summary
}

fn page(launch: &Preflight, home: &Path, styles: Styles) -> String {
    let mut text = explain(&launch.resolved.manifest);
    let mut section = |heading: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let _ = write!(text, "\n{heading}\n");
            for line in lines {
                let _ = writeln!(text, "  {}", inert(&line));
            }
        }
    };
    section(&styles.bold("command"), launch.started_as());
    section(&styles.bold("author of its commits"), launch.commits_as());
    section(&styles.bold("workspace"), launch.works_in(home));
    section(&styles.yellow("copies"), launch.copy_warnings());
    section(&styles.yellow("mounts"), launch.live.clone());
    section(&styles.bold("secrets"), secrets(launch));
    section(&styles.bold("host paths it can read"), launch.exposed());
    section(&styles.bold("built or pulled before the start"), launch.preview.makes.clone());
    section(&styles.yellow("Dockerfile changes since the last build"), launch.preview.changed.clone());
    section(&styles.yellow("image notes"), launch.preview.notes.clone());
    section(&styles.yellow("limits"), launch.preview.limits.clone());
    section(&styles.yellow("from this project"), of_project(&launch.resolved));
    section(&styles.red("weaker than usual"), launch.weaker());
    section(&styles.yellow("warnings"), launch.resolved.warnings.clone());
    text
}

fn secrets(launch: &Preflight) -> Vec<String> {
    let uses = launch.secrets().into_iter();
    uses.map(|SecretUse { purpose, from }| format!("{purpose}, from {from}")).collect()
}
