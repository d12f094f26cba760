//! Deploy keys: what a forge is asked so that one launch has a key of its own, and nobody has it after.
//!
//! ```text
//! drawn (memory) ─► intent on disk ─► POST …/keys ─► id on disk ─► used ─► DELETE …/keys/ID ─► off the disk
//!    [`SshKey`]      [`crate::instance::deploy_keys`]     [`Api`]
//! ```
//! The routes are those of Gitea's and Forgejo's API and of GitHub's, which are the same but for their frame:
//! `/repos/OWNER/NAME/keys`. The forge's answers are read as anything from outside is: bounded, never trusted,
//! and shown inert.

mod answer;
mod https;
mod key;

pub use key::SshKey;

use std::time::Duration;

use bottle_contract::secret::Secret;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use url::Url;

use https::{Answer, CallError};

/// GitHub's public API.
const GITHUB: &str = "https://api.github.com";

/// Pages of keys that are looked through for one: more keys than any repository has.
const PAGES: usize = 100;

/// How long a key that was asked for, and not answered, may take to show.
const SHOWS_WITHIN: Duration = Duration::from_secs(1);

/// Whose API it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Gitea's, which is Forgejo's too.
    Gitea,
    /// GitHub's.
    Github,
}

/// Where the deploy keys of one repository are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// Whose API it is.
    pub kind: Kind,
    /// Where it is, without a slash at its end.
    pub api: String,
    /// `OWNER/NAME`.
    pub repository: String,
}

/// What a key is known by.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// What the forge shows of it.
    pub title: &'a str,
    /// Its public half: no other key has it, whatever its title is.
    pub public: &'a str,
    /// What the forge calls it, where that is known.
    pub id: Option<u64>,
}

/// Why a key was not registered, or not revoked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ForgeError {
    /// What was not done, with which key of which repository, and why.
    pub message: String,
    /// What the user does next.
    pub hint: String,
    /// Whether it may have been done all the same.
    pub unsure: bool,
}

/// A repository's address from which its name on the forge cannot be told; the rest of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("has the path `{0}`, and a forge's repositories are called OWNER/NAME")]
pub struct NoRepository(String);

impl Keys {
    /// Those of the repository with the path `path` on `host`; the API is where `api` says, else where a forge
    /// of that kind has it.
    ///
    /// # Errors
    /// [`NoRepository`].
    pub fn of(kind: Kind, api: Option<&str>, host: &str, path: &str) -> Result<Self, NoRepository> {
        let repository = path.trim_matches('/');
        let repository = repository.strip_suffix(".git").unwrap_or(repository);
        let is_name = |name: &str| {
            // Nothing that means another place in a URL.
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

    /// The host of the API, for people.
    #[must_use]
    pub fn host(&self) -> String {
        let url = Url::parse(&self.api).ok();
        let port = |url: &Url| url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let host = url.and_then(|url| url.host_str().map(|host| format!("{host}{}", port(&url))));
        host.unwrap_or_else(|| self.api.clone())
    }

    fn place(&self) -> String {
        format!("{} at {}", self.repository, self.host())
    }
}

/// The API of one repository's keys, with what opens it.
pub struct Api<'a> {
    /// Where.
    pub keys: &'a Keys,
    /// The token.
    pub token: &'a Secret,
    /// Trusted roots, PEM; blank means those compiled in.
    pub roots: &'a str,
}

impl Api<'_> {
    /// Registers a key; the answer is what the forge calls it.
    ///
    /// # Errors
    /// [`ForgeError`]; where it is unsure, [`Api::revoke`] without an id finds what was made.
    pub async fn register(&self, key: Named<'_>, read_only: bool) -> Result<u64, ForgeError> {
        let failed = |(why, hint, unsure): (String, String, bool)| ForgeError {
            message: format!(
                "cannot register the deploy key \"{}\" for {}: {why}",
                key.title,
                self.keys.place()
            ),
            hint,
            unsure,
        };
        let body = serde_json::json!({"title": key.title, "key": key.public, "read_only": read_only});
        let answer = self.call(Method::POST, "", Some(body)).await.map_err(failed)?;
        if answer.status != StatusCode::CREATED {
            return Err(failed(self.refused(&answer)));
        }
        answer::id(&answer.body)
            .ok_or_else(|| failed(("its answer names no id".to_owned(), self.is_it_the_api(), true)))
    }

    /// Revokes a key; one that is gone already is no error.
    ///
    /// # Errors
    /// [`ForgeError`]; it may still open the repository then.
    pub async fn revoke(&self, key: Named<'_>) -> Result<(), ForgeError> {
        let failed = |(why, _, unsure): (String, String, bool)| still_there(self.keys, key, &why, unsure);
        let id = match key.id {
            Some(id) => Some(id),
            None => self.find_asked_for(key).await.map_err(failed)?,
        };
        let Some(id) = id else { return Ok(()) };
        let answer = self.call(Method::DELETE, &format!("/{id}"), None).await.map_err(failed)?;
        match answer.status {
            StatusCode::NO_CONTENT | StatusCode::OK => Ok(()),
            // A forge also says so to a token that may not see it: the list tells the two apart.
            StatusCode::NOT_FOUND => match self.find(key.public).await.map_err(failed)? {
                None => Ok(()),
                Some(_) => Err(failed(self.refused(&answer))),
            },
            _ => Err(failed(self.refused(&answer))),
        }
    }

    /// A key that was asked for and of which nothing was heard: the forge may still be at it.
    async fn find_asked_for(&self, key: Named<'_>) -> Result<Option<u64>, Why> {
        match self.find(key.public).await? {
            Some(id) => Ok(Some(id)),
            None => {
                tokio::time::sleep(SHOWS_WITHIN).await;
                self.find(key.public).await
            }
        }
    }

    /// What the forge calls the key with this public half.
    async fn find(&self, public: &str) -> Result<Option<u64>, Why> {
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
                .ok_or_else(|| ("its answer is no list of keys".to_owned(), self.is_it_the_api(), false))?;
            if keys.is_empty() {
                return Ok(None);
            }
            if let Some(found) = keys.iter().find(|listed| listed.is(public)) {
                return Ok(Some(found.id));
            }
        }
        Err((format!("it has more than {PAGES} pages of keys"), String::new(), false))
    }

    async fn call(&self, method: Method, rest: &str, body: Option<serde_json::Value>) -> Result<Answer, Why> {
        let no_address = || ("its address is no URL".to_owned(), self.is_it_the_api(), false);
        let address = format!("{}/repos/{}/keys{rest}", self.keys.api, self.keys.repository);
        let url = Url::parse(&address).map_err(|_| no_address())?;
        let request = self
            .request(method, &url, body)
            .map_err(|why| (why, "`token_ref` has to lead to the token alone".to_owned(), false))?;
        https::call(&url, request, self.roots).await.map_err(|error| match error {
            CallError::NotAsked(why) => (why, self.is_it_the_api(), false),
            CallError::NotAnswered(why) => (why, "try again in a moment".to_owned(), true),
        })
    }

    fn request(
        &self,
        method: Method,
        url: &Url,
        body: Option<serde_json::Value>,
    ) -> Result<Request<Full<Bytes>>, String> {
        let (scheme, accept) = match self.keys.kind {
            Kind::Gitea => ("token", "application/json"),
            Kind::Github => ("Bearer", "application/vnd.github+json"),
        };
        let credential = Secret::new(format!("{scheme} {}", self.token.expose()));
        let mut credential = HeaderValue::from_str(credential.expose())
            .map_err(|_| "the token has characters that no token has".to_owned())?;
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
        request.body(Full::from(body)).map_err(|error| format!("no request can be made of it: {error}"))
    }

    /// Why the forge did not do it, in words, and what to do.
    fn refused(&self, answer: &Answer) -> Why {
        let Answer { status, headers, body } = answer;
        let code = status.as_u16();
        let said = answer::said(body);
        let repository = &self.keys.repository;
        let rights = match self.keys.kind {
            Kind::Gitea => format!(
                "the token needs the scope `write:repository`, and its user has to be an admin of {repository}"
            ),
            Kind::Github => format!(
                "a fine-grained token needs `Administration: read and write` for {repository}; a classic one the \
                 scope `repo`, and its user has to be an admin there"
            ),
        };
        if let Some(when) = answer::rate_limited(*status, headers) {
            return (format!("too much is asked of it ({code}){said}"), format!("try again {when}"), false);
        }
        match code {
            401 => (
                format!("it does not accept the token ({code}){said}"),
                "`token_ref` has to lead to a token of that forge that has not expired".to_owned(),
                false,
            ),
            403 => (format!("the token may not do that ({code}){said}"), rights, false),
            404 => (
                format!("it shows the token no such repository ({code}){said}"),
                format!("look at `url` and `api_url`; {rights}"),
                false,
            ),
            422 => (
                format!("there is such a key already, or it takes none ({code}){said}"),
                format!(
                    "`bottle cleanup` revokes what a bottle left; else delete the one of that title among the deploy \
                     keys of {repository}, or choose another --label"
                ),
                false,
            ),
            300..=399 => (
                format!("it leads elsewhere ({code})"),
                format!("{repository} may be called otherwise by now: mend `url`, or `api_url`"),
                false,
            ),
            400..=499 => (format!("it answered {code}{said}"), self.is_it_the_api(), false),
            // What it did before it failed is not known.
            _ => (format!("it answered {code}{said}"), "try again in a moment".to_owned(), true),
        }
    }

    fn is_it_the_api(&self) -> String {
        format!("its API is taken to be at {}; `api_url` says otherwise", self.keys.api)
    }
}

/// Why, what to do, and whether it may have been done all the same.
type Why = (String, String, bool);

/// A key that could not be revoked.
#[must_use]
pub fn still_there(keys: &Keys, key: Named<'_>, why: &str, unsure: bool) -> ForgeError {
    let id = key.id.map(|id| format!(" (id {id})")).unwrap_or_default();
    ForgeError {
        message: format!("the deploy key \"{}\"{id} of {}: {why}", key.title, keys.place()),
        hint: format!("by hand it is deleted among the deploy keys of {}", keys.repository),
        unsure,
    }
}

#[cfg(test)]
mod tests;
