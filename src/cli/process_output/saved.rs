//! The processes of a bottle that ended, which its keeper saved.

use bottle_channel::Channel;
use bottle_contract::names::Slug;
use bottle_contract::session::process::{OutputRead, ProcessInfo, ReadFrom};
use bottle_host::Host;
use bottle_instance::process_logs::ProcessLogs;
use bottle_instance::{State, Store};

use super::target::Target;
use crate::cli::connect::connect;
use crate::cli::error::CliError;

/// Where the processes of a bottle are found.
pub(crate) enum Source {
    /// The guest knows them.
    Running(Channel),
    /// The bottle ended.
    Ended(Saved),
}

/// What the keeper of an ended bottle saved.
pub(crate) struct Saved(ProcessLogs);

impl Source {
    /// Connects to the keeper of a bottle, or finds what it saved.
    ///
    /// # Errors
    /// If the bottle does not exist, or neither runs nor has saved processes.
    pub(crate) async fn of(host: &Host, slug: &Slug) -> Result<Self, CliError> {
        let store = Store::of(host);
        let saved = || Self::Ended(Saved(ProcessLogs::of(&store.directory(slug))));
        match store.state(slug) {
            Some(State::Preserved(_)) => Ok(saved()),
            Some(State::Dead(record)) if record.agent_exit.is_some() => Ok(saved()),
            Some(State::Dead(_)) => match connect(host, slug).await {
                Ok(channel) => Ok(Self::Running(channel)),
                // The keeper and the guest were killed.
                Err(_) if !ProcessLogs::of(&store.directory(slug)).list().is_empty() => Ok(saved()),
                Err(error) => Err(error.into()),
            },
            _ => Ok(Self::Running(connect(host, slug).await?)),
        }
    }
}

impl Saved {
    /// The processes, in the order of their start.
    pub(crate) fn list(&self) -> Vec<ProcessInfo> {
        let all = self.0.list().into_iter();
        all.map(|saved| ProcessInfo { state: saved.state(), processes: 0, ..saved.process }).collect()
    }

    /// Reads a part of the output of a process, at most `max` bytes.
    ///
    /// # Errors
    /// If there is no such process, or its log cannot be read.
    pub(super) fn part(
        &self,
        target: &Target,
        from: ReadFrom,
        max: u32,
    ) -> Result<(Vec<u8>, OutputRead), CliError> {
        let Target { slug, process } = target;
        let saved = self.0.find(process).ok_or_else(|| {
            CliError::failed(format!("no output of a process {process} was saved before {slug} ended"))
                .about(slug)
                .hint(format!("`bottle ps {slug}` lists the processes whose output was saved"))
        })?;
        self.0.read(&saved, from, max).map_err(|error| {
            CliError::cannot(format_args!("read the saved output of {process}"), error).about(slug)
        })
    }
}
