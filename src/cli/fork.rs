//! `bottle fork`: makes new bottles from the files of a running or kept bottle.

use bottle_host::{Host, Settings};
use bottle_lib::launch::Confirmed;
use bottle_lib::launch::child::require_no_parent;
use bottle_lib::launch::fork::{Fork as Forking, ForkOrder, ForkOrders, ForkPreflight};
use bottle_lib::scanner_rules;
use bottle_lib::snapshot_selector::SnapshotSelector;
use bottle_plan::Flags;
use bottle_policy::names::Slug;

use super::candidates;
use super::launch::changed_manifests::show_before;
use super::launch::{LaunchOptions, launch_failed, order, preflight, run};
use super::save_snapshot::fork_point;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::Signals;
use crate::console::style::label_color_parser;
use crate::console::terminal;

/// The maximum value of `--count`.
const MAX_COUNT: u16 = 100;

/// Make new bottles from the files of one that runs or is kept
///
/// The new bottles run in the background, with the same manifests and a copy of all files. Each has an identity
/// and certificates of its own. The agent continues the last conversation if it can. The first bottle goes on. A
/// prompt and arguments for the agent are not inherited.
#[derive(Debug, clap::Args)]
pub(crate) struct Fork {
    /// The bottle, as `bottle list` shows it, or SLUG@NAME for one of its snapshots
    #[arg(add = candidates::all_bottles())]
    bottle: SnapshotSelector,
    /// Make this many bottles
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_COUNT)))]
    count: u16,
    /// Set the new bottle's name; with `--count`, followed by `-1`, `-2` and so on
    #[arg(long)]
    label: Option<String>,
    /// Set the colour of the new bottles' names in lists
    #[arg(long, value_parser = label_color_parser(), value_name = "COLOUR")]
    color_label: Option<String>,
    #[command(flatten)]
    launch: LaunchOptions,
}

impl Fork {
    pub(crate) fn run(mut self, host: &Host, output: &Output) -> Result<u8, CliError> {
        require_no_parent(host)?;
        self.launch.read_variables(host, output);
        let slug = self.bottle.slug.clone();
        block_on(async {
            let forked = self.fork(host, &mut Signals::catch()?, output).await;
            forked.map_err(|error| error.about_if_unset(&slug))
        })
    }

    async fn fork(&self, host: &Host, signals: &mut Signals, output: &Output) -> Result<u8, CliError> {
        let settings = Settings::load(host)?;
        scanner_rules::load(host, &|notice| output.notice(notice))?;
        let notify = &|notice| output.notice(notice);
        let wanted = self.order();
        let found = async {
            let found = wanted.preflight(host, &settings, notify).await;
            found.map_err(|failure| launch_failed(failure, false))
        };
        let mut found = signals.cancel(found).await?;
        if self.launch.dry_run {
            let labelled = self.label.is_some();
            preflight::show_dry_run(&found.launch, &host.user_home, labelled, output)?;
            return Ok(exit::DONE);
        }
        if !self.confirm(&found, signals, output).await? {
            output.note("nothing was started");
            return Ok(exit::DONE);
        }
        let point = fork_point(found.snapshot(notify).await?, output).await?;
        let host = &found.host.clone();
        let Forking { confirmed, orders, point } = found.fork(point);
        let started = self.start_all(host, confirmed, orders, signals, output).await;
        point.release(host, notify).await;
        started.map(|()| exit::DONE)
    }

    fn order(&self) -> ForkOrder {
        ForkOrder {
            from: self.bottle.clone(),
            count: self.count,
            label: self.label.clone(),
            flags: Flags { color: self.color_label.clone(), ..self.launch.flags() },
        }
    }

    /// If the manifests changed since the bottle was started, asks the user whether to continue.
    async fn confirm(
        &self,
        found: &ForkPreflight,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<bool, CliError> {
        let asks = !self.launch.yes && terminal::interactive();
        show_before(&found.launch, found.changes.as_deref(), asks, output);
        match found.changes {
            Some(_) if asks => preflight::ask(format!("Fork {}?", self.bottle), signals).await,
            _ => Ok(true),
        }
    }

    /// Starts the new bottles. Prints the slug of each bottle that was started.
    async fn start_all(
        &self,
        host: &Host,
        confirmed: Confirmed,
        orders: ForkOrders,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<(), CliError> {
        let orders = orders.of(&order(confirmed, host, signals, output).await?)?;
        let (started, result) = match orders.as_slice() {
            [one] => match run::launch(host, one, signals, output).await {
                Ok(_channel) => (vec![one.plan.identity.slug.clone()], Ok(())),
                Err(error) => (Vec::new(), Err(error)),
            },
            several => run::launch_all(host, several, signals, output).await,
        };
        self.report(&started, output)?;
        result
    }

    fn report(&self, started: &[Slug], output: &Output) -> Result<(), CliError> {
        if output.json {
            let from = &self.bottle.slug;
            output.print_json(&serde_json::json!({"forked_from": from, "slugs": started}))?;
        } else {
            started.iter().try_for_each(|slug| output.print(slug.as_str()))?;
        }
        if let Some(slug) = started.first() {
            output.note(format!("`bottle attach {slug}` attaches to it, `bottle stop {slug}` stops it"));
        }
        Ok(())
    }
}
