//! The permission for one request, and the form in which the request is sent.

use std::sync::Arc;

use bottle_policy::decide::Allowed;
use bottle_policy::names::HTTP_PORT;
use bottle_policy::route::Route;
use http::header::HOST;
use http::{HeaderMap, HeaderName};

use super::credentials::CredentialRewrite;
use super::head::RequestHead;
use crate::credential_store::CredentialStore;
use crate::inspect::head::OutgoingHead;
use crate::live;
use crate::report::record::RequestInfo;
use crate::upstream::Target;

/// An allowed request in the form in which it is sent.
pub(super) struct Permit<'t> {
    pub(super) route: &'t Route,
    /// The facts for reports, in canonical form as the policy decided on them.
    pub(super) info: Arc<RequestInfo>,
    pub(super) target: Target,
    /// The query in canonical form, without credentials.
    pub(super) query: Option<String>,
    /// The keys that were stripped from the query.
    pub(super) stripped_keys: Vec<String>,
    pub(super) rewrite: CredentialRewrite,
}

impl<'t> Permit<'t> {
    /// Returns `None` if the route's credential has no value for exactly this host, scheme and header. The policy has
    /// only checked that the credential has a value for at least one destination.
    pub(super) fn new(
        allowed: Allowed<'t, '_>,
        head: &RequestHead,
        credential_store: &CredentialStore,
    ) -> Option<Self> {
        let Allowed { route, host, port, target, .. } = allowed;
        let rewrite = CredentialRewrite::for_route(route, credential_store)?;
        Some(Self {
            target: live::target(route, &host, port, port != HTTP_PORT),
            query: target.query.as_deref().map(|query| rewrite.query(query)),
            stripped_keys: rewrite.stripped_keys(target.query.as_deref().unwrap_or_default()),
            info: Arc::new(RequestInfo {
                host: host.into_owned(),
                port,
                method: head.method().as_str().to_owned(),
                path: target.path.text.into_owned(),
            }),
            rewrite,
            route,
        })
    }

    pub(super) fn host(&self) -> &str {
        &self.info.host
    }

    pub(super) fn path_and_query(&self) -> String {
        self.path_and_query_at(&self.info.path)
    }

    /// Returns `path` followed by the query.
    pub(super) fn path_and_query_at(&self, path: &str) -> String {
        match &self.query {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        }
    }

    /// Calls `work` with the head as it is sent. The head excludes headers that the proxy strips or replaces. `Host` is
    /// also excluded, because the proxy sets it from the host that it decided on.
    pub(super) fn with_outgoing_head<T>(
        &self,
        headers: &HeaderMap,
        work: impl FnOnce(&OutgoingHead<'_>) -> T,
    ) -> T {
        work(&OutgoingHead {
            host: self.host(),
            path: &self.info.path,
            query: self.query.as_deref(),
            headers,
            is_sent: &|name: &HeaderName| name != HOST && self.rewrite.forwards(name),
        })
    }
}
