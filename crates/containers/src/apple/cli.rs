//! Calls `container` with deadlines, and explains its failures.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use bottle_backend::command_line::runner::{Output, Program, RunError};
use bottle_backend::{BackendError, BackendErrorKind};
use bottle_host::Host;
use tokio::time::{Instant, sleep};

use super::args::{self, NewContainer};
use super::output::{self, Container, Image, Volume};

/// The name of the backend's program.
const NAME: &str = "container";

/// How long `container` may take to create, kill or remove an object.
const QUICK: Duration = Duration::from_secs(60);

/// How long a call that lists objects may take. `container` itself has a limit of 10 s, but can hang after a virtual
/// machine was removed.
const LIST: Duration = Duration::from_secs(15);

/// The maximum number of attempts for a list that hangs.
const LIST_TRIES: usize = 3;

/// How long a virtual machine may take to start, even if the host is busy with other virtual machines.
const START: Duration = Duration::from_secs(180);

/// How long an image may take to be loaded, saved or built.
const IMAGE: Duration = Duration::from_secs(30 * 60);

/// The time limit for retrying the removal of a container. The removal fails while the container is stopping.
const REMOVED_WITHIN: Duration = Duration::from_secs(30);

/// The interval between two attempts to stop or remove an object.
const RETRY: Duration = Duration::from_millis(300);

/// The hint for a build that fails because this Mac has no Rosetta. Only the builder of `container` asks for Rosetta, even
/// for an image that contains no program for Intel processors.
const ROSETTA: &str = "the builder of `container` asks for Rosetta, which the image does not need: put `[build]` and \
     `rosetta = false` into ~/.config/container/config.toml, run `container builder delete --force`, and `container \
     system stop` and `container system start`; or run `softwareupdate --install-rosetta`";

/// The number of lines that are read from the end of a container's output.
const LOG_LINES: u32 = 50;

/// The program `container`.
#[derive(Debug)]
pub(super) struct Cli {
    /// The program `container`.
    pub(super) program: Program,
    /// The program that prints the version of macOS.
    pub(super) sw_vers: Program,
}

impl Cli {
    /// Finds the programs on the host's `PATH`. The programs' environment lacks the variables that change how
    /// `container` works.
    pub(super) fn new(host: &Host) -> Self {
        Self { program: Program::new(host, NAME, &[]), sw_vers: Program::new(host, "sw_vers", &[]) }
    }

    async fn run(
        &self,
        doing: &str,
        arguments: &[OsString],
        within: Duration,
    ) -> Result<Output, BackendError> {
        self.program.run(arguments, within).await.map_err(|error| explain(doing, error))
    }

    /// Runs a call that prints a list, and parses the list. Repeats a call that hangs.
    async fn listed<T>(
        &self,
        what: &str,
        arguments: &[OsString],
        parse: impl Fn(&[u8]) -> serde_json::Result<Vec<T>>,
    ) -> Result<Vec<T>, BackendError> {
        let doing = format!("list the {what} of `container`");
        let mut tries = 1;
        let output = loop {
            match self.program.run(arguments, LIST).await {
                Err(RunError::Late { .. }) if tries < LIST_TRIES => tries += 1,
                listed => break listed.map_err(|error| explain(&doing, error))?,
            }
        };
        parse(&output.stdout).map_err(|error| {
            BackendError::failed(format!("cannot {doing}: it printed no list")).because(error)
        })
    }

    /// Returns all containers of this machine.
    ///
    /// # Errors
    /// [`BackendError`] when `container` cannot list them.
    pub(super) async fn containers(&self) -> Result<Vec<Container>, BackendError> {
        self.listed("containers", &args::list(), output::containers).await
    }

    /// Returns the container with this id. `None` if it does not exist.
    ///
    /// # Errors
    /// The errors of [`Cli::containers`].
    pub(super) async fn find(&self, id: &str) -> Result<Option<Container>, BackendError> {
        Ok(self.containers().await?.into_iter().find(|container| container.id == id))
    }

    /// Returns all volumes of this machine.
    ///
    /// # Errors
    /// The errors of [`Cli::containers`].
    pub(super) async fn volumes(&self) -> Result<Vec<Volume>, BackendError> {
        self.listed("volumes", &args::volumes(), output::volumes).await
    }

    /// Returns all images of this machine.
    ///
    /// # Errors
    /// The errors of [`Cli::containers`].
    pub(super) async fn images(&self) -> Result<Vec<Image>, BackendError> {
        self.listed("images", &args::images(), output::images).await
    }

    /// Creates a container.
    ///
    /// # Errors
    /// [`BackendError`] when `container` refuses, for example because the image does not exist.
    pub(super) async fn create(&self, new: &NewContainer) -> Result<(), BackendError> {
        self.run(&format!("create {}", new.name), &args::create(new), QUICK).await.map(drop)
    }

    /// Starts a container. Does nothing if the container already runs.
    ///
    /// # Errors
    /// [`BackendError`] when the container does not start.
    pub(super) async fn start(&self, id: &str) -> Result<(), BackendError> {
        self.run(&format!("start {id}"), &args::start(id), START).await.map(drop)
    }

    /// Ends the first process of a container. The container and its files stay. A container that does not run is no
    /// error.
    ///
    /// # Errors
    /// [`BackendError`] when the container still runs.
    pub(super) async fn stop(&self, id: &str) -> Result<(), BackendError> {
        let end = Instant::now() + REMOVED_WITHIN;
        loop {
            let state = self.find(id).await?.map(|container| container.state);
            let Some("running" | "stopping" | "unknown") = state.as_deref() else { return Ok(()) };
            let killed = self.run(&format!("stop {id}"), &args::kill(id), QUICK).await;
            if Instant::now() >= end {
                return killed
                    .and_then(|_| Err(BackendError::failed(format!("cannot stop {id}: it still runs"))));
            }
            sleep(RETRY).await;
        }
    }

    /// Removes a container with its files. A missing container is no error.
    ///
    /// # Errors
    /// [`BackendError`] when the container still exists.
    pub(super) async fn delete(&self, id: &str) -> Result<(), BackendError> {
        let end = Instant::now() + REMOVED_WITHIN;
        loop {
            if self.find(id).await?.is_none() {
                return Ok(());
            }
            let deleted = self.run(&format!("remove {id}"), &args::delete(id), QUICK).await;
            if Instant::now() >= end {
                return deleted
                    .and_then(|_| Err(BackendError::failed(format!("cannot remove {id}: it still exists"))));
            }
            if deleted.is_err() {
                sleep(RETRY).await;
            }
        }
    }

    /// Returns the last output of a container's first process. `container` reads the output in blocks from its end, and
    /// leaves out everything before a block that is not UTF-8.
    ///
    /// # Errors
    /// [`RunError`], for example for a container that never ran.
    pub(super) async fn log(&self, id: &str) -> Result<String, RunError> {
        let output = self.program.run(&args::logs(id, LOG_LINES), LIST).await?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a program in a container until it ends. The program must print little, because `container` may lose the end
    /// of a large output.
    ///
    /// # Errors
    /// [`BackendError`] when the program fails.
    pub(super) async fn exec(&self, doing: &str, id: &str, command: &[&str]) -> Result<(), BackendError> {
        self.run(doing, &args::exec(id, command), IMAGE).await.map(drop)
    }

    /// Loads an image from an archive.
    ///
    /// # Errors
    /// [`BackendError`] when the archive is damaged, or `container` refuses it.
    pub(super) async fn load(&self, archive: &Path) -> Result<(), BackendError> {
        self.run("load an image", &args::load(archive), IMAGE).await.map(drop)
    }

    /// Saves an image to an archive.
    ///
    /// # Errors
    /// [`BackendError`] when the image does not exist.
    pub(super) async fn save(
        &self,
        reference: &str,
        platform: &str,
        archive: &Path,
    ) -> Result<(), BackendError> {
        self.run(&format!("save the image {reference}"), &args::save(reference, platform, archive), IMAGE)
            .await
            .map(drop)
    }

    /// Removes an image. A missing image is no error.
    ///
    /// # Errors
    /// [`BackendError`] when the image still exists.
    pub(super) async fn delete_image(&self, reference: &str) -> Result<(), BackendError> {
        self.run(&format!("remove the image {reference}"), &args::delete_image(reference), QUICK)
            .await
            .map(drop)
    }

    /// Builds an image.
    ///
    /// # Errors
    /// [`BackendError`] when the build fails.
    pub(super) async fn build(
        &self,
        tag: &str,
        arguments: &[(&str, &str)],
        context: &Path,
    ) -> Result<(), BackendError> {
        let built =
            self.run(&format!("build the image {tag}"), &args::build(tag, arguments, context), IMAGE).await;
        built.map(drop).map_err(|error| match error.one_line().contains("Rosetta") {
            true => error.with_hint(ROSETTA),
            false => error,
        })
    }

    /// Creates a volume.
    ///
    /// # Errors
    /// [`BackendError`] when `container` refuses to create the volume.
    pub(super) async fn create_volume(
        &self,
        name: &str,
        labels: &[(String, String)],
    ) -> Result<(), BackendError> {
        let doing = format!("create the volume {name}");
        self.run(&doing, &args::create_volume(name, labels), QUICK).await.map(drop)
    }

    /// Removes a volume. A missing volume is no error.
    ///
    /// # Errors
    /// [`BackendError`] when the volume still exists, for example because a container uses it.
    pub(super) async fn delete_volume(&self, name: &str) -> Result<(), BackendError> {
        let end = Instant::now() + REMOVED_WITHIN;
        loop {
            if !self.volumes().await?.iter().any(|volume| volume.name == name) {
                return Ok(());
            }
            let deleted =
                self.run(&format!("remove the volume {name}"), &args::delete_volume(name), QUICK).await;
            if deleted.is_err() && Instant::now() >= end {
                return deleted.map(drop);
            }
            sleep(RETRY).await;
        }
    }
}

/// Creates the error for an action that failed because a call of `container` failed.
fn explain(doing: &str, error: RunError) -> BackendError {
    let (kind, hint) = match &error {
        RunError::Missing(_) => {
            (BackendErrorKind::Unavailable, Some("install `container`, and put it on your PATH"))
        }
        RunError::Late { .. } => {
            (BackendErrorKind::Failed, Some("`bottle cleanup` removes what the call left; then try again"))
        }
        _ => (BackendErrorKind::Failed, None),
    };
    let error = BackendError::new(kind, format!("cannot {doing}")).because(error);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::test_program::program;
    use super::*;

    fn cli(script: &str) -> (tempfile::TempDir, Cli) {
        let (directory, container) = program("container", script);
        (directory, Cli { sw_vers: container.clone(), program: container })
    }

    #[tokio::test]
    async fn a_missing_program_is_named_with_the_next_step() {
        let (directory, cli) = cli("");
        fs::remove_file(directory.path().join("container")).expect("removed");
        let error = cli.start("a").await.expect_err("missing");
        assert_eq!(error.kind, BackendErrorKind::Unavailable);
        assert_eq!(error.one_line(), "cannot start a: `container` is not installed");
        assert!(error.hint.is_some_and(|hint| hint.contains("install")));
    }

    #[tokio::test]
    async fn garbage_in_place_of_a_list_is_an_error() {
        for script in ["echo 'Warning: old'; echo '[]'", "printf '\\033[31m\\377'", "true", "echo '{}'"] {
            let (_directory, cli) = cli(script);
            let error = cli.containers().await.expect_err(script).one_line();
            assert!(
                error.starts_with("cannot list the containers of `container`: it printed no list"),
                "{error}"
            );
            assert!(cli.images().await.is_err() && cli.volumes().await.is_err());
        }
    }

    #[tokio::test]
    async fn an_error_after_a_wall_of_progress_is_shown() {
        let (_directory, cli) =
            cli("yes '[1/6] Fetching image 1%' | head -c 3000000 >&2; echo 'Error: disk full' >&2; exit 1");
        let error = cli.load(Path::new("/image.tar")).await.expect_err("failed").one_line();
        assert_eq!(error, "cannot load an image: `container image load` failed (exit 1): Error: disk full");
        let (_directory, killed) = self::cli("kill -9 $$");
        let error = killed.delete_image("localhost/a:1").await.expect_err("killed").one_line();
        assert!(error.ends_with("failed (signal 9)"), "{error}");
    }

    #[tokio::test]
    async fn a_container_that_still_stops_is_removed_later_and_a_missing_one_is_no_error() {
        // The first removal fails, because the container is still stopping.
        let script = r#"here=$(dirname "$0")
            case $1 in
            list) if [ -e "$here/gone" ]; then echo '[]'; else echo '[{"id":"a","status":{"state":"stopping"}}]'; fi;;
            delete) if [ -e "$here/tried" ]; then touch "$here/gone"; else touch "$here/tried";
                echo 'Error: container a is stopping' >&2; exit 1; fi;;
            esac"#;
        let (directory, cli) = cli(script);
        cli.delete("a").await.expect("removed");
        cli.delete("b").await.expect("missing");
        let calls = fs::read_to_string(directory.path().join("calls")).expect("called");
        assert_eq!(calls.matches("delete --force a").count(), 2, "{calls}");
        assert!(!calls.contains("delete --force b"), "{calls}");
    }

    #[tokio::test]
    async fn a_missing_rosetta_is_explained_with_both_ways_out() {
        let (_directory, cli) = cli(
            "echo 'Error: unknown: \"Error Domain=VZErrorDomain Code=2 \"Rosetta is not installed\"\"' >&2; exit 1",
        );
        let error = cli.build("localhost/a:1", &[], Path::new("/c")).await.expect_err("failed");
        assert!(error.one_line().contains("Rosetta is not installed"), "{error}");
        let hint = error.hint.expect("a hint");
        assert!(hint.contains("rosetta = false") && hint.contains("--install-rosetta"), "{hint}");
    }
}
