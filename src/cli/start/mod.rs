//! `bottle start`: launches an agent from its manifests.
//!
//! ```text
//! flags + settings + manifests ─► resolved ─► plan ─► preflight ─► secrets ─► images  ─► keeper ─► session
//!  choose                                     choose   preflight    host       prepare    launch    cli::session
//! ```
//! No resource is created, and no secret is read, before the user agrees.

pub(super) mod backend;
pub(super) mod child;
mod copied;
mod cwd;
mod folders;
pub(super) mod git_directory;
pub(super) mod launch;
pub(super) mod live;
mod pick;
pub(super) mod preflight;
pub(super) mod prepare;
mod repository;

use std::io::IsTerminal;
use std::path::PathBuf;

use bottle_contract::names::Name;
use rand::RngExt as _;

use self::child::Child;
pub(super) use self::cwd::MODES;
use self::cwd::{CopyIn, Cwd};
use super::attach::{Client, on_terminal, title};
use super::budget::require_unspent;
use super::choice::{manifests, named, resolved};
use super::error::{CliError, Kind};
use super::exit;
use super::git::identity;
use super::output::Output;
use super::session::{Signals, Style};
use super::style::label_color_parser;
use super::terminal::{self, Decision};
use crate::backend::{Backend, BackendError, BackendErrorKind, Origin};
use crate::cli::completions;
use crate::cli::own_rules;
use crate::host::budget::Limit;
use crate::host::{Host, Settings};
use crate::instance::{State, Store};
use crate::launch::order::{LaunchOrder, Resumed};
use crate::plan::{
    self, CopiedFolder, Flags, GitDirectory, InRepository, LiveFolder, Plan, PlanError, Renewal, Workspace,
};
use crate::resolve::{BottleChoice, Resolved};

/// The environment variable that names the backend.
const BACKEND_VARIABLE: &str = "BOTTLE_BACKEND";

/// Start an agent in a new bottle
///
/// On a terminal and without `--prompt`, the agent takes over the terminal. Otherwise the agent runs on plain
/// pipes: its output is unchanged, and bottle's own messages go to standard error. Exits with the agent's exit
/// code; 125 if bottle failed after the agent started. `bottle help exit-codes` lists the codes of a failed
/// start.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The agent to start; asks when omitted
    #[arg(add = completions::agents())]
    agent: Option<Name>,
    /// Use this bottle manifest instead of the agent's default; repeat to merge several, in order
    #[arg(long = "bottle", value_name = "BOTTLE", add = completions::bottles())]
    bottles: Vec<Name>,
    /// Choose the isolation backend; by default the one in the manifest, else in the settings, else the first
    /// usable one
    #[arg(long, env = BACKEND_VARIABLE, hide_env_values = true)]
    backend: Option<String>,
    /// Set the bottle's name; by default the agent's name and five random characters
    #[arg(long)]
    label: Option<String>,
    /// Set the colour of the bottle's name in lists, and of the cursor while you are attached
    #[arg(long, value_parser = label_color_parser(), value_name = "COLOUR")]
    color_label: Option<String>,
    /// Copy the working directory into the bottle, except files that `.gitignore` excludes; `--cwd=all`
    /// copies all files
    ///
    /// With `--cwd=live` the directory itself is mounted, except its `.git`: the agent changes your files. `--cwd=./PATH`
    /// copies another directory, as if you started the bottle there; it has a slash, to tell it from `all` and `live`.
    /// Repeat to copy several directories: the workspace then has a folder for each, and the agent starts in the
    /// workspace.
    #[arg(long, value_name = "tracked|all|live|./PATH", value_parser = Cwd::parse, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "tracked", add = completions::cwd_modes())]
    cwd: Vec<Cwd>,
    /// With `--cwd` in a directory of a git repository: copy the whole repository, and start the agent in this directory
    #[arg(long, requires = "cwd")]
    repository: bool,
    /// The repository that is copied instead of the working directory.
    #[arg(skip)]
    in_repository: Option<InRepository>,
    /// The directories of several `--cwd`.
    #[arg(skip)]
    folders: Vec<CopiedFolder>,
    /// The git directories that the user confirmed.
    #[arg(skip)]
    git_directories: Vec<GitDirectory>,
    /// The bottle whose agent starts this one.
    #[arg(skip)]
    child: Option<Box<Child>>,
    /// Fetch a newer image of the same name from its registry, if there is one (backend docker)
    #[arg(long)]
    pull: bool,
    /// Build the image again, without the engine's build cache (backend docker)
    #[arg(long)]
    rebuild: bool,
    #[command(flatten)]
    launch: LaunchOptions,
}

/// The flags that `start` and `resume` share.
#[derive(Debug, clap::Args)]
pub(super) struct LaunchOptions {
    /// Start without asking
    #[arg(short, long)]
    pub(super) yes: bool,
    /// Show what would be started, and start nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Run the bottle in the background, and print its name
    #[arg(long)]
    detach: bool,
    /// Confirm the git directory that the directory of `--cwd` names, if it is outside and does not name it back
    #[arg(long = "git-dir", value_name = "PATH", value_hint = clap::ValueHint::DirPath)]
    pub(super) git_dirs: Vec<PathBuf>,
    /// Deny requests that would need your approval, even if the bottle allows approvals
    #[arg(long)]
    no_supervise: bool,
    /// Log denied requests, so that `bottle learn` can propose routes for them
    #[arg(long)]
    learn: bool,
    /// Limit the tokens of this launch: of all providers together, or of one
    #[arg(long = "budget", value_name = "[PROVIDER=]TOKENS", value_parser = Limit::parse_flag)]
    budget: Vec<Limit>,
    /// Give the agent this task and run it without a terminal
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Arguments for the agent
    #[arg(last = true)]
    args: Vec<String>,
}

impl LaunchOptions {
    /// Whether the user can be asked before the start.
    pub(super) fn asks(&self, output: &Output) -> bool {
        !(self.yes || self.dry_run || output.json) && terminal::interactive()
    }

    /// Returns the flags for the plan. The settings provide values for flags that were not given.
    pub(super) fn flags(&self, settings: &Settings) -> Flags {
        let terminal = (self.prompt.is_none() && terminal::is_terminal()).then(terminal::size);
        // With `-p` the agent needs no keyboard input, so standard input is forwarded only if it is not a
        // terminal.
        let passes_input = terminal.is_some() || self.prompt.is_none() || !std::io::stdin().is_terminal();
        Flags {
            detached: self.detach,
            task: self.prompt.clone(),
            terminal,
            stdin: !self.detach && passes_input,
            arguments: self.args.clone(),
            log_keep: settings.log_keep,
            limits: settings.limits,
            gate: settings.gate.clone(),
            waits: settings.waits,
            unsupervised: self.no_supervise,
            learn: self.learn,
            budget: self.budget.clone(),
            ..Flags::default()
        }
    }
}

impl Start {
    pub(crate) fn run(mut self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let entered = self.cwd.iter().map(|cwd| cwd.enter(host)).collect::<Result<Vec<_>, _>>()?;
        self.folders = folders::of_flags(&self.cwd, &entered)?;
        // The agents of the first directory's project count.
        let host = entered.first().unwrap_or(host);
        let settings = Settings::load(host)?;
        own_rules::load(host, output)?;
        host.unused_bot_bottle_variables().iter().for_each(|note| output.note(note));
        // The command line reads this variable too, but not the name that it has in bot-bottle.
        self.backend = self.backend.or_else(|| host.var(BACKEND_VARIABLE).map(str::to_owned));
        super::block_on(async {
            let mut signals = Signals::catch()?;
            self.child = Child::of(host, self.agent.as_ref(), &mut signals).await?.map(Box::new);
            if let Some(child) = &self.child {
                self.backend = Some(child.backend());
            }
            pick::ask_missing(&mut self, host, &mut signals, output).await?;
            self.choose_repository(host, &mut signals, output).await?;
            self.confirm_git_directories(host, &mut signals, output).await?;
            loop {
                let resolved = self.resolved(host)?;
                match self.run_preflight(host, &settings, &resolved, &mut signals, output).await? {
                    PreflightResult::Confirmed(confirmed) => {
                        return confirmed.launch(host, &settings, &mut signals, output).await;
                    }
                    PreflightResult::Finished => return Ok(exit::DONE),
                    PreflightResult::Edit => {
                        pick::ask_again(&mut self, host, &resolved, &mut signals, output).await?
                    }
                }
            }
        })
    }

    /// How much of the first directory the bottle gets; none if it starts empty.
    fn mode(&self) -> Option<CopyIn> {
        self.cwd.first().map(Cwd::mode)
    }

    /// Chooses the repositories that are copied instead of directories in them.
    async fn choose_repository(
        &mut self,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<(), CliError> {
        if !self.folders.is_empty() {
            return folders::choose_repositories(self, host, signals, output).await;
        }
        if let Some(mode) = self.mode() {
            self.in_repository = repository::choose(self, host, mode, signals, output).await?;
        }
        Ok(())
    }

    /// Asks about git directories outside of the directories that are copied.
    async fn confirm_git_directories(
        &mut self,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<(), CliError> {
        let top = self.in_repository.as_ref().map_or(&host.cwd, |repository| &repository.top);
        let one = self.mode().filter(|_| self.folders.is_empty()).map(|_| top);
        let directories = self.folders.iter().map(|folder| &folder.path).chain(one);
        // A directory is only mounted with a git directory of its own.
        let asks = self.launch.asks(output) && self.mode() != Some(CopyIn::Live);
        self.git_directories =
            git_directory::confirm(directories, host, &self.launch.git_dirs, asks, signals).await?;
        Ok(())
    }

    fn resolved(&self, host: &Host) -> Result<Resolved, CliError> {
        let manifests = manifests(host);
        let agent = named(self.agent.clone(), &manifests)?;
        let resolved = resolved(&manifests, agent, self.bottles.clone())?;
        self.check_suggestion(&resolved)?;
        Ok(resolved)
    }

    /// Shows what would be started, and asks the user.
    async fn run_preflight(
        &self,
        host: &Host,
        settings: &Settings,
        resolved: &Resolved,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<PreflightResult, CliError> {
        let live = self.check_folder(host)?;
        let (live, notes) = live.map(|live| (live.folder, live.warnings)).unzip();
        let mut plan = self.plan(host, settings, resolved, live)?;
        let named = self.backend.clone().or_else(|| preferred(resolved, settings));
        let backend = backend::choose(host, &mut plan, named.as_deref()).await?;
        if let Some(child) = &self.child {
            child.check(&plan)?;
            // A bottle that another one started starts none itself, so the number of all of them is limited.
            plan.mcp = None;
        }
        require_utf8_cwd(host)?;
        require_free_slug(host, &plan)?;
        require_host_keys(&plan)?;
        require_unspent(host, settings, &plan, output)?;
        let preview = backend.preview(&plan).await.map_err(|error| prepare_failed(error, &plan))?;
        let home = &host.user_home;
        let view = preflight::View {
            resolved,
            plan: &plan,
            preview: &preview,
            backend: &*backend,
            home,
            files: None,
            copied: preflight::sources(&plan, &preview, signals).await?,
            live: notes.unwrap_or_default(),
        };
        if self.launch.dry_run {
            preflight::show_dry_run(&view, self.label.is_some(), output)?;
            return Ok(PreflightResult::Finished);
        }
        match preflight::confirm(&view, self.launch.yes, signals, output).await? {
            Decision::Yes => {}
            Decision::Edit => return Ok(PreflightResult::Edit),
            Decision::No | Decision::Explain => {
                output.note("nothing was started");
                return Ok(PreflightResult::Finished);
            }
        }
        let (shown_notes, origin, resumed) = (preview.notes, Origin::New, None);
        let confirmed = ConfirmedLaunch { backend, plan, shown_notes, origin, resumed };
        Ok(PreflightResult::Confirmed(Box::new(confirmed)))
    }

    /// Checks the directories that are copied or mounted. Returns the mounted one.
    fn check_folder(&self, host: &Host) -> Result<Option<live::Live>, CliError> {
        for folder in &self.folders {
            copied::require_no_home(host, &folder.path, "copy")?;
        }
        let top = self.in_repository.as_ref().map(|repository| &repository.top);
        let folder = top.unwrap_or(&host.cwd);
        match self.mode() {
            None => Ok(None),
            Some(CopyIn::Tracked | CopyIn::All) => {
                copied::require_no_home(host, folder, "copy").map(|()| None)
            }
            Some(CopyIn::Live) => live::check(host, folder).map(Some),
        }
    }

    /// Refuses a bottle that the project's manifest suggests, unless the user chose it. Only the user may
    /// accept a suggestion.
    fn check_suggestion(&self, resolved: &Resolved) -> Result<(), CliError> {
        if resolved.choice != BottleChoice::Suggested || self.launch.dry_run {
            return Ok(());
        }
        if !self.launch.yes && terminal::interactive() {
            return Ok(());
        }
        let names: Vec<String> =
            resolved.manifest.bottles.iter().map(|name| format!("--bottle {name}")).collect();
        Err(CliError::usage(format!(
            "cannot start the agent `{}` without `--bottle`: it comes from this project",
            resolved.manifest.agent.name
        ))
        .about("--bottle")
        .hint(format!("it suggests `{}`; `bottle info` shows it", names.join(" "))))
    }

    fn plan(
        &self,
        host: &Host,
        settings: &Settings,
        resolved: &Resolved,
        live: Option<LiveFolder>,
    ) -> Result<Plan, CliError> {
        // Only a bottle with a copy of the working directory works in the user's repository.
        let git_user = self.mode().map(|_| identity(host, &host.cwd)).unwrap_or_default();
        let flags = Flags {
            label: self.label.clone(),
            color: self.color_label.clone(),
            git_user,
            renewal: Renewal { pull: self.pull, rebuild: self.rebuild },
            workspace: match self.mode() {
                None => Workspace::Empty,
                // Each of several directories has its own mode.
                Some(_) if !self.folders.is_empty() => Workspace::Copy,
                Some(CopyIn::Tracked) => Workspace::Copy,
                Some(CopyIn::All) => Workspace::CopyAll,
                Some(CopyIn::Live) => Workspace::Repository,
            },
            live,
            repository: self.in_repository.clone(),
            folders: self.folders.clone(),
            git_directories: self.git_directories.clone(),
            ..self.launch.flags(settings)
        };
        let mut rng = rand::rng();
        plan::build(host, &resolved.manifest, &flags, &mut |bytes| rng.fill(bytes)).map_err(CliError::from)
    }
}

/// The result of the preflight.
enum PreflightResult {
    Confirmed(Box<ConfirmedLaunch>),
    /// It was a dry run, or the user declined.
    Finished,
    /// The user wants to change the choices.
    Edit,
}

/// A launch that the user confirmed.
pub(super) struct ConfirmedLaunch {
    pub(super) backend: Box<dyn Backend>,
    pub(super) plan: Plan,
    /// Notes about the image that the user has already seen.
    pub(super) shown_notes: Vec<String>,
    pub(super) origin: Origin,
    pub(super) resumed: Option<Resumed>,
}

impl ConfirmedLaunch {
    /// Reads the secrets, prepares the images, launches the bottle, and runs the session. Returns the exit
    /// code.
    pub(super) async fn launch(
        self,
        host: &Host,
        settings: &Settings,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<u8, CliError> {
        let order = self.order(host, signals, output).await?;
        let channel = launch::launch(host, &order, signals, output).await?;
        let plan = order.plan;
        let slug = plan.identity.slug.clone();
        if plan.detached {
            return launch::report_detached(&slug, output);
        }
        let style = style(&plan, settings);
        let joined =
            Client { host: host.clone(), channel, slug, owns_bottle: true, pass: settings.terminal_pass };
        joined.run(style, false, signals, output).await
    }

    /// Reads the secrets and prepares the images.
    pub(super) async fn order(
        self,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<LaunchOrder, CliError> {
        let Self { backend, plan, shown_notes, origin, resumed } = self;
        let marked = launch::marked(host, &plan, output)?;
        // Secrets are asked for before the images are built, because a build takes long and needs no user.
        let secrets = launch::secrets(host, &plan, signals, output).await?;
        let preparing = prepare::prepare(&*backend, &plan, &secrets, &shown_notes, signals, output);
        // The engine takes a few milliseconds to return its identity, and prepares the images meanwhile.
        let (prepared, engine) = tokio::join!(preparing, backend.identity());
        let (prepared, engine) = (prepared?, engine?);
        Ok(LaunchOrder { origin, resumed, marked, engine, ..LaunchOrder::new(plan, prepared, secrets)? })
    }
}

/// Maps a missing program to the shell's exit code, for scripts. On a terminal the exit code says that the
/// backend refused.
pub(super) fn prepare_failed(error: BackendError, plan: &Plan) -> CliError {
    let missing = error.kind == BackendErrorKind::ProgramMissing;
    let error = CliError::from(error);
    if missing && plan.agent.terminal.is_none() { error.exit(exit::NOT_FOUND) } else { error }
}

/// Returns the backend that the manifest names, otherwise the one that the settings name.
pub(super) fn preferred(resolved: &Resolved, settings: &Settings) -> Option<String> {
    let own = resolved.manifest.backend.as_ref().map(|backend| backend.value.to_string());
    own.or_else(|| settings.backend.clone())
}

/// Refuses a working directory that the bottle's record cannot store as text.
fn require_utf8_cwd(host: &Host) -> Result<(), CliError> {
    if host.cwd.to_str().is_some() {
        return Ok(());
    }
    Err(CliError::usage(format!("the path {} is not UTF-8", host.cwd.display()))
        .about(host.cwd.display())
        .hint("start from a directory whose path is UTF-8"))
}

/// Checks host keys before any resource is created. The launch reads them again.
pub(super) fn require_host_keys(plan: &Plan) -> Result<(), CliError> {
    for repo in &plan.repos {
        repo.host_keys().map_err(|error| {
            let hint = error.hint();
            CliError::from_error(Kind::Usage, &error)
                .about(format!("git-gate.repos.{}", repo.name))
                .hint(hint)
        })?;
    }
    Ok(())
}

/// Checks that the slug is unused, before any secret is read. Only the keeper's later claim of the slug is
/// binding.
pub(super) fn require_free_slug(host: &Host, plan: &Plan) -> Result<(), CliError> {
    let slug = &plan.identity.slug;
    let taken = |message: String, hint: String| Err(CliError::state(message).about(slug).hint(hint));
    match Store::of(host).state(slug) {
        None => Ok(()),
        // The new bottle replaces the old logs.
        Some(State::Dead(record)) if record.has_only_logs() => Ok(()),
        Some(State::Alive(_)) => taken(
            format!("a bottle named {slug} is running"),
            format!("choose another --label, or `bottle attach {slug}`"),
        ),
        Some(State::Preserved(_)) => taken(
            format!("a bottle named {slug} is preserved, and never overwritten"),
            format!("`bottle resume {slug}` starts it again; or choose another --label"),
        ),
        Some(_) => taken(
            format!("a bottle named {slug} was left behind"),
            "choose another --label, or `bottle cleanup`".to_owned(),
        ),
    }
}

fn style(plan: &Plan, settings: &Settings) -> Style {
    let identity = &plan.identity;
    let title = title(identity.label.as_deref(), &identity.slug, &identity.agent);
    match plan.agent.terminal {
        Some(_) => on_terminal(settings, title, plan.identity.color.clone(), false),
        None => Style::Pipes { stdin: plan.agent.stdin, pass_signals: true },
    }
}

impl From<PlanError> for CliError {
    fn from(error: PlanError) -> Self {
        let failed = |kind| Self::from_error(kind, &error);
        match &error {
            PlanError::Label(_) => failed(Kind::Usage).about("--label").hint(
                "use at least one letter from a to z or digit: they form the bottle's name in commands",
            ),
            PlanError::Argv { source, .. } => failed(Kind::Usage).about("--prompt").hint(source.hint()),
            PlanError::Repository { .. } => failed(Kind::Manifest)
                .hint("give it a key of your own (`key: {provider: static, path}`), or correct its address"),
            PlanError::Skill(_) | PlanError::Dockerfile(_) | PlanError::Routes(_) => failed(Kind::Manifest),
        }
    }
}
