//! What may be typed: the commands and the flags every command shares.
//!
//! Flags are recorded here and mean nothing yet; each command merges its own with settings, manifests and
//! the host's facts before anything is done.

use clap::{ArgAction, Parser, Subcommand};

use super::style::Color;
use super::{
    attach, audit, cleanup, commit, completions, cp, diff, discard, doctor, edit, exec, help, info, init,
    learn, list, logs, man, policy, probe, pull, resume, settings, snapshots, start, stop, supervise,
};

/// Runs coding agents in isolated bottles whose only way out is a guarded proxy.
#[derive(Debug, Parser)]
#[command(name = "bottle", version, arg_required_else_help = true, after_help = AFTER_HELP)]
#[command(max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Global {
    /// Print data and errors as JSON
    #[arg(long, global = true, display_order = 100)]
    pub(crate) json: bool,
    /// Print only data and errors
    #[arg(short, long, global = true, display_order = 101)]
    pub(crate) quiet: bool,
    /// Say what is done on the way; twice for more
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 102)]
    pub(crate) verbose: u8,
    /// Colours: on a terminal, always, or never
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", display_order = 103)]
    pub(crate) color: Color,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Start(start::Start),
    Attach(attach::Attach),
    Exec(exec::Exec),
    Logs(logs::Logs),
    Cp(cp::Cp),
    Stop(stop::Stop),
    Pull(pull::Pull),
    Diff(diff::Diff),
    Resume(resume::Resume),
    Commit(commit::Commit),
    Snapshots(snapshots::Snapshots),
    Discard(discard::Discard),
    /// List what there is
    List(list::List),
    Info(info::Info),
    Init(init::Init),
    Edit(edit::Edit),
    Settings(settings::Show),
    /// Questions about what the proxy lets through
    #[command(subcommand)]
    Policy(policy::Policy),
    Supervise(supervise::Supervise),
    Learn(learn::Learn),
    /// What was decided for bottles, in lines that are chained to each other
    #[command(subcommand)]
    Audit(audit::Audit),
    Probe(probe::Probe),
    Doctor(doctor::Doctor),
    Cleanup(cleanup::Cleanup),
    Completions(completions::Completions),
    Man(man::Man),
    Help(help::Help),
}

const AFTER_HELP: &str = "\
New here? `bottle start` offers agents to choose from; `bottle help manifests` says how to make your own.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a manifest is wrong, 4 the backend is missing or refused, \
5 isolation could not be proven, 130 interrupted. Where an agent's or a command's own code is passed \
through: 125 bottle failed, 126 the program cannot be run, 127 it is not there.";
