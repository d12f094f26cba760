//! A bottle, and what a program does with it.

use std::time::Duration;

use bottle_backend::Access;
use bottle_contract::names::Slug;
use bottle_contract::session::guest::Process;
use bottle_host::{Host, Settings};
use bottle_keeper::protocol::Ended;

use super::connect::{connect_or_open_files, record};
use super::exec::Place;
use super::failure::Failure;
use super::files::Files;
use super::launch::start::StartOrder;
use super::launch::unattended;
use super::notice::Notify;
use super::processes::Processes;
use super::report::Executed;
use super::services::Services;
use super::work::{PulledWork, Root, Wanted};
use super::{discard, exec, stop, work};

/// A bottle of a home. The value holds no connection: each request connects anew, and dropping it leaves the bottle as it
/// is.
#[derive(Debug, Clone)]
pub struct Bottle<'a> {
    host: &'a Host,
    slug: Slug,
}

impl<'a> Bottle<'a> {
    /// The bottle with this slug, which may not exist.
    pub fn new(host: &'a Host, slug: Slug) -> Self {
        Self { host, slug }
    }

    /// Starts a bottle in the background, which ends when its agent ends or it is stopped. If the future is dropped, the
    /// start is undone.
    ///
    /// # Errors
    /// When it cannot be started, or when a user would have to be asked.
    pub async fn start(host: &'a Host, order: StartOrder, notify: Notify<'_>) -> Result<Self, Failure> {
        let settings = Settings::load(host)?;
        let slug = unattended::start(host, &settings, order, notify).await?;
        Ok(Self::new(host, slug))
    }

    /// The slug, by which commands name the bottle.
    pub fn slug(&self) -> &Slug {
        &self.slug
    }

    /// Runs a command to its end, also in the preserved files of a bottle that ended. See [`exec::run`].
    ///
    /// # Errors
    /// As [`exec::run`].
    pub async fn exec(
        &self,
        process: Process,
        input: Option<&[u8]>,
        limit: Duration,
    ) -> Result<Executed, Failure> {
        exec::run((self.host, &self.slug, Place::RunningOrPreserved), process, input, limit).await
    }

    /// The files of its workspace.
    pub fn files(&self) -> Files<'_> {
        Files::new(self.host, &self.slug)
    }

    /// Its processes.
    pub fn processes(&self) -> Processes<'_> {
        Processes::new(self.host, &self.slug)
    }

    /// Its services.
    pub fn services(&self) -> Services<'_> {
        Services::new(self.host, &self.slug)
    }

    /// Fetches its work into the branch `bottle/SLUG` of the repository that was copied. See [`work::pull()`].
    ///
    /// # Errors
    /// When nothing can be fetched, or the repository is not known to be the one that was copied.
    pub async fn pull(&self, wanted: Wanted<'_>) -> Result<PulledWork, Failure> {
        let record = record(self.host, &self.slug).await?;
        let channel = connect_or_open_files(self.host, &self.slug, Access::Read).await?;
        let roots = Root::of(self.host, &record, wanted.directory)?;
        if let Some(unconfirmed) = roots.iter().find_map(|root| root.unconfirmed(Some(&self.host.cwd))) {
            return Err(unconfirmed.not_asked());
        }
        let wanted = Wanted { roots: Some(&roots), ..wanted };
        work::pull(self.host, &record, &channel, wanted).await
    }

    /// Stops it. Its agent has `grace` to end. Its files are kept if they have work that was neither pulled nor committed.
    ///
    /// # Errors
    /// When it does not run, or does not end in time.
    pub async fn stop(&self, grace: Duration) -> Result<Ended, Failure> {
        stop::stop(self.host, &self.slug, grace, |_| {}).await
    }

    /// Deletes what is kept of it, except its snapshots. Returns whether it has one.
    ///
    /// # Errors
    /// When nothing is kept, or a part of it cannot be deleted.
    pub async fn discard(&self) -> Result<bool, Failure> {
        discard::discard(self.host, &self.slug).await
    }
}
