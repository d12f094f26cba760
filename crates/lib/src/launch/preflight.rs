//! The information that the user gets before a launch: the command that will run, the choices of the project's
//! manifest, the settings that weaken the bottle, and the parts of the host that the bottle sees.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_backend::{Backend, Origin, Preview};
use bottle_keeper::launch::FileSelection;
use bottle_keeper::launch::order::Resumed;
use bottle_manifest::Place;
use bottle_manifest::resolve::{BottleChoice, Resolved, weakening_settings};
use bottle_plan::secrets::describe;
use bottle_plan::{CopiedDirectory, GitField, GitFieldSource, GitIdentity, Plan, Workspace};
use bottle_policy::route::render_routes;
use bottle_repository::Stop;

use super::copied::Copied;
use crate::failure::Failure;
use crate::report::{DryRun, SecretUse};
use crate::text::{from_home, names, one_line};

/// The time limit for scanning the directories to copy. When the limit passes, the shown size covers only the files
/// found so far.
const LOOKED_FOR: Duration = Duration::from_secs(5);

/// A launch that the user has not confirmed yet. No resource was created, and no secret was read.
pub struct Preflight {
    /// The resolved manifest.
    pub resolved: Resolved,
    /// The plan of the bottle that would be launched.
    pub plan: Plan,
    /// The backend's preview, such as the resources that the backend would create first, and the features that it
    /// lacks.
    pub preview: Preview,
    /// The backend that would launch the bottle.
    pub backend: Box<dyn Backend>,
    /// Where the bottle's files come from.
    pub origin: Origin,
    /// Set when the agent continues a conversation.
    pub resumed: Option<Resumed>,
    /// The existing files that the bottle starts with, as a noun phrase. `None` for a new workspace.
    pub files: Option<String>,
    /// The directories that are copied into the workspace.
    pub copied: Vec<Source>,
    /// The warnings about the directory that is mounted as the workspace.
    pub live: Vec<String>,
}

impl Preflight {
    /// Describes the agent's command, how the command is started, and the backend.
    pub fn started_as(&self) -> Vec<String> {
        let plan = &self.plan;
        let way = if plan.agent.terminal.is_some() { "on a terminal" } else { "on pipes" };
        vec![format!("{} {way}, on the backend {}", shown_argv(&plan.agent.argv), plan.backend)]
    }

    /// Describes the files in the workspace. Paths below the user's home directory `home` begin with `~`.
    pub fn works_in(&self, home: &Path) -> Vec<String> {
        let Self { plan, copied, .. } = self;
        let begins = plan.identity.start_directory();
        let begins = begins.map(|inside| format!("; the agent starts in {}/", inside.display()));
        let begins = begins.unwrap_or_default();
        if let Some(live) = &plan.live {
            let path = from_home(&live.path.display().to_string(), home);
            let git = if live.repository.is_some() { ", with a repository of its own as .git" } else { "" };
            return vec![format!("{path} itself{git}{begins}")];
        }
        if let Some(files) = &self.files {
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

    /// Describes the author of the agent's commits, and says which part of the author is only a default. Empty if the
    /// workspace is empty and the whole author is a default.
    pub fn commits_as(&self) -> Vec<String> {
        let plan = &self.plan;
        let GitIdentity { name, email } = &plan.git_identity;
        let is_default = |field: &GitField| field.source == GitFieldSource::Default;
        if plan.workspace == Workspace::Empty && plan.live.is_none() && is_default(name) && is_default(email)
        {
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

    /// The warnings about the directories that are copied.
    pub fn copy_warnings(&self) -> Vec<String> {
        self.copied.iter().flat_map(|source| source.copied.warnings(source.name.as_deref())).collect()
    }

    /// The secrets that the launch reads.
    pub fn secrets(&self) -> Vec<SecretUse> {
        let needs = self.plan.secrets.iter();
        needs.map(|need| SecretUse { purpose: need.purpose.clone(), from: describe(&need.source) }).collect()
    }

    /// The paths of the host that the bottle can read.
    pub fn exposed(&self) -> Vec<String> {
        let exposed = self.preview.exposed.iter();
        exposed.map(|exposed| format!("{}  ({})", exposed.path.display(), exposed.why)).collect()
    }

    /// Descriptions of everything that weakens the isolation.
    pub fn weaker(&self) -> Vec<String> {
        let mut lines = self.weaker_beside_the_manifest();
        lines.extend(
            weakening_settings(&self.resolved.manifest)
                .into_iter()
                .map(|weakness| format!("{} {} ({})", weakness.host, weakness.sentence(), weakness.origin)),
        );
        lines
    }

    /// Descriptions of what weakens the isolation, without the settings of the manifest.
    pub fn weaker_beside_the_manifest(&self) -> Vec<String> {
        let isolates = self.backend.capabilities().isolates;
        let unisolated = || format!("the {} backend does not isolate anything", self.backend.name());
        let live = self.plan.live.as_ref().map(|live| {
            let path = one_line(&live.path.display().to_string());
            format!("the agent changes the files in {path} themselves, and programs outside of the bottle use them (`--cwd=live`)")
        });
        let unmetered = self.plan.egress.metering.unmetered.iter().map(|endpoint| {
            format!(
                "requests to {endpoint} pass uncounted where a budget limits their host (`metering.unmetered`)"
            )
        });
        let sockets = self.preview.sockets.iter();
        let sockets =
            sockets.map(|found| format!("the agent sees {} (`home_allow_sockets`)", one_line(found)));
        (!isolates).then(unisolated).into_iter().chain(live).chain(unmetered).chain(sockets).collect()
    }

    /// Returns the output document of this launch. The document contains the slug only if `is_labelled` is set, because
    /// a slug without a label is random.
    pub fn document(&self, is_labelled: bool) -> DryRun<'_> {
        let Self { plan, preview, resolved, .. } = self;
        DryRun {
            slug: is_labelled.then(|| plan.identity.slug.as_str()),
            backend: &plan.backend,
            command: &plan.agent.argv,
            terminal: plan.agent.terminal.is_some(),
            secrets: self.secrets(),
            exposed: &preview.exposed,
            sockets: &preview.sockets,
            makes: &preview.makes,
            changed: &preview.changed,
            notes: &preview.notes,
            limits: &preview.limits,
            weaker: weakening_settings(&resolved.manifest),
            live: plan.live.as_ref().map(|live| live.path.as_path()),
            directories: &plan.identity.directories,
            manifest: &resolved.manifest,
            routes: render_routes(&plan.egress.routes),
        }
    }

    /// The warnings for the user, which are also shown if no question is asked.
    pub fn warnings(&self) -> Vec<String> {
        let mut lines = of_project(&self.resolved);
        lines.extend(self.preview.notes.iter().cloned());
        lines.extend(self.preview.limits.iter().cloned());
        lines.extend(self.weaker().into_iter().map(|line| format!("weaker than usual: {line}")));
        lines.extend(self.resolved.warnings.iter().cloned());
        lines.extend(self.copy_warnings());
        lines.extend(self.live.iter().cloned());
        lines
    }
}

/// Describes the choices that come from the project's manifest and not from the user.
pub fn of_project(resolved: &Resolved) -> Vec<String> {
    let agent = &resolved.manifest.agent;
    if agent.source.place != Place::Project {
        return Vec::new();
    }
    let replaces = match resolved.agent_replaces {
        Some(Place::Home) => ", which replaces yours of that name",
        Some(_) => ", which replaces the one that ships with bottle",
        None => "",
    };
    let mut lines = vec![format!("the agent `{}` ({}){replaces}", agent.name, agent.source)];
    if resolved.choice == BottleChoice::Suggested {
        lines.push(format!("the choice of `{}`", names(&resolved.manifest.bottles).replace(", ", "`, `")));
    }
    lines
}

/// Formats the arguments of a command. Quotes the arguments that are empty or contain spaces or quotes.
fn shown_argv(argv: &[String]) -> String {
    let plain = |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '\'');
    let words = argv.iter().map(|word| if plain(word) { word.clone() } else { format!("{word:?}") });
    words.collect::<Vec<_>>().join(" ")
}

/// A directory that is copied.
pub struct Source {
    /// The name of the copy in the workspace, if several directories are copied.
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
    ) -> Result<Self, Failure> {
        let CopiedDirectory { path, all, .. } = directory;
        let selection = if *all { FileSelection::All } else { FileSelection::not_ignored(plan) };
        let copied = Copied::of(path, selection, shares, &plan.git_directories, stop)
            .map_err(|error| Failure::cannot(format!("copy {}", path.display()), error))?;
        Ok(Self { name: name.map(str::to_owned), path: path.clone(), all: *all, copied })
    }
}

/// Scans the directories that are copied into a new workspace. Dropping the future ends the scan.
///
/// # Errors
/// When a copy would fail.
pub(super) async fn sources(plan: &Plan, preview: &Preview) -> Result<Vec<Source>, Failure> {
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
    looking.await.map_err(|error| Failure::cannot("look through the directory", error))?
}
