//! `bottle start`: launches an agent from its manifests.
//!
//! ```text
//! flags + questions ─► StartOrder ─► Preflight ─► secrets ─► images  ─► keeper ─► session
//!  choose, pick                        ask        cli::launch ───────────────►   cli::client
//! ```
//! Before the user agrees, no resource is created and no secret is read.

mod cwd;
mod directories;
mod pick;
mod repository;

use bottle_host::{Host, Settings};
use bottle_lib::launch::child::Child;
use bottle_lib::launch::preflight::Preflight;
use bottle_lib::launch::start::{BACKEND_VARIABLE, CopyIn, NewWorkspace, StartOrder};
use bottle_lib::notice::Notify;
use bottle_lib::scanner_rules;
use bottle_plan::{Flags, Renewal};
use bottle_policy::names::Name;

use self::cwd::Cwd;
use self::pick::Choices;
use self::repository::Wish;
use super::choice::{manifests, named};
use super::launch::{LaunchOptions, git_directories, launch, launch_failed, preflight};
use crate::cli::candidates;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::Signals;
use crate::console::style::label_color_parser;
use crate::console::terminal::{self, Decision};

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
    /// With `--cwd=live` the directory itself is mounted, except its `.git`: the agent changes your files.
    /// `--cwd=./PATH` copies another directory, as if you started the bottle there; it has a slash, to tell it from
    /// `all` and `live`. Repeat to copy several directories: the workspace then has a directory for each, and the agent
    /// starts in the workspace.
    #[arg(long, value_name = "tracked|all|live|./PATH", value_parser = Cwd::parse, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "tracked", add = Cwd::candidates())]
    cwd: Vec<Cwd>,
    /// With `--cwd` in a directory of a git repository: copy the whole repository, and start the agent in this
    /// directory
    #[arg(long, requires = "cwd")]
    repository: bool,
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
        self.launch.read_variables(host, output);
        let entered = self.cwd.iter().map(|cwd| cwd.enter(host)).collect::<Result<Vec<_>, _>>()?;
        let directories = directories::of_flags(&self.cwd, &entered)?;
        // The agents come from the project of the first directory.
        let host = entered.first().unwrap_or(host);
        let settings = Settings::load(host)?;
        scanner_rules::load(host, &|notice| output.notice(notice))?;
        host.unused_bot_bottle_variables().iter().for_each(|note| output.note(note));
        host.stale_bot_bottle_manifests(None).iter().for_each(|note| output.note(note));
        block_on(async {
            let mut signals = Signals::catch()?;
            let child = signals.cancel(Child::of(host, self.agent.as_ref())).await?;
            let mut choices = self.choices();
            if !self.launch.yes && !output.json && terminal::interactive() {
                choices.ask_missing(host, &mut signals, output).await?;
            }
            let mode = self.cwd.first().map(Cwd::mode);
            let mut workspace = NewWorkspace { mode, directories, ..NewWorkspace::default() };
            self.choose_repository(&mut workspace, host, &mut signals, output).await?;
            self.confirm_git_directories(&mut workspace, host, &mut signals, output).await?;
            let mut order =
                self.order(named(choices.agent.clone(), &manifests(host))?, workspace, child, host);
            loop {
                choices.apply(&mut order);
                let notify = &|notice| output.notice(notice);
                let preflight = signals.cancel(self.preflight(&order, host, &settings, notify)).await?;
                match self.ask(&preflight, host, &mut signals, output).await? {
                    Decision::Yes => {
                        return launch(preflight.confirmed(), host, &settings, &mut signals, output).await;
                    }
                    Decision::Edit => {
                        choices.ask_again(host, &preflight.resolved, &mut signals, output).await?;
                    }
                    Decision::No | Decision::Explain => return Ok(exit::DONE),
                }
            }
        })
    }

    fn choices(&self) -> Choices {
        Choices {
            agent: self.agent.clone(),
            bottles: self.bottles.clone(),
            label: self.label.clone(),
            color: self.color_label.clone(),
        }
    }

    /// Returns the order for this start, without the values of [`Choices`].
    fn order(&self, agent: Name, workspace: NewWorkspace, child: Option<Child>, host: &Host) -> StartOrder {
        // The command line parser also reads this variable. Only `host.var` also finds the value of
        // `BOT_BOTTLE_BACKEND`, the name of this variable in bot-bottle.
        let named = self.backend.clone().or_else(|| host.var(BACKEND_VARIABLE).map(str::to_owned));
        let shows = !self.launch.yes && terminal::interactive();
        StartOrder {
            agent,
            bottles: Vec::new(),
            accepts_suggestion: self.launch.dry_run || shows,
            backend: child.as_ref().map(Child::backend).or(named),
            workspace,
            child,
            flags: Flags {
                renewal: Renewal { pull: self.pull, rebuild: self.rebuild },
                ..self.launch.flags()
            },
        }
    }

    async fn preflight(
        &self,
        order: &StartOrder,
        host: &Host,
        settings: &Settings,
        notify: Notify<'_>,
    ) -> Result<Preflight, CliError> {
        let found = order.preflight(host, settings, notify).await;
        found.map_err(|failure| launch_failed(failure, self.launch.is_on_terminal()))
    }

    /// Shows what would be started, and asks the user whether to start it.
    async fn ask(
        &self,
        found: &Preflight,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<Decision, CliError> {
        let home = &host.user_home;
        if self.launch.dry_run {
            preflight::show_dry_run(found, home, self.label.is_some(), output)?;
            return Ok(Decision::No);
        }
        let decision = preflight::confirm(found, home, self.launch.yes, signals, output).await?;
        if matches!(decision, Decision::No | Decision::Explain) {
            output.note("nothing was started");
        }
        Ok(decision)
    }

    /// Decides for each directory whether the whole repository that contains it is copied instead.
    async fn choose_repository(
        &self,
        workspace: &mut NewWorkspace,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<(), CliError> {
        let is_one_of_several = !workspace.directories.is_empty();
        let wish = Wish { is_wanted: self.repository, is_one_of_several, asks: self.launch.asks(output) };
        if is_one_of_several {
            return directories::choose_repositories(workspace, wish, host, signals, output).await;
        }
        if let Some(mode) = workspace.mode {
            workspace.repository = repository::choose(wish, host, mode, signals, output).await?;
        }
        Ok(())
    }

    /// Asks the user about git directories outside of the copied directories.
    async fn confirm_git_directories(
        &self,
        workspace: &mut NewWorkspace,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<(), CliError> {
        // A directory can be mounted only if it has a git directory of its own, so there is no question about other git
        // directories.
        let lenders = self.launch.asks(output);
        let git_directories = lenders && workspace.mode != Some(CopyIn::Live);
        let asks = git_directories::Asks { git_directories, lenders };
        let named = &self.launch.git_dirs;
        let confirmed = git_directories::confirm(workspace.all(host), host, named, asks, signals).await?;
        workspace.git_directories = confirmed;
        Ok(())
    }
}
