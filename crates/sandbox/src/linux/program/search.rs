//! Searches PATH for a program, and resolves the shims of version managers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bottle_host::{Host, plain_file};

/// The absolute directories of the user's `PATH`, in order.
pub(super) fn directories(host: &Host) -> Vec<PathBuf> {
    let path = host.env.get(std::ffi::OsStr::new("PATH"));
    path.map(|path| std::env::split_paths(path).filter(|directory| directory.is_absolute()).collect())
        .unwrap_or_default()
}

/// Finds the first executable of this name in the user's `PATH`.
pub(super) fn find(host: &Host, name: &str) -> Option<PathBuf> {
    directories(host).into_iter().map(|directory| directory.join(name)).find_map(|candidate| {
        if !is_executable(&candidate) {
            return None;
        }
        match Shims::of_program(&candidate) {
            // If the active version has no such program, the shim is skipped, and a later directory is searched.
            Some(shims) => shims.program(host, name),
            None => Some(candidate),
        }
    })
}

/// Whether the path is a file with an execute permission.
pub(super) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The maximum size of a settings file, in bytes. A longer file is ignored.
const SETTINGS_MAX: u64 = 64 << 10;

/// Returns the text of a settings file. A project or an agent may have written the file, so this function returns
/// `None` if the file is a link, not a regular file, too long or not UTF-8.
pub(super) fn settings(path: &Path) -> Option<String> {
    let bytes = plain_file::read(path, SETTINGS_MAX).ok()?;
    (bytes.len() as u64 <= SETTINGS_MAX).then(|| String::from_utf8(bytes).ok())?
}

/// The root directory of a version manager. Its subdirectory `shims` contains scripts that start the program of the
/// active version. pyenv, rbenv and nodenv use the same layout.
struct Shims {
    root: PathBuf,
    variable: &'static str,
    file: &'static str,
}

impl Shims {
    fn of_program(program: &Path) -> Option<Self> {
        let directory = program.parent()?;
        let root = directory
            .parent()
            .filter(|root| directory.ends_with("shims") && root.join("versions").is_dir())?;
        let (variable, file) = match root.file_name()?.to_str()? {
            ".rbenv" | "rbenv" => ("RBENV_VERSION", ".ruby-version"),
            ".nodenv" | "nodenv" => ("NODENV_VERSION", ".node-version"),
            _ => ("PYENV_VERSION", ".python-version"),
        };
        Some(Self { root: root.to_owned(), variable, file })
    }

    fn program(&self, host: &Host, name: &str) -> Option<PathBuf> {
        self.versions(host).iter().find_map(|version| {
            let program = self.root.join("versions").join(version).join("bin").join(name);
            is_executable(&program).then_some(program)
        })
    }

    /// Returns the active versions. The environment variable has priority over the version file in the working
    /// directory or its closest parent directory. If both are missing, the version manager's global setting applies.
    fn versions(&self, host: &Host) -> Vec<String> {
        let text = match host.var(self.variable) {
            Some(text) => text.replace(':', "\n"),
            None => {
                let near = host.cwd.ancestors().find_map(|directory| settings(&directory.join(self.file)));
                near.or_else(|| settings(&self.root.join("version"))).unwrap_or_default()
            }
        };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.contains('/'));
        lines.filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }
}
