//! The key `egress` of one layer, which is a bottle manifest before the merge.

use std::fmt;
use std::path::PathBuf;

use bottle_policy::route::{Auth, AuthSource, Form, Route, RouteSpec};
use bottle_protocol::session::bundle::LogLevel;
use serde::{Serialize, Serializer};
use url::Url;

use super::Spanned;
use super::error::Fault;
use super::host_path;
use super::schema::EgressSchema;
use super::secret_ref::{BadSecretRef, SecretRef, is_variable};

/// The key `egress` of one layer. An absent field inherits its value from earlier layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressLayer {
    /// The key `egress.log`.
    pub log: Option<Spanned<LogLevel>>,
    /// The key `egress.routes`, in order. Every `token_ref` is in canonical form.
    pub routes: Vec<Spanned<Route>>,
    /// The key `egress.ca_bundle`: a path in the form that [`host_path::on_host`] returns.
    pub ca_bundle: Option<Spanned<PathBuf>>,
    /// The key `egress.upstream_proxy`.
    pub upstream_proxy: Option<Spanned<UpstreamProxy>>,
}

impl EgressLayer {
    pub(super) fn from_schema(schema: EgressSchema) -> Result<Self, Fault> {
        let EgressSchema { log, routes, ca_bundle, upstream_proxy } = schema;
        Ok(Self {
            log: log.map(log_level).transpose()?,
            routes: routes.unwrap_or_default().into_iter().map(route).collect::<Result<_, _>>()?,
            ca_bundle: ca_bundle.map(bundle_path).transpose()?,
            upstream_proxy: upstream_proxy.map(proxy_address).transpose()?,
        })
    }
}

fn log_level(level: Spanned<u64>) -> Result<Spanned<LogLevel>, Fault> {
    let at = level.at;
    level.try_map(|level| match level {
        0 => Ok(LogLevel::Off),
        1 => Ok(LogLevel::Blocks),
        2 => Ok(LogLevel::Full),
        _ => Err(Fault::new(at, "`egress.log` must be 0 (off), 1 (blocks) or 2 (full)")),
    })
}

fn route(spec: Spanned<RouteSpec>) -> Result<Spanned<Route>, Fault> {
    let at = spec.at;
    let mut route = spec
        .value
        .check(Form::Manifest)
        .map_err(|error| Fault::new(error.at.unwrap_or(at), error.to_string()))?;
    if let Some(Auth { source: AuthSource::Reference(text), .. }) = &mut route.auth {
        let reference: SecretRef = text.parse().map_err(|error: BadSecretRef| {
            Fault::new(at, format!("route `{}`, `auth.token_ref` {error}", route.host))
        })?;
        *text = reference.to_string();
    }
    Ok(Spanned::new(route, at))
}

fn bundle_path(text: Spanned<String>) -> Result<Spanned<PathBuf>, Fault> {
    let at = text.at;
    text.try_map(|text| host_path::on_host(&text))
        .map_err(|error| Fault::new(at, format!("`egress.ca_bundle` {error}")))
}

/// The corporate proxy through which the egress proxy connects to upstreams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamProxy {
    /// An `http://` URL without a password.
    Url(String),
    /// `$NAME`: the host variable that contains the URL. The URL is a secret, because it may contain a
    /// password.
    Variable(String),
}

fn proxy_address(text: Spanned<String>) -> Result<Spanned<UpstreamProxy>, Fault> {
    let fault = |message: &str| Fault::new(text.at, format!("`egress.upstream_proxy` {message}"));
    let example = "for example `http://proxy.corp.example:3128`, or `$NAME` for a host variable with the URL";
    if let Some(rest) = text.value.strip_prefix('$') {
        let name = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(rest);
        return if is_variable(name) {
            Ok(Spanned::new(UpstreamProxy::Variable(name.to_owned()), text.at))
        } else {
            Err(fault("begins with `$` but is not one host variable").hint(example))
        };
    }
    let url = Url::parse(&text.value).map_err(|_| fault("must be a URL").hint(example))?;
    if url.scheme() != "http" || url.host_str().is_none_or(str::is_empty) {
        return Err(fault("must be an `http://` URL with a host").hint(example));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(fault("must not contain a user or password")
            .hint("write `$NAME` and put the whole URL into that host variable"));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(fault("must end after the port").hint(example));
    }
    Ok(Spanned::new(UpstreamProxy::Url(text.value.clone()), text.at))
}

impl fmt::Display for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Variable(name) => write!(f, "${name}"),
        }
    }
}

impl Serialize for UpstreamProxy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
