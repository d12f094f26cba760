//! [`Host`] as this process finds it, and the private folder for its sockets.
//!
//! Reading the world happens here once, at the start of a command; everything after works on the value.
//! Nothing is created by looking: only [`Host::open_runtime`] makes a folder.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bottle_contract::names::SLUG_MAX;

use super::{Host, disk};

/// The longest path of a unix socket that every system takes (104 on a Mac, 108 on Linux), with room.
const SOCKET_PATH_MAX: usize = 100;

/// The longest name below the runtime folder: the socket of a bundle of the fake backend.
const SOCKET_NAME_MAX: usize = "/.fake/".len() + SLUG_MAX + "/bundle".len();

/// Why this process has no usable host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The working directory was removed or may not be read.
    #[error("cannot find the working directory: {0}")]
    Cwd(io::Error),
    /// Neither `HOME` nor the user database names a home directory.
    #[error("cannot find your home directory: HOME is not set to an absolute path")]
    NoHome,
    /// The path of `$BOTTLE_HOME` is no text, which records of it and what is told to the processes of a bottle are.
    #[error("the path {} is no UTF-8 text", .0.display())]
    HomeNotText(PathBuf),
    /// `$BOTTLE_HOME` is there and no folder.
    #[error("{} is no folder", .0.display())]
    HomeNotFolder(PathBuf),
    /// `$BOTTLE_HOME` is somebody else's, who would decide what this user's agents may reach.
    #[error("{} belongs to another user ({owner})", path.display())]
    HomeNotYours {
        /// The folder.
        path: PathBuf,
        /// Its owner's name, or number.
        owner: String,
    },
    /// `$BOTTLE_HOME` cannot be looked at.
    #[error("cannot use {}: {source}", path.display())]
    Home {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// This program's own path is unknown.
    #[error("cannot find the path of this program: {0}")]
    Program(io::Error),
    /// Socket paths below the runtime folder would be too long.
    #[error("the path {} is too long for sockets ({SOCKET_PATH_MAX} bytes with a slug)", .0.display())]
    RuntimeTooLong(PathBuf),
    /// The runtime folder belongs to somebody else or is open to others.
    #[error("{} is not private: it must be a folder of yours with mode 0700", .0.display())]
    RuntimeNotPrivate(PathBuf),
    /// Sockets cannot be made in the runtime folder, as on some disks on a network.
    #[error("no socket can be made in {}: {source}", path.display())]
    RuntimeNoSockets {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The runtime folder cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    Runtime {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl HostError {
    /// What the user does next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Cwd(_) => "change into a directory that exists",
            Self::NoHome => "set HOME, or BOTTLE_HOME and HOME both",
            Self::HomeNotText(_) => "set BOTTLE_HOME to a folder with a name that is",
            Self::HomeNotFolder(_) => "move it away, or set BOTTLE_HOME to a folder",
            Self::HomeNotYours { .. } => "run bottle as that user, or set BOTTLE_HOME to a folder of yours",
            Self::Home { source, .. } => disk::hint(source),
            Self::Program(_) => "start bottle by its path",
            Self::RuntimeNoSockets { .. } => {
                "set XDG_RUNTIME_DIR to a folder of yours with mode 0700 on a disk of this machine"
            }
            Self::RuntimeTooLong(_) | Self::RuntimeNotPrivate(_) | Self::Runtime { .. } => {
                "set XDG_RUNTIME_DIR to a folder of yours with mode 0700 and a short path"
            }
        }
    }
}

impl Host {
    /// The user's machine as this process sees it. Creates nothing.
    ///
    /// # Errors
    /// [`HostError`] when the working directory, the home or this program cannot be found.
    pub fn of_this_process() -> Result<Self, HostError> {
        let env: std::collections::BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let cwd = std::env::current_dir().map_err(HostError::Cwd)?;
        let path_in = |name: &str| {
            env.get(std::ffi::OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        let user_home = path_in("HOME")
            .filter(|home| home.is_absolute())
            .or_else(home_of_the_user)
            .ok_or(HostError::NoHome)?;
        let home = path_in("BOTTLE_HOME").unwrap_or_else(|| user_home.join(".bottle"));
        let home = settled(&cwd.join(home));
        let runtime = runtime_folder(path_in("XDG_RUNTIME_DIR").as_deref(), &home);
        let program = std::env::current_exe().map_err(HostError::Program)?;
        Ok(Self { env, cwd, home, user_home, runtime, program })
    }

    /// That `$BOTTLE_HOME` has a path that is text and, when it is there, is a folder of this user.
    ///
    /// # Errors
    /// [`HostError`] when it is something else or somebody else's.
    pub fn check_home(&self) -> Result<(), HostError> {
        let path = self.home.clone();
        if path.to_str().is_none() {
            return Err(HostError::HomeNotText(path));
        }
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(HostError::Home { path, source }),
            Ok(found) if !found.is_dir() => Err(HostError::HomeNotFolder(path)),
            Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
                Err(HostError::HomeNotYours { path, owner: name_of(found.uid()) })
            }
            Ok(_) => Ok(()),
        }
    }

    /// The runtime folder, made if it is missing, and checked: of this user and closed to all others.
    ///
    /// # Errors
    /// [`HostError`] when it cannot be made, is somebody else's, or its path is too long for a socket.
    pub fn open_runtime(&self) -> Result<&Path, HostError> {
        let path = self.runtime.as_path();
        if path.as_os_str().len() + SOCKET_NAME_MAX > SOCKET_PATH_MAX {
            return Err(HostError::RuntimeTooLong(path.to_owned()));
        }
        let is_new = !path.exists();
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|source| HostError::Runtime { path: path.to_owned(), source })?;
        // A disk does not change its mind, so it is asked once.
        if is_new && let Err(source) = try_socket(path) {
            let _ = std::fs::remove_dir(path);
            return Err(HostError::RuntimeNoSockets { path: path.to_owned(), source });
        }
        if is_private(path) { Ok(path) } else { Err(HostError::RuntimeNotPrivate(path.to_owned())) }
    }
}

/// `$XDG_RUNTIME_DIR/bottle/<hash>` where the login manager made a private one, else inside the home.
fn runtime_folder(xdg: Option<&Path>, home: &Path) -> PathBuf {
    match xdg {
        Some(xdg) if xdg.is_absolute() && is_private(xdg) => xdg.join("bottle").join(super::home_hash(home)),
        _ => home.join("run"),
    }
}

fn try_socket(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".try-{}", std::process::id()));
    std::os::unix::net::UnixDatagram::bind(&path)?;
    std::fs::remove_file(path)
}

/// A real folder (no link) of this user that nobody else can enter.
fn is_private(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_dir()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.permissions().mode() & 0o077 == 0
    })
}

/// The path with the links of its existing part resolved, so that one home has one name and one hash
/// before and after it is made.
fn settled(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

fn name_of(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("user id {uid}"), |user| user.name)
}

fn home_of_the_user() -> Option<PathBuf> {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()??;
    user.dir.is_absolute().then_some(user.dir)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn host(runtime: PathBuf) -> Host {
        Host {
            env: BTreeMap::new(),
            cwd: "/".into(),
            home: "/home/x/.bottle".into(),
            user_home: "/home/x".into(),
            runtime,
            program: "/bin/bottle".into(),
        }
    }

    #[test]
    fn a_private_runtime_folder_of_the_login_manager_is_used_and_an_open_one_is_not() {
        let root = tempfile::tempdir().expect("folder");
        let xdg = root.path().join("run");
        std::fs::create_dir(&xdg).expect("folder");
        let home = Path::new("/home/x/.bottle");
        std::fs::set_permissions(&xdg, std::fs::Permissions::from_mode(0o755)).expect("mode");
        assert_eq!(runtime_folder(Some(&xdg), home), home.join("run"));
        std::fs::set_permissions(&xdg, std::fs::Permissions::from_mode(0o700)).expect("mode");
        assert_eq!(runtime_folder(Some(&xdg), home).parent(), Some(xdg.join("bottle").as_path()));
        assert_eq!(runtime_folder(None, home), home.join("run"));
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&xdg, &link).expect("link");
        assert_eq!(runtime_folder(Some(&link), home), home.join("run"));
    }

    #[test]
    fn a_runtime_folder_is_made_closed_and_an_open_one_refused() {
        let root = tempfile::tempdir().expect("folder");
        let host = host(root.path().join("a/b"));
        assert!(is_private(host.open_runtime().expect("made")));
        std::fs::set_permissions(&host.runtime, std::fs::Permissions::from_mode(0o711)).expect("mode");
        assert!(matches!(host.open_runtime(), Err(HostError::RuntimeNotPrivate(_))));
    }

    #[test]
    fn a_runtime_folder_too_deep_for_sockets_is_refused_before_it_is_made() {
        let root = tempfile::tempdir().expect("folder");
        let host = host(root.path().join("d".repeat(60)));
        assert!(matches!(host.open_runtime(), Err(HostError::RuntimeTooLong(_))));
        assert!(!host.runtime.exists());
    }

    #[test]
    fn a_home_has_one_name_before_and_after_it_is_made() {
        let root = tempfile::tempdir().expect("folder");
        let real = root.path().join("real");
        std::fs::create_dir(&real).expect("folder");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&real, &link).expect("link");
        let before = settled(&link.join(".bottle"));
        std::fs::create_dir(link.join(".bottle")).expect("folder");
        assert_eq!(before, settled(&link.join(".bottle")));
        assert_eq!(before, settled(&real.join(".bottle")));
    }
}
