//! `git-gate.repos.<name>.key`: the source of the credential for a repository's upstream.

use std::path::PathBuf;

use serde::Serialize;
use url::Url;

use super::agent_provider::secret;
use super::error::Fault;
use super::host_path;
use super::schema::{KeyProviderSchema, KeySchema};
use super::secret_ref::SecretRef;
use super::{Position, Spanned};

/// The source of the credential for a repository's upstream. Serialised as in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "provider")]
pub enum KeySource {
    /// A private key file on the host. Its path has the form that [`host_path::on_host`] returns.
    Static {
        /// The path of the private key file.
        path: PathBuf,
    },
    /// A deploy key created at launch through Gitea's or Forgejo's API.
    Gitea(DeployKey),
    /// A deploy key created at launch through GitHub's API.
    Github(DeployKey),
    /// A token, for an `https` upstream.
    Token {
        /// The reference to the token.
        token_ref: SecretRef,
    },
}

/// How a deploy key is requested from a git forge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeployKey {
    /// The URL of the forge's API, if it differs from the forge's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_url: Option<String>,
    /// The reference to the token for the forge's API.
    pub token_ref: SecretRef,
    /// Whether the deploy key allows only fetches.
    pub read_only: bool,
}

impl KeySource {
    pub(super) fn from_schema(path: &str, schema: Spanned<KeySchema>) -> Result<Spanned<Self>, Fault> {
        let at = schema.at;
        let key = Key { path, at, word: word(schema.value.provider) };
        key.refuse_unused_fields(&schema.value)?;
        let KeySchema { provider, path, api_url, token_ref, read_only } = schema.value;
        let deploy_key = |token_ref| -> Result<DeployKey, Fault> {
            Ok(DeployKey {
                token_ref: key.token(token_ref)?,
                api_url: api_url.map(|url| key.api_url(url)).transpose()?,
                read_only: read_only.is_some_and(|flag| flag.value),
            })
        };
        let source = match provider {
            KeyProviderSchema::Static => Self::Static { path: key.file(path)? },
            KeyProviderSchema::Token => Self::Token { token_ref: key.token(token_ref)? },
            KeyProviderSchema::Gitea => Self::Gitea(deploy_key(token_ref)?),
            KeyProviderSchema::Github => Self::Github(deploy_key(token_ref)?),
        };
        Ok(Spanned::new(source, at))
    }
}

fn word(provider: KeyProviderSchema) -> &'static str {
    match provider {
        KeyProviderSchema::Static => "static",
        KeyProviderSchema::Gitea => "gitea",
        KeyProviderSchema::Github => "github",
        KeyProviderSchema::Token => "token",
    }
}

/// The manifest key that is being parsed, with its path for error messages.
struct Key<'a> {
    path: &'a str,
    at: Position,
    word: &'static str,
}

impl Key<'_> {
    /// Refuses fields that the key's provider does not use.
    fn refuse_unused_fields(&self, schema: &KeySchema) -> Result<(), Fault> {
        let file = schema.provider == KeyProviderSchema::Static;
        let forge = matches!(schema.provider, KeyProviderSchema::Gitea | KeyProviderSchema::Github);
        let fields = [
            ("path", schema.path.as_ref().map(|value| value.at), file),
            ("token_ref", schema.token_ref.as_ref().map(|value| value.at), !file),
            ("api_url", schema.api_url.as_ref().map(|value| value.at), forge),
            ("read_only", schema.read_only.as_ref().map(|value| value.at), forge),
        ];
        match fields.into_iter().find_map(|(key, at, used)| at.filter(|_| !used).map(|at| (key, at))) {
            Some((key, at)) => {
                let (path, word) = (self.path, self.word);
                Err(Fault::new(at, format!("`{path}.{key}` has no meaning for the provider `{word}`")))
            }
            None => Ok(()),
        }
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, Fault> {
        value.ok_or_else(|| {
            let (path, word) = (self.path, self.word);
            Fault::new(self.at, format!("`{path}` lacks the key `{key}`, which the provider `{word}` needs"))
        })
    }

    fn file(&self, text: Option<Spanned<String>>) -> Result<PathBuf, Fault> {
        let text = self.required("path", text)?;
        host_path::on_host(&text.value)
            .map_err(|error| Fault::new(text.at, format!("`{}.path` {error}", self.path)))
    }

    fn token(&self, text: Option<Spanned<String>>) -> Result<SecretRef, Fault> {
        let text = self.required("token_ref", text)?;
        Ok(secret(&format!("{}.token_ref", self.path), text)?.value)
    }

    fn api_url(&self, text: Spanned<String>) -> Result<String, Fault> {
        let is_plain = |url: &Url| url.username().is_empty() && url.password().is_none();
        match Url::parse(&text.value) {
            Ok(url) if url.scheme() == "https" && is_plain(&url) => Ok(text.value),
            _ => {
                let message =
                    format!("`{}.api_url` must be an `https://` URL without user and password", self.path);
                Err(Fault::new(text.at, message))
            }
        }
    }
}
