//! The part of a bottle that is on the host: the runtime directory with its sockets, and the configurations of the
//! bottle's containers. Only the functions for the runtime directory have side effects.
//!
//! ```text
//! <runtime>/.apple/<slug>/     0700
//!     guest                    published by the agent's container
//!     archive                  mounted by the agent's container, whose files arrive here for a snapshot
//!     bundle                   published by the bundle's container
//!     b/<port>                 published by the bundle's container, and moved to a/ when it has started
//!     a/<port>                 mounted by the agent's container, which connects to it by its path
//! ```
//! The two containers are created in any order. `container` accepts a mounted socket only if the socket exists, and a
//! published socket only if it does not exist. `archive` and each path in `a/` therefore first contain a socket on which no
//! process listens.
//!
//! When `container` stops a container, it removes the sockets that it published, by the paths that it knows. It does not
//! know the sockets in `a/`, and removes nothing if it or the machine ends abruptly. This module removes what is left.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use bottle_backend::image::account::{ACCOUNT_LABEL, Account};
use bottle_backend::memory::{self, PROCESSES};
use bottle_backend::{BackendError, ImageInfo, RoleInputs};
use bottle_bundle::{BundleConfig, Control, ListenerConfig};
use bottle_plan::{Plan, Resources};
use bottle_policy::names::{LISTENER_PORTS, Slug};
use sha2::{Digest, Sha256};

use super::args::{self, Mount, NewContainer, Socket};
use super::images::Images;
use super::inside::{
    ARCHIVE_SOCKET, BUNDLE_FLAG, BUNDLE_SOCKET, GATE, GUEST_FLAG, GUEST_SOCKET, GuestSpec, LOGS, PROGRAM,
    PROGRAM_DIR, PROXY, SIDECARS_PROGRAM, STATE, to_argument,
};
use super::output::Container;
use crate::docker::names::{Names, Part, WIRING};

/// The label of an agent's container that contains the environment variables of the container's image.
const ENV_LABEL: &str = "bottle.env";

/// The length limit in bytes of the path of a socket on macOS, without the final zero.
const SOCKET_MAX: usize = 103;

/// The memory limit in bytes of a bottle whose plan sets no limit. A virtual machine takes only the memory that the
/// bottle uses.
const MEMORY: u64 = 8 << 30;

/// The memory in bytes that the kernel and the process of `container` in the virtual machine need in addition to the
/// bottle.
const KERNEL_MEMORY: u64 = 256 << 20;

/// The memory of the bundle's virtual machine in MiB.
const BUNDLE_MEMORY: u64 = 1024;

/// The maximum number of processes of the bundle.
const BUNDLE_PROCESSES: u64 = 512;

/// The number of processors of the bundle.
const BUNDLE_CPUS: u32 = 2;

/// The capabilities of the agent's first process. The process keeps only `NET_BIND_SERVICE`. `DAC_READ_SEARCH` and
/// `KILL` are for the process that archives the files of a snapshot.
const AGENT_CAPABILITIES: &[&str] =
    &["CHOWN", "DAC_READ_SEARCH", "KILL", "NET_BIND_SERVICE", "SETGID", "SETPCAP", "SETUID"];

/// The capabilities of the bundle's first process. The process keeps none of these capabilities.
const BUNDLE_CAPABILITIES: &[&str] =
    &["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID"];

/// The size of `/run` in MiB. `/run` contains the provisioned certificates, the prompt and the task.
const RUN_SIZE: u64 = 64;

/// The size of the bundle's `/tmp` in MiB.
const BUNDLE_SCRATCH: u64 = 64;

/// The runtime directory of a bottle.
#[derive(Debug, Clone)]
pub(super) struct Sockets(PathBuf);

impl Sockets {
    /// Returns the directory of this bottle in the backend's runtime directory. The directory may not exist yet.
    pub(super) fn new(runtime: &Path, slug: &Slug) -> Self {
        Self(runtime.join(slug.as_str()))
    }

    /// Returns the path of the directory.
    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the socket of the channel to pid 1.
    pub(super) fn guest(&self) -> PathBuf {
        self.0.join("guest")
    }

    /// Returns the path of the socket of the channel to the bundle.
    pub(super) fn bundle(&self) -> PathBuf {
        self.0.join("bundle")
    }

    /// Returns the path of the socket at which the files of the agent's container arrive.
    fn archive(&self) -> PathBuf {
        self.0.join("archive")
    }

    fn mounted(&self, port: u16) -> PathBuf {
        self.0.join("a").join(port.to_string())
    }

    fn published(&self, port: u16) -> PathBuf {
        self.0.join("b").join(port.to_string())
    }

    /// Creates the directory, and the sockets in it on which no process listens. Keeps sockets that exist, which may be
    /// those of a running bundle.
    ///
    /// # Errors
    /// [`BackendError`] when the path is too long, contains a character that `container` does not accept, or cannot be
    /// created.
    pub(super) fn make(&self) -> Result<(), BackendError> {
        let paths = [self.published(u16::MAX), self.bundle(), self.archive()];
        let longest = paths.iter().map(|path| path.as_os_str().len()).max().unwrap_or_default();
        let name = self.0.display();
        if longest > SOCKET_MAX {
            return Err(BackendError::failed(format!(
                "cannot make sockets in {name}: a path has {longest} bytes, and {SOCKET_MAX} are possible"
            ))
            .with_hint("set XDG_RUNTIME_DIR to a directory with a shorter path"));
        }
        expect_mountable(&self.0)?;
        let made = || {
            for directory in [self.0.clone(), self.0.join("a"), self.0.join("b")] {
                DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
                fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
            }
            for port in LISTENER_PORTS {
                let path = self.mounted(port);
                if !path.exists() {
                    drop(UnixListener::bind(&path)?);
                    open_for_all(&path)?;
                }
            }
            if !self.archive().exists() {
                drop(self.listen_for_archive()?);
            }
            io::Result::Ok(())
        };
        made().map_err(|error| {
            BackendError::failed(format!("cannot make the sockets in {name}")).because(error)
        })
    }

    /// Binds the socket at which the files of the agent's container arrive. The socket stays when the listener is
    /// dropped, because `container` starts no container whose mounted socket is missing.
    ///
    /// # Errors
    /// When the socket cannot be bound.
    pub(super) fn listen_for_archive(&self) -> io::Result<UnixListener> {
        let path = self.archive();
        remove_files([path.clone()])?;
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Removes the sockets that an earlier container of this part published, because `container` refuses to publish a
    /// socket that exists. No container of this part may run.
    ///
    /// # Errors
    /// When a socket cannot be removed.
    pub(super) fn clear(&self, part: Part) -> io::Result<()> {
        remove_files(match part {
            Part::Bundle => {
                LISTENER_PORTS.map(|port| self.published(port)).into_iter().chain([self.bundle()]).collect()
            }
            _ => vec![self.guest()],
        })
    }

    /// Removes the sockets of this part after its container was stopped for good, also those that [`Self::join`] moved.
    ///
    /// # Errors
    /// When a socket cannot be removed.
    pub(super) fn remove(&self, part: Part) -> io::Result<()> {
        self.clear(part)?;
        remove_files(match part {
            Part::Bundle => LISTENER_PORTS.map(|port| self.mounted(port)).to_vec(),
            _ => vec![self.archive()],
        })
    }

    /// Moves the proxy's sockets from the paths that the bundle's container publishes to the paths that the agent's
    /// container mounts.
    ///
    /// # Errors
    /// When a socket does not exist.
    pub(super) fn join(&self) -> io::Result<()> {
        for port in LISTENER_PORTS {
            open_for_all(&self.published(port))?;
            fs::rename(self.published(port), self.mounted(port))?;
        }
        Ok(())
    }
}

/// Removes these files. A missing file is no error.
fn remove_files(paths: impl IntoIterator<Item = PathBuf>) -> io::Result<()> {
    for path in paths {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Lets every user connect to the socket. On the host, the directory of the socket is private. In the container, the
/// socket has the same mode and belongs to root. The guest, which is not root, must be able to connect to it.
fn open_for_all(socket: &Path) -> io::Result<()> {
    fs::set_permissions(socket, Permissions::from_mode(0o666))
}

/// Checks that `container` can mount this path. `container` separates the parts of a mount argument with colons.
///
/// # Errors
/// [`BackendError`] when the path contains a colon.
pub(super) fn expect_mountable(path: &Path) -> Result<(), BackendError> {
    if !path.as_os_str().as_encoded_bytes().contains(&b':') {
        return Ok(());
    }
    let message = format!("cannot mount {}: the path contains a colon", path.display());
    Err(BackendError::failed(message)
        .with_hint("set BOTTLE_HOME and XDG_RUNTIME_DIR to paths without colons"))
}

/// The parameters of an agent's container.
pub(super) struct Agent<'a> {
    pub(super) names: &'a Names,
    pub(super) slug: &'a Slug,
    /// [`Part::Agent`], [`Part::Kept`] for a container that will replace the agent's container, or [`Part::Reader`].
    pub(super) part: Part,
    /// The image's reference.
    pub(super) image: &'a str,
    /// The agent's account in the container. The account's user id is never 0.
    pub(super) inside: &'a ImageInfo,
    /// The directory with the program of pid 1.
    pub(super) program: &'a Path,
    pub(super) sockets: &'a Sockets,
    pub(super) limits: &'a Resources,
}

impl Agent<'_> {
    /// Returns the configuration of the container. One label contains a hash of the configuration without the image and
    /// the name.
    pub(super) fn container(&self) -> NewContainer {
        let reads = self.part == Part::Reader;
        let memory = self.limits.memory.unwrap_or_else(|| memory::default_max().min(MEMORY));
        let scratch = memory::scratch(self.limits.disk);
        let spec = GuestSpec {
            uid: self.inside.uid,
            gid: self.inside.gid,
            proxy: !reads,
            memory,
            memory_asked: self.limits.memory.is_some(),
        };
        let mut mounts = vec![Mount::Directory(self.program.to_owned(), PROGRAM_DIR)];
        let socket =
            |port: u16| Socket { host: self.sockets.mounted(port), inside: format!("{PROXY}/{port}") };
        if !reads {
            mounts.extend(LISTENER_PORTS.map(|port| Mount::Socket(socket(port))));
            let (host, inside) = (self.sockets.archive(), ARCHIVE_SOCKET.to_owned());
            mounts.push(Mount::Socket(Socket { host, inside }));
        }
        let role = if reads { Part::Reader } else { Part::Agent };
        let mut new = NewContainer {
            name: String::new(),
            labels: [labels(self.names, role, self.slug), image_labels(self.inside)].concat(),
            image: String::new(),
            platform: Images::platform(),
            networked: false,
            cpus: cpus(self.limits.cpus),
            memory: memory.saturating_add(KERNEL_MEMORY).div_ceil(1 << 20),
            processes: self.limits.pids.unwrap_or(PROCESSES),
            capabilities: AGENT_CAPABILITIES,
            tmpfs: vec![("/run", RUN_SIZE), ("/tmp", mib(scratch))],
            shared_memory: mib(memory::shared(scratch)),
            mounts,
            published: vec![Socket { host: self.sockets.guest(), inside: GUEST_SOCKET.to_owned() }],
            command: [PROGRAM.to_owned(), GUEST_FLAG.to_owned(), to_argument(&spec)],
        };
        let wiring = hex::encode(Sha256::digest(args::create(&new).join("\0".as_ref()).as_encoded_bytes()));
        new.labels.push((WIRING.to_owned(), wiring));
        NewContainer { name: self.names.name(self.part, self.slug), image: self.image.to_owned(), ..new }
    }
}

/// Returns the wiring label that [`Agent::container`] sets. Two configurations have the same wiring label if a
/// container of either configuration can replace a container of the other.
pub(super) fn wiring(new: &NewContainer) -> Option<&str> {
    new.labels.iter().find(|(name, _)| name == WIRING).map(|(_, value)| value.as_str())
}

/// Returns the configuration of a bundle's container.
pub(super) fn bundle(names: &Names, plan: &Plan, roles: &RoleInputs, sockets: &Sockets) -> NewContainer {
    let slug = &plan.identity.slug;
    let config = BundleConfig {
        labels: names.arguments(slug),
        proxy: ListenerConfig::Socket { directory: PROXY.into() },
        control: Control::Socket { path: BUNDLE_SOCKET.into() },
        logs: LOGS.into(),
        relay_log: true,
        // The role sets `identity` and `machine`, because their values are known only in the container.
        identity: None,
        machine: None,
        gate: (!plan.repos.is_empty()).then(|| GATE.into()),
        supervise: plan.supervise,
    };
    let socket = |port: u16| Socket { host: sockets.published(port), inside: format!("{PROXY}/{port}") };
    let control = Socket { host: sockets.bundle(), inside: BUNDLE_SOCKET.to_owned() };
    NewContainer {
        name: names.name(Part::Bundle, slug),
        labels: labels(names, Part::Bundle, slug),
        image: roles.sidecars.clone(),
        platform: Images::platform(),
        networked: true,
        cpus: BUNDLE_CPUS,
        memory: BUNDLE_MEMORY,
        processes: BUNDLE_PROCESSES,
        capabilities: BUNDLE_CAPABILITIES,
        tmpfs: vec![("/run", RUN_SIZE), ("/tmp", BUNDLE_SCRATCH)],
        shared_memory: BUNDLE_SCRATCH,
        mounts: vec![Mount::Volume(names.name(Part::State, slug), STATE)],
        published: LISTENER_PORTS.into_iter().map(socket).chain([control]).collect(),
        command: [SIDECARS_PROGRAM.to_owned(), BUNDLE_FLAG.to_owned(), to_argument(&config)],
    }
}

/// Returns the labels of a part, always in the same order.
pub(super) fn labels(names: &Names, part: Part, slug: &Slug) -> Vec<(String, String)> {
    let mut labels: Vec<_> = names.labels(part, slug).into_iter().collect();
    labels.sort();
    labels
}

/// Returns the labels from which a snapshot reads the account and the environment variables of the image. The image may
/// be removed before the container. A label's value must not contain `=`, so the variables are encoded in hexadecimal.
fn image_labels(inside: &ImageInfo) -> Vec<(String, String)> {
    let ImageInfo { uid, gid, user, home, env, .. } = inside.clone();
    let account = Account { name: user, uid, gid, home }.label();
    let env = serde_json::to_vec(&env).unwrap_or_default();
    let labels = [(ACCOUNT_LABEL, account), (ENV_LABEL, hex::encode(env))];
    let possible = labels.into_iter().filter(|(_, value)| !value.contains('='));
    possible.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the image's environment variables from a container's labels, as `NAME=value`.
pub(super) fn env_of(container: &Container) -> Vec<String> {
    let text = container.labels.get(ENV_LABEL).and_then(|text| hex::decode(text).ok()).unwrap_or_default();
    let env: BTreeMap<String, String> = serde_json::from_slice(&text).unwrap_or_default();
    env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Converts a size to MiB, and returns at least 1.
fn mib(bytes: u64) -> u64 {
    (bytes >> 20).max(1)
}

/// Returns the number of processors of a container. `limit` is in thousandths of a processor, and is rounded up.
/// Without a limit, returns the number of processors of this machine.
fn cpus(limit: Option<u32>) -> u32 {
    let all =
        || std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
    limit.map_or_else(all, |limit| limit.div_ceil(1000)).max(1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::super::grammar::Grammar;
    use super::*;

    fn slug() -> Slug {
        "a-1".parse().expect("slug")
    }

    fn agent(part: Part, image: &str, limits: &Resources) -> NewContainer {
        let (names, sockets) =
            (Names::new("0123abcd".to_owned()), Sockets::new(Path::new("/r/.apple"), &slug()));
        let program = Path::new("/home/u/.bottle/apple/program");
        let env = [("PATH".to_owned(), "/bin".to_owned())].into();
        let (user, home) = ("dev".to_owned(), "/home/dev".to_owned());
        let inside =
            ImageInfo { image: image.to_owned(), uid: 1000, gid: 1001, user, home, env, volumes: Vec::new() };
        Agent {
            names: &names,
            slug: &slug(),
            part,
            image,
            inside: &inside,
            program,
            sockets: &sockets,
            limits,
        }
        .container()
    }

    #[test]
    fn every_container_fits_the_grammar_and_holds_no_secrets() {
        let limits = Resources { cpus: Some(1500), memory: Some(1 << 30), ..Resources::default() };
        let grammar = Grammar::read();
        for part in [Part::Agent, Part::Kept, Part::Reader] {
            let new = agent(part, "localhost/bottle-agent:1", &limits);
            grammar.check(&args::create(&new)).unwrap_or_else(|why| panic!("{part:?}: {why}"));
            assert_eq!((new.cpus, new.memory, new.networked), (2, 1024 + 256, false));
        }
        let reader = agent(Part::Reader, "localhost/a:1", &limits);
        assert!(!reader.mounts.iter().any(|mount| matches!(mount, Mount::Socket(_))), "no proxy, no archive");
    }

    #[test]
    fn the_labels_hold_the_account_and_the_variables_of_the_image() {
        let new = agent(Part::Agent, "localhost/a:1", &Resources::default());
        let labels = new.labels.into_iter().collect();
        let container =
            Container { id: new.name, labels, image: new.image, state: "stopped".to_owned(), created: None };
        assert_eq!(container.labels[ACCOUNT_LABEL], "1000:1001:dev:/home/dev");
        assert_eq!(env_of(&container), ["PATH=/bin"]);
        let forged = [(ENV_LABEL.to_owned(), "zz".to_owned())].into();
        assert_eq!(env_of(&Container { labels: forged, ..container }), [""; 0]);
    }

    #[test]
    fn the_wiring_ignores_the_image_and_the_name_only() {
        let limits = Resources::default();
        let one = agent(Part::Agent, "localhost/a:1", &limits);
        assert_eq!(wiring(&one), wiring(&agent(Part::Kept, "localhost/a:2", &limits)));
        assert!(wiring(&one).is_some_and(|hash| hash.len() == 64));
        let more = Resources { pids: Some(7), ..limits };
        assert_ne!(wiring(&one), wiring(&agent(Part::Agent, "localhost/a:1", &more)));
    }

    #[test]
    fn a_published_socket_replaces_the_one_on_which_nothing_listens() {
        let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        let sockets = Sockets::new(directory.path(), &slug());
        sockets.make().expect("made");
        assert!(UnixStream::connect(sockets.mounted(443)).is_err(), "nothing listens");
        assert!(sockets.join().is_err(), "nothing is published");
        let listeners: Vec<_> = LISTENER_PORTS
            .iter()
            .map(|port| UnixListener::bind(sockets.published(*port)).expect("bound"))
            .collect();
        sockets.join().expect("joined");
        sockets.make().expect("made again");
        for port in LISTENER_PORTS {
            UnixStream::connect(sockets.mounted(port)).unwrap_or_else(|error| panic!("{port}: {error}"));
        }
        drop(listeners);
    }

    #[test]
    fn no_socket_of_an_ended_container_is_left() {
        let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        let sockets = Sockets::new(directory.path(), &slug());
        sockets.remove(Part::Bundle).expect("a missing directory is no error");
        sockets.make().expect("made");
        // A crash leaves the published sockets, on which no process listens, and the moved ones.
        for port in LISTENER_PORTS {
            drop(UnixListener::bind(sockets.published(port)).expect("bound"));
        }
        sockets.join().expect("joined");
        for path in [sockets.guest(), sockets.bundle(), sockets.published(443)] {
            drop(UnixListener::bind(path).expect("bound"));
        }
        let files = |name: &str| {
            let entries = fs::read_dir(sockets.directory().join(name)).expect("read").flatten();
            let mut files: Vec<_> = entries
                .filter(|entry| !entry.path().is_dir())
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            files.sort();
            files
        };
        sockets.clear(Part::Agent).expect("cleared");
        assert_eq!(files(""), ["archive", "bundle"], "the archive's socket is needed for the next start");
        sockets.clear(Part::Bundle).expect("cleared");
        assert_eq!((files("").len(), files("b").len(), files("a").len()), (1, 0, LISTENER_PORTS.len()));
        sockets.remove(Part::Bundle).expect("removed");
        sockets.remove(Part::Agent).expect("removed");
        assert_eq!((files("").len(), files("b").len(), files("a").len()), (0, 0, 0));
        sockets.make().expect("made again");
        assert_eq!(files("a").len(), LISTENER_PORTS.len());
    }

    #[test]
    fn only_this_user_can_connect_to_the_socket_of_the_archive() {
        let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        let sockets = Sockets::new(directory.path(), &slug());
        sockets.make().expect("made");
        assert!(UnixStream::connect(sockets.archive()).is_err(), "nothing listens");
        let listener = sockets.listen_for_archive().expect("bound");
        UnixStream::connect(sockets.archive()).expect("connected");
        drop(listener);
        let mode = fs::metadata(sockets.archive()).expect("it stays").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_path_that_is_too_long_or_has_a_colon_is_refused_with_the_next_step() {
        let long =
            Sockets::new(Path::new(&format!("/{}", "x".repeat(120))), &slug()).make().expect_err("long");
        assert!(long.message.contains("103 are possible") && long.hint.is_some(), "{long}");
        let colon = Sockets::new(Path::new("/a:b"), &slug()).make().expect_err("a colon");
        assert!(colon.message.contains("contains a colon") && colon.hint.is_some(), "{colon}");
    }
}
