//! A temporary user: a home with `.bottle`, a runtime folder, a project folder.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::engine;
use crate::program::Program;
use crate::pty::Pty;
use crate::scrub::Scrub;
use crate::skip;

/// A temporary home. Dropping it ends every bottle started from it and removes the files.
pub struct TestHome {
    root: TempDir,
    agents: Vec<String>,
    environment: Vec<(OsString, OsString)>,
    cleanup: bool,
}

impl TestHome {
    /// Makes an empty home.
    ///
    /// The path is short, because a unix socket's path in it must fit 100 bytes. The folder is private, and the runtime
    /// folder has mode 0700, as a login manager creates it.
    ///
    /// # Errors
    /// When the temporary folder cannot be made.
    pub fn new() -> Result<Self> {
        let root = tempfile::Builder::new().prefix("bt-").tempdir().context("temporary home")?;
        for folder in ["home/.bottle/agents", "home/.bottle/bottles", "run", "project"] {
            fs::create_dir_all(root.path().join(folder))?;
        }
        fs::set_permissions(root.path().join("run"), fs::Permissions::from_mode(0o700))?;
        Ok(Self { root, agents: vec!["probe".to_owned()], environment: Vec::new(), cleanup: true })
    }

    /// The user's home.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    /// `$BOTTLE_HOME`.
    #[must_use]
    pub fn bottle_home(&self) -> PathBuf {
        self.home().join(".bottle")
    }

    /// `$XDG_RUNTIME_DIR`.
    #[must_use]
    pub fn runtime(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// The directory commands are run in.
    #[must_use]
    pub fn project(&self) -> PathBuf {
        self.root.path().join("project")
    }

    /// A path outside all of them, for certificates and other files.
    #[must_use]
    pub fn outside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Writes a file under the home root (`home/…`, `project/…`), with its folders.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &str, text: &str) -> Result<PathBuf> {
        let path = self.root.path().join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Writes a bottle manifest.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn bottle(&mut self, name: &str, text: &str) -> Result<&mut Self> {
        self.write(&format!("home/.bottle/bottles/{name}.md"), text)?;
        Ok(self)
    }

    /// Writes an agent manifest.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn agent(&mut self, name: &str, text: &str) -> Result<&mut Self> {
        self.write(&format!("home/.bottle/agents/{name}.md"), text)?;
        self.agents.push(name.to_owned());
        Ok(self)
    }

    /// Sets a variable for every command of this home.
    pub fn env(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> &mut Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Disables the cleanup on drop, for tests that check leftovers.
    pub fn without_cleanup(&mut self) -> &mut Self {
        self.cleanup = false;
        self
    }

    /// The `bottle` command of this home: started in [`TestHome::project`], with a clean environment.
    ///
    /// # Errors
    /// When the program has not been built.
    pub fn program<I, S>(&self, arguments: I) -> Result<Program>
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        let mut program = Program::bottle()?;
        program.arguments(arguments).directory(self.project());
        program
            .env("HOME", self.home())
            .env("BOTTLE_HOME", self.bottle_home())
            .env("XDG_RUNTIME_DIR", self.runtime());
        for (name, value) in &self.environment {
            program.env(name, value);
        }
        Ok(program)
    }

    /// A command on a terminal of this size.
    ///
    /// # Errors
    /// When there is no program or no terminal.
    pub fn on_terminal(&self, arguments: &[&str], rows: u16, columns: u16) -> Result<Pty> {
        Pty::spawn(self.program(arguments.iter().copied())?.command(), rows, columns)
    }

    /// Why the backend does not work for this home, from `doctor` and [`engine::here`]; none if it works.
    ///
    /// # Errors
    /// When `doctor` fails or does not know the backend.
    pub fn unusable(&self, backend: &str) -> Result<Option<String>> {
        let doctor = self.program(["doctor", "--json"])?.run()?.json()?;
        let known = doctor.as_array().into_iter().flatten().find(|entry| entry["backend"] == backend);
        let known = known.with_context(|| format!("doctor does not know the {backend} backend"))?;
        if known["usable"] != true {
            return Ok(Some(format!("the {backend} backend cannot run here: {}", known["findings"])));
        }
        // Containers need more than an engine: a base image and the static program.
        let missing = (backend == "docker").then(engine::here).and_then(Result::err);
        Ok(missing.map(|missing| missing.to_string()))
    }

    /// Whether bottles of this home run on this backend; if not, reports that `test` is skipped.
    ///
    /// # Errors
    /// As [`TestHome::unusable`].
    pub fn runs(&self, test: &str, backend: &str) -> Result<bool> {
        let why = self.unusable(backend)?;
        if let Some(why) = &why {
            skip::aloud(test, why);
        }
        Ok(why.is_none())
    }

    /// Runs the user's git in the project, with a name and without this machine's configuration. Returns its output.
    ///
    /// # Errors
    /// When git is missing or fails, with its output.
    pub fn git(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("git")
            .args([
                "-c",
                "user.name=Ann",
                "-c",
                "user.email=ann@example.com",
                "-c",
                "init.defaultBranch=main",
            ])
            .args(arguments)
            .current_dir(self.project())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .context("git")?;
        let output_text = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "git {arguments:?}: {output_text}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The replacements for values that differ between runs in this home's output.
    ///
    /// # Errors
    /// Never in practice, see [`Scrub`].
    pub fn scrub(&self) -> Result<Scrub> {
        let mut scrub = Scrub::standard()?;
        scrub
            .path(&self.bottle_home(), "[BOTTLE_HOME]")?
            .path(&self.home(), "[HOME]")?
            .path(&self.runtime(), "[RUNTIME]")?
            .path(&self.project(), "[PROJECT]")?
            .path(self.root.path(), "[ROOT]")?;
        for agent in &self.agents {
            scrub.agent(agent)?;
        }
        Ok(scrub)
    }

    /// Discards preserved bottles, which no cleanup removes; their containers would outlive the home's files.
    fn discard_kept(&self) -> Result<()> {
        let listed = self.program(["list", "--json"])?.run()?.json()?;
        for bottle in listed.as_array().into_iter().flatten().filter(|bottle| bottle["status"] == "preserved")
        {
            let slug = bottle["slug"].as_str().context("a slug")?;
            let _ = self.program(["discard", slug, "--yes"])?.run()?;
            let _ = self.program(["snapshots", "rm", slug])?.run()?;
        }
        Ok(())
    }

    /// The folder with all of this.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }
}

impl Drop for TestHome {
    fn drop(&mut self) {
        // Only a home that started a bottle has state.
        if self.cleanup
            && self.bottle_home().join("state").is_dir()
            && let Ok(program) = self.program(["cleanup", "--all", "--yes"])
        {
            let _ = program.run();
            let _ = self.discard_kept();
        }
    }
}
