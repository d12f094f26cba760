//! Finds the engine that the user's `docker` command would use. Otherwise finds an engine at the socket path of another
//! product.
//!
//! ```text
//! DOCKER_HOST ─► DOCKER_CONTEXT ─► currentContext of config.json ─► the default socket ─► places of other engines
//!                └──────── contexts/meta/<hash>/meta.json ───────┘
//! ```
//! The choice has no side effects: it reads small files and checks whether sockets exist.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bottle_host::Host;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::engine_error::EngineError;

/// The socket of an engine that runs as root.
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// The maximum number of bytes that are read from a configuration file of the `docker` command. A longer file is
/// ignored.
const CONFIG_MAX: u64 = 1 << 20;

/// The name of the context that means the default socket.
const DEFAULT_CONTEXT: &str = "default";

/// A place where an engine may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The reason for choosing this place.
    pub(super) source: Source,
    /// The path of the engine's socket.
    pub(super) socket: PathBuf,
}

impl Endpoint {
    /// Returns the address in the form of `DOCKER_HOST`.
    pub(super) fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

/// The reason for choosing a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// `DOCKER_HOST` names the place.
    DockerHost,
    /// The user's context of this name contains the place.
    Context(String),
    /// The place is the default socket.
    Default,
    /// A product of this name puts its socket at the place.
    Product(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DockerHost => f.write_str("DOCKER_HOST"),
            Self::Context(name) => write!(f, "the docker context {name:?}"),
            Self::Default => f.write_str("the default socket"),
            Self::Product(name) => write!(f, "the socket of {name}"),
        }
    }
}

/// Returns the places to try, in this order. The list is never empty. If the user's configuration names an engine, the
/// list contains only that engine's place.
///
/// # Errors
/// [`EngineError::NotUnixSocket`] or [`EngineError::NoContext`] when the configuration names an engine that cannot be
/// used.
pub(super) fn candidates(host: &Host) -> Result<Vec<Endpoint>, EngineError> {
    if let Some(address) = host.var("DOCKER_HOST") {
        return Ok(vec![from_address(Source::DockerHost, address)?]);
    }
    let directory = config_directory(host);
    let name = host.var("DOCKER_CONTEXT").map(str::to_owned).or_else(|| current_context(&directory));
    match name.filter(|name| name != DEFAULT_CONTEXT) {
        Some(name) => Ok(vec![of_context(&directory, name)?]),
        None => Ok(places(host)),
    }
}

/// Returns the directory with the configuration of the `docker` command.
pub(super) fn config_directory(host: &Host) -> PathBuf {
    let named = host.var("DOCKER_CONFIG");
    named.map_or_else(|| host.user_home.join(".docker"), |directory| host.cwd.join(directory))
}

/// The part of `config.json` that this module uses.
#[derive(Deserialize, Default)]
struct Config {
    #[serde(rename = "currentContext")]
    current_context: Option<String>,
}

/// Returns the context that `docker context use` selected. An unreadable file selects no context, as for the `docker`
/// command.
fn current_context(directory: &Path) -> Option<String> {
    let config: Config = read(&directory.join("config.json"))?;
    config.current_context.filter(|name| !name.is_empty())
}

/// The part of a context's `meta.json` that this module uses.
#[derive(Deserialize)]
struct Context {
    #[serde(rename = "Endpoints", default)]
    endpoints: Endpoints,
}

#[derive(Deserialize, Default)]
struct Endpoints {
    docker: Option<DockerEndpoint>,
}

#[derive(Deserialize)]
struct DockerEndpoint {
    #[serde(rename = "Host")]
    host: Option<String>,
}

fn of_context(directory: &Path, name: String) -> Result<Endpoint, EngineError> {
    let hash = hex::encode(Sha256::digest(name.as_bytes()));
    let path = directory.join("contexts/meta").join(hash).join("meta.json");
    let context: Option<Context> = read(&path);
    let Some(context) = context else {
        let cause = format!("{} cannot be read", path.display());
        return Err(EngineError::NoContext { name, cause });
    };
    match context.endpoints.docker.and_then(|endpoint| endpoint.host).filter(|host| !host.is_empty()) {
        Some(address) => from_address(Source::Context(name), &address),
        None => Ok(Endpoint { source: Source::Context(name), socket: DEFAULT_SOCKET.into() }),
    }
}

fn from_address(source: Source, address: &str) -> Result<Endpoint, EngineError> {
    match address.strip_prefix("unix://").filter(|path| path.starts_with('/')) {
        Some(path) => Ok(Endpoint { source, socket: path.into() }),
        None => Err(EngineError::NotUnixSocket { named_by: source.to_string(), address: address.to_owned() }),
    }
}

/// Returns the default socket and the sockets of other products, if they exist. If no such socket exists, returns only
/// the default socket.
fn places(host: &Host) -> Vec<Endpoint> {
    let default = Endpoint { source: Source::Default, socket: DEFAULT_SOCKET.into() };
    let of_machine = Some(default.clone()).filter(|place| place.socket.exists());
    let of_products = products(host).into_iter().filter(|place| is_trusted(&place.socket));
    let mut found: Vec<Endpoint> = of_machine.into_iter().chain(of_products).collect();
    if found.is_empty() {
        found.push(default);
    }
    found
}

/// Whether a socket exists and belongs to this user or root. Another user's program behind the socket would receive the
/// files and secrets of builds. `$XDG_RUNTIME_DIR` can be the directory of another user, for example after `sudo -E`.
fn is_trusted(socket: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    socket.metadata().is_ok_and(|found| found.uid() == 0 || found.uid() == own)
}

/// Returns the sockets of products that never or not always use the default socket. The products document these paths.
fn products(host: &Host) -> Vec<Endpoint> {
    let in_home = [
        ("Docker Desktop", ".docker/desktop/docker.sock"),
        ("Docker Desktop", ".docker/run/docker.sock"),
        ("Colima", ".colima/default/docker.sock"),
        ("OrbStack", ".orbstack/run/docker.sock"),
        ("Rancher Desktop", ".rd/docker.sock"),
    ];
    let in_runtime = [("rootless Docker", "docker.sock"), ("rootless Podman", "podman/podman.sock")];
    let runtime = host.var("XDG_RUNTIME_DIR").map(PathBuf::from);
    let in_runtime =
        runtime.into_iter().flat_map(|directory| in_runtime.map(|(name, path)| (name, directory.join(path))));
    in_home
        .into_iter()
        .map(|(name, path)| (name, host.user_home.join(path)))
        .chain(in_runtime)
        .chain([("Podman", PathBuf::from("/run/podman/podman.sock"))])
        .map(|(name, socket)| Endpoint { source: Source::Product(name), socket })
        .collect()
}

/// Parses a JSON file of at most [`CONFIG_MAX`] bytes.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(CONFIG_MAX).read_to_string(&mut text)).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A home directory of a user with a `docker` configuration.
    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("home"))
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            std::fs::write(path, text).expect("written");
        }

        /// Writes a context as `docker context create` does.
        fn context(&self, directory: &str, name: &str, meta: &str) {
            let hash = hex::encode(Sha256::digest(name.as_bytes()));
            self.write(&format!("{directory}/contexts/meta/{hash}/meta.json"), meta);
        }

        fn listen(&self, path: &str) -> PathBuf {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            drop(UnixListener::bind(&path).expect("bound"));
            path
        }

        fn host(&self, env: &[(&str, &str)]) -> Host {
            let env: BTreeMap<_, _> =
                env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            Host {
                env,
                cwd: self.0.path().into(),
                home: "/home".into(),
                user_home: self.0.path().into(),
                runtime: "/run".into(),
                program: "/bottle".into(),
            }
        }

        fn chosen(&self, env: &[(&str, &str)]) -> Result<String, String> {
            let chosen = candidates(&self.host(env)).map_err(|error| error.to_string())?;
            let [one] = &chosen[..] else { panic!("{chosen:?}") };
            Ok(format!("{} unix://{}", one.source, one.socket.display()))
        }
    }

    fn meta(name: &str, host: &str) -> String {
        let endpoint = serde_json::json!({"Host": host, "SkipTLSVerify": false});
        serde_json::json!({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}}).to_string()
    }

    #[test]
    fn chooses_the_engine_that_the_docker_command_uses() {
        let home = Home::new();
        home.write(".docker/config.json", r#"{"auths": {}, "currentContext": "mine"}"#);
        home.context(".docker", "mine", &meta("mine", "unix:///run/mine.sock"));
        home.context(".docker", "far", &meta("far", "ssh://dev@far"));
        home.context(".docker", "local", &meta("local", ""));
        home.context(".docker", "bad", "{");
        home.write("other/config.json", r#"{"currentContext": "theirs"}"#);
        home.context("other", "theirs", &meta("theirs", "unix:///run/theirs.sock"));
        home.write("broken/config.json", "{");
        let other = home.0.path().join("other");
        let other = other.to_str().expect("text");
        let ok = |text: &str| Ok(text.to_owned());
        for (env, expected) in [
            (vec![], ok("the docker context \"mine\" unix:///run/mine.sock")),
            (vec![("DOCKER_HOST", "unix:///run/x.sock")], ok("DOCKER_HOST unix:///run/x.sock")),
            (
                vec![("DOCKER_HOST", "unix:///run/x.sock"), ("DOCKER_CONTEXT", "far")],
                ok("DOCKER_HOST unix:///run/x.sock"),
            ),
            (vec![("DOCKER_HOST", "")], ok("the docker context \"mine\" unix:///run/mine.sock")),
            (
                vec![("DOCKER_CONTEXT", "local")],
                ok("the docker context \"local\" unix:///var/run/docker.sock"),
            ),
            (vec![("DOCKER_CONFIG", other)], ok("the docker context \"theirs\" unix:///run/theirs.sock")),
            (vec![("DOCKER_CONFIG", "other")], ok("the docker context \"theirs\" unix:///run/theirs.sock")),
        ] {
            assert_eq!(home.chosen(&env), expected, "{env:?}");
        }
        for (env, named) in [
            (vec![("DOCKER_CONTEXT", "far")], "the docker context \"far\" is \"ssh://dev@far\""),
            (vec![("DOCKER_CONTEXT", "missing")], "the docker context \"missing\" cannot be used"),
            (vec![("DOCKER_CONTEXT", "bad")], "the docker context \"bad\" cannot be used"),
            (vec![("DOCKER_HOST", "tcp://127.0.0.1:2375")], "DOCKER_HOST is \"tcp://127.0.0.1:2375\""),
            (vec![("DOCKER_HOST", "unix://x")], "DOCKER_HOST is \"unix://x\""),
            (vec![("DOCKER_HOST", "/run/x.sock")], "DOCKER_HOST is \"/run/x.sock\""),
        ] {
            let error = candidates(&home.host(&env)).expect_err("no engine");
            assert!(error.to_string().contains(named) && error.hint().is_some(), "{env:?}: {error}");
            assert!(error.is_unusable(), "{error}");
        }
        // Without a usable configuration, all known places of engines are tried.
        for env in [vec![("DOCKER_CONTEXT", "default")], vec![("DOCKER_CONFIG", "broken")]] {
            let first = candidates(&home.host(&env)).expect("places").remove(0);
            assert!(!matches!(first.source, Source::Context(_) | Source::DockerHost), "{env:?}: {first:?}");
        }
    }

    #[test]
    fn lists_the_sockets_of_products_that_exist_after_the_default_socket() {
        let home = Home::new();
        let runtime = home.0.path().join("runtime");
        let env = [("XDG_RUNTIME_DIR", runtime.to_str().expect("text"))];
        let in_home = |places: Vec<Endpoint>| -> Vec<String> {
            let ours = places.into_iter().filter(|place| place.socket.starts_with(home.0.path()));
            ours.map(|place| place.source.to_string()).collect()
        };
        let found = |env: &[(&str, &str)]| in_home(candidates(&home.host(env)).expect("places"));
        assert_eq!(found(&env), [""; 0]);
        home.listen("runtime/podman/podman.sock");
        home.listen(".rd/docker.sock");
        home.listen("runtime/docker.sock");
        home.listen(".orbstack/run/docker.sock");
        home.listen(".colima/default/docker.sock");
        home.listen(".docker/run/docker.sock");
        let products =
            ["Docker Desktop", "Colima", "OrbStack", "Rancher Desktop", "rootless Docker", "rootless Podman"];
        assert_eq!(found(&env), products.map(|name| format!("the socket of {name}")));
        assert_eq!(found(&[]).len(), 4, "without XDG_RUNTIME_DIR");
        if rustix::process::geteuid().is_root() {
            let other = home.0.path().join(".rd/docker.sock");
            std::os::unix::fs::chown(other, Some(12345), None).expect("owner");
            assert_eq!(found(&[]).len(), 3, "another user's socket is none");
        }
        home.listen(".docker/desktop/docker.sock");
        let first = candidates(&home.host(&[])).expect("places");
        let desktop = first.iter().find(|place| place.socket.starts_with(home.0.path())).expect("one");
        assert!(desktop.socket.ends_with(".docker/desktop/docker.sock"), "{desktop:?}");
    }
}
