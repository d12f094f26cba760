//! Starts a new bottle.

use std::path::Path;

use bottle_backend::Origin;
use bottle_host::git_user::{self, HostGitUser};
use bottle_host::{Host, Settings};
use bottle_manifest::resolve::{BottleChoice, Resolved, Selection, resolve};
use bottle_plan::{CopiedDirectory, Flags, GitDirectory, InRepository, LiveDirectory, Plan, Workspace};
use bottle_policy::names::Name;
use rand::RngExt as _;

use super::backend;
use super::checks::{require_free_slug, require_host_keys, require_utf8_cwd};
use super::child::Child;
use super::copied::require_no_home;
use super::live_directory::{self, Live};
use super::preflight::{Preflight, sources};
use crate::budget::require_unspent;
use crate::failure::Failure;
use crate::manifests::manifests;
use crate::notice::{Notice, Notify};

/// The environment variable that names the backend.
pub const BACKEND_VARIABLE: &str = "BOTTLE_BACKEND";

/// Which files of a directory a bottle gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyIn {
    /// A copy of all files, except the files that `.gitignore` excludes.
    Tracked,
    /// A copy of all files.
    All,
    /// The directory itself, except its `.git`.
    Live,
}

/// The user's files that a new bottle gets.
#[derive(Debug, Default)]
pub struct NewWorkspace {
    /// Which files of the working directory the bottle gets. `None` for an empty workspace. If there are several
    /// directories, each of them has its own mode.
    pub mode: Option<CopyIn>,
    /// The repository that is copied instead of the working directory.
    pub repository: Option<InRepository>,
    /// The directories to copy, if there are several.
    pub directories: Vec<CopiedDirectory>,
    /// The git directories outside of the copied directories that the user confirmed.
    pub git_directories: Vec<GitDirectory>,
}

/// A request to start a new bottle.
#[derive(Debug)]
pub struct StartOrder {
    /// The agent.
    pub agent: Name,
    /// The bottle manifests, in order. Empty for the agent's own manifests.
    pub bottles: Vec<Name>,
    /// Whether bottle manifests that a project suggests may be used. Only the user may accept a suggestion.
    pub accepts_suggestion: bool,
    /// The backend. If `None`, the backend that the manifest or the settings name is used, otherwise the first usable
    /// backend.
    pub backend: Option<String>,
    /// The user's files that the bottle gets.
    pub workspace: NewWorkspace,
    /// The parent, if the agent of another bottle starts this bottle.
    pub child: Option<Child>,
    /// The task, the terminal, the label and similar flags. Flags that the other fields or the settings decide are
    /// ignored.
    pub flags: Flags,
}

impl NewWorkspace {
    /// Checks the directories that are copied or mounted. Returns the mounted directory, if there is one.
    fn check(&self, host: &Host) -> Result<Option<Live>, Failure> {
        for directory in &self.directories {
            require_no_home(host, &directory.path, "copy")?;
        }
        let directory = self.top(host);
        match self.mode {
            None => Ok(None),
            Some(CopyIn::Tracked | CopyIn::All) => require_no_home(host, directory, "copy").map(|()| None),
            Some(CopyIn::Live) => live_directory::check(host, directory).map(Some),
        }
    }

    /// The directory that is copied or mounted, if there is only one.
    fn top<'a>(&'a self, host: &'a Host) -> &'a Path {
        self.repository.as_ref().map_or(&host.cwd, |repository| &repository.top)
    }

    /// All directories that are copied or mounted.
    pub fn all<'a>(&'a self, host: &'a Host) -> Vec<&'a Path> {
        match (self.mode, &self.directories[..]) {
            (None, _) => Vec::new(),
            (Some(_), []) => vec![self.top(host)],
            (Some(_), several) => several.iter().map(|directory| directory.path.as_path()).collect(),
        }
    }

    fn kind(&self) -> Workspace {
        match self.mode {
            None => Workspace::Empty,
            // If there are several directories, each of them has its own mode.
            Some(_) if !self.directories.is_empty() => Workspace::Copy,
            Some(CopyIn::Tracked) => Workspace::Copy,
            Some(CopyIn::All) => Workspace::CopyAll,
            Some(CopyIn::Live) => Workspace::Repository,
        }
    }
}

impl StartOrder {
    /// Creates an order that starts an agent with its own bottle manifests and an empty workspace, without a terminal.
    pub fn new(agent: Name) -> Self {
        Self {
            agent,
            bottles: Vec::new(),
            accepts_suggestion: false,
            backend: None,
            workspace: NewWorkspace::default(),
            child: None,
            flags: Flags::default(),
        }
    }

    /// Determines what the order would start.
    ///
    /// # Errors
    /// When the bottle cannot be started.
    pub async fn preflight(
        &self,
        host: &Host,
        settings: &Settings,
        notify: Notify<'_>,
    ) -> Result<Preflight, Failure> {
        let resolved = self.resolved(host)?;
        let live = self.workspace.check(host)?;
        let (live, notes) = live.map(|live| (live.directory, live.warnings)).unzip();
        let mut plan = self.plan(host, settings, &resolved, live)?;
        let named = self.backend.clone().or_else(|| backend::preferred(&resolved, settings));
        let backend = backend::choose(host, &mut plan, named.as_deref()).await?;
        if let Some(child) = &self.child {
            child.check(&plan)?;
            // A bottle that was started by another bottle cannot start bottles itself. This limits the total number of
            // bottles.
            plan.mcp = None;
        }
        require_utf8_cwd(host)?;
        require_free_slug(host, &plan)?;
        require_host_keys(&plan)?;
        require_unspent(host, settings, &plan, |text| notify(Notice::Warning(text)))?;
        let preview = backend.preview(&plan).await?;
        let copied = sources(&plan, &preview).await?;
        Ok(Preflight {
            resolved,
            plan,
            preview,
            backend,
            origin: Origin::New,
            resumed: None,
            files: None,
            copied,
            live: notes.unwrap_or_default(),
        })
    }

    fn resolved(&self, host: &Host) -> Result<Resolved, Failure> {
        let selection = Selection { agent: self.agent.clone(), bottles: self.bottles.clone() };
        let resolved = resolve(&selection, &manifests(host))?;
        if resolved.choice != BottleChoice::Suggested || self.accepts_suggestion {
            return Ok(resolved);
        }
        let names: Vec<String> =
            resolved.manifest.bottles.iter().map(|name| format!("--bottle {name}")).collect();
        Err(Failure::usage(format!(
            "cannot start the agent `{}` without `--bottle`: it comes from this project",
            resolved.manifest.agent.name
        ))
        .about("--bottle")
        .hint(format!("it suggests `{}`; `bottle info` shows it", names.join(" "))))
    }

    fn plan(
        &self,
        host: &Host,
        settings: &Settings,
        resolved: &Resolved,
        live: Option<LiveDirectory>,
    ) -> Result<Plan, Failure> {
        let NewWorkspace { mode, repository, directories, git_directories } = &self.workspace;
        let flags = Flags {
            // Only a bottle that gets the files of the working directory works in the user's repository.
            git_user: mode.map(|_| HostGitUser::of(host, &host.cwd)).unwrap_or_default(),
            workspace: self.workspace.kind(),
            live,
            repository: repository.clone(),
            directories: directories.clone(),
            git_directories: git_directories.clone(),
            user_ignore_file: mode.and_then(|_| git_user::ignore_file(host)),
            ..self.flags.clone().with_settings(settings)
        };
        let mut rng = rand::rng();
        bottle_plan::build(host, &resolved.manifest, &flags, &mut |bytes| rng.fill(bytes))
            .map_err(Failure::from)
    }
}
