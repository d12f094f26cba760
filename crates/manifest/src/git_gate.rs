//! The key `git-gate` of one layer, which is a bottle manifest before the merge: a git identity and the repositories
//! that the agent may use.

use std::collections::BTreeMap;

use bottle_policy::names::Name;
use serde::{Serialize, Serializer};
use url::Url;

use super::Spanned;
use super::error::Fault;
use super::git_key::KeySource;
use super::name::parse_name;
use super::schema::{GitGateSchema, RefsSchema, RepoSchema};
pub use super::schema::{OnMatch, UserLayer};

/// The key `git-gate` of one layer.
#[derive(Debug, Clone, Default)]
pub struct GitGateLayer {
    /// The key `user`.
    pub user: UserLayer,
    /// The key `repos`. If the map is absent, the layer inherits the repositories of earlier layers. An explicit empty
    /// map removes the repositories of the manifests that this manifest extends.
    pub repos: Option<Spanned<BTreeMap<Name, Spanned<RepoLayer>>>>,
}

/// A repository in one layer. Missing fields are reported after all layers are merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepoLayer {
    /// The address of the upstream repository.
    pub url: Option<Spanned<RepoUrl>>,
    /// The source of the credential for the upstream repository.
    pub key: Option<Spanned<KeySource>>,
    /// The public host key of the upstream server.
    pub host_key: Option<Spanned<String>>,
    /// A second name for the host of the upstream repository. The URLs of git remotes may use this name.
    pub alias: Option<Spanned<String>>,
    /// The refs that a push may change.
    pub refs: Option<Spanned<RefRules>>,
    /// What the git gate does with a push that has a finding.
    pub on_match: Option<Spanned<OnMatch>>,
    /// Whether the git gate answers a fetch from its mirror while the upstream is unreachable. If false, such a fetch
    /// fails.
    pub stale_ok: Option<Spanned<bool>>,
}

/// The address of an upstream, as written in the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "transport", content = "url")]
pub enum RepoUrl {
    /// `ssh://…`, or the scp form `user@host:path`.
    Ssh(String),
    /// `https://…`.
    Https(String),
}

impl RepoUrl {
    /// Returns the address as it is written in the manifest.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ssh(url) | Self::Https(url) => url,
        }
    }

    /// Returns the host of the address, in lower case.
    #[must_use]
    pub fn host(&self) -> String {
        let text = self.as_str();
        let host = match Url::parse(text) {
            Ok(url) if url.has_host() => url.host_str().unwrap_or_default().to_owned(),
            // The scp form, `user@host:path`.
            _ => {
                let login = text.split_once(':').map_or(text, |(login, _)| login);
                login.rsplit_once('@').map_or(login, |(_, host)| host).to_owned()
            }
        };
        host.to_ascii_lowercase()
    }
}

/// The refs that a push may change. Patterns match full ref names, for example `refs/heads/feature/*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RefRules {
    /// The allowed refs. `None` allows every branch except the upstream's default branch. An empty list allows nothing.
    #[serde(serialize_with = "allowed")]
    pub allow: Option<Vec<String>>,
    /// The denied refs. A denied ref takes precedence over `allow`.
    pub deny: Vec<String>,
    /// Whether non-fast-forward updates are allowed.
    pub force: bool,
    /// Whether refs may be deleted.
    pub delete: bool,
    /// Whether tags may be pushed.
    pub tags: bool,
}

/// Serialises `None` as a phrase, because an empty list would mean that no ref is allowed.
fn allowed<S: Serializer>(allow: &Option<Vec<String>>, serializer: S) -> Result<S::Ok, S::Error> {
    match allow {
        Some(globs) => globs.serialize(serializer),
        None => serializer.serialize_str("any branch except the upstream's default"),
    }
}

impl GitGateLayer {
    pub(super) fn from_schema(schema: GitGateSchema) -> Result<Self, Fault> {
        let GitGateSchema { user, repos } = schema;
        let repos = repos.map(|entries| {
            entries.try_map(|entries| {
                let mut repos = BTreeMap::new();
                for (name, entry) in entries.0 {
                    let name = parse_name("git-gate.repos", name)?.value;
                    let repo = entry.try_map(|schema| RepoLayer::from_schema(&name, schema))?;
                    repos.insert(name, repo);
                }
                Ok::<_, Fault>(repos)
            })
        });
        Ok(Self { user: user.unwrap_or_default().checked()?, repos: repos.transpose()? })
    }
}

impl UserLayer {
    pub(super) fn checked(self) -> Result<Self, Fault> {
        let Self { name, email } = self;
        let field = |key: &str, value: Option<Spanned<String>>| match value {
            Some(value) if value.value.is_empty() => Ok(None),
            Some(value) => config_value(&format!("git-gate.user.{key}"), value).map(Some),
            None => Ok(None),
        };
        Ok(Self { name: field("name", name)?, email: field("email", email)? })
    }
}

impl RepoLayer {
    fn from_schema(name: &Name, schema: RepoSchema) -> Result<Self, Fault> {
        let path = |key: &str| format!("git-gate.repos.{name}.{key}");
        let RepoSchema { url, key, host_key, alias, refs, on_match, stale_ok } = schema;
        Ok(Self {
            url: url.map(|text| repo_url(&path("url"), text)).transpose()?,
            key: key.map(|schema| KeySource::from_schema(&path("key"), schema)).transpose()?,
            host_key: host_key.map(|text| config_value(&path("host_key"), text)).transpose()?,
            alias: alias.map(|text| host_alias(&path("alias"), text)).transpose()?,
            refs: refs.map(|schema| ref_rules(&path("refs"), schema)).transpose()?,
            on_match,
            stale_ok,
        })
    }
}

/// Checks a value that is written to a git configuration file: it must be one line without control
/// characters.
fn config_value(path: &str, text: Spanned<String>) -> Result<Spanned<String>, Fault> {
    if text.value.is_empty() || text.value.chars().any(char::is_control) {
        return Err(Fault::new(text.at, format!("`{path}` must be one line without control characters")));
    }
    Ok(text)
}

fn repo_url(path: &str, text: Spanned<String>) -> Result<Spanned<RepoUrl>, Fault> {
    let text = config_value(path, text)?;
    let fault = |why: &str| {
        Fault::new(text.at, format!("`{path}` {why}"))
            .hint("use `ssh://git@host/path.git`, `git@host:path.git` or `https://host/path.git`")
    };
    let url = match Url::parse(&text.value) {
        Ok(url) if url.scheme() == "https" => {
            if !url.username().is_empty() || url.password().is_some() {
                return Err(fault("must not contain a user or password; put the credential in `key`"));
            }
            RepoUrl::Https(text.value.clone())
        }
        Ok(url) if url.scheme() == "ssh" => {
            if url.password().is_some() {
                return Err(fault("must not contain a password; put the credential in `key`"));
            }
            if !is_ssh_word(url.username()) || !url.host_str().is_some_and(is_ssh_word) {
                return Err(fault("must name a user and a host"));
            }
            RepoUrl::Ssh(text.value.clone())
        }
        _ if is_scp_form(&text.value) => RepoUrl::Ssh(text.value.clone()),
        _ => return Err(fault("must be the address of a repository")),
    };
    Ok(Spanned::new(url, text.at))
}

/// Whether a text has the form `user@host:path`.
fn is_scp_form(text: &str) -> bool {
    let Some((login, path)) = text.split_once(':') else { return false };
    let Some((user, host)) = login.split_once('@') else { return false };
    is_ssh_word(user) && is_ssh_word(host) && !path.is_empty() && !path.starts_with("//")
}

/// Whether ssh parses this user or host as such, and not as an option.
fn is_ssh_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '[')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '[' | ']' | ':'))
}

fn host_alias(path: &str, text: Spanned<String>) -> Result<Spanned<String>, Fault> {
    if is_ssh_word(&text.value) {
        Ok(text)
    } else {
        Err(Fault::new(text.at, format!("`{path}` must be a host name as in `~/.ssh/config`")))
    }
}

fn ref_rules(path: &str, schema: Spanned<RefsSchema>) -> Result<Spanned<RefRules>, Fault> {
    let at = schema.at;
    let RefsSchema { allow, deny, force, delete, tags } = schema.value;
    let globs = |key: &str, globs: Vec<Spanned<String>>| -> Result<Vec<String>, Fault> {
        globs.into_iter().map(|glob| full_ref(&format!("{path}.{key}"), glob)).collect()
    };
    let rules = RefRules {
        allow: allow.map(|allow| globs("allow", allow)).transpose()?,
        deny: globs("deny", deny.unwrap_or_default())?,
        force: force.unwrap_or(false),
        delete: delete.unwrap_or(false),
        tags: tags.unwrap_or(false),
    };
    Ok(Spanned::new(rules, at))
}

fn full_ref(path: &str, glob: Spanned<String>) -> Result<String, Fault> {
    let glob = config_value(path, glob)?;
    if glob.value.starts_with("refs/") && !glob.value.contains(char::is_whitespace) {
        Ok(glob.value)
    } else {
        Err(Fault::new(glob.at, format!("`{path}` must contain globs over full names"))
            .hint("for example `refs/heads/feature/*`"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Position;
    use super::*;

    #[test]
    fn parses_repository_urls() {
        for (text, wanted) in [
            ("ssh://git@host.example:2222/a/b.git", Some("ssh")),
            ("git@host.example:a/b.git", Some("ssh")),
            ("https://host.example/a/b.git", Some("https")),
            ("http://host.example/a/b.git", None),
            ("https://user:pass@host.example/a.git", None),
            ("ssh://-oProxyCommand=x/a", None),
            ("-oProxyCommand=x@host:a", None),
            ("git@-host:a", None),
            ("host.example:a", None),
            ("/srv/git/a.git", None),
            ("file:///srv/a.git", None),
            ("git@host:a\nb", None),
            ("", None),
        ] {
            let read = repo_url("url", Spanned::new(text.to_owned(), Position::START)).ok().map(|url| {
                match url.value {
                    RepoUrl::Ssh(_) => "ssh",
                    RepoUrl::Https(_) => "https",
                }
            });
            assert_eq!(read, wanted, "{text:?}");
        }
    }
}
