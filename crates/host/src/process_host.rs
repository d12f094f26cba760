//! Reads the [`Host`] value for this process, and creates the private directory for its sockets.
//!
//! A command reads this value once when it starts, and then uses only the value. In this module, only
//! [`Host::open_runtime`] creates a directory.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bottle_policy::names::SLUG_MAX;

use super::account::Account;
use super::{Host, disk, private_home};

/// The maximum length of a socket path that every system supports (104 on macOS, 108 on Linux), with a
/// margin.
const SOCKET_PATH_MAX: usize = 100;

/// The length of the longest path inside the runtime directory: the path of the bundle socket in the fake backend.
const SOCKET_NAME_MAX: usize = "/.fake/".len() + SLUG_MAX + "/bundle".len();

/// Why this process cannot use the host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The working directory was removed, or may not be read.
    #[error("cannot find the working directory")]
    Cwd(#[source] io::Error),
    /// Neither `HOME` nor the user database contains a home directory.
    #[error("cannot find your home directory: HOME is not set to an absolute path")]
    NoHome,
    /// The path of `$BOTTLE_HOME` is not UTF-8. UTF-8 is required, because records and messages contain this
    /// path.
    #[error("the path {} is not UTF-8", .0.display())]
    HomeNotText(PathBuf),
    /// `$BOTTLE_HOME` exists and is not a directory.
    #[error("{} is not a directory", .0.display())]
    HomeNotDirectory(PathBuf),
    /// `$BOTTLE_HOME`, or a file in it, belongs to another user. That user could control what agents may reach.
    #[error("{} belongs to another user ({owner})", path.display())]
    HomeNotYours {
        /// The path of `$BOTTLE_HOME`, or of a file in it.
        path: PathBuf,
        /// The name or user id of the owner.
        owner: String,
    },
    /// Another user can replace `$BOTTLE_HOME` through a directory that contains it.
    #[error("other users could replace {}: {} {why}", path.display(), parent.display())]
    HomeReplaceable {
        /// The path of `$BOTTLE_HOME`.
        path: PathBuf,
        /// The directory that contains `$BOTTLE_HOME`.
        parent: PathBuf,
        /// Why other users can write to this directory, as a sentence fragment.
        why: String,
    },
    /// `$BOTTLE_HOME` cannot be accessed.
    #[error("cannot use {}", path.display())]
    Home {
        /// The path of `$BOTTLE_HOME`.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The path of this program cannot be found.
    #[error("cannot find the path of this program")]
    Program(#[source] io::Error),
    /// The paths of sockets in the runtime directory would be too long.
    #[error("the path {} is too long for sockets ({SOCKET_PATH_MAX} bytes with a slug)", .0.display())]
    RuntimeTooLong(PathBuf),
    /// The runtime directory belongs to another user, or is not a directory.
    #[error("{} is not private: it must be a directory of yours", .0.display())]
    RuntimeNotPrivate(PathBuf),
    /// Sockets cannot be created in the runtime directory. Some network disks do not support sockets.
    #[error("cannot create a socket in {}", path.display())]
    RuntimeNoSockets {
        /// The path of the runtime directory.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The runtime directory cannot be created.
    #[error("cannot create {}", path.display())]
    Runtime {
        /// The path of the runtime directory.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
}

impl HostError {
    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Cwd(_) => "change into a directory that exists",
            Self::NoHome => "set HOME, or BOTTLE_HOME and HOME both",
            Self::HomeNotText(_) => "set BOTTLE_HOME to a directory with a UTF-8 path",
            Self::HomeNotDirectory(_) => "move it away, or set BOTTLE_HOME to a directory",
            Self::HomeNotYours { .. } => {
                "run bottle as that user, or set BOTTLE_HOME to a directory of yours"
            }
            Self::HomeReplaceable { .. } => {
                "set BOTTLE_HOME to a directory in your home, or take away the others' permission to write it"
            }
            Self::Home { source, .. } => disk::hint(source),
            Self::Program(_) => "start bottle with its full path",
            Self::RuntimeNoSockets { .. } => {
                "set XDG_RUNTIME_DIR to a directory of yours with mode 0700 on a disk of this machine"
            }
            Self::RuntimeTooLong(_) | Self::RuntimeNotPrivate(_) | Self::Runtime { .. } => {
                "set XDG_RUNTIME_DIR to a directory of yours with mode 0700 and a short path"
            }
        }
    }
}

impl Host {
    /// Creates a host whose bottles and runtime directory are in `home`, and whose environment is empty. The paths of
    /// the program and of the user's home directory do not exist. Creates no files.
    #[must_use]
    pub fn of_home(home: &Path) -> Self {
        Self {
            env: std::collections::BTreeMap::new(),
            cwd: "/".into(),
            home: home.to_owned(),
            user_home: "/nonexistent".into(),
            runtime: home.join("run"),
            program: "/nonexistent".into(),
        }
    }

    /// Reads the host's environment for this process. Creates no files.
    ///
    /// # Errors
    /// Returns [`HostError`] if the working directory, the home directory or the path of this program cannot be
    /// found.
    pub fn of_this_process() -> Result<Self, HostError> {
        let env: std::collections::BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let cwd = std::env::current_dir().map_err(HostError::Cwd)?;
        let path_in = |name: &str| {
            env.get(std::ffi::OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        let user_home = path_in("HOME")
            .filter(|home| home.is_absolute())
            .or_else(home_from_user_database)
            .ok_or(HostError::NoHome)?;
        let home = path_in("BOTTLE_HOME").unwrap_or_else(|| user_home.join(".bottle"));
        let home = resolve_existing(&cwd.join(home));
        let runtime = runtime_directory(path_in("XDG_RUNTIME_DIR").as_deref(), &home);
        let program = std::env::current_exe().map_err(HostError::Program)?;
        Ok(Self { env, cwd, home, user_home, runtime, program })
    }

    /// Creates the runtime directory if it is missing, and makes it accessible only to this user.
    ///
    /// # Errors
    /// Returns [`HostError`] if the directory cannot be created, is a link or belongs to another user, or if its path
    /// is too long for a socket.
    pub fn open_runtime(&self) -> Result<&Path, HostError> {
        let path = self.runtime.as_path();
        if path.as_os_str().len() + SOCKET_NAME_MAX > SOCKET_PATH_MAX {
            return Err(HostError::RuntimeTooLong(path.to_owned()));
        }
        let is_new = !path.exists();
        private_home::make_runtime(path)?;
        // A file system's support for sockets does not change, so it is tested only when the directory is created.
        if is_new && let Err(source) = try_socket(path) {
            let _ = std::fs::remove_dir(path);
            return Err(HostError::RuntimeNoSockets { path: path.to_owned(), source });
        }
        Ok(path)
    }
}

/// Returns `$XDG_RUNTIME_DIR/bottle/<hash>` if `$XDG_RUNTIME_DIR` is private, otherwise the directory `run` in
/// `$BOTTLE_HOME`.
fn runtime_directory(xdg: Option<&Path>, home: &Path) -> PathBuf {
    match xdg {
        Some(xdg) if xdg.is_absolute() && is_private(xdg) => xdg.join("bottle").join(super::home_hash(home)),
        _ => home.join("run"),
    }
}

fn try_socket(directory: &Path) -> io::Result<()> {
    let path = directory.join(format!(".try-{}", std::process::id()));
    std::os::unix::net::UnixDatagram::bind(&path)?;
    std::fs::remove_file(path)
}

/// Whether a path is a directory that belongs to this user, is not a link, and is not accessible to other users.
fn is_private(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_dir()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.permissions().mode() & 0o077 == 0
    })
}

/// Resolves the links in the existing part of a path, so that `$BOTTLE_HOME` has the same path and hash
/// before and after it is created.
fn resolve_existing(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

pub(super) fn user_name(uid: u32) -> String {
    Account::of(uid).map_or_else(|| format!("user id {uid}"), |account| account.name)
}

fn home_from_user_database() -> Option<PathBuf> {
    let home = Account::of(rustix::process::geteuid().as_raw())?.home;
    home.is_absolute().then_some(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_xdg_runtime_dir_only_if_it_is_private() {
        let root = tempfile::tempdir().expect("directory");
        let xdg = root.path().join("run");
        std::fs::create_dir(&xdg).expect("directory");
        let home = Path::new("/home/x/.bottle");
        std::fs::set_permissions(&xdg, std::fs::Permissions::from_mode(0o755)).expect("mode");
        assert_eq!(runtime_directory(Some(&xdg), home), home.join("run"));
        std::fs::set_permissions(&xdg, std::fs::Permissions::from_mode(0o700)).expect("mode");
        assert_eq!(runtime_directory(Some(&xdg), home).parent(), Some(xdg.join("bottle").as_path()));
        assert_eq!(runtime_directory(None, home), home.join("run"));
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&xdg, &link).expect("link");
        assert_eq!(runtime_directory(Some(&link), home), home.join("run"));
    }

    #[test]
    fn creates_a_private_runtime_directory_and_makes_an_open_one_private() {
        let root = tempfile::tempdir().expect("directory");
        let host = Host::of_home(&root.path().join("a"));
        assert!(is_private(host.open_runtime().expect("made")));
        std::fs::set_permissions(&host.runtime, std::fs::Permissions::from_mode(0o777)).expect("mode");
        assert!(is_private(host.open_runtime().expect("made private")));
        std::fs::remove_dir(&host.runtime).expect("removed");
        std::os::unix::fs::symlink(root.path(), &host.runtime).expect("link");
        assert!(matches!(host.open_runtime(), Err(HostError::RuntimeNotPrivate(_))));
    }

    #[test]
    fn refuses_a_runtime_directory_whose_path_is_too_long() {
        let root = tempfile::tempdir().expect("directory");
        let host = Host::of_home(&root.path().join("d".repeat(60)));
        assert!(matches!(host.open_runtime(), Err(HostError::RuntimeTooLong(_))));
        assert!(!host.runtime.exists());
    }

    #[test]
    fn a_home_has_the_same_path_before_and_after_its_creation() {
        let root = tempfile::tempdir().expect("directory");
        let real = root.path().join("real");
        std::fs::create_dir(&real).expect("directory");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&real, &link).expect("link");
        let before = resolve_existing(&link.join(".bottle"));
        std::fs::create_dir(link.join(".bottle")).expect("directory");
        assert_eq!(before, resolve_existing(&link.join(".bottle")));
        assert_eq!(before, resolve_existing(&real.join(".bottle")));
    }
}
