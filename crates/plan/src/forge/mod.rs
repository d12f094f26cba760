//! Registers and revokes the deploy keys of one launch through a forge's API.
//!
//! ```text
//! generated (memory) ─► intent on disk ─► POST …/keys ─► id on disk ─► used ─► DELETE …/keys/ID ─► removed from disk
//!      [`SshKey`]        `bottle_instance::deploy_keys`     [`Api`]
//! ```
//! Gitea, Forgejo and GitHub use the same path, `/repos/OWNER/NAME/keys`, below different root URLs. Responses are
//! untrusted: their size is limited, and text from them is sanitized before it is shown.

mod answer;
mod https;
mod ssh_key;

pub use https::CallError;
pub use ssh_key::{KeyFault, SshKey};

use std::error::Error;
use std::time::Duration;

use bottle_policy::secret::Secret;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use url::Url;

use https::Answer;

/// The URL of GitHub's public API.
const GITHUB: &str = "https://api.github.com";

/// The maximum number of pages of keys to search. More pages are an error, because no repository has that many keys.
const PAGES: usize = 100;

/// How long to wait before the second search for a key in the forge's list, if the request to create the key received
/// no response.
const LIST_DELAY: Duration = Duration::from_secs(1);

/// The hint for an error of the forge that may be temporary.
const AGAIN: &str = "try again in a moment";

/// The kind of forge API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The API of Gitea and Forgejo.
    Gitea,
    /// The API of GitHub.
    Github,
}

/// The deploy keys of one repository: the API to call, and its URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// The kind of API.
    pub kind: Kind,
    /// The URL of the API, without a trailing slash.
    pub api: String,
    /// The repository, as `OWNER/NAME`.
    pub repository: String,
}

/// The properties of a deploy key that registering, finding or revoking the key needs.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The title that the forge shows.
    pub title: &'a str,
    /// The public half of the key, which is unique.
    pub public: &'a str,
    /// The forge's id of the key, if known.
    pub id: Option<u64>,
}

/// Why a key could not be registered or revoked.
#[derive(Debug, thiserror::Error)]
#[error("{action}")]
pub struct ForgeError {
    /// The action that failed, for example revoking a key, with the key and the repository.
    action: String,
    /// The user's next step.
    pub hint: String,
    /// Why the action failed.
    source: Box<Fault>,
}

impl ForgeError {
    /// Creates the error for a key that could not be revoked.
    #[must_use]
    pub fn still_there(keys: &Keys, key: Named<'_>, cause: Fault) -> Self {
        let id = key.id.map(|id| format!(" (id {id})")).unwrap_or_default();
        Self {
            action: format!("the deploy key \"{}\"{id} of {}", key.title, keys.describe()),
            hint: format!("delete it by hand among the deploy keys of {}", keys.repository),
            source: Box::new(cause),
        }
    }

    /// Whether the forge may have carried out the action although the action reported an error.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        match &*self.source {
            Fault::Local(_) => false,
            Fault::Call(error) => error.is_unsure(),
            Fault::Problem { unsure, .. } => *unsure,
        }
    }
}

/// The cause of a [`ForgeError`].
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The token or the root certificates are missing.
    #[error(transparent)]
    Local(Box<dyn Error + Send + Sync>),
    /// The forge sent no response, or only a part of a response.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The request is invalid, or the response cannot be used.
    #[error("{problem}")]
    Problem {
        /// The problem.
        problem: String,
        /// The user's next step.
        hint: String,
        /// Whether the forge may have carried out the action although its response is an error.
        unsure: bool,
    },
}

impl Fault {
    fn certain(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Problem { problem: problem.into(), hint: hint.into(), unsure: false }
    }

    fn unsure(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Problem { problem: problem.into(), hint: hint.into(), unsure: true }
    }
}

/// The error for a repository URL whose path is not of the form OWNER/NAME. The message is the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("has the path `{0}`, but a forge's repositories have the form OWNER/NAME")]
pub struct NoRepository(String);

impl Keys {
    /// Describes the deploy keys of the repository at `path` on `host`. `api` replaces the default URL of the
    /// API kind.
    ///
    /// # Errors
    /// [`NoRepository`] when the path is not of the form OWNER/NAME.
    pub fn new(kind: Kind, api: Option<&str>, host: &str, path: &str) -> Result<Self, NoRepository> {
        let repository = path.trim_matches('/');
        let repository = repository.strip_suffix(".git").unwrap_or(repository);
        let is_name = |name: &str| {
            // The names become part of a URL, so they may not contain characters that have a meaning in URLs.
            !matches!(name, "" | "." | "..")
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        if !repository.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name)) {
            return Err(NoRepository(path.to_owned()));
        }
        let api = match (api, kind) {
            (Some(api), _) => api.trim_end_matches('/').to_owned(),
            (None, Kind::Github) => GITHUB.to_owned(),
            (None, Kind::Gitea) => format!("https://{host}/api/v1"),
        };
        Ok(Self { kind, api, repository: repository.to_owned() })
    }

    /// Returns the host name of the API, for messages.
    #[must_use]
    pub fn host(&self) -> String {
        let url = Url::parse(&self.api).ok();
        let port = |url: &Url| url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let host = url.and_then(|url| url.host_str().map(|host| format!("{host}{}", port(&url))));
        host.unwrap_or_else(|| self.api.clone())
    }

    fn describe(&self) -> String {
        format!("{} at {}", self.repository, self.host())
    }
}

/// A client that registers and revokes the deploy keys of one repository.
pub struct Api<'a> {
    /// The keys API of the repository.
    pub keys: &'a Keys,
    /// The token that authenticates the calls.
    pub token: &'a Secret,
    /// The trusted root certificates as PEM. If blank, the built-in root certificates are used.
    pub roots: &'a str,
}

impl Api<'_> {
    /// Registers a key and returns its id.
    ///
    /// # Errors
    /// [`ForgeError`]. If it is unknown whether the forge registered the key, [`Api::revoke`] without an id finds the
    /// key.
    pub async fn register(&self, key: Named<'_>, read_only: bool) -> Result<u64, ForgeError> {
        let failed = |cause| ForgeError {
            action: format!("cannot register the deploy key \"{}\" for {}", key.title, self.keys.describe()),
            hint: match &cause {
                Fault::Problem { hint, .. } => hint.clone(),
                Fault::Call(error) if error.is_unsure() => AGAIN.to_owned(),
                Fault::Call(_) | Fault::Local(_) => self.api_hint(),
            },
            source: Box::new(cause),
        };
        let body = serde_json::json!({"title": key.title, "key": key.public, "read_only": read_only});
        let answer = self.call(Method::POST, "", Some(body)).await.map_err(failed)?;
        if answer.status != StatusCode::CREATED {
            return Err(failed(self.refused(&answer)));
        }
        answer::id(&answer.body)
            .ok_or_else(|| failed(Fault::unsure("its response has no id", self.api_hint())))
    }

    /// Revokes a key. Succeeds if the forge does not have the key.
    ///
    /// # Errors
    /// [`ForgeError`]. The key may then still be valid.
    pub async fn revoke(&self, key: Named<'_>) -> Result<(), ForgeError> {
        let failed = |cause| ForgeError::still_there(self.keys, key, cause);
        let id = match key.id {
            Some(id) => Some(id),
            None => self.find_unanswered(key).await.map_err(failed)?,
        };
        let Some(id) = id else { return Ok(()) };
        let answer = self.call(Method::DELETE, &format!("/{id}"), None).await.map_err(failed)?;
        match answer.status {
            StatusCode::NO_CONTENT | StatusCode::OK => Ok(()),
            // A forge sends 404 for a missing key, and also for a token without access. The list of keys distinguishes
            // the two cases.
            StatusCode::NOT_FOUND => match self.find(key.public).await.map_err(failed)? {
                None => Ok(()),
                Some(_) => Err(failed(self.refused(&answer))),
            },
            _ => Err(failed(self.refused(&answer))),
        }
    }

    /// Finds the key that an earlier request may have created without receiving a response. The forge may still be
    /// processing that request.
    async fn find_unanswered(&self, key: Named<'_>) -> Result<Option<u64>, Fault> {
        match self.find(key.public).await? {
            Some(id) => Ok(Some(id)),
            None => {
                tokio::time::sleep(LIST_DELAY).await;
                self.find(key.public).await
            }
        }
    }

    /// Returns the forge's id of the key with this public half; `None` if the forge does not list the key.
    async fn find(&self, public: &str) -> Result<Option<u64>, Fault> {
        let size = match self.keys.kind {
            Kind::Gitea => "limit=50",
            Kind::Github => "per_page=100",
        };
        for page in 1..=PAGES {
            let answer = self.call(Method::GET, &format!("?{size}&page={page}"), None).await?;
            if answer.status != StatusCode::OK {
                return Err(self.refused(&answer));
            }
            let keys = answer::listed(&answer.body)
                .ok_or_else(|| Fault::certain("its response is not a list of keys", self.api_hint()))?;
            if keys.is_empty() {
                return Ok(None);
            }
            if let Some(found) = keys.iter().find(|listed| listed.has_public_half(public)) {
                return Ok(Some(found.id));
            }
        }
        Err(Fault::certain(format!("it has more than {PAGES} pages of keys"), String::new()))
    }

    async fn call(
        &self,
        method: Method,
        rest: &str,
        body: Option<serde_json::Value>,
    ) -> Result<Answer, Fault> {
        let bad_url = || Fault::certain("its address is not a URL", self.api_hint());
        let address = format!("{}/repos/{}/keys{rest}", self.keys.api, self.keys.repository);
        let url = Url::parse(&address).map_err(|_| bad_url())?;
        let request = self.request(method, &url, body)?;
        Ok(https::call(&url, request, self.roots).await?)
    }

    fn request(
        &self,
        method: Method,
        url: &Url,
        body: Option<serde_json::Value>,
    ) -> Result<Request<Full<Bytes>>, Fault> {
        let bad = |problem: &str| Fault::certain(problem, "`token_ref` must resolve to the token alone");
        let (scheme, accept) = match self.keys.kind {
            Kind::Gitea => ("token", "application/json"),
            Kind::Github => ("Bearer", "application/vnd.github+json"),
        };
        let credential = Secret::new(format!("{scheme} {}", self.token.expose()));
        let mut credential = HeaderValue::from_str(credential.expose())
            .map_err(|_| bad("the token has invalid characters"))?;
        credential.set_sensitive(true);
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(&url[url::Position::BeforePath..])
            .header(HOST, &url[url::Position::BeforeHost..url::Position::AfterPort])
            .header(USER_AGENT, concat!("bottle/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, accept)
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, credential);
        let request = match self.keys.kind {
            Kind::Gitea => request,
            Kind::Github => request.header("x-github-api-version", "2022-11-28"),
        };
        request.body(Full::from(body)).map_err(|error| bad(&format!("cannot build a request: {error}")))
    }

    /// Returns the cause and the hint for an error response.
    fn refused(&self, answer: &Answer) -> Fault {
        let Answer { status, headers, body } = answer;
        let code = status.as_u16();
        let detail = answer::error_suffix(body);
        let repository = &self.keys.repository;
        let rights = match self.keys.kind {
            Kind::Gitea => format!(
                "the token needs the scope `write:repository`, and its user must be an admin of {repository}"
            ),
            Kind::Github => format!(
                "a fine-grained token needs `Administration: read and write` for {repository}; a classic one the \
                 scope `repo`, and its user must be an admin there"
            ),
        };
        if let Some(when) = answer::rate_limited(*status, headers) {
            let problem = format!("it limits the rate of requests ({code}){detail}");
            return Fault::certain(problem, format!("try again {when}"));
        }
        match code {
            401 => Fault::certain(
                format!("it does not accept the token ({code}){detail}"),
                "`token_ref` must resolve to a valid token of that forge",
            ),
            403 => Fault::certain(format!("the token may not do that ({code}){detail}"), rights),
            404 => Fault::certain(
                format!("it has no such repository for the token ({code}){detail}"),
                format!("check `url` and `api_url`; {rights}"),
            ),
            422 => Fault::certain(
                format!("it has such a key already, or accepts none ({code}){detail}"),
                format!(
                    "revoke leftover keys with `bottle cleanup`, delete the one of that title among the deploy \
                     keys of {repository}, or choose another --label"
                ),
            ),
            300..=399 => Fault::certain(
                format!("it redirects ({code})"),
                format!("{repository} may have been renamed: fix `url` or `api_url`"),
            ),
            400..=499 => Fault::certain(format!("it answered {code}{detail}"), self.api_hint()),
            // It is unknown whether the forge carried out the action before the failure.
            _ => Fault::unsure(format!("it answered {code}{detail}"), AGAIN),
        }
    }

    fn api_hint(&self) -> String {
        format!("its API is expected at {}; set `api_url` if it is elsewhere", self.keys.api)
    }
}

#[cfg(test)]
mod tests;
