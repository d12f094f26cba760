//! A temporary user: a home directory with `.bottle`, a runtime directory, and a project directory.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::engine;
use crate::program::Program;
use crate::pty::Pty;
use crate::scrub::Scrub;
use crate::skip;

/// The time limit for the image with the agents' tools. Its packages are downloaded.
const TOOLS_WITHIN: Duration = Duration::from_secs(600);

/// Whether the engine has the image with the agents' tools.
static HAS_TOOLS: Mutex<bool> = Mutex::new(false);

/// A temporary user's directories. Dropping the value ends every bottle that was started from them, and removes
/// the files.
pub struct TestHome {
    root: TempDir,
    agents: Vec<String>,
    environment: Vec<(OsString, OsString)>,
    cleanup: bool,
}

impl TestHome {
    /// Creates empty directories.
    ///
    /// The path is short, because the path of a unix socket below it must not exceed 100 bytes. Only this user can
    /// access the directory. The runtime directory and `$BOTTLE_HOME` have mode 0700, as a login manager and `bottle`
    /// would create them.
    ///
    /// # Errors
    /// Returns an error if the temporary directory cannot be created.
    pub fn new() -> Result<Self> {
        let root = tempfile::Builder::new().prefix("bt-").tempdir().context("temporary home")?;
        for directory in ["home/.bottle/agents", "home/.bottle/bottles", "run", "project"] {
            fs::create_dir_all(root.path().join(directory))?;
        }
        for private in ["run", "home/.bottle"] {
            fs::set_permissions(root.path().join(private), fs::Permissions::from_mode(0o700))?;
        }
        Ok(Self { root, agents: vec!["probe".to_owned()], environment: Vec::new(), cleanup: true })
    }

    /// Returns the user's home directory.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    /// Returns the path of `$BOTTLE_HOME`.
    #[must_use]
    pub fn bottle_home(&self) -> PathBuf {
        self.home().join(".bottle")
    }

    /// Returns the path of `$XDG_RUNTIME_DIR`.
    #[must_use]
    pub fn runtime(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// Returns the directory in which commands are run.
    #[must_use]
    pub fn project(&self) -> PathBuf {
        self.root.path().join("project")
    }

    /// Returns a path outside these directories, for certificates and other files.
    #[must_use]
    pub fn outside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Writes a file below the root of this user's directories (`home/…`, `project/…`). Creates missing directories.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
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
    /// Returns an error if the file cannot be written.
    pub fn bottle(&mut self, name: &str, text: &str) -> Result<&mut Self> {
        self.write(&format!("home/.bottle/bottles/{name}.md"), text)?;
        Ok(self)
    }

    /// Writes an agent manifest.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn agent(&mut self, name: &str, text: &str) -> Result<&mut Self> {
        self.write(&format!("home/.bottle/agents/{name}.md"), text)?;
        self.agents.push(name.to_owned());
        Ok(self)
    }

    /// Sets an environment variable for all commands of this user.
    pub fn env(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> &mut Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Disables the cleanup on drop, for tests that check for leftovers.
    pub fn without_cleanup(&mut self) -> &mut Self {
        self.cleanup = false;
        self
    }

    /// Returns a `bottle` command of this user. It runs in [`TestHome::project`], with a clean environment.
    ///
    /// # Errors
    /// Returns an error if the program has not been built.
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

    /// Runs a `bottle` command on a terminal of this size.
    ///
    /// # Errors
    /// Returns an error if the program or a terminal is missing.
    pub fn on_terminal(&self, arguments: &[&str], rows: u16, columns: u16) -> Result<Pty> {
        Pty::spawn(self.program(arguments.iter().copied())?.command(), rows, columns)
    }

    /// Returns why this user cannot use the backend, as `doctor` and [`engine::here`] report it; `None` if the backend
    /// works.
    ///
    /// # Errors
    /// Returns an error if `doctor` fails or does not know the backend.
    pub fn unusable(&self, backend: &str) -> Result<Option<String>> {
        let doctor = self.program(["doctor", "--json"])?.run()?.json()?;
        let known = doctor.as_array().into_iter().flatten().find(|entry| entry["backend"] == backend);
        let known = known.with_context(|| format!("doctor does not know the {backend} backend"))?;
        if known["usable"] != true {
            return Ok(Some(format!("the {backend} backend cannot run here: {}", known["findings"])));
        }
        // The Docker backend needs more than an engine: a base image and the static program.
        if backend != "docker" {
            return Ok(None);
        }
        if let Err(missing) = engine::here() {
            return Ok(Some(missing.to_string()));
        }
        let mut has_tools = HAS_TOOLS.lock().unwrap_or_else(PoisonError::into_inner);
        if !*has_tools {
            make_tools_image()?;
            *has_tools = true;
        }
        Ok(None)
    }

    /// Like [`TestHome::runs`], for a test that also needs git.
    ///
    /// # Errors
    /// Returns the same errors as [`TestHome::unusable`].
    pub fn runs_with_git(&self, test: &str, backend: &str) -> Result<bool> {
        if !self.runs(test, backend)? {
            return Ok(false);
        }
        let has_git = self.git(&["--version"]).is_ok();
        if !has_git {
            skip::aloud(test, &"there is no git here");
        }
        Ok(has_git)
    }

    /// Whether this user can run bottles on this backend. If not, reports that `test` is skipped.
    ///
    /// # Errors
    /// Returns the same errors as [`TestHome::unusable`].
    pub fn runs(&self, test: &str, backend: &str) -> Result<bool> {
        let why = self.unusable(backend)?;
        if let Some(why) = &why {
            skip::aloud(test, why);
        }
        Ok(why.is_none())
    }

    /// Runs git in the project, with a user name and without this machine's configuration. Returns its
    /// output.
    ///
    /// # Errors
    /// Returns an error if git is missing or fails. The error contains git's output.
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

    /// Returns the replacements for values in this user's output that differ between runs.
    ///
    /// # Errors
    /// Does not fail in practice; see [`Scrub`].
    pub fn scrub(&self) -> Result<Scrub> {
        let mut scrub = Scrub::standard()?;
        scrub
            .path(&self.bottle_home(), "[BOTTLE_HOME]")?
            .path(&self.home(), "[HOME]")?
            .path(&self.runtime(), "[RUNTIME]")?
            .path(&self.project(), "[PROJECT]")?
            .path(self.root.path(), "[ROOT]")?
            // The values that `bottle list` measures for a running bottle.
            .add(r#""(activity|active_at|disk_bytes|measured_at)": [^,\n]+"#, r#""$1": [MEASURED]"#)?;
        for agent in &self.agents {
            scrub.agent(agent)?;
        }
        Ok(scrub)
    }

    /// Discards kept bottles, because `bottle cleanup` does not remove them. Otherwise their containers
    /// would remain after this user's files are removed.
    fn discard_kept(&self) -> Result<()> {
        let listed = self.program(["list", "--json"])?.run()?.json()?;
        for bottle in listed.as_array().into_iter().flatten().filter(|bottle| bottle["status"] == "kept") {
            let slug = bottle["slug"].as_str().context("a slug")?;
            let _ = self.program(["discard", slug, "--yes"])?.run()?;
            let _ = self.program(["snapshots", "rm", slug])?.run()?;
        }
        Ok(())
    }

    /// Returns the root of all these directories.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }
}

impl Drop for TestHome {
    fn drop(&mut self) {
        // There is state only if this user has started a bottle.
        if self.cleanup
            && self.bottle_home().join("state").is_dir()
            && let Ok(program) = self.program(["cleanup", "--all", "--yes"])
        {
            let _ = program.run();
            let _ = self.discard_kept();
        }
    }
}

/// Makes the image with the agents' tools by a start, if the engine does not have it. This takes minutes, but a command
/// of a test has a time limit of one minute.
fn make_tools_image() -> Result<()> {
    let _lock = engine::lock_tools();
    let mut home = TestHome::new()?;
    let provider = "agent_provider: {template: command, command: ['true']}";
    home.bottle("tools", &format!("---\nbackend: docker\n{provider}\n---\n"))?;
    home.agent("tools", "---\nbottle: tools\n---\n")?;
    let mut start = home.program(["start", "tools", "--yes", "--label", "tools"])?;
    let _ = start.deadline(TOOLS_WITHIN).run()?.expect_code(0);
    Ok(())
}
