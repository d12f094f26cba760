//! Finds the dependencies of a Python program: its virtual environment, the interpreter's installation, and editable
//! sources.

use std::fs;
use std::path::{Path, PathBuf};

use super::search::settings;

/// The maximum number of files that are examined in a directory of packages.
const MAX_FILES: usize = 10_000;

/// A virtual environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Environment {
    /// The directory of the environment.
    pub(super) directory: PathBuf,
    /// The directory of the interpreter on which the environment is based.
    pub(super) base: Option<PathBuf>,
}

impl Environment {
    /// Returns the virtual environment that has its programs in `bin`.
    pub(super) fn of_program_directory(bin: &Path) -> Option<Self> {
        let directory = bin.parent()?;
        let settings = settings(&directory.join("pyvenv.cfg"))?;
        let base = settings.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == "home").then(|| PathBuf::from(value.trim()))
        });
        Some(Self { directory: directory.to_owned(), base })
    }

    /// Returns the editable sources: the directories outside the environment that the environment's `.pth` files add to
    /// the import path.
    pub(super) fn editable_sources(&self) -> Vec<PathBuf> {
        let mut sources = Vec::new();
        for packages in site_packages(&self.directory) {
            let Ok(entries) = fs::read_dir(packages) else { continue };
            for entry in entries.take(MAX_FILES).filter_map(Result::ok) {
                let path = entry.path();
                if path.extension().is_some_and(|extension| extension == "pth") {
                    let text = settings(&path).unwrap_or_default();
                    let directories = text.lines().map(str::trim).filter(|line| line.starts_with('/'));
                    sources.extend(directories.map(PathBuf::from).filter(|directory| directory.is_dir()));
                }
            }
        }
        sources.retain(|directory| !directory.starts_with(&self.directory));
        sources.sort();
        sources.dedup();
        sources
    }
}

/// Returns the installation directory of an interpreter, which contains `lib/pythonX.Y`.
pub(super) fn installation(interpreter: &Path) -> Option<PathBuf> {
    let name = interpreter.file_name()?.to_str()?;
    if !name.starts_with("python") && !name.starts_with("pypy") {
        return None;
    }
    let directory = interpreter.parent().filter(|bin| bin.ends_with("bin"))?.parent()?;
    has_library(directory).then(|| directory.to_owned())
}

fn has_library(directory: &Path) -> bool {
    libraries(directory).next().is_some()
}

fn site_packages(directory: &Path) -> impl Iterator<Item = PathBuf> {
    libraries(directory).map(|library| library.join("site-packages"))
}

fn libraries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries =
        fs::read_dir(directory.join("lib")).into_iter().flatten().take(MAX_FILES).filter_map(Result::ok);
    entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("python") || name.starts_with("pypy")
        })
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}
