//! Defines the command line: the subcommands.
//!
//! This file only declares the subcommands and their flags. Each subcommand combines its flags with the settings, the
//! manifests and properties of the host.

use clap::{Parser, Subcommand};

use super::command_groups::MAX_WIDTH;
use super::{
    allow, apply, attach, audit, budget, cleanup, commit, completions, cp, dashboard, deny, diff, discard,
    doctor, edit, environment, exec, export, fork, fs, help, import, info, init, learn, list, logs, man, mcp,
    policy, probe, process, prune, pull, resume, rules, secrets, service, settings, shell, snapshots, start,
    stop, supervise, usage,
};
use crate::console::global::Global;

/// Run coding agents in isolated bottles that can reach only the hosts that you allow
#[derive(Debug, Parser)]
#[command(name = "bottle", version, after_help = AFTER_HELP)]
#[command(max_term_width = MAX_WIDTH, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Start(start::Start),
    Attach(attach::Attach),
    Exec(exec::Exec),
    Shell(shell::Shell),
    /// Start, watch, feed and end processes that go on without a client
    #[command(subcommand)]
    Process(process::Process),
    Ps(process::List),
    /// List, start and stop services: programs that run beside the agent and are checked for readiness
    #[command(subcommand)]
    Service(service::Service),
    /// Run commands in bottles of tasks, each of which is made once and stopped when it is idle
    #[command(subcommand)]
    Env(environment::Environment),
    Logs(logs::Logs),
    Cp(cp::Cp),
    /// List, read, write, patch, remove, search and reset files of a workspace
    #[command(subcommand)]
    Fs(fs::Fs),
    Stop(stop::Stop),
    Pull(pull::Pull),
    Diff(diff::Diff),
    Apply(apply::Apply),
    Resume(resume::Resume),
    Commit(commit::Commit),
    Snapshots(snapshots::Snapshots),
    Fork(fork::Fork),
    Export(export::Export),
    Import(import::Import),
    Discard(discard::Discard),
    /// Show bottles, agents, bottle manifests or snapshots
    List(list::List),
    Info(info::Info),
    Init(init::Init),
    Edit(edit::Edit),
    Settings(settings::Show),
    /// Show what the egress proxy allows, and why
    #[command(subcommand)]
    Policy(policy::Policy),
    /// Show what the command policy decides about commands, and why
    #[command(subcommand)]
    Rules(rules::Rules),
    Supervise(supervise::Supervise),
    Allow(allow::Allow),
    Deny(deny::Deny),
    /// List or replace the credentials of a running bottle
    #[command(subcommand)]
    Secrets(secrets::Secrets),
    Learn(learn::Learn),
    /// Show or verify the audit log, whose lines form a hash chain
    #[command(subcommand)]
    Audit(audit::Audit),
    Usage(usage::Usage),
    Budget(budget::Budget),
    Dashboard(dashboard::Dashboard),
    Mcp(mcp::Mcp),
    Probe(probe::Probe),
    Doctor(doctor::Doctor),
    Cleanup(cleanup::Cleanup),
    Prune(prune::Prune),
    Completions(completions::Completions),
    Man(man::Man),
    Help(help::Help),
}

const AFTER_HELP: &str = "\
New here? `bottle start` offers agents to choose from; `bottle help manifests` explains how to write your own.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 invalid manifest, 4 backend missing or refused, \
5 isolation not proven, 130 interrupted. Commands that pass on the code of a program in the bottle use \
124 if its time limit passed, 125 if bottle failed, 126 if the program cannot run, 127 if it was not found.";
