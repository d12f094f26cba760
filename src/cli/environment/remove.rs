//! `bottle env rm`: stops the bottles of tasks and deletes their files.

use bottle_host::Host;
use bottle_lib::environments::{Environments, slug_of};
use bottle_lib::report::RemovedEnvironment;

use crate::cli::candidates;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::{Output, counted};
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

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
        let environments = Environments::of(host)?;
        let tasks = self.chosen(&environments)?;
        if tasks.is_empty() {
            output.note("there is no environment");
        } else if !self.yes && !confirmed(tasks.len(), output)? {
            output.note("nothing was removed");
            return Ok(exit::DONE);
        }
        let mut removed = Vec::new();
        let mut failures = Vec::new();
        for task in tasks {
            match remove(&environments, &task, output) {
                Ok(gone) => removed.push(gone),
                Err(error) => failures.push(error),
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

    /// Returns the ids of the tasks to remove. A task without an environment is an error.
    fn chosen(&self, environments: &Environments<'_>) -> Result<Vec<String>, CliError> {
        if self.all {
            return Ok(environments.list()?.into_iter().map(|found| found.task).collect());
        }
        self.tasks.iter().try_for_each(|task| environments.require(task))?;
        Ok(self.tasks.clone())
    }
}

fn remove(
    environments: &Environments<'_>,
    task: &str,
    output: &Output,
) -> Result<RemovedEnvironment, CliError> {
    let slug = slug_of(task)?;
    let left = format!("parts of it remain; `bottle discard {slug}` continues");
    let removing = async |progress: std::sync::Arc<progress::Progress>| {
        Ok(environments.remove(task, |text| progress.phase(text)).await?)
    };
    block_on(progress::with_progress(&format!("removing {slug}"), &left, output, removing))
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
