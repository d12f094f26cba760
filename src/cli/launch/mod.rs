//! The code that `start`, `resume`, `fork` and `import` share: the preflight, and the launch that the user confirmed.
//!
//! ```text
//! preflight ─► secrets ─► images  ─► keeper ─► session
//! preflight      run      prepare     run      cli::client
//! ```
//! `git_directories` asks about files outside of the copied directories, and `changed_manifests` shows how manifests
//! changed.

pub(super) mod changed_manifests;
pub(super) mod git_directories;
pub(super) mod preflight;
pub(super) mod prepare;
pub(super) mod run;

use std::io::IsTerminal;
use std::path::PathBuf;

use bottle_host::budget::Limit;
use bottle_host::process::ProcessId;
use bottle_host::{Host, Settings};
use bottle_keeper::launch::order::LaunchOrder;
use bottle_lib::failure::Failure;
use bottle_lib::launch::{self, Confirmed};
use bottle_plan::{Flags, Plan};

use super::client::{Client, on_terminal, title};
use super::read_secrets::read_secrets;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::signals::Signals;
use crate::console::terminal;
use crate::screens::session::Style;

/// The environment variable with the effect of `--dry-run`.
const DRY_RUN_VARIABLE: &str = "BOTTLE_DRY_RUN";

/// The values of [`DRY_RUN_VARIABLE`] without an effect, in lower case. Any other value prevents the start: a user who
/// sets the variable expects that nothing starts.
const NO_DRY_RUN: [&str; 4] = ["0", "false", "no", "off"];

/// The flags that `start`, `resume` and `fork` share.
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
    /// End the bottle when the process PID ends, even if it is killed [default: the process that runs this command]
    #[arg(long, value_name = "PID", value_parser = owning_process)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "parent")]
    owned: Option<ProcessId>,
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
    /// Applies the environment variable with the effect of `--dry-run`. The command line parser cannot read the variable,
    /// because its value may come from `BOT_BOTTLE_DRY_RUN`, the name of this variable in bot-bottle.
    pub(crate) fn read_variables(&mut self, host: &Host, output: &Output) {
        if !self.dry_run && host.var(DRY_RUN_VARIABLE).is_some_and(is_dry_run) {
            output.note(format!("{DRY_RUN_VARIABLE} is set: this command starts nothing"));
            self.dry_run = true;
        }
    }

    /// Whether the user is asked before the start.
    pub(crate) fn asks(&self, output: &Output) -> bool {
        !(self.yes || self.dry_run || output.json) && terminal::interactive()
    }

    /// Converts these options to the flags of a plan.
    pub(crate) fn flags(&self) -> Flags {
        let terminal = (self.prompt.is_none() && terminal::is_terminal()).then(terminal::size);
        // With `-p`, the agent needs no keyboard input. Standard input is then forwarded only if it is not a terminal.
        let passes_input = terminal.is_some() || self.prompt.is_none() || !std::io::stdin().is_terminal();
        Flags {
            detached: self.detach,
            ends_with: self.owned,
            task: self.prompt.clone(),
            terminal,
            stdin: !self.detach && passes_input,
            arguments: self.args.clone(),
            unsupervised: self.no_supervise,
            learn: self.learn,
            budget: self.budget.clone(),
            ..Flags::default()
        }
    }

    /// Whether the agent would run on a terminal.
    pub(crate) fn is_on_terminal(&self) -> bool {
        self.prompt.is_none() && terminal::is_terminal()
    }
}

/// Finds the process of `--owned`: the one with this id, or the parent of this process.
fn owning_process(text: &str) -> Result<ProcessId, String> {
    let found = match text {
        "parent" => ProcessId::parent(),
        pid => ProcessId::of(pid.parse().map_err(|_| "write the id of a process".to_owned())?),
    };
    found.map_err(|error| error.to_string())?.ok_or_else(|| "this process has ended".to_owned())
}

/// Whether this value of [`DRY_RUN_VARIABLE`] prevents the start.
fn is_dry_run(value: &str) -> bool {
    !NO_DRY_RUN.contains(&value.to_lowercase().as_str())
}

/// Reads the secrets, prepares the images, launches the bottle, and runs the session. Returns the exit code of this
/// command.
pub(crate) async fn launch(
    confirmed: Confirmed,
    host: &Host,
    settings: &Settings,
    signals: &mut Signals,
    output: &Output,
) -> Result<u8, CliError> {
    let order = order(confirmed, host, signals, output).await?;
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
    confirmed: Confirmed,
    host: &Host,
    signals: &mut Signals,
    output: &Output,
) -> Result<LaunchOrder, CliError> {
    let notify = &|notice| output.notice(notice);
    let marked = launch::marked(host, &confirmed.plan, notify)?;
    // The user is asked for secrets before the images are built, because a build takes long and needs no user.
    let secrets = read_secrets(host, &confirmed.plan.secrets, signals, output).await?;
    let on_terminal = confirmed.plan.agent.terminal.is_some();
    let prepared = prepare::with_progress(on_terminal, signals, output, async |progress| {
        confirmed.order(marked, secrets, &progress, notify).await
    });
    prepared.await
}

/// Returns the error for a failure before the agent runs.
pub(crate) fn launch_failed(failure: Failure, on_terminal: bool) -> CliError {
    let code = exit::of_launch(failure.kind, on_terminal);
    CliError::from(failure).exit(code)
}

fn style(plan: &Plan, settings: &Settings) -> Style {
    let identity = &plan.identity;
    let title = title(identity.label.as_deref(), &identity.slug, &identity.agent);
    match plan.agent.terminal {
        Some(_) => on_terminal(settings, title, plan.identity.color.clone(), false),
        None => Style::Pipes { stdin: plan.agent.stdin, pass_signals: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_the_variable_but_a_negative_one_prevents_the_start() {
        for (value, expected) in [
            ("1", true),
            ("true", true),
            ("yes", true),
            ("x", true),
            ("0", false),
            ("False", false),
            ("off", false),
        ] {
            assert_eq!(is_dry_run(value), expected, "{value}");
        }
    }
}
