//! Reads the user's logins at image registries, as `docker login` stores them: in `config.json`, or in a credential
//! helper.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::auth::DockerCredentials;
use bottle_host::{Host, plain_file};
use bottle_policy::secret::Secret;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zeroize::Zeroizing;

use crate::docker::endpoint::config_directory;

/// The key of Docker Hub in `config.json`.
const HUB: &str = "https://index.docker.io/v1/";
/// The maximum size of `config.json` in bytes.
const CONFIG_MAX: u64 = 1 << 20;
/// The maximum size of a credential helper's answer in bytes.
const ANSWER_MAX: usize = 64 << 10;
/// The time limit of a credential helper. A helper may ask the user to unlock a key chain.
const HELPER_DEADLINE: Duration = Duration::from_secs(60);
/// The user name in a credential helper's answer if the secret is an identity token.
const TOKEN_USER: &str = "<token>";
/// The message of a credential helper that has no login.
const NO_LOGIN: &str = "credentials not found";

/// The user's logins.
#[derive(Debug)]
pub(super) struct Logins {
    config: Config,
    host: Host,
}

/// A login at one registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Login {
    /// A user name and a password.
    Password {
        /// The user name.
        user: String,
        /// The password or access token.
        password: Secret,
    },
    /// A token that the registry issued.
    IdentityToken(Secret),
}

/// The parts of `config.json` that contain logins.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    creds_store: Option<String>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
}

/// An entry of `auths`.
#[derive(Debug, Default, Deserialize)]
struct Entry {
    auth: Option<Secret>,
    identitytoken: Option<Secret>,
}

/// The answer of a credential helper.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: Secret,
}

impl Logins {
    /// Reads `config.json` in `$DOCKER_CONFIG` or `~/.docker`. If this file does not exist, the user has no logins.
    ///
    /// # Errors
    /// The cause, as a sentence that names the file.
    pub(super) fn load(host: &Host) -> Result<Self, String> {
        // The file may be a link, for example into a directory of dotfiles.
        let path = config_directory(host).join("config.json");
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let config = match plain_file::read(&real, CONFIG_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Config::default(),
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
            Ok(text) => {
                // The parser's own message could contain a part of a login.
                serde_json::from_slice(&Zeroizing::new(text)).map_err(|error| {
                    format!("cannot read {}: the JSON is invalid in line {}", path.display(), error.line())
                })?
            }
        };
        Ok(Self { config, host: host.clone() })
    }

    /// Returns the login at this registry. `registry` is a key that [`registry_of`] returned. `None` if the user has no
    /// login at the registry.
    ///
    /// # Errors
    /// The cause, as a sentence that names the registry, when a credential helper fails or `config.json` has a damaged
    /// entry.
    pub(super) async fn at(&self, registry: &str) -> Result<Option<Login>, String> {
        let cannot = |why: String| format!("cannot get the login at {}: {why}", shown(registry));
        let helper = self.config.cred_helpers.get(registry).or(self.config.creds_store.as_ref());
        if let Some(helper) = helper.filter(|helper| !helper.is_empty()) {
            return ask(&self.host, helper, registry).await.map_err(cannot);
        }
        let same = |key: &str| key == registry || host_of(key) == host_of(registry);
        let entry = self.config.auths.get(registry);
        let entry =
            entry.or_else(|| self.config.auths.iter().find(|(key, _)| same(key)).map(|(_, entry)| entry));
        entry.map_or(Ok(None), Entry::login).map_err(cannot)
    }
}

impl Entry {
    fn login(&self) -> Result<Option<Login>, String> {
        if let Some(token) = self.identitytoken.as_ref().filter(|token| !token.expose().is_empty()) {
            return Ok(Some(Login::IdentityToken(token.clone())));
        }
        let Some(auth) = self.auth.as_ref().filter(|auth| !auth.expose().is_empty()) else { return Ok(None) };
        let damaged = || "`auth` is not the base64 of USER:PASSWORD; run `docker login` again".to_owned();
        let decoded = Zeroizing::new(STANDARD.decode(auth.expose()).map_err(|_| damaged())?);
        let text = std::str::from_utf8(&decoded).map_err(|_| damaged())?;
        let (user, password) = text.trim_end_matches('\0').split_once(':').ok_or_else(damaged)?;
        Ok(Some(Login::Password { user: user.to_owned(), password: Secret::new(password.to_owned()) }))
    }
}

impl Login {
    /// Returns the login in the format of the engine's API.
    pub(super) fn credentials(&self, registry: &str) -> DockerCredentials {
        let serveraddress = Some(registry.to_owned());
        match self {
            Self::Password { user, password } => DockerCredentials {
                username: Some(user.clone()),
                password: Some(password.expose().to_owned()),
                serveraddress,
                ..DockerCredentials::default()
            },
            Self::IdentityToken(token) => DockerCredentials {
                identitytoken: Some(token.expose().to_owned()),
                serveraddress,
                ..DockerCredentials::default()
            },
        }
    }
}

/// Returns the logins for a build in the format of the engine's API.
pub(super) fn for_build(logins: &BTreeMap<String, Login>) -> HashMap<String, DockerCredentials> {
    logins.iter().map(|(registry, login)| (registry.clone(), login.credentials(registry))).collect()
}

/// Returns the registry of an image reference, as the key that `docker login` uses.
pub(super) fn registry_of(reference: &str) -> &str {
    match reference.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => match first {
            "docker.io" | "index.docker.io" => HUB,
            registry => registry,
        },
        _ => HUB,
    }
}

/// Returns the registry's name in messages and in `docker login NAME`.
pub(super) fn shown(registry: &str) -> &str {
    if registry == HUB { "docker.io" } else { registry }
}

/// Returns the host name and port in a key of `auths`, which may be a URL.
pub(super) fn host_of(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// Runs the program `docker-credential-NAME` to get a login.
async fn ask(host: &Host, name: &str, registry: &str) -> Result<Option<Login>, String> {
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
        return Err(format!("{name:?} is no name of a credential helper"));
    }
    let program = format!("docker-credential-{name}");
    let failed = |why: &dyn std::fmt::Display| format!("`{program} get` {why}");
    let mut child = tokio::process::Command::new(&program)
        .arg("get")
        .env_clear()
        .envs(&host.env)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(&format!("cannot be started: {error}")))?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let conversation = async {
        if let Some(mut input) = input {
            // The write fails if the helper closed its input without reading it.
            let _ = input.write_all(registry.as_bytes()).await;
        }
        let mut answer = Zeroizing::new(Vec::with_capacity(ANSWER_MAX + 1));
        if let Some(output) = output {
            output.take(ANSWER_MAX as u64 + 1).read_to_end(&mut answer).await?;
        }
        let status = if answer.len() > ANSWER_MAX { None } else { Some(child.wait().await?) };
        Ok::<_, io::Error>((answer, status))
    };
    let ended = tokio::time::timeout(HELPER_DEADLINE, conversation).await;
    let ended =
        ended.map_err(|_| failed(&format!("did not finish within {} s", HELPER_DEADLINE.as_secs())))?;
    let (answer, status) = ended.map_err(|error| failed(&format!("failed: {error}")))?;
    match status {
        None => Err(failed(&format!("printed more than {} KiB", ANSWER_MAX >> 10))),
        Some(status) if !status.success() => {
            let text = String::from_utf8_lossy(&answer);
            if text.contains(NO_LOGIN) { Ok(None) } else { Err(failed(&format!("failed: {status}"))) }
        }
        Some(_) => {
            let answer: Answer =
                serde_json::from_slice(&answer).map_err(|_| failed(&"printed no valid answer"))?;
            Ok(Some(match answer.username.as_str() {
                TOKEN_USER => Login::IdentityToken(answer.secret),
                _ => Login::Password { user: answer.username, password: answer.secret },
            }))
        }
    }
}

#[cfg(test)]
mod tests {

    use bottle_test_support::script_file::script_file;

    use super::*;

    /// Creates a host with this `config.json` and with programs `docker-credential-NAME`.
    fn host(config: &str, helpers: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let directory = tempfile::tempdir().expect("directory");
        std::fs::write(directory.path().join("config.json"), config).expect("written");
        for (name, script) in helpers {
            let path = directory.path().join(format!("docker-credential-{name}"));
            script_file(&path, script);
        }
        let path = format!("{}:/usr/bin:/bin", directory.path().display());
        let directory_name = directory.path().display().to_string();
        let env = [("DOCKER_CONFIG", directory_name), ("PATH", path)];
        let host = Host {
            env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: "/".into(),
            home: "/home".into(),
            user_home: "/nonexistent".into(),
            runtime: "/run".into(),
            program: "/bottle".into(),
        };
        (directory, host)
    }

    fn password(user: &str, password: &str) -> Option<Login> {
        Some(Login::Password { user: user.to_owned(), password: Secret::new(password.to_owned()) })
    }

    #[test]
    fn a_reference_names_its_registry() {
        for (reference, registry) in [
            ("debian:12", HUB),
            ("team/agent", HUB),
            ("docker.io/library/debian", HUB),
            ("localhost/a", "localhost"),
            ("127.0.0.1:5000/a/b:1", "127.0.0.1:5000"),
            ("registry.example.com/a@sha256:12", "registry.example.com"),
        ] {
            assert_eq!(registry_of(reference), registry, "{reference}");
        }
    }

    #[tokio::test]
    async fn reads_logins_of_the_file() {
        let auth = STANDARD.encode("me:p:w");
        let config = format!(
            r#"{{"auths": {{"a.example": {{"auth": "{auth}"}}, "{HUB}": {{"auth": "{auth}"}},
                "https://b.example/v1/": {{"auth": "{auth}", "identitytoken": "t"}}, "c.example": {{}},
                "d.example": {{"auth": "%%"}}}}, "HttpHeaders": {{}}}}"#
        );
        let (_directory, host) = host(&config, &[]);
        let logins = Logins::load(&host).expect("logins");
        assert_eq!(logins.at("a.example").await, Ok(password("me", "p:w")));
        assert_eq!(logins.at(HUB).await, Ok(password("me", "p:w")));
        assert_eq!(logins.at("b.example").await, Ok(Some(Login::IdentityToken(Secret::new("t".to_owned())))));
        for none in ["c.example", "x.example", "example"] {
            assert_eq!(logins.at(none).await, Ok(None), "{none}");
        }
        let error = logins.at("d.example").await.expect_err("damaged");
        assert!(error.starts_with("cannot get the login at d.example: `auth` is not"), "{error}");
        assert!(!format!("{logins:?}").contains(&auth), "a login is printed");
    }

    #[tokio::test]
    async fn asks_credential_helpers() {
        let config = r#"{"auths": {"a.example": {}}, "credsStore": "all",
            "credHelpers": {"t.example": "token", "n.example": "none", "f.example": "fails", "l.example": "long",
                "b.example": "../bad", "m.example": "missing", "j.example": "nonsense"}}"#;
        let helpers = [
            (
                "all",
                r#"read registry; echo "{\"ServerURL\":\"x\",\"Username\":\"$registry\",\"Secret\":\"pw\"}""#,
            ),
            ("token", r#"echo '{"Username":"<token>","Secret":"t"}'"#),
            ("none", "echo 'credentials not found in native keychain'; exit 1"),
            ("fails", "echo secret-of-the-helper; exit 3"),
            ("long", "head -c 100000 /dev/zero; sleep 600"),
            ("nonsense", "echo secret-of-the-helper"),
        ];
        let (_directory, host) = host(config, &helpers);
        let logins = Logins::load(&host).expect("logins");
        assert_eq!(logins.at("a.example").await, Ok(password("a.example", "pw")));
        assert_eq!(logins.at("t.example").await, Ok(Some(Login::IdentityToken(Secret::new("t".to_owned())))));
        assert_eq!(logins.at("n.example").await, Ok(None));
        for (registry, why) in [
            ("f.example", "failed: exit status: 3"),
            ("l.example", "printed more than 64 KiB"),
            ("b.example", "is no name of a credential helper"),
            ("m.example", "cannot be started"),
            ("j.example", "printed no valid answer"),
        ] {
            let error = logins.at(registry).await.expect_err(registry);
            assert!(error.contains(why) && error.contains(registry), "{error}");
            assert!(!error.contains("secret-of-the-helper"), "{error}");
        }
    }

    #[test]
    fn a_damaged_file_is_named_and_not_printed() {
        let (_directory, damaged) = host(r#"{"auths": {"a.example": {"auth": ["secret"]}}}"#, &[]);
        let error = Logins::load(&damaged).expect_err("damaged");
        assert!(error.contains("config.json: the JSON is invalid in line 1"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        let (directory, absent) = host("", &[]);
        std::fs::remove_file(directory.path().join("config.json")).expect("removed");
        assert!(Logins::load(&absent).expect("none").config.auths.is_empty());
    }
}
