//! `bottle start`: from a manifest to an agent that runs.
//!
//! ```text
//! flags + settings + manifests ─► resolved ─► plan ─► preflight ─► secrets ─► images  ─► keeper ─► session
//!  choose                                     choose   preflight    host       prepare    launch    cli::session
//! ```
//! Nothing is made before the user said yes, and nothing secret is read before that either.

pub(super) mod backend;
mod launch;
mod pick;
pub(super) mod preflight;
mod prepare;

use bottle_contract::names::Name;
use bottle_contract::session::guest::Size;
use rand::RngExt as _;

use super::attach::{Joined, catch, on_terminal};
use super::choice::{manifests, named, resolved};
use super::error::{CliError, Kind};
use super::exit;
use super::output::Output;
use super::session::{Signals, Style};
use super::terminal::{self, Decision};
use crate::backend::{Backend, BackendError, BackendErrorKind, Origin};
use crate::cli::completions;
use crate::host::{Host, OwnRules, Settings};
use crate::instance::{State, Store};
use crate::launch::order::{LaunchOrder, Resumed};
use crate::plan::{self, Flags, Plan, PlanError, Workspace};
use crate::resolve::{BottleChoice, Resolved};

/// Start an agent in a bottle of its own
///
/// On a terminal the agent gets it. Without one it runs on plain pipes: its output as it is, what bottle
/// has to say on standard error. The exit code is the agent's; 125 bottle failed, 126 its program cannot be
/// run, 127 it is not there.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The agent; asked for when it is left out
    #[arg(add = completions::agents())]
    agent: Option<Name>,
    /// A bottle to fold in, instead of the agent's own; in order, may be repeated
    #[arg(long = "bottle", value_name = "BOTTLE", add = completions::bottles())]
    bottles: Vec<Name>,
    /// What isolates the bottle; otherwise the manifest, the settings, or the first that can run it
    #[arg(long, env = "BOTTLE_BACKEND", hide_env_values = true)]
    backend: Option<String>,
    /// The bottle's name in everything; otherwise the agent's and five random characters
    #[arg(long)]
    label: Option<String>,
    /// The colour of its name in lists
    #[arg(long, value_enum, value_name = "COLOUR")]
    color_label: Option<LabelColor>,
    /// Copy the working directory in, without what `.gitignore` leaves out; `--cwd=all` copies all of it
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "tracked")]
    cwd: Option<CopyIn>,
    /// Do not ask before starting
    #[arg(short, long)]
    yes: bool,
    /// Show what would be started, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Leave it running and print its name
    #[arg(long)]
    detach: bool,
    /// Let the agent ask for nothing, whatever the bottle says; what would be asked about is refused
    #[arg(long)]
    no_supervise: bool,
    /// Keep what is refused, to learn the routes that would let it through: `bottle learn`
    #[arg(long)]
    learn: bool,
    /// Give the agent this task and run it without a terminal
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Arguments for the agent
    #[arg(last = true)]
    args: Vec<String>,
}

/// `--cwd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CopyIn {
    /// Without what `.gitignore` leaves out
    Tracked,
    /// Everything
    All,
}

/// `--color-label`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LabelColor {
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
}

impl Start {
    pub(crate) fn run(mut self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let settings = Settings::load(host)?;
        OwnRules::load(host)?;
        super::block_on(async {
            let mut signals = catch()?;
            pick::missing(&mut self, host, &mut signals, output).await?;
            loop {
                let resolved = self.resolved(host)?;
                match self.look(host, &settings, &resolved, &mut signals, output).await? {
                    Looked::Agreed(agreed) => {
                        return agreed.carry_out(host, &settings, &mut signals, output).await;
                    }
                    Looked::Enough => return Ok(exit::DONE),
                    Looked::Edit => pick::again(&mut self, host, &resolved, &mut signals, output).await?,
                }
            }
        })
    }

    fn resolved(&self, host: &Host) -> Result<Resolved, CliError> {
        let manifests = manifests(host);
        let agent = named(self.agent.clone(), &manifests)?;
        let resolved = resolved(&manifests, agent, self.bottles.clone())?;
        self.check_suggestion(&resolved)?;
        Ok(resolved)
    }

    /// Shows what would be started, and asks.
    async fn look(
        &self,
        host: &Host,
        settings: &Settings,
        resolved: &Resolved,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<Looked, CliError> {
        let mut plan = self.plan(host, settings, resolved)?;
        let named = self.backend.clone().or_else(|| preferred(resolved, settings));
        let backend = backend::choose(host, &mut plan, named.as_deref()).await?;
        refuse_unnamed_place(host)?;
        refuse_taken(host, &plan)?;
        refuse_unknown_hosts(&plan)?;
        let preview = backend.preview(&plan).await.map_err(|error| not_prepared(error, &plan))?;
        let home = &host.user_home;
        let view = preflight::View { resolved, plan: &plan, preview: &preview, backend: &*backend, home };
        if self.dry_run {
            preflight::show_dry_run(&view, self.label.is_some(), output)?;
            return Ok(Looked::Enough);
        }
        match preflight::agreed(&view, self.yes, signals, output).await? {
            Decision::Yes => {}
            Decision::Edit => return Ok(Looked::Edit),
            Decision::No | Decision::Explain => {
                output.note("nothing was started");
                return Ok(Looked::Enough);
            }
        }
        let said = preview.notes;
        Ok(Looked::Agreed(Box::new(Agreed { backend, plan, said, origin: Origin::New, resumed: None })))
    }

    /// A project may suggest a bottle; only a user may take the suggestion.
    fn check_suggestion(&self, resolved: &Resolved) -> Result<(), CliError> {
        if resolved.choice != BottleChoice::Suggested || self.dry_run {
            return Ok(());
        }
        if !self.yes && terminal::interactive() {
            return Ok(());
        }
        let names: Vec<String> =
            resolved.manifest.bottles.iter().map(|name| format!("--bottle {name}")).collect();
        Err(CliError::usage(format!(
            "the agent `{}` comes from this project, so its bottle has to be named",
            resolved.manifest.agent.name
        ))
        .about("--bottle")
        .hint(format!("it suggests `{}`; look at it with `bottle info`", names.join(" "))))
    }

    fn plan(&self, host: &Host, settings: &Settings, resolved: &Resolved) -> Result<Plan, CliError> {
        let terminal = terminal_for(self.prompt.is_some());
        let flags = Flags {
            slug: None,
            label: self.label.clone(),
            color: self.color_label.map(LabelColor::name),
            workspace: match self.cwd {
                None => Workspace::Empty,
                Some(CopyIn::Tracked) => Workspace::Copy,
                Some(CopyIn::All) => Workspace::CopyAll,
            },
            backend: String::new(),
            detached: self.detach,
            task: self.prompt.clone(),
            terminal,
            stdin: !self.detach && (terminal.is_some() || passes_input(self.prompt.as_deref())),
            arguments: self.args.clone(),
            resumed: false,
            log_keep: settings.log_keep,
            limits: settings.limits,
            waits: settings.waits,
            unsupervised: self.no_supervise,
            learn: self.learn,
        };
        let mut rng = rand::rng();
        plan::build(host, &resolved.manifest, &flags, &mut |bytes| rng.fill(bytes)).map_err(CliError::from)
    }
}

/// A terminal is typed on, so it is no input for a task that was given in full.
pub(super) fn passes_input(task: Option<&str>) -> bool {
    use std::io::IsTerminal;
    task.is_none() || !std::io::stdin().is_terminal()
}

/// What came of looking at what would be started.
enum Looked {
    Agreed(Box<Agreed>),
    /// It was only to be shown, or is not wanted.
    Enough,
    /// The choices are to be made again.
    Edit,
}

/// A launch that nobody has to be asked about any more.
pub(super) struct Agreed {
    pub(super) backend: Box<dyn Backend>,
    pub(super) plan: Plan,
    /// What the user read of its image.
    pub(super) said: Vec<String>,
    pub(super) origin: Origin,
    pub(super) resumed: Option<Resumed>,
}

impl Agreed {
    /// Its secrets, its images, the launch, and the session to its end; the exit code.
    pub(super) async fn carry_out(
        self,
        host: &Host,
        settings: &Settings,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<u8, CliError> {
        let Self { backend, plan, said, origin, resumed } = self;
        let marked = launch::marked(host, &plan, output)?;
        // Asked for before the images are built, which takes long and needs nobody.
        let secrets = launch::secrets(host, &plan, signals, output).await?;
        let prepared = prepare::prepare(&*backend, &plan, &said, signals, output).await?;
        let order = LaunchOrder { origin, resumed, marked, ..LaunchOrder::new(plan, prepared, secrets) };
        let channel = launch::launch(host, &order, signals, output).await?;
        let plan = order.plan;
        let slug = plan.identity.slug.clone();
        if plan.detached {
            return launch::report_detached(&slug, output);
        }
        let style = style(&plan, settings);
        let joined = Joined { host: host.clone(), channel, slug, ours: true, pass: settings.terminal_pass };
        joined.run(style, false, signals, output).await
    }
}

impl LabelColor {
    pub(super) fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Scripts hear of a missing program by the code that shells use; on a terminal the backend refused.
pub(super) fn not_prepared(error: BackendError, plan: &Plan) -> CliError {
    let missing = error.kind == BackendErrorKind::ProgramMissing;
    let error = CliError::from(error);
    if missing && plan.agent.terminal.is_none() { error.exit(exit::NOT_FOUND) } else { error }
}

pub(super) fn terminal_for(headless: bool) -> Option<Size> {
    (!headless && terminal::is_here()).then(terminal::size)
}

/// The bottle's own backend, else the settings'.
fn preferred(resolved: &Resolved, settings: &Settings) -> Option<String> {
    let own = resolved.manifest.backend.as_ref().map(|backend| backend.value.to_string());
    own.or_else(|| settings.backend.clone())
}

/// The directory stands in the bottle's record, which is text.
fn refuse_unnamed_place(host: &Host) -> Result<(), CliError> {
    let Some(_) = host.cwd.to_str() else {
        return Err(CliError::usage(format!("the path {} is not UTF-8", host.cwd.display()))
            .about(host.cwd.display())
            .hint("start from a directory with a name that is"));
    };
    Ok(())
}

/// ProgressSink before anything is made; the launch reads the keys again.
pub(super) fn refuse_unknown_hosts(plan: &Plan) -> Result<(), CliError> {
    for repo in &plan.repos {
        repo.host_keys().map_err(|error| {
            let hint = error.hint();
            CliError::usage(error.to_string()).about(format!("git-gate.repos.{}", repo.name)).hint(hint)
        })?;
    }
    Ok(())
}

/// ProgressSink before anything secret is asked for; the keeper's claim is what decides.
fn refuse_taken(host: &Host, plan: &Plan) -> Result<(), CliError> {
    let slug = &plan.identity.slug;
    let taken =
        |message: String, hint: String| Err(CliError::new(Kind::State, message).about(slug).hint(hint));
    match Store::of(host).state(slug) {
        None => Ok(()),
        // Its logs make room.
        Some(State::Dead(record)) if record.has_only_logs() => Ok(()),
        Some(State::Alive(_)) => taken(
            format!("a bottle named {slug} runs"),
            format!("choose another --label, or `bottle attach {slug}`"),
        ),
        Some(State::Preserved(_)) => taken(
            format!("a bottle named {slug} is preserved, and never overwritten"),
            format!("`bottle resume {slug}` goes on with it; or choose another --label"),
        ),
        Some(_) => taken(
            format!("a bottle named {slug} was left behind"),
            "choose another --label, or `bottle cleanup`".to_owned(),
        ),
    }
}

fn style(plan: &Plan, settings: &Settings) -> Style {
    let title = plan.identity.label.clone().unwrap_or_else(|| plan.identity.slug.to_string());
    match plan.agent.terminal {
        Some(_) => on_terminal(settings, title, plan.identity.color.clone(), false),
        None => Style::Pipes { stdin: plan.agent.stdin, pass_signals: true },
    }
}

impl From<PlanError> for CliError {
    fn from(error: PlanError) -> Self {
        let message = error.to_string();
        match error {
            PlanError::Label(_) => Self::usage(message).about("--label").hint(
                "put a letter from a to z or a digit in it: the bottle's name in commands is made of these",
            ),
            PlanError::Argv { error, .. } => Self::usage(message).about("--prompt").hint(error.hint()),
            PlanError::Repository { .. } => Self::new(Kind::Manifest, message)
                .hint("give it a key of your own (`key: {provider: static, path}`), or mend its address"),
            PlanError::Skill(_) | PlanError::Dockerfile(_) | PlanError::Routes(_) => {
                Self::new(Kind::Manifest, message)
            }
        }
    }
}
