//! The least of the host that has to be seen for a program to run.
//!
//! Starting at a program's path, every link on the way is kept as a link, every installation it belongs to
//! as one folder, and its interpreter is followed in the same way. What every bottle sees anyway is left
//! out. Each path comes with the reason, for the user who is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::bounds::Bounds;
use super::python::{self, Environment};
use super::shebang::{self, Interpreter};
use super::{native, node, search};
use crate::backend::linux;
use crate::backend::{BackendError, BackendErrorKind, Exposed};
use crate::host::Host;

/// Links followed for one path, as the kernel does.
const LINKS_MAX: usize = 40;

/// Folders that a bottle has of its own: a link of the host there cannot be made again, so what lies behind
/// it is shown under both names.
const OWN: [&str; 9] = ["/home", "/run", "/tmp", "/var", "/etc", "/dev", "/proc", "/sys", "/workspace"];

/// What was found so far.
pub(super) struct Closure<'a> {
    host: &'a Host,
    bounds: Bounds,
    exposed: BTreeMap<PathBuf, String>,
    aliases: BTreeMap<PathBuf, PathBuf>,
    path: Vec<PathBuf>,
    seen: BTreeSet<PathBuf>,
}

impl<'a> Closure<'a> {
    /// Nothing yet.
    pub(super) fn new(host: &'a Host) -> Self {
        Self {
            host,
            bounds: Bounds::of(host),
            exposed: BTreeMap::new(),
            aliases: BTreeMap::new(),
            path: Vec::new(),
            seen: BTreeSet::new(),
        }
    }

    /// Adds a program with all that it needs, and its folder to the search path.
    ///
    /// # Errors
    /// [`BackendError`] naming a path that may not be shown, or is not there.
    pub(super) fn program(&mut self, path: &Path) -> Result<(), BackendError> {
        if !self.seen.insert(path.to_owned()) {
            return Ok(());
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bin = path.parent().unwrap_or(Path::new("/"));
        self.search_in(bin);
        let bin = self.follow(bin)?;
        let real = self.follow(path)?;
        let real_bin = real.parent().unwrap_or(Path::new("/")).to_owned();
        for bin in BTreeSet::from([bin, real_bin]) {
            if let Some(environment) = Environment::around(&bin) {
                self.environment(&environment, &name)?;
            }
        }
        self.unit(&real, &name)?;
        match shebang::of(&real) {
            Ok(Some(Interpreter::At(interpreter))) => self.program(&interpreter),
            Ok(Some(Interpreter::Named(interpreter))) => match search::find(self.host, &interpreter) {
                Some(found) => self.program(&found),
                None => Err(missing(self.host, &interpreter, &format!("{name} is run by it"))),
            },
            Ok(None) => Ok(()),
            Err(error) => Err(BackendError::failed(format!("cannot read {}: {error}", real.display()))),
        }
    }

    /// Adds a path that the user allowed by name.
    ///
    /// # Errors
    /// As [`Closure::program`].
    pub(super) fn allow(&mut self, path: &Path) -> Result<(), BackendError> {
        let real = self.follow(path)?;
        self.expose(&real, "allowed by home_allow in settings.yml".to_owned())
    }

    /// Everything that was found, nothing twice; and the search path.
    pub(super) fn finish(mut self) -> (Vec<Exposed>, Vec<PathBuf>) {
        for (alias, real) in self.aliases {
            let behind: Vec<_> = self
                .exposed
                .iter()
                .filter_map(|(path, why)| Some((alias.join(path.strip_prefix(&real).ok()?), why.clone())))
                .collect();
            self.exposed.extend(behind);
        }
        let mut kept: Vec<Exposed> = Vec::new();
        // In order of their names a folder comes before what is in it.
        for (path, why) in self.exposed {
            if !kept.iter().any(|exposed| path.starts_with(&exposed.path)) {
                kept.push(Exposed { path, why });
            }
        }
        (kept, self.path)
    }

    fn environment(&mut self, environment: &Environment, name: &str) -> Result<(), BackendError> {
        self.expose(&environment.folder, format!("{name}'s virtual environment"))?;
        for folder in environment.linked() {
            let real = self.follow(&folder)?;
            self.expose(&real, format!("sources that {name}'s environment imports in place"))?;
        }
        if let Some(base) = &environment.base {
            // Named by the environment's settings, whatever its own links say.
            let interpreter = ["python3", "python"].map(|name| base.join(name));
            if let Some(interpreter) = interpreter.iter().find(|path| search::is_executable(path)) {
                let real = self.follow(interpreter)?;
                self.unit(&real, "python")?;
            }
        }
        Ok(())
    }

    /// The installation that a file belongs to, or the file alone.
    fn unit(&mut self, real: &Path, name: &str) -> Result<(), BackendError> {
        if let Some(package) = node::unit(real) {
            return self.expose(&package, format!("{name}'s package"));
        }
        if let Some(package) = native::package(real) {
            return self.expose(&package, format!("{name}'s package"));
        }
        if let Some(folder) = python::installation(real) {
            return self.expose(&folder, format!("the Python installation behind {name}"));
        }
        if let Ok(rest) = real.strip_prefix("/opt")
            && let Some(product) = rest.components().next().filter(|_| rest.components().count() > 1)
        {
            return self.expose(&Path::new("/opt").join(product), format!("{name}'s installation"));
        }
        self.expose(real, format!("the program {name}"))
    }

    fn expose(&mut self, path: &Path, why: String) -> Result<(), BackendError> {
        if is_seen_anyway(path) {
            return Ok(());
        }
        self.bounds.admits(path).map_err(|wrong| {
            BackendError::failed(format!("{} cannot be shown to the agent ({why}): {wrong}", path.display()))
                .with_hint("install the program outside of it, for example with pipx or npm's own prefix")
        })?;
        self.exposed.entry(path.to_owned()).or_insert(why);
        Ok(())
    }

    fn search_in(&mut self, folder: &Path) {
        if !is_seen_anyway(folder) && !self.path.iter().any(|known| known == folder) {
            self.path.push(folder.to_owned());
        }
    }

    /// Where a path leads, keeping every link on the way.
    fn follow(&mut self, path: &Path) -> Result<PathBuf, BackendError> {
        let failed = |error: std::io::Error| {
            BackendError::failed(format!("cannot follow {}: {error}", path.display()))
        };
        let mut left: Vec<PathBuf> = parts(path);
        let mut real = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = left.pop() {
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
            self.keep_link(&next, &target)?;
            if target.is_absolute() {
                real = PathBuf::from("/");
            }
            left.extend(parts(&target));
        }
        Ok(real)
    }

    fn keep_link(&mut self, link: &Path, target: &Path) -> Result<(), BackendError> {
        if OWN.iter().any(|own| Path::new(own).starts_with(link)) {
            if let Ok(real) = link.canonicalize() {
                self.aliases.insert(link.to_owned(), real);
            }
            return Ok(());
        }
        self.expose(link, format!("a link to {}", target.display()))
    }
}

/// The names of a path, last one first; `.` and `/` left out.
fn parts(path: &Path) -> Vec<PathBuf> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}

fn is_seen_anyway(path: &Path) -> bool {
    linux::is_system(path) || path.starts_with("/etc/alternatives")
}

/// A program that is not there, and where it was looked for.
pub(super) fn missing(host: &Host, name: &str, why: &str) -> BackendError {
    let folders: Vec<String> =
        search::folders(host).iter().map(|folder| folder.display().to_string()).collect();
    let looked = if folders.is_empty() {
        "PATH is empty".to_owned()
    } else {
        format!("looked in {}", folders.join(", "))
    };
    BackendError {
        kind: BackendErrorKind::ProgramMissing,
        message: format!("the program {name:?} is not on this machine ({why}; {looked})"),
        hint: Some(format!(
            "install {name} where your PATH finds it; a `command` may also name its full path"
        )),
    }
}
