//! Plans the repositories of a bottle: the git gate's configuration, and the configuration of git in the
//! bottle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bottle_host::files::FileError;
use bottle_host::{Host, known_hosts};
use bottle_manifest::git_gate::{OnMatch, RefRules, RepoUrl};
use bottle_manifest::git_key::{DeployKey, KeySource};
use bottle_manifest::host_path;
use bottle_manifest::resolve::{Repo, ResolvedManifest};
use bottle_policy::canonical;
use bottle_policy::names::{GIT_GATE_HOST, GIT_GATE_PORT, NO_PROXY, Name};
use bottle_protocol::session::git_gate::GateRefs;
use serde::{Deserialize, Serialize};
use url::Url;

use super::secret_needs::{Needs, source_of};
use super::{PlanError, SecretSource};
use crate::forge::{Keys, Kind};

/// A repository of the git gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRepo {
    /// The name of the repository in the manifest.
    pub name: Name,
    /// The address of the upstream, as written in the manifest.
    pub url: String,
    /// `HOST/PATH` of the upstream. Requests to the git gate name the repository by this address. `None` if the path
    /// would need escapes, or if an earlier repository has the same upstream. Requests then use the repository's name.
    #[serde(default)]
    pub address: Option<String>,
    /// The upstream credential.
    pub key: PlannedKey,
    /// The refs that a push may change.
    pub refs: GateRefs,
    /// Whether the user decides about a push with findings. Otherwise such a push is refused. A push with a known
    /// secret is always refused.
    pub supervise: bool,
    /// Whether the git gate answers a fetch from its mirror while the upstream cannot be reached. Otherwise the fetch
    /// fails.
    pub stale_ok: bool,
}

/// A credential for an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlannedKey {
    /// A private ssh key, with the trusted host keys of the upstream.
    Ssh {
        /// The id of the secret that contains the private key.
        secret: String,
        /// The trusted host keys.
        known: KnownHosts,
    },
    /// A token for an `https` upstream.
    Token {
        /// The id of the secret that contains the token.
        secret: String,
    },
    /// A private key that is created at launch. The key is registered as a deploy key at a forge until the bottle ends.
    Deploy {
        /// The id of the secret that contains the token for the forge's API.
        token: String,
        /// The forge's API for deploy keys.
        keys: Keys,
        /// Whether the deploy key allows only fetches.
        read_only: bool,
        /// The trusted host keys.
        known: KnownHosts,
    },
}

/// The trusted host keys of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnownHosts {
    /// One line in the format of `known_hosts`, created from `host_key`.
    Pinned(String),
    /// The keys are read at launch from `known_hosts` files on the host.
    Files {
        /// The host name of the upstream.
        host: String,
        /// The port of the upstream, if it is not the standard port of ssh.
        port: Option<u16>,
        /// The paths of the `known_hosts` files.
        files: Vec<PathBuf>,
    },
}

/// Why a repository's upstream has no trusted host keys.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// No file contains a key for the upstream's host. Host keys are never trusted on first use.
    #[error(
        "the repository {name} has no `host_key`, and this machine does not know its host {}",
        shown(host, *port)
    )]
    Unknown {
        /// The name of the repository.
        name: Name,
        /// The host name of the upstream.
        host: String,
        /// The port of the upstream, if it is not the standard port of ssh.
        port: Option<u16>,
    },
    /// A `known_hosts` file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] FileError),
}

impl HostKeyError {
    /// Returns the user's next step.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Unreadable(_) => "fix the file, or pin the key with `host_key`".to_owned(),
            Self::Unknown { name, host, port } => {
                let port = port.map(|port| format!(" -p {port}")).unwrap_or_default();
                format!(
                    "`ssh-keyscan{port} -t ed25519 {host}` prints its key: compare it with what the host's operator \
                     publishes, then pin it as `git-gate.repos.{name}.host_key: ssh-ed25519 AAAA…`, or connect once by \
                     hand (`ssh{port} {host}`)"
                )
            }
        }
    }
}

fn shown(host: &str, port: Option<u16>) -> String {
    match port {
        Some(port) => format!("{host}, port {port}"),
        None => host.to_owned(),
    }
}

impl PlannedRepo {
    /// Returns the trusted host keys as lines of `known_hosts`. `None` for an `https` upstream.
    ///
    /// # Errors
    /// Returns [`HostKeyError`] if the upstream has no trusted host keys.
    pub fn host_keys(&self) -> Result<Option<String>, HostKeyError> {
        let known = match &self.key {
            PlannedKey::Token { .. } => return Ok(None),
            PlannedKey::Ssh { known, .. } | PlannedKey::Deploy { known, .. } => known,
        };
        let (host, port, files) = match known {
            KnownHosts::Pinned(line) => return Ok(Some(line.clone())),
            KnownHosts::Files { host, port, files } => (host, *port, files),
        };
        let text = known_hosts::read(files)?;
        match known_hosts::knows(&text, host, port) {
            true => Ok(Some(text)),
            false => Err(HostKeyError::Unknown { name: self.name.clone(), host: host.clone(), port }),
        }
    }
}

/// Returns the hosts of the forges of all repositories, in the canonical form that the proxy uses.
pub(super) fn forges(manifest: &ResolvedManifest) -> Vec<String> {
    let hosts = manifest.repos.values().flat_map(Repo::forges);
    // A host is left out if the proxy does not accept its name, because the host cannot be reached through the proxy.
    hosts.filter_map(|host| Some(canonical::host(&host).ok()?.into_owned())).collect()
}

/// Returns the repositories of the git gate, sorted by name.
pub(super) fn repos(
    host: &Host,
    manifest: &ResolvedManifest,
    needs: &mut Needs,
) -> Result<Vec<PlannedRepo>, PlanError> {
    let mut addresses = addresses(manifest);
    let planned = manifest.repos.iter().map(|(name, repo)| {
        Ok(PlannedRepo {
            name: name.clone(),
            url: repo.url.value.as_str().to_owned(),
            address: addresses.remove(name),
            key: key(host, name, repo, needs)?,
            refs: refs(&repo.refs.value),
            supervise: repo.on_match.value == OnMatch::Supervise,
            stale_ok: repo.stale_ok.value,
        })
    });
    planned.collect()
}

fn key(host: &Host, name: &Name, repo: &Repo, needs: &mut Needs) -> Result<PlannedKey, PlanError> {
    let id = format!("git-gate.{name}");
    let purpose = format!("the key of the repository {name}");
    match &repo.key.value {
        KeySource::Static { path } => {
            let file = SecretSource::File(host_path::absolute(path, &host.home, &host.user_home));
            Ok(PlannedKey::Ssh { secret: needs.add(id, file, purpose), known: trusted(host, repo) })
        }
        KeySource::Token { token_ref } => {
            let source = source_of(token_ref, &host.home, &host.user_home);
            Ok(PlannedKey::Token { secret: needs.add(id, source, purpose) })
        }
        KeySource::Gitea(key) => deploy(host, name, repo, Kind::Gitea, key, needs),
        KeySource::Github(key) => deploy(host, name, repo, Kind::Github, key, needs),
    }
}

fn deploy(
    host: &Host,
    name: &Name,
    repo: &Repo,
    kind: Kind,
    key: &DeployKey,
    needs: &mut Needs,
) -> Result<PlannedKey, PlanError> {
    let url = ssh(repo.url.value.as_str());
    let keys = Keys::new(kind, key.api_url.as_deref(), &repo.url.value.host(), &url.path).map_err(|why| {
        let origin = repo.url.origin.to_string();
        PlanError::Repository { name: name.clone(), why, origin }
    })?;
    let source = source_of(&key.token_ref, &host.home, &host.user_home);
    let purpose = format!("the deploy key of the repository {name}, made at {} for this launch", keys.host());
    let token = needs.add(format!("git-gate.{name}"), source, purpose);
    Ok(PlannedKey::Deploy { token, keys, read_only: key.read_only, known: trusted(host, repo) })
}

fn trusted(host: &Host, repo: &Repo) -> KnownHosts {
    match &repo.host_key {
        Some(key) => KnownHosts::Pinned(format!("{} {}\n", pattern(repo.url.value.as_str()), key.value)),
        None => {
            let upstream = ssh(repo.url.value.as_str());
            let own = host.user_home.join(".ssh/known_hosts");
            let files = vec![own, PathBuf::from("/etc/ssh/ssh_known_hosts")];
            KnownHosts::Files { host: upstream.host, port: upstream.port.filter(|port| *port != 22), files }
        }
    }
}

/// Formats a host as in a `known_hosts` file.
fn pattern(url: &str) -> String {
    let Ssh { host, port, .. } = ssh(url);
    match port {
        Some(port) if port != 22 => format!("[{host}]:{port}"),
        _ => host,
    }
}

/// The parts of an ssh URL.
#[derive(Debug, PartialEq, Eq)]
struct Ssh {
    user: String,
    host: String,
    port: Option<u16>,
    path: String,
}

/// Parses an ssh URL, which the manifest parser has checked.
fn ssh(text: &str) -> Ssh {
    if let Ok(url) = Url::parse(text)
        && url.scheme() == "ssh"
    {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        return Ssh { user: url.username().to_owned(), host, port: url.port(), path: url.path().to_owned() };
    }
    let (login, path) = text.split_once(':').unwrap_or((text, ""));
    let (user, host) = login.split_once('@').unwrap_or(("", login));
    Ssh { user: user.to_owned(), host: host.to_owned(), port: None, path: path.to_owned() }
}

fn refs(rules: &RefRules) -> GateRefs {
    GateRefs {
        allow: rules.allow.clone(),
        deny: rules.deny.clone(),
        force: rules.force,
        delete: rules.delete,
        tags: rules.tags,
    }
}

/// Returns `HOST/PATH` of the upstream of each repository whose path needs no escapes. If several repositories have the
/// same upstream, includes only the first repository.
fn addresses(manifest: &ResolvedManifest) -> BTreeMap<Name, String> {
    let mut found = BTreeMap::new();
    for (name, repo) in &manifest.repos {
        let address =
            address(&repo.url.value).filter(|address| !found.values().any(|other| other == address));
        found.extend(address.map(|address| (name.clone(), address)));
    }
    found
}

/// Returns `HOST/PATH` of a repository, without `.git`.
fn address(url: &RepoUrl) -> Option<String> {
    let (port, path) = match url {
        RepoUrl::Https(url) => {
            let url = Url::parse(url).ok()?;
            (url.port(), url.path().to_owned())
        }
        // The ssh port is left out, because the forge's website has another port.
        RepoUrl::Ssh(url) => (None, ssh(url).path),
    };
    let host = url.host();
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    let is_plain = |text: &str, also: &str| {
        !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || also.contains(letter))
    };
    let segments_are_plain =
        path.split('/').all(|segment| is_plain(segment, "-._~+") && !segment.starts_with('.'));
    (is_plain(&host, "-.") && segments_are_plain).then(|| format!("{host}{port}/{path}"))
}

/// Whether git in the bottle uses a proxy for requests to this address.
fn uses_proxy(manifest: &ResolvedManifest, address: &str) -> bool {
    let host = address.split([':', '/']).next().unwrap_or_default();
    let has_own_rules = manifest.env.keys().any(|name| name.eq_ignore_ascii_case("NO_PROXY"));
    !has_own_rules && !NO_PROXY.contains(&host) && !host.ends_with(".localhost")
}

/// Returns the part of the system's git configuration that makes git show `http://HOST/PATH` as the address of a
/// repository. Tools such as `gh` and `glab` find the forge by this address. git sends requests for this address to the
/// git gate without TLS, as to a proxy. The system's configuration takes precedence over the file in the agent's home,
/// because git reads the system's configuration first. Other programs that read git's configuration do not know this
/// part, and reach the git gate under the git gate's own URL.
///
/// git replaces only the beginnings of URLs. The name of another repository may begin with the name of this repository
/// (`tool-docs` and `tool`). The other repository's address then also begins with `http://HOST/`. The git gate
/// redirects requests for the other repository to `https://HOST/`.
pub(super) fn shown_url_config(manifest: &ResolvedManifest) -> String {
    let proxy = super::build::quoted(&format!("http://{GIT_GATE_HOST}:{GIT_GATE_PORT}"));
    let mut text = String::new();
    let mut proxied = std::collections::BTreeSet::new();
    for (name, address) in
        addresses(manifest).into_iter().filter(|(_, address)| uses_proxy(manifest, address))
    {
        let directory = address.rsplit_once('/').map_or(address.as_str(), |(directory, _)| directory);
        if proxied.insert(directory.to_owned()) {
            let url = super::build::quoted(&format!("http://{directory}/"));
            text.push_str(&format!("[http {url}]\n\tproxy = {proxy}\n"));
        }
        text.push_str(&replacing(&format!("http://{address}"), spellings(&manifest.repos[&name])));
    }
    text
}

/// Returns the git configuration for the bottle. This configuration redirects every form of a repository's URL to the
/// git gate.
pub(super) fn gitconfig(manifest: &ResolvedManifest) -> String {
    let addresses = addresses(manifest);
    let mut text = String::new();
    // If several repositories have the same upstream, the first repository gets all spellings of the upstream's URL.
    let mut used = std::collections::HashSet::new();
    for (name, repo) in &manifest.repos {
        let spellings: Vec<_> =
            spellings(repo).into_iter().filter(|spelling| used.insert(spelling.clone())).collect();
        let gate = format!("http://{GIT_GATE_HOST}:{GIT_GATE_PORT}");
        text.push_str(&match addresses.get(name) {
            Some(address) => replacing(&format!("{gate}/{address}"), spellings),
            None => {
                let exact = spellings.iter().flat_map(|spelling| exact(spelling));
                replacing(&format!("{gate}/{name}.git"), exact)
            }
        });
    }
    text
}

/// Returns the configuration section that makes git replace these beginnings of URLs with `url`.
fn replacing(url: &str, beginnings: impl IntoIterator<Item = String>) -> String {
    let line = |beginning: String| format!("\tinsteadOf = {}\n", super::build::quoted(&beginning));
    let lines: String = beginnings.into_iter().map(line).collect();
    format!("[url {}]\n{lines}", super::build::quoted(url))
}

/// Returns all spellings of `address`, which is given without `.git`. Git uses the longest match, so it replaces the
/// whole spelling.
fn exact(address: &str) -> [String; 4] {
    ["", "/", ".git", ".git/"].map(|end| format!("{address}{end}"))
}

/// Returns every form in which a repository's URL may be written, without `.git` and without a slash at the end.
fn spellings(repo: &Repo) -> Vec<String> {
    spellings_of(&repo.url.value, repo.alias.as_ref().map(|alias| alias.value.as_str()))
}

/// Returns the forms of `url` for [`spellings`]. A forge serves a repository over ssh and https under the same path.
/// Some forges offer https addresses in which the user name is the owner's name.
fn spellings_of(url: &RepoUrl, alias: Option<&str>) -> Vec<String> {
    let https = |host: &str, path: &str| {
        let path = path.trim_start_matches('/');
        let owner = path.split('/').next().unwrap_or_default();
        [format!("https://{host}/{path}"), format!("https://{owner}@{host}/{path}")]
    };
    let mut all = match url {
        RepoUrl::Https(url) => {
            let mut all = vec![url.clone()];
            if let Ok(parsed) = Url::parse(url)
                && let Some(host) = parsed.host_str()
            {
                let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
                all.extend(https(&format!("{host}{port}"), parsed.path()));
                if parsed.port().is_none() {
                    all.push(format!("https://{host}:443{}", parsed.path()));
                    let path = parsed.path().trim_start_matches('/').to_owned();
                    let parts = Ssh { user: "git".to_owned(), host: host.to_owned(), port: None, path };
                    all.extend(ssh_addresses(&parts, None));
                }
            }
            all
        }
        RepoUrl::Ssh(url) => {
            let parts = ssh(url);
            let mut all = ssh_addresses(&parts, alias);
            if parts.port.is_none_or(|port| port == 22) {
                all.extend(https(&parts.host, &parts.path));
            }
            all
        }
    };
    for address in &mut all {
        let end = address.trim_end_matches('/');
        *address = end.strip_suffix(".git").unwrap_or(end).to_owned();
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|address| seen.insert(address.clone()));
    all
}

/// Returns the forms of a repository's URL for ssh.
fn ssh_addresses(parts: &Ssh, alias: Option<&str>) -> Vec<String> {
    let login = |host: &str| match parts.user.as_str() {
        "" => host.to_owned(),
        user => format!("{user}@{host}"),
    };
    let relative = parts.path.trim_start_matches('/');
    let absolute = format!("/{relative}");
    let port = parts.port.map(|port| format!(":{port}")).unwrap_or_default();
    let mut all = vec![format!("ssh://{}{port}{absolute}", login(&parts.host))];
    if parts.port.is_none_or(|port| port == 22) {
        all.push(format!("ssh://{}:22{absolute}", login(&parts.host)));
        all.push(format!("ssh://{}{absolute}", login(&parts.host)));
        all.extend([relative, &absolute].map(|path| format!("{}:{path}", login(&parts.host))));
    }
    for host in alias.iter().flat_map(|alias| [(*alias).to_owned(), login(alias)]) {
        all.push(format!("ssh://{host}{absolute}"));
        all.push(format!("ssh://{host}{port}{absolute}"));
        all.extend([relative, &absolute].map(|path| format!("{host}:{path}")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_known_hosts_patterns() {
        for (url, wanted) in [
            ("ssh://git@host.example/a.git", "host.example"),
            ("ssh://git@host.example:22/a.git", "host.example"),
            ("ssh://git@host.example:2222/a.git", "[host.example]:2222"),
            ("git@host.example:a.git", "host.example"),
            ("ssh://git@[2001:db8::1]:2222/a.git", "[2001:db8::1]:2222"),
        ] {
            assert_eq!(pattern(url), wanted);
        }
    }

    #[test]
    fn lists_every_form_of_a_url() {
        let scp = spellings_of(&RepoUrl::Ssh("git@host.example:a/b.git".into()), Some("work"));
        for form in [
            "git@host.example:a/b",
            "git@host.example:/a/b",
            "ssh://git@host.example/a/b",
            "ssh://git@host.example:22/a/b",
            "https://host.example/a/b",
            "work:a/b",
            "git@work:a/b",
            "ssh://git@work/a/b",
        ] {
            assert!(scp.iter().any(|address| address == form), "{form}: {scp:?}");
        }
        let port = spellings_of(&RepoUrl::Ssh("ssh://git@host.example:2222/a/b".into()), None);
        assert_eq!(port, ["ssh://git@host.example:2222/a/b"]);
        let aliased = spellings_of(&RepoUrl::Ssh("ssh://git@host.example:7999/a/b".into()), Some("work"));
        for form in ["ssh://work/a/b", "ssh://work:7999/a/b", "ssh://git@work:7999/a/b", "work:a/b"] {
            assert!(aliased.iter().any(|address| address == form), "{form}: {aliased:?}");
        }
        let https = spellings_of(&RepoUrl::Https("https://host.example/a/b.git/".into()), None);
        for form in [
            "https://host.example/a/b",
            "https://a@host.example/a/b",
            "https://host.example:443/a/b",
            "git@host.example:a/b",
        ] {
            assert!(https.iter().any(|address| address == form), "{form}: {https:?}");
        }
        let port = spellings_of(&RepoUrl::Https("https://host.example:8443/a/b".into()), None);
        assert_eq!(port, ["https://host.example:8443/a/b", "https://a@host.example:8443/a/b"]);
    }

    #[test]
    fn addresses_are_the_host_and_path_of_the_upstream() {
        for (url, wanted) in [
            ("git@GitHub.com:o/r.git", Some("github.com/o/r")),
            ("ssh://git@git.example.com:2222/group/sub/r", Some("git.example.com/group/sub/r")),
            ("ssh://git@host.example/~me/r.git", Some("host.example/~me/r")),
            ("ssh://git@127.0.0.1:2222/r.git", Some("127.0.0.1/r")),
            ("git@host.example:o/with space", None),
            ("git@host.example:../r", None),
            ("ssh://git@[2001:db8::1]/r.git", None),
        ] {
            assert_eq!(address(&RepoUrl::Ssh(url.into())).as_deref(), wanted, "{url}");
        }
        for (url, wanted) in [
            ("https://host.example/o/r.git/", Some("host.example/o/r")),
            ("https://host.example:8443/o/r", Some("host.example:8443/o/r")),
            ("https://host.example/o/r%20s", None),
        ] {
            assert_eq!(address(&RepoUrl::Https(url.into())).as_deref(), wanted, "{url}");
        }
    }

    /// A plan with two repositories, one of which also has a second name. The scene runs git with the configuration
    /// that git has in a bottle.
    struct Scene {
        place: tempfile::TempDir,
        plan: crate::Plan,
    }

    impl Scene {
        fn new(env: &str) -> Self {
            let text = format!(
                "---\nagent_provider: {{template: command, command: [agent]}}\n{env}git-gate:\n  repos:\n\
                 \x20   proj: {{url: 'git@host.example:team/proj.git', key: {{provider: static, path: /k}}, \
                 host_key: ssh-ed25519 AAAA, alias: work}}\n\
                 \x20   same: {{url: 'https://host.example/team/proj', key: {{provider: token, token_ref: 'env:T'}}}}\n\
                 \x20   docs: {{url: 'https://host.example/team/proj-docs', key: {{provider: token, token_ref: 'env:T'}}}}\n---\n"
            );
            let plan = crate::build::tests::planned(&text, |_| ()).expect("a plan");
            let place = tempfile::tempdir().expect("a directory");
            let global = plan.files.iter().find(|file| file.path.ends_with(".gitconfig")).expect("git's");
            std::fs::write(place.path().join("global"), &global.content).expect("written");
            std::fs::write(place.path().join("system"), plan.git_system_config()).expect("written");
            Self { place, plan }
        }

        /// Returns the output of git with the configuration of the agent's home. With `has_system`, git also reads the
        /// system's configuration.
        fn git(&self, has_system: bool, arguments: &[&str]) -> String {
            let system = if has_system { self.place.path().join("system") } else { "/dev/null".into() };
            let mut git = std::process::Command::new("git");
            git.env("GIT_CONFIG_GLOBAL", self.place.path().join("global")).env("GIT_CONFIG_SYSTEM", system);
            let output = git.current_dir(self.place.path()).args(arguments).output().expect("git");
            String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
        }
    }

    /// The git gate serves these addresses, and redirects the addresses of other repositories.
    #[test]
    fn git_replaces_the_beginning_of_each_spelling() {
        let scene = Scene::new("");
        let addresses: Vec<_> = scene.plan.repos.iter().map(|repo| repo.address.as_deref()).collect();
        // Sorted by name: docs, proj, same.
        assert_eq!(addresses, [Some("host.example/team/proj-docs"), Some("host.example/team/proj"), None]);
        for (has_system, base) in [(true, "http://"), (false, "http://git-gate:9420/")] {
            for begin in [
                "git@host.example:team/",
                "git@host.example:/team/",
                "ssh://git@host.example/team/",
                "ssh://git@host.example:22/team/",
                "work:team/",
                "https://host.example/team/",
                "https://team@host.example/team/",
            ] {
                for end in ["proj", "proj/", "proj.git", "proj.git/", "proj-other", "proj.github.io", "proj2"]
                {
                    let url = scene.git(has_system, &["ls-remote", "--get-url", &format!("{begin}{end}")]);
                    assert_eq!(url, format!("{base}host.example/team/{end}"), "{begin}{end}");
                }
            }
        }
        for other in [
            "https://host.example/team/pro",
            "https://host.example/other/proj",
            "https://host.example.org/team/proj",
            "alice@host.example:team/proj",
        ] {
            assert_eq!(scene.git(true, &["ls-remote", "--get-url", other]), other);
        }
        let proxy = |url: &str| scene.git(true, &["config", "--get-urlmatch", "http.proxy", url]);
        for (url, wanted) in [
            ("http://host.example/team/proj", "http://git-gate:9420"),
            ("http://host.example/team/proj-other.git", "http://git-gate:9420"),
            ("http://host.example/other/proj", ""),
            ("https://host.example/team/proj", ""),
        ] {
            assert_eq!(proxy(url), wanted, "{url}");
        }
    }

    /// Git reads the complete configuration at each start.
    #[test]
    fn the_configuration_is_short() {
        let scene = Scene::new("");
        let read = |name: &str| std::fs::read(scene.place.path().join(name)).expect("read").len();
        let (global, system) = (read("global"), read("system"));
        assert!(global + system <= 4096, "{global} + {system}");
    }

    /// If a rule of the manifest bypasses the proxy, git shows the git gate's own address.
    #[test]
    fn rules_of_the_manifest_for_proxies_count() {
        let scene = Scene::new("env: {no_proxy: '*'}\n");
        assert!(scene.plan.git_repos.is_empty());
        let url = scene.git(true, &["ls-remote", "--get-url", "git@host.example:team/proj"]);
        assert_eq!(url, "http://git-gate:9420/host.example/team/proj");
    }
}
