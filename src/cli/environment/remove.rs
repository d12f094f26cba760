//! `bottle env rm`.

use std::time::Duration;

use bottle_contract::names::Slug;
use bottle_host::Host;
use bottle_instance::environments::Environments;
use bottle_instance::{State, Store};
use bottle_lib::discard::discard;
use bottle_lib::report::RemovedEnvironment;
use bottle_lib::stop::stop;

use super::{open, reaper, slug_of, unusable};
use crate::cli::candidates;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::{Output, counted};
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// The time between SIGTERM and SIGKILL of the agent, whose files are deleted.
const GRACE: Duration = Duration::from_secs(3);

/// How long a keeper may take to exit after the end of its bottle.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Stop the bottles of tasks and delete their files; asks first
///
/// A bottle in which a command runs is not removed.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// The ids of the tasks, as `bottle env ls` shows them
    #[arg(required_unless_present = "all", value_name = "TASK", add = candidates::tasks())]
    tasks: Vec<String>,
    /// Remove all
    #[arg(long, conflicts_with = "tasks")]
    all: bool,
    /// Remove without asking
    #[arg(short, long)]
    yes: bool,
}

impl Rm {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let environments = open(host)?;
        let tasks = self.chosen(&environments)?;
        if tasks.is_empty() {
            output.note("there is no environment");
        } else if !self.yes && !confirmed(tasks.len(), output)? {
            output.note("nothing was removed");
            return Ok(exit::DONE);
        }
        let mut removed = Vec::new();
        let mut failures = Vec::new();
        for (task, slug) in tasks {
            match remove(host, &environments, &slug, output) {
                Ok(()) => removed.push(RemovedEnvironment { task, slug: slug.to_string() }),
                Err(error) => failures.push(error.about_if_unset(&slug)),
            }
        }
        output.json_or(&removed, || {
            removed.iter().for_each(|removed| output.note(format!("{} was removed", removed.slug)));
            Ok(())
        })?;
        let Some(last) = failures.pop() else { return Ok(exit::DONE) };
        failures.iter().for_each(|error| output.error(error));
        Err(last)
    }

    /// The tasks and their bottles. A task without an environment is an error.
    fn chosen(&self, environments: &Environments) -> Result<Vec<(String, Slug)>, CliError> {
        if self.all {
            let all = environments.list().map_err(|error| unusable(&error))?;
            return Ok(all.into_iter().map(|found| (found.task, found.slug)).collect());
        }
        let chosen = self.tasks.iter().map(|task| {
            let slug = slug_of(task)?;
            match environments.get(&slug) {
                Some(_) => Ok((task.clone(), slug)),
                None => Err(CliError::state(format!("there is no environment of the task {task:?}"))
                    .about("TASK")
                    .hint("`bottle env ls` shows all")),
            }
        });
        chosen.collect()
    }
}

fn remove(host: &Host, environments: &Environments, slug: &Slug, output: &Output) -> Result<(), CliError> {
    let unused = environments.keep_unused(slug).map_err(|error| unusable(&error))?.ok_or_else(|| {
        CliError::state(format!("cannot remove {slug}: a command runs in it"))
            .hint("try again when the command has ended; `bottle env ls` shows it")
    })?;
    let left = format!("parts of it remain; `bottle discard {slug}` continues");
    let removing = async |progress: std::sync::Arc<progress::Progress>| {
        if reaper::is_running(host, slug) {
            let _ = stop(host, slug, GRACE, |text| progress.phase(text)).await?;
            ended(host, slug).await?;
        }
        // The keeper may have removed the files of a bottle without unsaved work.
        if matches!(Store::of(host).state(slug), Some(State::Preserved(record)) if record.kept || record.has_only_conversation())
        {
            let _ = discard(host, slug).await?;
        }
        Ok(())
    };
    block_on(progress::with_progress(&format!("removing {slug}"), &left, output, removing))?;
    environments.forget(slug, &unused).map_err(|error| unusable(&error))
}

/// Waits until the keeper of a bottle that was stopped has exited.
async fn ended(host: &Host, slug: &Slug) -> Result<(), CliError> {
    let waiting = async {
        while reaper::is_running(host, slug) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let late = |_| {
        CliError::state(format!("{slug} is still ending"))
            .hint("`bottle list` shows its state; then try again")
    };
    tokio::time::timeout(ENDS_WITHIN, waiting).await.map_err(late)
}

fn confirmed(count: usize, output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to remove environments: there is no terminal")
            .about("--yes")
            .hint("`bottle env ls` shows them; `--yes` removes them with their files"));
    }
    let environments = counted(count as u64, "environment");
    let question = format!("Remove {environments} and all work in them that was not pulled or pushed?");
    let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
    require_answer(asked, "nothing was removed")
}
