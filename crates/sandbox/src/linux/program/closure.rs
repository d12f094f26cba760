//! Computes the minimal set of host paths that a program needs.
//!
//! The computation starts at the program's path. It exposes each link on the path as a link and each installation as
//! one directory. It then repeats these steps for the program's interpreter. Paths that every bottle sees are omitted.
//! Each exposed path has a reason, which is shown when the user confirms the launch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use bottle_backend::{BackendError, BackendErrorKind, Exposed};
use bottle_host::Host;

use super::bounds::Bounds;
use super::python::{self, Environment};
use super::shebang::{self, Interpreter};
use super::{native, node, search};
use crate::linux;

/// The maximum number of links followed for one path, which equals the kernel's limit. A path with more links is an
/// error.
const LINKS_MAX: usize = 40;

/// Directories that a bottle replaces. A link of the host inside such a directory cannot be recreated, so the link's
/// target is exposed both at its own path and at the link's path.
const REPLACED: [&str; 9] = ["/home", "/run", "/tmp", "/var", "/etc", "/dev", "/proc", "/sys", "/workspace"];

/// The host paths that were found so far.
pub(super) struct Closure<'a> {
    host: &'a Host,
    bounds: Bounds,
    exposed: BTreeMap<PathBuf, String>,
    aliases: BTreeMap<PathBuf, PathBuf>,
    path: Vec<PathBuf>,
    seen: BTreeSet<PathBuf>,
    /// Notes about files that the program may lack in the bottle.
    notes: Vec<String>,
}

impl<'a> Closure<'a> {
    /// Creates an empty closure.
    pub(super) fn new(host: &'a Host) -> Self {
        Self {
            host,
            bounds: Bounds::new(host),
            exposed: BTreeMap::new(),
            aliases: BTreeMap::new(),
            path: Vec::new(),
            seen: BTreeSet::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a program with its dependencies. Adds the program's directory to the search path.
    ///
    /// # Errors
    /// [`BackendError`] that names a path which must not be exposed or does not exist.
    pub(super) fn program(&mut self, path: &Path) -> Result<(), BackendError> {
        if !self.seen.insert(path.to_owned()) {
            return Ok(());
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bin = path.parent().unwrap_or(Path::new("/"));
        self.add_to_search_path(bin);
        let bin = self.follow(bin)?;
        let real = self.follow(path)?;
        let real_bin = real.parent().unwrap_or(Path::new("/")).to_owned();
        for bin in BTreeSet::from([bin, real_bin]) {
            if let Some(environment) = Environment::of_program_directory(&bin) {
                self.environment(&environment, &name)?;
            }
        }
        self.unit(&real, &name)?;
        match shebang::interpreter(&real) {
            Ok(Some(Interpreter::At(interpreter))) => self.program(&interpreter),
            Ok(Some(Interpreter::Named(interpreter))) => match search::find(self.host, &interpreter) {
                Some(found) => self.program(&found),
                None => Err(missing(self.host, &interpreter, &format!("the interpreter of {name}"))),
            },
            Ok(None) => Ok(()),
            Err(error) => Err(BackendError::failed(format!("cannot read {}", real.display())).because(error)),
        }
    }

    /// Adds a path that the key `home_allow` of `settings.yml` lists.
    ///
    /// # Errors
    /// The errors of [`Closure::program`].
    pub(super) fn allow(&mut self, path: &Path) -> Result<(), BackendError> {
        let real = self.follow(path)?;
        self.expose(&real, "allowed by home_allow in settings.yml".to_owned())
    }

    /// Returns the exposed paths without duplicates, the search path, and notes about files that the program may lack.
    pub(super) fn finish(mut self) -> (Vec<Exposed>, Vec<PathBuf>, Vec<String>) {
        for (alias, real) in self.aliases {
            let aliased: Vec<_> = self
                .exposed
                .iter()
                .filter_map(|(path, why)| Some((alias.join(path.strip_prefix(&real).ok()?), why.clone())))
                .collect();
            self.exposed.extend(aliased);
        }
        let mut outermost: Vec<Exposed> = Vec::new();
        // In sorted order, a directory comes before its content.
        for (path, why) in self.exposed {
            if !outermost.iter().any(|exposed| path.starts_with(&exposed.path)) {
                outermost.push(Exposed { path, why });
            }
        }
        (outermost, self.path, self.notes)
    }

    fn environment(&mut self, environment: &Environment, name: &str) -> Result<(), BackendError> {
        self.expose(&environment.directory, format!("{name}'s virtual environment"))?;
        for directory in environment.editable_sources() {
            // An agent that worked in the project may have changed the list of sources, so sources outside of the
            // project are not exposed.
            let real = directory.canonicalize().unwrap_or_else(|_| directory.clone());
            if self.project_of(environment).is_some_and(|project| !real.starts_with(project)) {
                let note = format!(
                    "{} in this project names sources in {}, which the agent does not see unless `home_allow` in \
                     settings.yml lists them",
                    environment.directory.display(),
                    real.display()
                );
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
                continue;
            }
            let real = self.follow(&directory)?;
            self.expose(&real, format!("editable sources of {name}'s environment"))?;
        }
        if let Some(base) = &environment.base {
            // The settings of the virtual environment name the interpreter. This interpreter may differ from the target
            // of the link in the environment's `bin` directory.
            let interpreter = ["python3", "python"].map(|name| base.join(name));
            if let Some(interpreter) = interpreter.iter().find(|path| search::is_executable(path)) {
                let real = self.follow(interpreter)?;
                self.unit(&real, "python")?;
            }
        }
        Ok(())
    }

    /// Returns the directory of the project to which a virtual environment belongs. Returns `None` if the environment
    /// is neither inside the working directory nor directly in one of its parent directories.
    fn project_of(&self, environment: &Environment) -> Option<PathBuf> {
        let cwd = self.host.cwd.canonicalize().ok()?;
        let directory = environment.directory.canonicalize().ok()?;
        let above = directory.parent()?;
        match directory.starts_with(&cwd) {
            true => Some(cwd),
            false => cwd.starts_with(above).then(|| above.to_owned()),
        }
    }

    /// Exposes the installation that contains a file. If no installation contains the file, exposes only the file.
    fn unit(&mut self, real: &Path, name: &str) -> Result<(), BackendError> {
        if let Some(package) = node::unit(real) {
            return self.expose(&package, format!("{name}'s package"));
        }
        if let Some(package) = native::package(real) {
            return self.expose(&package, format!("{name}'s package"));
        }
        if let Some(directory) = python::installation(real) {
            return self.expose(&directory, format!("the Python installation behind {name}"));
        }
        if let Ok(rest) = real.strip_prefix("/opt")
            && let Some(product) = rest.components().next().filter(|_| rest.components().count() > 1)
        {
            return self.expose(&Path::new("/opt").join(product), format!("{name}'s installation"));
        }
        self.expose(real, format!("the program {name}"))
    }

    fn expose(&mut self, path: &Path, why: String) -> Result<(), BackendError> {
        if is_always_visible(path) {
            return Ok(());
        }
        self.bounds.check(path).map_err(|error| {
            let shown = path.display();
            BackendError::failed(format!("cannot expose {shown} to the agent ({why}): {error}"))
                .with_hint("install the program elsewhere, for example with pipx or npm's own prefix")
        })?;
        self.exposed.entry(path.to_owned()).or_insert(why);
        Ok(())
    }

    fn add_to_search_path(&mut self, directory: &Path) {
        if !is_always_visible(directory) && !self.path.iter().any(|known| known == directory) {
            self.path.push(directory.to_owned());
        }
    }

    /// Resolves a path and exposes every link on it.
    fn follow(&mut self, path: &Path) -> Result<PathBuf, BackendError> {
        let failed = |error: std::io::Error| {
            BackendError::failed(format!("cannot follow {}", path.display())).because(error)
        };
        let mut remaining: Vec<PathBuf> = parts(path);
        let mut real = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = remaining.pop() {
            if part.as_os_str() == ".." {
                real.pop();
                continue;
            }
            let next = real.join(part);
            if !fs::symlink_metadata(&next).map_err(failed)?.is_symlink() {
                real = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(failed(std::io::Error::other("too many links")));
            }
            let target = fs::read_link(&next).map_err(failed)?;
            self.expose_link(&next, &target)?;
            if target.is_absolute() {
                real = PathBuf::from("/");
            }
            remaining.extend(parts(&target));
        }
        Ok(real)
    }

    fn expose_link(&mut self, link: &Path, target: &Path) -> Result<(), BackendError> {
        if REPLACED.iter().any(|directory| Path::new(directory).starts_with(link)) {
            if let Ok(real) = link.canonicalize() {
                self.aliases.insert(link.to_owned(), real);
            }
            return Ok(());
        }
        self.expose(link, format!("a link to {}", target.display()))
    }
}

/// Returns the components of a path in reverse order, without `.` and `/`.
fn parts(path: &Path) -> Vec<PathBuf> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}

fn is_always_visible(path: &Path) -> bool {
    linux::is_system(path) || path.starts_with("/etc/alternatives")
}

/// Creates the error for a program that was not found. The error lists the searched directories.
pub(super) fn missing(host: &Host, name: &str, why: &str) -> BackendError {
    let directories: Vec<String> =
        search::directories(host).iter().map(|directory| directory.display().to_string()).collect();
    let searched = if directories.is_empty() {
        "PATH is empty".to_owned()
    } else {
        format!("searched {}", directories.join(", "))
    };
    let message = format!("cannot find the program {name:?} on this machine ({why}; {searched})");
    BackendError::new(BackendErrorKind::ProgramMissing, message)
        .with_hint(format!("install {name} in a directory of your PATH, or give its full path in `command`"))
}
