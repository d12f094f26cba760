//! `bottle exec`: runs another program in a bottle.

use std::collections::BTreeMap;

use bottle_contract::names::Slug;
use bottle_contract::session::guest::{GuestRequest, Process};
use bottle_contract::terminal::Pass;

use super::completions;
use super::connect::{connect_or_open_files, guest_failure, keeper_lost, open_guest, report_delay};
use super::error::CliError;
use super::exit;
use super::output::{Output, output_failed};
use super::session::{self, Outcome, Session, Signals, Style};
use super::terminal::{self, Detach};
use crate::backend::Access;
use crate::host::{Host, Settings};

/// Run a command in a bottle, next to its agent
///
/// In a bottle that ended and whose files are preserved, the command runs alone, and without a network.
///
/// Exits with the command's exit code; 125 if bottle failed, 126 if the command cannot run, 127 if it was not
/// found.
#[derive(Debug, clap::Args)]
pub(crate) struct Exec {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::with_files())]
    slug: Slug,
    /// Allocate a terminal
    #[arg(short, long)]
    tty: bool,
    /// Forward standard input
    #[arg(short, long)]
    interactive: bool,
    /// Run as this user of the bottle instead of as the agent's user
    #[arg(long, value_name = "NAME|ID")]
    user: Option<String>,
    /// Run in this directory instead of the workspace
    #[arg(long, value_name = "PATH")]
    workdir: Option<String>,
    /// Set an environment variable; without a value, copy your variable of that name
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(self, host: Result<Host, CliError>, output: &Output) -> Result<u8, CliError> {
        host.and_then(|host| self.run_with_host(&host, output)).map_err(map_exit_code)
    }

    fn run_with_host(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        if self.tty && !terminal::is_terminal() {
            return Err(CliError::usage("cannot allocate a terminal: standard input or output is not one")
                .about("--tty")
                .hint("omit `-t` to use plain pipes"));
        }
        let pass = Settings::load(host)?.terminal_pass;
        let env = variables(host, &self.env)?;
        super::block_on(async {
            let slug = self.slug.clone();
            self.session(host, env, pass, output).await.map_err(|error| error.about(slug))
        })
    }

    async fn session(
        self,
        host: &Host,
        env: BTreeMap<String, String>,
        pass: Pass,
        output: &Output,
    ) -> Result<u8, CliError> {
        let channel = connect_or_open_files(host, &self.slug, Access::Write).await?;
        let process = Process {
            argv: self.command,
            env,
            cwd: self.workdir,
            terminal: self.tty.then(terminal::size),
            stdin: self.interactive || self.tty,
            user: self.user,
            ..Process::default()
        };
        report_delay(&channel, output).await;
        let stream = open_guest(&channel, GuestRequest::Exec(process)).await?;
        let style = if self.tty {
            Style::Terminal {
                detach: Detach::new(&[]),
                title: None,
                color: None,
                tint: false,
                watch_only: false,
            }
        } else {
            Style::Pipes { stdin: self.interactive, pass_signals: true }
        };
        let session = Session { stream, style, pass, title_notices: None };
        match session::run(session, &mut Signals::catch()?, output).await? {
            Outcome::Exited(exit) => Ok(exit.shell_code()),
            Outcome::Failed(failure) => Err(guest_failure(failure)),
            // Dropping the stream ends the command in the bottle. The keeper must receive the stream's reset
            // before this process exits.
            Outcome::Interrupted(number) => {
                channel.flush().await;
                Ok(128u8.saturating_add(number))
            }
            Outcome::Detached => Ok(exit::DONE),
            Outcome::Reset(why) => Err(keeper_lost(why)),
            Outcome::OutputClosed(error) => Err(output_failed(error)),
        }
    }
}

/// Maps an error of bottle to an exit code that is reserved for such errors, so that it differs from the
/// command's exit codes.
fn map_exit_code(error: CliError) -> CliError {
    if error.exit < exit::BOTTLE_FAILED { error.exit(exit::BOTTLE_FAILED) } else { error }
}

/// Parses `NAME=VALUE`. For `NAME` alone, takes the value from this process's environment.
fn variables(host: &Host, given: &[String]) -> Result<BTreeMap<String, String>, CliError> {
    let mut env = BTreeMap::new();
    for word in given {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match host.env.get(std::ffi::OsStr::new(word)).map(|value| value.to_str()) {
                Some(Some(value)) => (word.as_str(), value.to_owned()),
                Some(None) => return Err(bad_variable(word, "is not UTF-8")),
                None => return Err(bad_variable(word, "is not set")),
            },
        };
        if name.is_empty() || name.contains('\0') {
            return Err(bad_variable(word, "has no name"));
        }
        env.insert(name.to_owned(), value);
    }
    Ok(env)
}

fn bad_variable(word: &str, why: &str) -> CliError {
    let name = word.split('=').next().unwrap_or_default();
    CliError::usage(format!("the variable {name:?} {why}"))
        .about("--env")
        .hint("write `--env NAME=VALUE`, or `--env NAME` for a variable that is set")
        .exit(exit::BOTTLE_FAILED)
}
