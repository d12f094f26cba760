//! `bottle probe`: tests from inside a bottle what the bottle can reach, and shows the results in a table.
//!
//! [`Probe`] asks the guest of a running bottle to run the attempts. `probe_inside` is the program of the shipped agent
//! `probe`, and runs the attempts in its own bottle. [`Probe`] and `probe_inside` print the same table.

use std::time::Duration;

use bottle_host::Host;
use bottle_instance::{State, Store};
use bottle_keeper::launch::isolation::{Controls, JudgedAttempt, all_blocked};
use bottle_lib::record::backend_of;
use bottle_lib::report::ProbeAttempt;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Attempt, GuestEvent, GuestRequest};

use super::candidates;
use super::connect::{connect, guest_failure, keeper_lost, open_guest, unexpected_answer};
use super::probe_table::table;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::runtime::block_on;

/// The time limit for all attempts together. The command fails if the attempts exceed it. The attempts run
/// concurrently, and their individual time limits are much shorter.
const PROBED_WITHIN: Duration = Duration::from_secs(30);

/// Probe a bottle's isolation from inside, and show the results
///
/// Exits with 5 if the probe reached a target, or could not show that a target is blocked.
#[derive(Debug, clap::Args)]
pub(crate) struct Probe {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    slug: Slug,
}

impl Probe {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let tried = block_on(self.ask(host)).map_err(|error| error.about(&self.slug))?;
        let attempts: Vec<Attempt> = tried.iter().map(|tried| tried.attempt.clone()).collect();
        let shown: Vec<_> = tried.iter().map(ProbeAttempt::from).collect();
        output.json_or(&shown, || output.print(&table(&attempts, output.styles())))?;
        Ok(if all_blocked(&attempts) { exit::DONE } else { exit::ISOLATION })
    }

    async fn ask(&self, host: &Host) -> Result<Vec<JudgedAttempt>, CliError> {
        let channel = connect(host, &self.slug).await?;
        let others = match Store::of(host).state(&self.slug) {
            Some(State::Alive(record)) => backend_of(host, &record)?.other_listeners(&self.slug).await?,
            _ => return Err(keeper_lost("it ended")),
        };
        let controls = Controls::listen().await;
        let controls = controls.map_err(|error| CliError::cannot("list this machine's addresses", error))?;
        let request = controls.request(others, false);
        let mut stream = open_guest(&channel, GuestRequest::Probe(request)).await?;
        let answer = tokio::time::timeout(PROBED_WITHIN, stream.receive::<GuestEvent>());
        match answer.await.map_err(|_| keeper_lost("the probe did not end"))?.map_err(keeper_lost)? {
            GuestEvent::Probed { attempts } => Ok(controls.judge(attempts).await),
            GuestEvent::Failed(failure) => Err(guest_failure(failure).exit(exit::FAILED)),
            _ => Err(unexpected_answer()),
        }
    }
}
