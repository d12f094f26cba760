//! What will be started, shown before it is: where every value comes from, what comes from a project, what
//! weakens the bottle, what of this machine it sees.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::backend::{Backend, Exposed, Preview};
use crate::cli::error::{CliError, answered};
use crate::cli::output::{Output, Styles, inert};
use crate::cli::session::{Signals, interrupted};
use crate::cli::summary::{Summary, Tone, from_home, of_project};
use crate::cli::terminal::{Decision, TerminalUser, interactive};
use crate::plan::{Plan, Workspace};
use crate::resolve::{Resolved, ResolvedManifest, WeakeningSetting, explain, weakening_settings};
use crate::secrets::describe;

/// Everything a user decides on.
pub(crate) struct View<'a> {
    pub(crate) resolved: &'a Resolved,
    pub(crate) plan: &'a Plan,
    pub(crate) preview: &'a Preview,
    pub(crate) backend: &'a dyn Backend,
    /// The user's, for shorter paths.
    pub(crate) home: &'a Path,
}

/// Lines of each part of the one screen.
const MOST: usize = 7;

/// `start --dry-run --json`. Fields are only ever added.
#[derive(Serialize)]
struct DryRun<'a> {
    /// Absent when it would be drawn at random.
    slug: Option<&'a str>,
    backend: &'a str,
    command: &'a [String],
    terminal: bool,
    secrets: Vec<Held>,
    exposed: &'a [Exposed],
    /// What would be built, fetched or loaded first, and why.
    makes: &'a [String],
    /// How its Dockerfile differs from what was built, as a unified difference.
    changed: &'a [String],
    /// What of its image has no effect or does not last.
    notes: &'a [String],
    /// Which limits are kept only as well as can be.
    limits: &'a [String],
    weaker: Vec<WeakeningSetting>,
    manifest: &'a ResolvedManifest,
    routes: &'a str,
}

#[derive(Serialize)]
struct Held {
    purpose: String,
    from: String,
}

/// Prints all of it, and starts nothing.
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
        secrets: held(plan),
        exposed: &view.preview.exposed,
        makes: &view.preview.makes,
        changed: &view.preview.changed,
        notes: &view.preview.notes,
        limits: &view.preview.limits,
        weaker: weakening_settings(&view.resolved.manifest),
        manifest: &view.resolved.manifest,
        routes: &plan.egress.routes,
    })
}

/// Whether to go on. A user at a terminal is shown one screen and asked; otherwise the manifests are the
/// user's word, and only what they should not miss is said.
pub(crate) async fn agreed(
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
    output.say(&brief(view).text(styles, Some(MOST)));
    let question = format!("Start {} on {}?", view.plan.identity.agent, view.plan.backend);
    loop {
        let asked = question.clone();
        match answer(signals, move || TerminalUser::find()?.decide(&asked)).await? {
            Decision::Explain => {
                output.say(&page(view, styles));
                output.say("y starts it, e goes back to choose other bottles, anything else leaves");
            }
            decision => return Ok(decision),
        }
    }
}

/// The user's answer to a question that decides whether anything is started.
pub(crate) async fn ask(question: String, signals: &mut Signals) -> Result<bool, CliError> {
    answer(signals, move || TerminalUser::find()?.confirm(&question)).await
}

/// The answer to a question, which is asked on a thread of its own, so that a signal is heard while the user
/// thinks.
pub(super) async fn answer<T: Send + 'static>(
    signals: &mut Signals,
    question: impl FnOnce() -> io::Result<Option<T>> + Send + 'static,
) -> Result<T, CliError> {
    let asking = tokio::task::spawn_blocking(question);
    let answer = tokio::select! {
        answer = asking => answer,
        number = signals.end() => return Err(interrupted(number)),
    };
    answered(answer.unwrap_or_else(|error| Err(error.into())), "nothing was started")
}

/// One screen of it: what a user decides on, without the values that nobody wrote.
fn brief(view: &View<'_>) -> Summary {
    let home = view.home;
    let mut brief = Summary::new(view.resolved, home);
    brief.row("runs", Tone::Plain, started_as(view.plan));
    brief.row("works in", Tone::Plain, vec![works_in(view.plan, home)]);
    brief.reach(&view.resolved.manifest, home, unisolated(view));
    brief.row("holds", Tone::Plain, secrets(view.plan));
    let seen = exposed(view.preview).into_iter().map(|line| from_home(&line, home));
    brief.row("sees", Tone::Plain, seen.collect());
    brief.row("made now", Tone::Plain, view.preview.makes.clone());
    brief.row("changed", Tone::Notice, view.preview.changed.clone());
    brief.row("image", Tone::Notice, view.preview.notes.clone());
    brief.row("limits", Tone::Notice, view.preview.limits.clone());
    brief.project(view.resolved);
    brief.row("not yet", Tone::Notice, missing(view));
    brief.row("passed", Tone::Notice, view.resolved.warnings.clone());
    brief
}

fn works_in(plan: &Plan, home: &Path) -> String {
    let here = || from_home(&plan.identity.cwd.display().to_string(), home);
    match plan.workspace {
        Workspace::Empty => "an empty folder; `--cwd` copies this one in".to_owned(),
        Workspace::Copy => format!("a copy of {}, without what .gitignore leaves out", here()),
        Workspace::CopyAll => format!("a copy of {}, all of it", here()),
    }
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
    section(&styles.bold("started as"), started_as(view.plan));
    section(&styles.bold("secrets it is given or stands for"), secrets(view.plan));
    section(&styles.bold("seen of this machine, read-only"), exposed(view.preview));
    section(&styles.bold("made before it starts"), view.preview.makes.clone());
    section(&styles.yellow("its Dockerfile changed since it was built"), view.preview.changed.clone());
    section(&styles.yellow("of its image"), view.preview.notes.clone());
    section(&styles.yellow("of its limits"), view.preview.limits.clone());
    section(&styles.yellow("from this project"), of_project(view.resolved));
    section(&styles.red("weaker than usual"), weaker(view));
    section(&styles.yellow("not part of this version"), missing(view));
    section(&styles.yellow("passed over"), view.resolved.warnings.clone());
    text
}

/// What a reader of the manifest could take for granted and nobody does yet.
fn missing(view: &View<'_>) -> Vec<String> {
    let unread = "what is sent to the hosts above is not read for secrets: there is no scanner yet";
    let routes = !view.resolved.manifest.egress.routes.is_empty();
    routes.then(|| unread.to_owned()).into_iter().collect()
}

/// What should not be missed even where nobody is asked.
pub(crate) fn warnings(view: &View<'_>) -> Vec<String> {
    let mut lines = of_project(view.resolved);
    lines.extend(view.preview.notes.iter().cloned());
    lines.extend(view.preview.limits.iter().cloned());
    lines.extend(weaker(view).into_iter().map(|line| format!("weaker than usual: {line}")));
    lines.extend(view.resolved.warnings.iter().cloned());
    lines
}

fn started_as(plan: &Plan) -> Vec<String> {
    let way = if plan.agent.terminal.is_some() { "on a terminal" } else { "on pipes" };
    vec![format!("{} {way}, on the backend {}", shown_argv(&plan.agent.argv), plan.backend)]
}

/// Arguments as a user would have to type them, where that is needed to tell them apart.
fn shown_argv(argv: &[String]) -> String {
    let plain = |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '\'');
    let words = argv.iter().map(|word| if plain(word) { word.clone() } else { format!("{word:?}") });
    words.collect::<Vec<_>>().join(" ")
}

fn secrets(plan: &Plan) -> Vec<String> {
    held(plan).into_iter().map(|held| format!("{}, from {}", held.purpose, held.from)).collect()
}

fn held(plan: &Plan) -> Vec<Held> {
    let one =
        |need: &crate::plan::SecretNeed| Held { purpose: need.purpose.clone(), from: describe(&need.source) };
    plan.secrets.iter().map(one).collect()
}

fn exposed(preview: &Preview) -> Vec<String> {
    preview.exposed.iter().map(|exposed| format!("{}  ({})", exposed.path.display(), exposed.why)).collect()
}

fn weaker(view: &View<'_>) -> Vec<String> {
    let mut lines = unisolated(view);
    lines.extend(
        weakening_settings(&view.resolved.manifest)
            .into_iter()
            .map(|weakness| format!("{} {} ({})", weakness.host, weakness.what.sentence(), weakness.origin)),
    );
    lines
}

fn unisolated(view: &View<'_>) -> Vec<String> {
    let isolates = view.backend.capabilities().isolates;
    let said = || format!("the {} backend does not isolate anything", view.backend.name());
    (!isolates).then(said).into_iter().collect()
}
