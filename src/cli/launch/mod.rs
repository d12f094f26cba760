//! What `start`, `resume`, `fork` and `import` share: the preflight, and the launch that the user confirmed.
//!
//! ```text
//! plan ─► preflight ─► secrets ─► images  ─► keeper ─► session
//!          preflight     run      prepare     run      cli::client
//! ```
//! - `backend`: the backend of a plan · `child`: the bottle whose agent starts this one · `copied`, `live`,
//!   `git_directory`: the directories that a bottle gets · `manifest_changes`: how manifests changed

pub(super) mod backend;
pub(super) mod child;
pub(super) mod copied;
pub(super) mod git_directory;
pub(super) mod live;
pub(super) mod manifest_changes;
pub(super) mod preflight;
pub(super) mod prepare;
pub(super) mod run;

use std::io::IsTerminal;
use std::path::PathBuf;

use super::client::{Client, on_terminal, title};
use super::error::{CliError, Kind};
use super::output::Output;
use super::session::{Signals, Style};
use super::terminal;
use crate::backend::{Backend, Origin};
use crate::host::budget::Limit;
use crate::host::{Host, Settings};
use crate::instance::{State, Store};
use crate::launch::order::{LaunchOrder, Resumed};
use crate::plan::{Flags, Plan, PlanError};
use crate::resolve::Resolved;

/// The flags that `start` and `resume` share.
#[derive(Debug, clap::Args)]
pub(crate) struct LaunchOptions {
    /// Start without asking
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Show what would be started, and start nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Run the bottle in the background, and print its name
    #[arg(long)]
    detach: bool,
    /// Confirm a git directory outside of the directory of `--cwd`: one that does not name it back, or from which its
    /// repository borrows objects
    #[arg(long = "git-dir", value_name = "PATH", value_hint = clap::ValueHint::DirPath)]
    pub(crate) git_dirs: Vec<PathBuf>,
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
    pub(crate) fn asks(&self, output: &Output) -> bool {
        !(self.yes || self.dry_run || output.json) && terminal::interactive()
    }

    /// Returns the flags for the plan. The settings provide values for flags that were not given.
    pub(crate) fn flags(&self, settings: &Settings) -> Flags {
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

/// A launch that the user confirmed.
pub(crate) struct ConfirmedLaunch {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) plan: Plan,
    /// Notes about the image that the user has already seen.
    pub(crate) shown_notes: Vec<String>,
    pub(crate) origin: Origin,
    pub(crate) resumed: Option<Resumed>,
}

impl ConfirmedLaunch {
    /// Reads the secrets, prepares the images, launches the bottle, and runs the session. Returns the exit
    /// code.
    pub(crate) async fn launch(
        self,
        host: &Host,
        settings: &Settings,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<u8, CliError> {
        let order = self.order(host, signals, output).await?;
        let channel = run::launch(host, &order, signals, output).await?;
        let plan = order.plan;
        let slug = plan.identity.slug.clone();
        if plan.detached {
            return run::report_detached(&slug, output);
        }
        let style = style(&plan, settings);
        let joined =
            Client { host: host.clone(), channel, slug, owns_bottle: true, pass: settings.terminal_pass };
        joined.run(style, false, signals, output).await
    }

    /// Reads the secrets and prepares the images.
    pub(crate) async fn order(
        self,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<LaunchOrder, CliError> {
        let Self { backend, plan, shown_notes, origin, resumed } = self;
        let marked = run::marked(host, &plan, output)?;
        // Secrets are asked for before the images are built, because a build takes long and needs no user.
        let secrets = run::secrets(host, &plan, signals, output).await?;
        let preparing = prepare::prepare(&*backend, &plan, &secrets, &shown_notes, signals, output);
        // The engine takes a few milliseconds to return its identity, and prepares the images meanwhile.
        let (prepared, engine) = tokio::join!(preparing, backend.identity());
        let (prepared, engine) = (prepared?, engine?);
        Ok(LaunchOrder { origin, resumed, marked, engine, ..LaunchOrder::new(plan, prepared, secrets)? })
    }
}

/// Returns the backend that the manifest names, otherwise the one that the settings name.
pub(crate) fn preferred(resolved: &Resolved, settings: &Settings) -> Option<String> {
    let own = resolved.manifest.backend.as_ref().map(|backend| backend.value.to_string());
    own.or_else(|| settings.backend.clone())
}

/// Checks host keys before any resource is created. The launch reads them again.
pub(crate) fn require_host_keys(plan: &Plan) -> Result<(), CliError> {
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
pub(crate) fn require_free_slug(host: &Host, plan: &Plan) -> Result<(), CliError> {
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
        Some(State::Preserved(record)) if record.has_only_conversation() => taken(
            format!("the conversation of a bottle named {slug} is kept, and never overwritten"),
            format!("`bottle resume {slug}` continues it; `bottle discard {slug}` frees the name"),
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
