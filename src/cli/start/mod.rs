//! `bottle start`: launches an agent from its manifests.
//!
//! ```text
//! flags + settings + manifests ─► resolved ─► plan ─► preflight ─► secrets ─► images  ─► keeper ─► session
//!  choose                                     choose   cli::launch ───────────────────────────►   cli::client
//! ```
//! No resource is created, and no secret is read, before the user agrees.

mod cwd;
mod directories;
mod pick;
mod repository;

use bottle_contract::names::Name;
use rand::RngExt as _;

use self::cwd::{CopyIn, Cwd};
use super::choice::{manifests, named, resolved};
use super::error::CliError;
use super::exit;
use super::launch::child::Child;
use super::launch::prepare::prepare_failed;
use super::launch::{
    ConfirmedLaunch, LaunchOptions, backend, copied, git_directory, live, preferred, preflight,
    require_free_slug, require_host_keys,
};
use super::output::Output;
use super::runtime::block_on;
use super::session::Signals;
use super::style::label_color_parser;
use super::terminal::{self, Decision};
use crate::backend::Origin;
use crate::cli::candidates;
use crate::cli::own_rules;
use crate::host::git_user::{self, HostGitUser};
use crate::host::{Host, Settings};
use crate::library::budget::require_unspent;
use crate::plan::{
    self, CopiedDirectory, Flags, GitDirectory, InRepository, LiveDirectory, Plan, Renewal, Workspace,
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
    #[arg(add = candidates::agents())]
    agent: Option<Name>,
    /// Use this bottle manifest instead of the agent's default; repeat to merge several, in order
    #[arg(long = "bottle", value_name = "BOTTLE", add = candidates::bottles())]
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
    /// Repeat to copy several directories: the workspace then has a directory for each, and the agent starts in the
    /// workspace.
    #[arg(long, value_name = "tracked|all|live|./PATH", value_parser = Cwd::parse, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "tracked", add = Cwd::candidates())]
    cwd: Vec<Cwd>,
    /// With `--cwd` in a directory of a git repository: copy the whole repository, and start the agent in this directory
    #[arg(long, requires = "cwd")]
    repository: bool,
    /// The repository that is copied instead of the working directory.
    #[arg(skip)]
    in_repository: Option<InRepository>,
    /// The directories of several `--cwd`.
    #[arg(skip)]
    directories: Vec<CopiedDirectory>,
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

impl Start {
    pub(crate) fn run(mut self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let entered = self.cwd.iter().map(|cwd| cwd.enter(host)).collect::<Result<Vec<_>, _>>()?;
        self.directories = directories::of_flags(&self.cwd, &entered)?;
        // The agents of the first directory's project count.
        let host = entered.first().unwrap_or(host);
        let settings = Settings::load(host)?;
        own_rules::load(host, output)?;
        host.unused_bot_bottle_variables().iter().for_each(|note| output.note(note));
        // The command line reads this variable too, but not the name that it has in bot-bottle.
        self.backend = self.backend.or_else(|| host.var(BACKEND_VARIABLE).map(str::to_owned));
        block_on(async {
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
        if !self.directories.is_empty() {
            return directories::choose_repositories(self, host, signals, output).await;
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
        let one = self.mode().filter(|_| self.directories.is_empty()).map(|_| top);
        let directories = self.directories.iter().map(|directory| &directory.path).chain(one);
        // A directory is only mounted with a git directory of its own.
        let lenders = self.launch.asks(output);
        let git_directories = lenders && self.mode() != Some(CopyIn::Live);
        let asks = git_directory::Asks { git_directories, lenders };
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
        let live = self.check_directory(host)?;
        let (live, notes) = live.map(|live| (live.directory, live.warnings)).unzip();
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
        require_unspent(host, settings, &plan, |text| output.warn(text))?;
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
    fn check_directory(&self, host: &Host) -> Result<Option<live::Live>, CliError> {
        for directory in &self.directories {
            copied::require_no_home(host, &directory.path, "copy")?;
        }
        let top = self.in_repository.as_ref().map(|repository| &repository.top);
        let directory = top.unwrap_or(&host.cwd);
        match self.mode() {
            None => Ok(None),
            Some(CopyIn::Tracked | CopyIn::All) => {
                copied::require_no_home(host, directory, "copy").map(|()| None)
            }
            Some(CopyIn::Live) => live::check(host, directory).map(Some),
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
        live: Option<LiveDirectory>,
    ) -> Result<Plan, CliError> {
        // Only a bottle with a copy of the working directory works in the user's repository.
        let git_user = self.mode().map(|_| HostGitUser::of(host, &host.cwd)).unwrap_or_default();
        let flags = Flags {
            label: self.label.clone(),
            color: self.color_label.clone(),
            git_user,
            renewal: Renewal { pull: self.pull, rebuild: self.rebuild },
            workspace: match self.mode() {
                None => Workspace::Empty,
                // Each of several directories has its own mode.
                Some(_) if !self.directories.is_empty() => Workspace::Copy,
                Some(CopyIn::Tracked) => Workspace::Copy,
                Some(CopyIn::All) => Workspace::CopyAll,
                Some(CopyIn::Live) => Workspace::Repository,
            },
            live,
            repository: self.in_repository.clone(),
            directories: self.directories.clone(),
            git_directories: self.git_directories.clone(),
            user_ignore_file: self.mode().and_then(|_| git_user::ignore_file(host)),
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

/// Refuses a working directory that the bottle's record cannot store as text.
fn require_utf8_cwd(host: &Host) -> Result<(), CliError> {
    if host.cwd.to_str().is_some() {
        return Ok(());
    }
    Err(CliError::usage(format!("the path {} is not UTF-8", host.cwd.display()))
        .about(host.cwd.display())
        .hint("start from a directory whose path is UTF-8"))
}
