//! A bottle, and the operations on it.

use std::collections::BTreeMap;
use std::time::Duration;

use bottle_backend::Access;
use bottle_host::{Host, Settings};
use bottle_keeper::protocol::Ended;
use bottle_policy::names::Slug;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::Process;

use super::connect::{connect_or_open_files, open_files};
use super::exec::Place;
use super::failure::Failure;
use super::files::Files;
use super::launch::fork::ForkOrder;
use super::launch::start::StartOrder;
use super::launch::unattended::{self, Forked};
use super::logs::{self, AgentLog};
use super::notice::{Notify, unheard};
use super::processes::Processes;
use super::redaction::Redaction;
use super::report::{Difference, Executed, ResetFiles};
use super::services::Services;
use super::work::{Differences, Form, PulledWork, Root, Wanted};
use super::{discard, exec, secrets, stop, threads, work};

/// A bottle of one `$BOTTLE_HOME`. The value holds no connection: each request opens a new connection, and dropping the
/// value does not change the bottle.
#[derive(Debug, Clone)]
pub struct Bottle<'a> {
    host: &'a Host,
    slug: Slug,
    redaction: Option<&'a Redaction>,
}

impl<'a> Bottle<'a> {
    /// Creates a value for the bottle with this slug. The bottle may not exist.
    pub fn new(host: &'a Host, slug: Slug) -> Self {
        Self { host, slug, redaction: None }
    }

    /// Redacts what the caller reads with [`Self::exec`] and [`Self::files`]: the secrets of the bottle, and these
    /// values. For the output of a process, see [`super::processes::Output::redacted_part`].
    #[must_use]
    pub fn redacting(self, redaction: &'a Redaction) -> Self {
        Self { redaction: Some(redaction), ..self }
    }

    /// Starts a bottle in the background. The bottle ends when its agent ends or when it is stopped. If the future is
    /// dropped, the start is undone.
    ///
    /// # Errors
    /// When the bottle cannot be started, or when the start would have to ask the user a question.
    pub async fn start(host: &'a Host, order: StartOrder, notify: Notify<'_>) -> Result<Self, Failure> {
        let settings = Settings::load(host)?;
        let slug = unattended::start(host, &settings, order, notify).await?;
        Ok(Self::new(host, slug))
    }

    /// The slug, which names the bottle in commands.
    pub fn slug(&self) -> &Slug {
        &self.slug
    }

    /// Runs a command in the bottle to its end. If the bottle ended, the command runs on the bottle's kept files. See
    /// [`exec::run`].
    ///
    /// # Errors
    /// Returns the errors of [`exec::run`].
    pub async fn exec(
        &self,
        process: Process,
        input: Option<&[u8]>,
        limit: Duration,
    ) -> Result<Executed, Failure> {
        let process = Process { redact: process.redact || self.redaction.is_some(), ..process };
        let place = (self.host, &self.slug, Place::RunningOrPreserved);
        exec::run(place, process, input, limit, self.redaction).await
    }

    /// The files of the bottle's workspace.
    pub fn files(&self) -> Files<'_> {
        let files = Files::new(self.host, &self.slug);
        match self.redaction {
            Some(redaction) => files.redacting(redaction),
            None => files,
        }
    }

    /// The bottle's processes.
    pub fn processes(&self) -> Processes<'_> {
        Processes::new(self.host, &self.slug)
    }

    /// The bottle's services.
    pub fn services(&self) -> Services<'_> {
        Services::new(self.host, &self.slug)
    }

    /// Fetches the bottle's work into the branch `bottle/SLUG` of the repository from which the workspace was copied.
    /// See [`work::pull()`]. If the future is dropped, the branch is either unchanged or complete.
    ///
    /// # Errors
    /// When nothing can be fetched, or when it is uncertain whether the repository is the one from which the workspace
    /// was copied.
    pub async fn pull(&self, wanted: Wanted<'_>) -> Result<PulledWork, Failure> {
        let uncommitted = wanted.uncommitted;
        let [branch, directory] = [wanted.branch, wanted.directory].map(|name| name.map(str::to_owned));
        let (host, slug) = (self.host.clone(), self.slug.clone());
        let pulling = threads::cancelled_on_drop(async move || {
            let (record, channel) = open_files(&host, &slug, |_| Ok(())).await?;
            let roots = Root::of(&host, &record, directory.as_deref())?;
            Root::require_confirmed(&roots, Some(&host.cwd))?;
            let (branch, directory) = (branch.as_deref(), directory.as_deref());
            let wanted = Wanted { branch, uncommitted, directory, roots: Some(&roots) };
            work::pull(&host, &record, &channel, wanted).await
        });
        self.named(pulling.await)
    }

    /// Compares the bottle's workspace with its state at the start of the bottle. With `directory`, compares only this
    /// directory of the workspace. The patch in the result is of limited length.
    ///
    /// # Errors
    /// When the files cannot be read or compared, or when it is uncertain whether the repository is the one from which
    /// the workspace was copied.
    pub async fn diff(&self, directory: Option<&str>) -> Result<Difference, Failure> {
        let directory = directory.map(str::to_owned);
        let (host, slug) = (self.host.clone(), self.slug.clone());
        let comparing = threads::cancelled_on_drop(async move || {
            let (record, channel) = open_files(&host, &slug, |_| Ok(())).await?;
            let roots = Root::of(&host, &record, directory.as_deref())?;
            Root::require_confirmed(&roots, None)?;
            let (bottle, roots) = ((&record, &channel), (roots, directory.is_none()));
            let compared = work::compare(&host, bottle, roots, Form::BoundedPatch, &unheard).await?;
            Ok(compared.document(&slug))
        });
        self.named(comparing.await)
    }

    /// Resets the files and directories `paths` to the state with which [`Self::diff`] compares. If `paths` is empty,
    /// resets all files. With `dry_run`, only lists the files. If the future is dropped, some files may already be
    /// reset.
    ///
    /// # Errors
    /// When a path is outside of the workspace, when files cannot be compared or reset, or when it is uncertain whether
    /// the repository is the one from which the workspace was copied.
    pub async fn reset(&self, paths: &[String], dry_run: bool) -> Result<ResetFiles, Failure> {
        let paths = paths.iter().map(|path| work::in_workspace(path.as_ref()));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        let (host, slug) = (self.host.clone(), self.slug.clone());
        let resetting = threads::cancelled_on_drop(async move || {
            let (record, channel) = open_files(&host, &slug, work::require_copy_to_reset).await?;
            let mut roots = Root::of(&host, &record, None)?;
            work::retain_roots(&mut roots, &paths);
            Root::require_confirmed(&roots, None)?;
            let mut found = Differences::find(&host, &slug, &channel, roots, &unheard).await?;
            found.select(&paths);
            let applies = !dry_run && found.changes().next().is_some();
            if applies {
                let channel = connect_or_open_files(&host, &slug, Access::Write).await?;
                found.reset(&channel).await?;
            }
            Ok(found.document(applies))
        });
        self.named(resetting.await)
    }

    /// Starts new bottles from the files of this bottle. See [`unattended::fork`].
    ///
    /// # Errors
    /// Returns the errors of [`unattended::fork`].
    pub async fn fork(&self, order: ForkOrder) -> Result<Forked, Failure> {
        self.named(unattended::fork(self.host, order).await)
    }

    /// Replaces the values of credentials while the bottle runs. See [`secrets::replace`].
    ///
    /// # Errors
    /// Returns the errors of [`secrets::replace`].
    pub async fn replace_credentials(&self, values: BTreeMap<String, Secret>) -> Result<(), Failure> {
        secrets::replace(self.host, &self.slug, values).await
    }

    /// Returns the output of the bottle's agent. See [`logs::of_agent`].
    ///
    /// # Errors
    /// Returns the errors of [`logs::of_agent`].
    pub async fn log(&self) -> Result<AgentLog, Failure> {
        logs::of_agent(self.host, &self.slug).await
    }

    /// Returns the last lines of the proxy's access log. See [`logs::egress::last`].
    ///
    /// # Errors
    /// Returns the errors of [`logs::egress::last`].
    pub async fn access_log(&self, lines: usize) -> Result<Vec<String>, Failure> {
        logs::egress::last(self.host, &self.slug, lines).await
    }

    /// Adds the bottle's slug to a failure that has no subject.
    fn named<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        result.map_err(|failure| failure.about_if_unset(&self.slug))
    }

    /// Stops the bottle. The agent has the time `grace` to end before it is killed. The bottle's files are kept if they
    /// contain work that was neither pulled nor committed.
    ///
    /// # Errors
    /// When the bottle does not run, or does not end in time.
    pub async fn stop(&self, grace: Duration) -> Result<Ended, Failure> {
        stop::stop(self.host, &self.slug, grace, |_| {}).await
    }

    /// Deletes the bottle's kept files, except its snapshots. Returns whether a snapshot of the bottle remains.
    ///
    /// # Errors
    /// When no files of the bottle are kept, or when some of them cannot be deleted.
    pub async fn discard(&self) -> Result<bool, Failure> {
        discard::discard(self.host, &self.slug).await
    }
}
