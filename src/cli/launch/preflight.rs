//! The preflight: shows, before a start, what will run, what the project's manifest decides, which settings
//! weaken the bottle, and what the bottle sees of the host.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_contract::route::render_routes;
use bottle_repository::Stop;
use serde::Serialize;

use super::copied::Copied;
use crate::backend::{Backend, Exposed, Preview};
use crate::cli::error::{CliError, require_answer};
use crate::cli::output::{Output, Styles, inert, one_line};
use crate::cli::session::{Signals, interrupted};
use crate::cli::summary::{Summary, Tone, from_home, of_project};
use crate::cli::terminal::{Decision, TerminalUser, interactive};
use crate::launch::FileSelection;
use crate::plan::{CopiedDirectory, GitField, GitFieldSource, GitIdentity, Plan, Workspace};
use crate::resolve::{Resolved, ResolvedManifest, WeakeningSetting, explain, weakening_settings};
use crate::secrets::describe;

/// The information with which a user decides about a start.
pub(crate) struct View<'a> {
    pub(crate) resolved: &'a Resolved,
    pub(crate) plan: &'a Plan,
    pub(crate) preview: &'a Preview,
    pub(crate) backend: &'a dyn Backend,
    /// The user's home directory, used to shorten paths.
    pub(crate) home: &'a Path,
    /// The existing files that the bottle starts with, as a noun phrase. `None` for a new workspace.
    pub(crate) files: Option<String>,
    /// The directories that are copied into the workspace.
    pub(crate) copied: Vec<Source>,
    /// What the user should know about the directory that is mounted as the workspace.
    pub(crate) live: Vec<String>,
}

/// The maximum number of lines of a row on the one-screen summary. Further lines are only counted.
const MOST: usize = 7;

/// How long the directories that are copied are looked through. Then the question says how much was found so far.
const LOOKED_FOR: Duration = Duration::from_secs(5);

/// What happens to an agent on a terminal that is closed.
const CLOSING: &str = "Closing the terminal detaches you, and the agent goes on; `bottle attach` returns.";

/// The output of `start --dry-run --json`. A later version may add fields, but does not remove or rename any.
#[derive(Serialize)]
struct DryRun<'a> {
    /// The slug; absent if it would be random.
    slug: Option<&'a str>,
    backend: &'a str,
    command: &'a [String],
    terminal: bool,
    secrets: Vec<SecretUse>,
    exposed: &'a [Exposed],
    /// Sockets and pipes of the machine in these paths, which weaken the isolation (`home_allow_sockets`).
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    sockets: &'a [String],
    /// Images that would be built, pulled or loaded first, and why.
    makes: &'a [String],
    /// A unified diff from the Dockerfile that was last built.
    changed: &'a [String],
    /// Parts of the image that have no effect, or that do not persist.
    notes: &'a [String],
    /// Limits that the backend enforces only approximately.
    limits: &'a [String],
    weaker: Vec<WeakeningSetting>,
    /// The directory that is mounted as the workspace (`--cwd=live`), which weakens the isolation too.
    live: Option<&'a Path>,
    /// The directories that are copied into the workspace, if there are several.
    #[serde(rename = "folders", skip_serializing_if = "<[_]>::is_empty")]
    directories: &'a [CopiedDirectory],
    manifest: &'a ResolvedManifest,
    routes: String,
}

#[derive(Serialize)]
struct SecretUse {
    purpose: String,
    from: String,
}

/// Prints the full preview without starting anything.
pub(crate) fn show_dry_run(view: &View<'_>, labelled: bool, output: &Output) -> Result<(), CliError> {
    if !output.json {
        return output.print(&page(view, output.styles()));
    }
    let plan = view.plan;
    output.print_json(&DryRun {
        slug: labelled.then(|| plan.identity.slug.as_str()),
        backend: &plan.backend,
        command: &plan.agent.argv,
        terminal: plan.agent.terminal.is_some(),
        secrets: secret_uses(plan),
        exposed: &view.preview.exposed,
        sockets: &view.preview.sockets,
        makes: &view.preview.makes,
        changed: &view.preview.changed,
        notes: &view.preview.notes,
        limits: &view.preview.limits,
        weaker: weakening_settings(&view.resolved.manifest),
        live: plan.live.as_ref().map(|live| live.path.as_path()),
        directories: &plan.identity.directories,
        manifest: &view.resolved.manifest,
        routes: render_routes(&plan.egress.routes),
    })
}

/// Decides whether to start. On a terminal it shows one screen and asks the user. Without a terminal it
/// starts without asking, and prints only warnings.
pub(crate) async fn confirm(
    view: &View<'_>,
    yes: bool,
    signals: &mut Signals,
    output: &Output,
) -> Result<Decision, CliError> {
    if yes || !interactive() {
        for line in warnings(view) {
            output.note(line);
        }
        return Ok(Decision::Yes);
    }
    let styles = output.err_styles();
    output.write_error_lines(&summary(view).text(styles, Some(MOST)));
    if view.plan.agent.terminal.is_some() && !view.plan.detached {
        output.write_error_lines(&styles.hanging(CLOSING, 0));
    }
    let question = format!("Start {} on {}?", view.plan.identity.agent, view.plan.backend);
    loop {
        let asked = question.clone();
        match answer(signals, move || TerminalUser::find()?.decide(&asked)).await? {
            Decision::Explain => {
                output.write_error_lines(&page(view, styles));
                output.write_error_lines("y starts it, e changes the choice, anything else cancels");
            }
            decision => return Ok(decision),
        }
    }
}

/// The one-screen summary of what will run.
pub(crate) fn shown(view: &View<'_>, styles: Styles) -> String {
    summary(view).text(styles, Some(MOST))
}

/// Asks a yes/no question about whether to start.
pub(crate) async fn ask(question: String, signals: &mut Signals) -> Result<bool, CliError> {
    answer(signals, move || TerminalUser::find()?.confirm(&question)).await
}

/// Asks on a separate thread, so that signals are handled while the user thinks.
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
fn summary(view: &View<'_>) -> Summary {
    let home = view.home;
    let mut summary = Summary::new(view.resolved, home);
    summary.row("runs", Tone::Plain, started_as(view.plan));
    summary.row("workspace", Tone::Plain, works_in(view));
    summary.row("copies", Tone::Notice, copy_warnings(&view.copied));
    summary.row("mounts", Tone::Notice, view.live.clone());
    summary.row("commits", Tone::Plain, commits_as(view.plan));
    summary.inside(&view.resolved.manifest);
    let weaker = beside_the_manifest(view).into_iter().map(|line| from_home(&line, home));
    summary.reach(&view.resolved.manifest, home, weaker.collect());
    summary.row("secrets", Tone::Plain, secrets(view.plan));
    let seen = exposed(view.preview).into_iter().map(|line| from_home(&line, home));
    summary.row("exposed", Tone::Plain, seen.collect());
    summary.row("builds", Tone::Plain, view.preview.makes.clone());
    summary.row("changed", Tone::Notice, view.preview.changed.clone());
    summary.row("image", Tone::Notice, view.preview.notes.clone());
    summary.row("limits", Tone::Notice, view.preview.limits.clone());
    summary.project(view.resolved);
    summary.row("warnings", Tone::Notice, view.resolved.warnings.clone());
    summary
}

fn works_in(view: &View<'_>) -> Vec<String> {
    let View { plan, home, copied, .. } = view;
    let begins = plan.identity.start_directory();
    let begins = begins.map(|inside| format!("; the agent starts in {}/", inside.display()));
    let begins = begins.unwrap_or_default();
    if let Some(live) = &plan.live {
        let path = from_home(&live.path.display().to_string(), home);
        let git = if live.repository.is_some() { ", with a repository of its own as .git" } else { "" };
        return vec![format!("{path} itself{git}{begins}")];
    }
    if let Some(files) = &view.files {
        return vec![files.clone()];
    }
    if copied.is_empty() {
        return vec!["an empty directory; `--cwd` copies this directory in".to_owned()];
    }
    let line = |Source { name, path, all, copied }: &Source| {
        let name = name.as_deref().map(|name| format!("{}/: ", one_line(name))).unwrap_or_default();
        let here = from_home(&path.display().to_string(), home);
        let files = if *all { "with all files" } else { "without ignored files" };
        format!("{name}a copy of {here} {files}: {}{begins}", copied.size())
    };
    copied.iter().map(line).collect()
}

/// The author of the commits in a copy of the user's directory, and which part of it is only a default.
fn commits_as(plan: &Plan) -> Vec<String> {
    let GitIdentity { name, email } = &plan.git_identity;
    let is_default = |field: &GitField| field.source == GitFieldSource::Default;
    if plan.workspace == Workspace::Empty && plan.live.is_none() && is_default(name) && is_default(email) {
        return Vec::new();
    }
    let default = match (is_default(name), is_default(email)) {
        (true, true) => " (default: your git has no `user.name` and `user.email` here)",
        (true, false) => " (default name: your git has no `user.name` here)",
        (false, true) => " (default address: your git has no `user.email` here)",
        (false, false) => "",
    };
    vec![format!("as {} <{}>{default}", name.value, email.value)]
}

/// A directory that `--cwd` copies.
pub(crate) struct Source {
    /// The name of its directory in the workspace, if there are several.
    name: Option<String>,
    path: PathBuf,
    /// Whether ignored files are copied too.
    all: bool,
    copied: Copied,
}

impl Source {
    fn of(
        directory: &CopiedDirectory,
        name: Option<&str>,
        shares: bool,
        plan: &Plan,
        stop: &Stop,
    ) -> Result<Self, CliError> {
        let CopiedDirectory { path, all, .. } = directory;
        let selection = if *all { FileSelection::All } else { FileSelection::not_ignored(plan) };
        let copied = Copied::of(path, selection, shares, &plan.git_directories, stop)
            .map_err(|error| CliError::cannot(format!("copy {}", path.display()), error))?;
        Ok(Self { name: name.map(str::to_owned), path: path.clone(), all: *all, copied })
    }
}

/// Looks through the directories that `--cwd` copies into a new workspace. A signal ends it.
///
/// # Errors
/// When a copy would fail, or after a signal.
pub(crate) async fn sources(
    plan: &Plan,
    preview: &Preview,
    signals: &mut Signals,
) -> Result<Vec<Source>, CliError> {
    let all = match plan.workspace {
        Workspace::Empty | Workspace::Files | Workspace::Repository => return Ok(Vec::new()),
        Workspace::Copy => false,
        Workspace::CopyAll => true,
    };
    let one = CopiedDirectory { name: String::new(), path: plan.identity.cwd.clone(), all };
    let (shares, stop) = (preview.shares_objects, Stop::after(LOOKED_FOR));
    let _stopped = stop.on_drop();
    let plan = plan.clone();
    let looking = tokio::task::spawn_blocking(move || {
        let several = &plan.identity.directories;
        if several.is_empty() {
            return Source::of(&one, None, shares, &plan, &stop).map(|source| vec![source]);
        }
        several
            .iter()
            .map(|directory| Source::of(directory, Some(&directory.name), shares, &plan, &stop))
            .collect()
    });
    tokio::select! {
        looked = looking => {
            looked.map_err(|error| CliError::cannot("look through the directory", error))?
        }
        number = signals.end() => Err(interrupted(number)),
    }
}

fn copy_warnings(copied: &[Source]) -> Vec<String> {
    copied.iter().flat_map(|source| source.copied.warnings(source.name.as_deref())).collect()
}

fn page(view: &View<'_>, styles: Styles) -> String {
    let mut text = explain(&view.resolved.manifest);
    let mut section = |heading: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let _ = write!(text, "\n{heading}\n");
            for line in lines {
                let _ = writeln!(text, "  {}", inert(&line));
            }
        }
    };
    section(&styles.bold("command"), started_as(view.plan));
    section(&styles.bold("author of its commits"), commits_as(view.plan));
    section(&styles.bold("workspace"), works_in(view));
    section(&styles.yellow("copies"), copy_warnings(&view.copied));
    section(&styles.yellow("mounts"), view.live.clone());
    section(&styles.bold("secrets"), secrets(view.plan));
    section(&styles.bold("host paths it can read"), exposed(view.preview));
    section(&styles.bold("built or pulled before the start"), view.preview.makes.clone());
    section(&styles.yellow("Dockerfile changes since the last build"), view.preview.changed.clone());
    section(&styles.yellow("image notes"), view.preview.notes.clone());
    section(&styles.yellow("limits"), view.preview.limits.clone());
    section(&styles.yellow("from this project"), of_project(view.resolved));
    section(&styles.red("weaker than usual"), weaker(view));
    section(&styles.yellow("warnings"), view.resolved.warnings.clone());
    text
}

/// Returns the warnings that are printed even if no question is asked.
pub(crate) fn warnings(view: &View<'_>) -> Vec<String> {
    let mut lines = of_project(view.resolved);
    lines.extend(view.preview.notes.iter().cloned());
    lines.extend(view.preview.limits.iter().cloned());
    lines.extend(weaker(view).into_iter().map(|line| format!("weaker than usual: {line}")));
    lines.extend(view.resolved.warnings.iter().cloned());
    lines.extend(copy_warnings(&view.copied));
    lines.extend(view.live.iter().cloned());
    lines
}

fn started_as(plan: &Plan) -> Vec<String> {
    let way = if plan.agent.terminal.is_some() { "on a terminal" } else { "on pipes" };
    vec![format!("{} {way}, on the backend {}", shown_argv(&plan.agent.argv), plan.backend)]
}

/// Formats arguments, and quotes those that contain spaces or quotes or are empty.
fn shown_argv(argv: &[String]) -> String {
    let plain = |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '\'');
    let words = argv.iter().map(|word| if plain(word) { word.clone() } else { format!("{word:?}") });
    words.collect::<Vec<_>>().join(" ")
}

fn secrets(plan: &Plan) -> Vec<String> {
    secret_uses(plan)
        .into_iter()
        .map(|SecretUse { purpose, from }| format!("{purpose}, from {from}"))
        .collect()
}

fn secret_uses(plan: &Plan) -> Vec<SecretUse> {
    let needs = plan.secrets.iter();
    needs.map(|need| SecretUse { purpose: need.purpose.clone(), from: describe(&need.source) }).collect()
}

fn exposed(preview: &Preview) -> Vec<String> {
    preview.exposed.iter().map(|exposed| format!("{}  ({})", exposed.path.display(), exposed.why)).collect()
}

fn weaker(view: &View<'_>) -> Vec<String> {
    let mut lines = beside_the_manifest(view);
    lines.extend(
        weakening_settings(&view.resolved.manifest)
            .into_iter()
            .map(|weakness| format!("{} {} ({})", weakness.host, weakness.sentence(), weakness.origin)),
    );
    lines
}

/// The weaknesses that do not come from the manifest.
fn beside_the_manifest(view: &View<'_>) -> Vec<String> {
    let isolates = view.backend.capabilities().isolates;
    let unisolated = || format!("the {} backend does not isolate anything", view.backend.name());
    let live = view.plan.live.as_ref().map(|live| {
        let path = one_line(&live.path.display().to_string());
        format!("the agent changes the files in {path} themselves, and programs outside of the bottle use them (`--cwd=live`)")
    });
    let unmetered = view.plan.egress.gate.unmetered.iter().map(|endpoint| {
        format!("requests to {endpoint} pass uncounted where a budget limits their host (`gate.unmetered`)")
    });
    let sockets = view.preview.sockets.iter();
    let sockets = sockets.map(|found| format!("the agent sees {} (`home_allow_sockets`)", one_line(found)));
    (!isolates).then(unisolated).into_iter().chain(live).chain(unmetered).chain(sockets).collect()
}
