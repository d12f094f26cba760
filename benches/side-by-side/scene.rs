//! Provides a `$BOTTLE_HOME` for benchmarks, with one agent `bench` that runs a given command in a bottle.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::measure::timed;
use bottle_test_support::program::Outcome;
use bottle_test_support::small_root;

/// The time limit of a command. The limit is long because some commands write gigabytes.
const PATIENCE: Duration = Duration::from_mins(10);

/// A `$BOTTLE_HOME` for one benchmark, with its agent and its bottle manifest.
pub(crate) struct Scene {
    home: TestHome,
    backend: &'static str,
    more: AtomicUsize,
}

impl Scene {
    /// Makes a home whose agent runs `command`, on the Linux backend.
    pub(crate) fn new(command: &[&str]) -> Result<Self> {
        Self::on("linux", command)
    }

    /// Makes a home with a bottle that uses an image. The image contains a few programs of this machine and 1 GiB of
    /// unused files.
    pub(crate) fn in_image(command: &[&str]) -> Result<Self> {
        let scene = Self::with_provider("linux", command, "  image: ./system\n")?;
        let root = scene.home.bottle_home().join("system");
        small_root::make(&root)?;
        let block = vec![7; 256 << 10];
        for directory in 0..64 {
            let directory = root.join(format!("usr/share/data/{directory}"));
            std::fs::create_dir_all(&directory)?;
            for file in 0..64 {
                std::fs::write(directory.join(file.to_string()), &block)?;
            }
        }
        Ok(scene)
    }

    /// Makes a home whose agent runs `command`, on the given backend.
    pub(crate) fn on(backend: &'static str, command: &[&str]) -> Result<Self> {
        Self::with_provider(backend, command, "")
    }

    fn with_provider(backend: &'static str, command: &[&str], provider: &str) -> Result<Self> {
        let command = serde_json::Value::from(command);
        let mut home = TestHome::new()?;
        home.agent("bench", "---\nbottle: bench\n---\n")?;
        home.bottle(
            "bench",
            &format!("---\nagent_provider:\n  template: command\n  command: {command}\n{provider}---\n"),
        )?;
        Ok(Self { home, backend, more: AtomicUsize::new(0) })
    }

    /// Runs a `bottle` command, which must succeed.
    pub(crate) fn bottle(&self, arguments: &[&str]) -> Result<Outcome> {
        Ok(self.any_outcome(arguments)?.expect_code(0))
    }

    /// Runs a `bottle` command, which may fail.
    pub(crate) fn any_outcome(&self, arguments: &[&str]) -> Result<Outcome> {
        self.home.program(arguments.iter().copied())?.deadline(PATIENCE).run()
    }

    /// Starts a detached bottle with the given label.
    pub(crate) fn start_detached(&self, label: &str) -> Result<Outcome> {
        self.bottle(&["start", "bench", "--backend", self.backend, "--yes", "--detach", "--label", label])
    }

    /// Starts a detached bottle. Returns the duration of the command and the keeper's log, which contains the spans of
    /// the launch phases.
    pub(crate) fn start_logged(&self, label: &str) -> Result<(Duration, String)> {
        let words = ["start", "bench", "--backend", self.backend, "--yes", "--detach", "--label", label];
        let mut program = self.home.program(words)?;
        let took =
            program.env("RUST_LOG", "bottle_keeper=debug").deadline(PATIENCE).run()?.expect_code(0).took;
        let log = self.home.bottle_home().join("state").join(label).join("logs/keeper.log");
        Ok((took, std::fs::read_to_string(log)?))
    }

    /// Starts a detached bottle with a copy of [`Scene::project`].
    pub(crate) fn start_with_copy(&self, label: &str) -> Result<Outcome> {
        let backend = self.backend;
        self.bottle(&["start", "bench", "--cwd", "--backend", backend, "--yes", "--detach", "--label", label])
    }

    /// Returns the working directory of the commands.
    pub(crate) fn project(&self) -> std::path::PathBuf {
        self.home.project()
    }

    /// Starts a bottle and waits until its agent exits.
    pub(crate) fn start(&self) -> Result<Outcome> {
        self.bottle(&["start", "bench", "--backend", self.backend, "--yes"])
    }

    /// Measures the start of a new detached bottle, and stops the bottle afterwards.
    pub(crate) fn one_more(&self) -> Result<Duration> {
        let label = format!("more-{}", self.more.fetch_add(1, Ordering::Relaxed));
        let took = timed(|| self.start_detached(&label))?;
        self.bottle(&["stop", &label, "--time", "0"])?;
        Ok(took)
    }

    /// Stops a bottle, and measures how long a resume from its snapshot takes.
    pub(crate) fn back_from_snapshot(&self, slug: &str) -> Result<Duration> {
        self.bottle(&["stop", slug, "--time", "0"])?;
        timed(|| self.bottle(&["resume", slug, "--snapshot", "--yes", "--detach", "-q"]))
    }

    /// Returns the path of `$BOTTLE_HOME`.
    pub(crate) fn bottle_home(&self) -> std::path::PathBuf {
        self.home.bottle_home()
    }

    /// Returns the directory of this home's sockets.
    pub(crate) fn runtime(&self) -> std::path::PathBuf {
        self.home.runtime().join("bottle").join(self.label())
    }

    /// Returns the label that identifies this home in the command lines of its processes.
    pub(crate) fn label(&self) -> String {
        bottle_host::home_hash(&self.home.bottle_home())
    }
}
