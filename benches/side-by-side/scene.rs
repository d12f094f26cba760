//! A home for measuring: one agent `bench` that runs a given command in a bottle.

use anyhow::Result;
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;

/// The home.
pub(crate) struct Scene {
    home: TestHome,
    backend: &'static str,
}

impl Scene {
    /// With this command as the agent, on the Linux backend.
    pub(crate) fn new(command: &[&str]) -> Result<Self> {
        Self::on("linux", command)
    }

    /// The same on another backend.
    pub(crate) fn on(backend: &'static str, command: &[&str]) -> Result<Self> {
        let command = serde_json::Value::from(command);
        let mut home = TestHome::new()?;
        home.agent("bench", "---\nbottle: bench\n---\n")?;
        home.bottle(
            "bench",
            &format!("---\nagent_provider:\n  template: command\n  command: {command}\n---\n"),
        )?;
        Ok(Self { home, backend })
    }

    /// A bottle command, expected to succeed.
    pub(crate) fn bottle(&self, arguments: &[&str]) -> Result<Outcome> {
        Ok(self.home.program(arguments.iter().copied())?.run()?.expect_code(0))
    }

    /// Starts a bottle of this label that lives on.
    pub(crate) fn start_detached(&self, label: &str) -> Result<Outcome> {
        self.bottle(&["start", "bench", "--backend", self.backend, "--yes", "--detach", "--label", label])
    }

    /// Starts a bottle and waits for its agent's end.
    pub(crate) fn start(&self) -> Result<Outcome> {
        self.bottle(&["start", "bench", "--backend", self.backend, "--yes"])
    }

    /// `$BOTTLE_HOME`.
    pub(crate) fn bottle_home(&self) -> std::path::PathBuf {
        self.home.bottle_home()
    }

    /// What the command lines of this home's processes call it.
    pub(crate) fn label(&self) -> String {
        bottle::host::home_hash(&self.home.bottle_home())
    }
}
