//! Starts, finds and continues the containers of a bottle.
//!
//! ```text
//!   new:       create agent ─► start ─► wait for pid 1
//!   kept:      agent (stopped) ─► start, if it was created with the same settings
//!   otherwise: an image of the files ─► create a second agent ─► remove the first one ─► start
//! ```
//! An agent's container has one of two names, because `container` cannot rename it. While containers with both names
//! exist, the newer container has the bottle's files, because its files were complete when it was created. After a
//! crash, the backend therefore uses either the old or the new container. Both containers have the same labels.

use std::io;
use std::path::Path;
use std::time::Duration;

use bottle_backend::command_line::runner::RunError;
use bottle_backend::runtime_directory::RUNTIME_DIRECTORY;
use bottle_backend::{
    Access, BackendError, BackendErrorKind, ByteStream, ImageInfo, KeptFiles, LAYERS, Launch, Origin,
    Prepared, ProgressSink, Resource, ResourceLog, unix_connect,
};
use bottle_channel::{Channel, ChannelError, Side};
use bottle_host::causes;
use bottle_plan::Resources;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Changed, Changes, GuestEvent, GuestRequest};
use bottle_protocol::session::{Hello, Role};
use bottle_text::terminal::inert;
use tokio::time::{Instant, sleep};

use super::AppleBackend;
use super::args::NewContainer;
use super::bottle::{Agent, Sockets, bundle, expect_mountable, labels, wiring};
use super::inside::READY;
use super::inventory::{BUNDLE, GUEST, IMAGE, READER, VOLUME};
use super::output::Container;
use crate::docker::names::{Part, WIRING};

/// Time limit for pid 1 of a started container to accept connections on its sockets.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The interval at which the backend searches the output of pid 1 for the readiness line.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long pid 1 may take to search the workspace.
const CHANGES_WITHIN: Duration = Duration::from_secs(120);

/// The maximum number of characters of a container's output in a message.
const LAST_WORDS: usize = 512;

/// A container that is being started.
struct Starting<'a> {
    slug: &'a Slug,
    /// The part that the container is. [`Part::Agent`] also for a container that reads or replaces the agent's files.
    part: Part,
    /// The container's name.
    id: String,
}

impl AppleBackend {
    /// Returns the bottle's sockets on the host.
    pub(super) fn sockets(&self, slug: &Slug) -> Sockets {
        Sockets::new(&self.runtime, slug)
    }

    /// Returns the container of this part of the bottle, if one exists with the bottle's name and labels. If two
    /// agent's containers exist, returns the newer one.
    pub(super) async fn find(&self, part: Part, slug: &Slug) -> Result<Option<Container>, BackendError> {
        Ok(self.find_all(part, slug).await?.pop())
    }

    /// Returns all containers that match as for [`Self::find`], the newest last.
    async fn find_all(&self, part: Part, slug: &Slug) -> Result<Vec<Container>, BackendError> {
        let parts = if part == Part::Agent { vec![Part::Agent, Part::Kept] } else { vec![part] };
        let owns = |container: &Container| {
            self.names
                .owned(&container.id, &container.labels)
                .is_some_and(|(own, of)| parts.contains(&own) && of == *slug)
        };
        let mut found = self.cli.containers().await?;
        found.retain(owns);
        found.sort_by_key(|container| container.created);
        Ok(found)
    }

    /// Implements [`bottle_backend::Lifecycle::make_network`].
    pub(super) async fn make_directory(&self, launch: &Launch<'_>) -> Result<(), BackendError> {
        let slug = &launch.plan.identity.slug;
        if *launch.origin == Origin::Kept {
            self.find_kept(slug, "resume").await?;
        }
        self.make_sockets(slug, launch.resources)
    }

    fn make_sockets(&self, slug: &Slug, resources: &dyn ResourceLog) -> Result<(), BackendError> {
        let sockets = self.sockets(slug);
        resources.record(Resource::new(
            slug,
            RUNTIME_DIRECTORY,
            sockets.directory().display().to_string(),
        ))?;
        sockets.make()
    }

    pub(super) async fn find_kept(&self, slug: &Slug, verb: &str) -> Result<Container, BackendError> {
        self.find(Part::Agent, slug).await?.ok_or_else(|| {
            BackendError::failed(format!("cannot {verb} {slug}: it has no kept container")).with_hint(
                "another program removed it with `container delete`; a snapshot still has its files, if \
                     you made one",
            )
        })
    }

    /// Implements [`bottle_backend::Lifecycle::start_bundle`].
    pub(super) async fn start_sidecars(
        &self,
        launch: &Launch<'_>,
        prepared: &Prepared,
    ) -> Result<(), BackendError> {
        let (plan, slug) = (launch.plan, &launch.plan.identity.slug);
        let roles = prepared.roles.as_ref().ok_or_else(for_another)?;
        let sockets = self.sockets(slug);
        let volume = self.names.name(Part::State, slug);
        launch.resources.record(Resource::new(slug, VOLUME, volume.clone()))?;
        let exists = self.cli.volumes().await?.into_iter().find(|found| found.name == volume);
        match exists {
            None => self.cli.create_volume(&volume, &labels(&self.names, Part::State, slug)).await?,
            Some(found) if self.names.owned(&found.name, &found.labels).is_none() => {
                return Err(BackendError::failed(format!(
                    "`container` has a volume {volume} that is not bottle's"
                ))
                .with_hint(format!("`container volume delete {volume}` makes room for it")));
            }
            Some(_) => {}
        }
        let new = bundle(&self.names, plan, roles, &sockets);
        launch.resources.record(Resource::new(slug, BUNDLE, new.name.clone()))?;
        self.cli.delete(&new.name).await?;
        let failed =
            |error: io::Error| BackendError::failed("cannot join the proxy's sockets").because(error);
        sockets.clear(Part::Bundle).map_err(failed)?;
        self.cli.create(&new).await?;
        self.start(Starting { slug, part: Part::Bundle, id: new.name }).await?;
        sockets.join().map_err(failed)
    }

    /// Implements [`bottle_backend::Lifecycle::start_guest`].
    pub(super) async fn start_agent(
        &self,
        launch: &Launch<'_>,
        prepared: &Prepared,
    ) -> Result<(), BackendError> {
        let slug = &launch.plan.identity.slug;
        let inside = prepared.inside.as_ref().ok_or_else(for_another)?;
        let limits = &launch.plan.resources;
        let id = match launch.origin {
            Origin::New => {
                self.expect_image(&inside.image, &format!("the image of {slug}")).await?;
                self.replace(slug, inside, &inside.image, limits, launch.resources).await?
            }
            Origin::Snapshot(snapshot) => {
                let image = self.image_of(snapshot).await?;
                self.replace(slug, inside, &image, limits, launch.resources).await?
            }
            Origin::Kept => self.continue_kept("resume", slug, inside, limits, launch.resources).await?,
        };
        launch.resources.record(Resource::new(slug, GUEST, id.clone()))?;
        self.start(Starting { slug, part: Part::Agent, id }).await
    }

    /// Checks that an image exists, because `container` would fetch a missing image.
    pub(super) async fn expect_image(&self, reference: &str, named: &str) -> Result<(), BackendError> {
        match self.images.find(reference).await? {
            Some(_) => Ok(()),
            None => Err(BackendError::failed(format!("{named} was removed: `container` has no {reference}"))
                .with_hint("start the bottle again, which makes the image again")),
        }
    }

    fn agent(
        &self,
        slug: &Slug,
        part: Part,
        inside: &ImageInfo,
        image: &str,
        limits: &Resources,
    ) -> NewContainer {
        let (sockets, program) = (self.sockets(slug), self.images.program_directory());
        let names = &self.names;
        Agent { names, slug, part, image, inside, program: &program, sockets: &sockets, limits }.container()
    }

    /// Creates an agent's container from this image, and then removes the earlier container. Records the new container
    /// and returns its id.
    async fn replace(
        &self,
        slug: &Slug,
        inside: &ImageInfo,
        image: &str,
        limits: &Resources,
        resources: &dyn ResourceLog,
    ) -> Result<String, BackendError> {
        expect_mountable(&self.images.program_directory())?;
        let mut earlier = self.find_all(Part::Agent, slug).await?;
        let newest = earlier.pop();
        for outdated in earlier {
            self.cli.delete(&outdated.id).await?;
        }
        let taken = self.names.name(Part::Agent, slug);
        let free =
            if newest.as_ref().is_some_and(|newest| newest.id == taken) { Part::Kept } else { Part::Agent };
        let new = self.agent(slug, free, inside, image, limits);
        resources.record(Resource::new(slug, LAYERS, new.name.clone()))?;
        self.clear(Part::Agent, slug)?;
        self.cli.create(&new).await?;
        if let Some(newest) = newest {
            self.cli.delete(&newest.id).await?;
        }
        Ok(new.name)
    }

    /// Removes the published sockets of a part that does not run.
    fn clear(&self, part: Part, slug: &Slug) -> Result<(), BackendError> {
        self.sockets(slug)
            .clear(part)
            .map_err(|error| BackendError::failed(format!("cannot remove a socket of {slug}")).because(error))
    }

    /// Returns the id of a stopped container with the kept files and these settings. Records the container.
    async fn continue_kept(
        &self,
        verb: &str,
        slug: &Slug,
        inside: &ImageInfo,
        limits: &Resources,
        resources: &dyn ResourceLog,
    ) -> Result<String, BackendError> {
        let kept = self.find_kept(slug, verb).await?;
        let wanted = self.agent(slug, Part::Agent, inside, &kept.image, limits);
        if kept.labels.get(WIRING).map(String::as_str) == wiring(&wanted) {
            resources.record(Resource::new(slug, LAYERS, kept.id.clone()))?;
            return Ok(kept.id);
        }
        let image = self.image_of_kept(slug).await?;
        resources.record(Resource::new(slug, IMAGE, image.clone()))?;
        let id = self.replace(slug, inside, &image, limits, resources).await?;
        // The image is no longer needed, because the container has a copy of its files.
        self.cli.delete_image(&image).await?;
        Ok(id)
    }

    /// Implements [`bottle_backend::Lifecycle::open_kept`].
    pub(super) async fn open(&self, kept: &KeptFiles<'_>) -> Result<(), BackendError> {
        let KeptFiles { slug, resources, sandbox, access, .. } = *kept;
        let inside = sandbox.prepared.inside.as_ref().ok_or_else(for_another)?;
        self.find_kept(slug, "open").await?;
        self.make_sockets(slug, resources)?;
        self.images.roles(&ProgressSink::discard()).await?;
        let id = match access {
            Access::Write => {
                let id = self.continue_kept("open", slug, inside, &sandbox.limits, resources).await?;
                resources.record(Resource::new(slug, GUEST, id.clone()))?;
                id
            }
            Access::Read => {
                let image = self.image_of_kept(slug).await?;
                let new = self.agent(slug, Part::Reader, inside, &image, &sandbox.limits);
                resources.record_all(&[
                    Resource::new(slug, IMAGE, image),
                    Resource::new(slug, READER, new.name.clone()),
                ])?;
                self.cli.delete(&new.name).await?;
                self.clear(Part::Reader, slug)?;
                self.cli.create(&new).await?;
                new.name
            }
        };
        self.start(Starting { slug, part: Part::Agent, id }).await
    }

    /// Starts a container, and waits until pid 1 says that its sockets accept connections. Removes the sockets that an
    /// earlier run of the container left first, unless the container runs.
    async fn start(&self, starting: Starting<'_>) -> Result<(), BackendError> {
        let Starting { slug, part, id } = &starting;
        if self.cli.find(id).await?.is_some_and(|found| found.state == "stopped") {
            self.clear(*part, slug)?;
        }
        // A container that never ran has no log.
        let before = self.cli.log(id).await.ok().and_then(|log| ready_line(&log));
        self.cli.start(id).await?;
        self.wait_until_ready(&starting, before).await
    }

    async fn wait_until_ready(
        &self,
        Starting { slug, part, id }: &Starting<'_>,
        before: Option<String>,
    ) -> Result<(), BackendError> {
        let end = Instant::now() + READY_WITHIN;
        let what = if *part == Part::Bundle { "the bundle".to_owned() } else { format!("the bottle {slug}") };
        let failed = |why: String| Err(BackendError::failed(format!("cannot start {what}: {why}")));
        loop {
            let log = self.cli.log(id).await;
            let ready = log.as_ref().ok().and_then(|log| ready_line(log));
            if ready.is_some() && ready != before {
                return Ok(());
            }
            let state = self.cli.find(id).await?.map(|container| container.state);
            if !matches!(state.as_deref(), Some("running" | "unknown")) {
                // The process may have written its last output after the log was read, so the log is read again.
                return failed(format!("its first process ended{}", last_words(&self.cli.log(id).await)));
            }
            if Instant::now() >= end {
                let within = READY_WITHIN.as_secs();
                return failed(format!(
                    "its first process was not ready within {within} s{}",
                    last_words(&log)
                ));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Opens the channel to the container of this part.
    pub(super) async fn connect(&self, part: Part, slug: &Slug) -> Result<ByteStream, BackendError> {
        let sockets = self.sockets(slug);
        let connected = match part {
            Part::Bundle => unix_connect::connect(&sockets.bundle(), &format!("the bundle of {slug}")).await,
            _ => unix_connect::connect(&sockets.guest(), &format!("the guest of {slug}")).await,
        };
        // A new keeper may connect to a bottle that ended together with `container`. The sockets of that bottle are left.
        if connected.as_ref().is_err_and(|error| error.kind == BackendErrorKind::NotRunning)
            && let Ok(None) = self.find_running(part, slug).await
        {
            let _ = self.clear(part, slug);
        }
        connected
    }

    /// Returns the container that publishes the sockets of this part, if one may run.
    async fn find_running(&self, part: Part, slug: &Slug) -> Result<Option<Container>, BackendError> {
        let mut found = self.find_all(part, slug).await?;
        if part == Part::Agent {
            // A container that reads the kept files publishes the same socket.
            found.extend(self.find_all(Part::Reader, slug).await?);
        }
        Ok(found.into_iter().find(|container| container.state != "stopped"))
    }

    /// Runs `visit` while pid 1 of the bottle runs. Starts a stopped bottle without its agent, and stops the bottle
    /// afterwards.
    ///
    /// # Errors
    /// The error of `visit`, or when pid 1 does not start.
    pub(super) async fn visit<T>(
        &self,
        slug: &Slug,
        container: &Container,
        visit: impl AsyncFnOnce(&str) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        if container.is_running() {
            return visit(&container.id).await;
        }
        let sockets = self.sockets(slug);
        let is_temporary = !sockets.directory().exists();
        sockets.make()?;
        self.images.roles(&ProgressSink::discard()).await?;
        let starting = Starting { slug, part: Part::Agent, id: container.id.clone() };
        let visited = match self.start(starting).await {
            Ok(()) => visit(&container.id).await,
            Err(error) => Err(error),
        };
        // If the container does not stop here, a later removal stops it.
        let stopped = self.cli.stop(&container.id).await;
        if is_temporary {
            let _ = std::fs::remove_dir_all(sockets.directory());
        }
        visited.and_then(|visited| stopped.map(|()| visited))
    }

    /// Implements [`bottle_backend::Lifecycle::find_work`]. Returns no changes if the bottle has no container.
    pub(super) async fn find_changes(&self, slug: &Slug, request: &Changed) -> Result<Changes, BackendError> {
        let Some(container) = self.find(Part::Agent, slug).await? else { return Ok(Changes::default()) };
        let failed = |error: NoAnswer| {
            BackendError::failed(format!("cannot look for changes in the workspace of {slug}")).because(error)
        };
        self.visit(slug, &container, async |_| {
            let stream = self.connect(Part::Agent, slug).await?;
            let asked = tokio::time::timeout(CHANGES_WITHIN, ask_for_changes(stream, request)).await;
            asked.map_err(|_| failed(NoAnswer::Late))?.map_err(failed)
        })
        .await
    }
}

/// Why pid 1 did not answer.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("pid 1 did not answer in time")]
    Late,
    #[error("pid 1 gave another answer: {0}")]
    Other(String),
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

async fn ask_for_changes(stream: ByteStream, request: &Changed) -> Result<Changes, NoAnswer> {
    let (channel, _, _) = Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper)).await?;
    let mut stream = channel.open(&GuestRequest::Changed(request.clone())).await?;
    let answer = stream.receive::<GuestEvent>().await?;
    channel.close();
    match answer {
        GuestEvent::Changed(changes) => Ok(changes),
        GuestEvent::Failed(failure) => Err(NoAnswer::Other(inert(&failure.message).to_string())),
        _ => Err(NoAnswer::Other("an unexpected event".to_owned())),
    }
}

/// Returns the last output line in which pid 1 reports that it is ready.
fn ready_line(log: &str) -> Option<String> {
    log.lines().rfind(|line| line.starts_with(READY)).map(str::to_owned)
}

/// Returns the end of a container's output, or why it cannot be read, as the end of a sentence. Empty if there is no
/// output.
fn last_words(log: &Result<String, RunError>) -> String {
    let log = match log {
        Ok(log) => log,
        Err(error) => return format!(", and its output cannot be read: {}", causes::one_line(error)),
    };
    let lines: Vec<&str> =
        log.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(READY)).collect();
    let text = lines.join("; ");
    let start = text.char_indices().rev().nth(LAST_WORDS).map_or(0, |(at, _)| at);
    if text.is_empty() { String::new() } else { format!(": {}", inert(&text[start..])) }
}

/// Creates the error for a launch whose inputs come from another backend.
fn for_another() -> BackendError {
    BackendError::failed("the bottle was prepared for another backend")
}

/// Whether this path is the runtime directory of a bottle.
pub(super) fn is_runtime_directory(runtime: &Path, slug: &Slug, id: &str) -> bool {
    runtime.join(slug.as_str()).as_os_str() == id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ready_line_counts_and_is_no_last_word() {
        let log = format!("{READY} 1\nwarning: a\n{READY} 2\nerror: \u{1b}[31mb\n\n");
        assert_eq!(ready_line(&log), Some(format!("{READY} 2")));
        assert_eq!(ready_line("ready"), None);
        let words = last_words(&Ok(log));
        assert!(words.starts_with(": warning: a; error: ") && !words.contains('\u{1b}'), "{words}");
        assert_eq!(last_words(&Ok(format!("{READY} 1\n"))), "");
        assert!(last_words(&Ok("ä".repeat(5000))).chars().count() < 600);
        let words = last_words(&Err(RunError::Missing("container")));
        assert_eq!(words, ", and its output cannot be read: `container` is not installed");
    }

    #[test]
    fn only_the_directory_of_the_slug_is_its_runtime_directory() {
        let slug: Slug = "a-1".parse().expect("slug");
        assert!(is_runtime_directory(Path::new("/r"), &slug, "/r/a-1"));
        for other in ["/r", "/r/a", "/r/a-1/..", "/", "a-1"] {
            assert!(!is_runtime_directory(Path::new("/r"), &slug, other), "{other}");
        }
    }
}
