//! `bottle resume`: starts a kept bottle again, with the same name, agent and bottle manifests.

use std::path::Path;

use bottle_host::{Host, Settings};
use bottle_instance::State;
use bottle_lib::failure::Failure;
use bottle_lib::launch::child::require_no_parent;
use bottle_lib::launch::resume::{ResumeOrder, ResumePreflight};
use bottle_lib::scanner_rules;
use bottle_plan::Flags;
use bottle_policy::names::{Name, Slug};

use super::candidates;
use super::launch::changed_manifests::{changed, show_before};
use super::launch::{LaunchOptions, git_directories, launch, launch_failed, preflight};
use super::select_bottle::Question;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::Signals;
use crate::console::style::label_color_parser;
use crate::console::terminal;

/// Start a kept bottle again
///
/// Starts from the bottle's kept files, otherwise from its snapshot. If both are missing, builds the
/// bottle anew, and copies your files in again. The agent continues its last conversation if it can. Exits
/// with the agent's exit code, as `bottle start` does.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    /// The bottle, as `bottle list` shows it; asks when omitted
    #[arg(add = candidates::kept())]
    slug: Option<Slug>,
    /// Start from the snapshot of this name, otherwise from the newest one; discards the bottle's kept
    /// files
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    snapshot: Option<Option<Name>>,
    /// Use this bottle manifest instead of those of the last start; repeat to merge several, in order
    #[arg(long = "bottle", value_name = "BOTTLE", add = candidates::bottles())]
    bottles: Vec<Name>,
    /// Set the colour of the bottle's name in lists
    #[arg(long, value_parser = label_color_parser(), value_name = "COLOUR")]
    color_label: Option<String>,
    #[command(flatten)]
    launch: LaunchOptions,
}

const BOTTLE_QUESTION: Question = Question {
    prompt: "Resume which bottle?",
    suits: |state| matches!(state, State::Kept(_)),
    none: "no bottle is kept",
    hint: "`bottle commit` saves a snapshot of a running bottle",
};

impl Resume {
    pub(crate) fn run(mut self, host: &Host, output: &Output) -> Result<u8, CliError> {
        require_no_parent(host)?;
        self.launch.read_variables(host, output);
        let slug = BOTTLE_QUESTION.select(self.slug.take(), host, output)?;
        block_on(async {
            let resumed = self.resume(&slug, host, &mut Signals::catch()?, output).await;
            resumed.map_err(|error| error.about_if_unset(&slug))
        })
    }

    async fn resume(
        &self,
        slug: &Slug,
        host: &Host,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<u8, CliError> {
        let settings = Settings::load(host)?;
        scanner_rules::load(host, &|notice| output.notice(notice))?;
        let notify = &|notice| output.notice(notice);
        let order = self.order(slug);
        let resuming = signals.cancel(order.begin(host, notify)).await?;
        let asks = self.launch.asks(output);
        let asks = git_directories::Asks { git_directories: asks, lenders: asks };
        let (host, copied) = (&resuming.host().clone(), resuming.copied());
        let named = &self.launch.git_dirs;
        let confirmed = git_directories::confirm(copied, host, named, asks, signals).await?;
        let found = async {
            let found = resuming.preflight(&order, &settings, confirmed, notify).await;
            found.map_err(|failure: Failure| launch_failed(failure, self.launch.is_on_terminal()))
        };
        let found = signals.cancel(found).await?;
        if self.launch.dry_run {
            return show(&found, &host.user_home, output);
        }
        if !self.confirm(&found, signals, output).await? {
            output.note("nothing was started");
            return Ok(exit::DONE);
        }
        launch(found.launch.confirmed(), host, &settings, signals, output).await
    }

    fn order(&self, slug: &Slug) -> ResumeOrder {
        ResumeOrder {
            slug: slug.clone(),
            snapshot: self.snapshot.clone(),
            bottles: self.bottles.clone(),
            flags: Flags { color: self.color_label.clone(), ..self.launch.flags() },
        }
    }

    /// If the manifests changed since the last start, or if files would be discarded, asks the user whether to
    /// continue.
    async fn confirm(
        &self,
        found: &ResumePreflight,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<bool, CliError> {
        let ResumePreflight { launch, changes, discards } = found;
        let (slug, changes, discards) = (&launch.plan.identity.slug, changes.as_deref(), *discards);
        let asks = !self.launch.yes && terminal::interactive();
        if discards && !self.launch.yes && !asks {
            return Err(CliError::usage("cannot ask whether to discard newer files: there is no terminal")
                .about("--yes")
                .hint(format!("`bottle resume {slug}` starts from these files; `--yes` discards them")));
        }
        show_before(launch, changes, asks, output);
        let question = match (asks, changes, discards) {
            (false, ..) | (true, None, false) => return Ok(true),
            (true, _, true) => format!("Discard the files kept since the snapshot of {slug}?"),
            (true, Some(_), false) => format!("Resume {slug} on {}?", launch.plan.backend),
        };
        preflight::ask(question, signals).await
    }
}

fn show(found: &ResumePreflight, home: &Path, output: &Output) -> Result<u8, CliError> {
    preflight::show_dry_run(&found.launch, home, true, output)?;
    if let Some(changes) = &found.changes
        && !output.json
    {
        output.print(&changed(changes, output.styles()))?;
    }
    Ok(exit::DONE)
}
