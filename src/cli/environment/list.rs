//! `bottle env ls`: shows the tasks that have a bottle.

use bottle_host::Host;
use bottle_lib::environments::Environments;
use indicatif::HumanBytes;

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, one_line};
use crate::console::runtime::block_on;

/// Show the tasks that have a bottle
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {}

impl Ls {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let environments = Environments::of(host)?;
        let listed = block_on(async { Ok(environments.list_measured().await?) })?;
        output.print_list(&listed, &["TASK", "BOTTLE", "STATE", "LAST USED", "SIZE"], 0, |environment| {
            let state = if environment.in_use { "in use" } else { environment.state };
            vec![
                one_line(&environment.task),
                environment.slug.clone(),
                state.to_owned(),
                environment.last_used.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                environment.disk_bytes.map(|bytes| HumanBytes(bytes).to_string()).unwrap_or_default(),
            ]
        })?;
        Ok(exit::DONE)
    }
}
