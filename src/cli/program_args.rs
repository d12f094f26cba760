//! The flags of commands that start a program in a bottle.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use bottle_host::Host;
use bottle_lib::permit::{Ask, permit, permit_script};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::Process;

use crate::console::error::CliError;
use crate::console::exit;

/// A program with its user, directory and variables.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// Run as this user of the bottle instead of as the agent's user
    #[arg(long, value_name = "NAME|ID")]
    user: Option<String>,
    /// Run in this directory instead of the workspace
    #[arg(long, value_name = "PATH")]
    workdir: Option<String>,
    /// Set an environment variable; without a value, copy your variable of that name
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Run it only if the command policy allows it: see `bottle rules`
    #[arg(long)]
    checked: bool,
    /// With `--checked`: if the command must be approved, wait for your answer in `bottle supervise`
    #[arg(long, requires = "checked")]
    ask: bool,
}

impl ProgramArgs {
    /// Returns the program without its standard streams.
    ///
    /// # Errors
    /// Returns an error if a variable is not set or not UTF-8, or if the command policy does not allow the command.
    pub(crate) async fn process(
        &self,
        host: &Host,
        slug: &Slug,
        argv: Vec<String>,
    ) -> Result<Process, CliError> {
        let mut env = variables(host, &self.env)?;
        if self.checked && argv.is_empty() {
            return Err(CliError::usage("a shell runs what is typed into it, which is not checked")
                .about("--checked")
                .hint("run single commands with `bottle exec --checked`"));
        }
        if self.checked {
            for (name, value) in permit(host, slug, &argv, None, self.ask()).await? {
                env.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
            }
        }
        Ok(Process { argv, env, cwd: self.workdir.clone(), user: self.user.clone(), ..Process::default() })
    }

    /// Returns `script`, which runs in the bottle in addition to the program. With `--checked`, the command policy must
    /// allow it.
    ///
    /// # Errors
    /// Returns an error if the command policy does not allow the script.
    pub(crate) async fn script(&self, host: &Host, slug: &Slug, script: &str) -> Result<String, CliError> {
        if self.checked {
            Ok(permit_script(host, slug, script, None, self.ask()).await?)
        } else {
            Ok(script.to_owned())
        }
    }

    fn ask(&self) -> Ask {
        if self.ask { Ask::Waits } else { Ask::Never }
    }
}

/// Parses `NAME=VALUE`. For `NAME` alone, takes the value from this process's environment.
fn variables(host: &Host, given: &[String]) -> Result<BTreeMap<String, String>, CliError> {
    let mut env = BTreeMap::new();
    for word in given {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match host.env.get(OsStr::new(word)).map(|value| value.to_str()) {
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
