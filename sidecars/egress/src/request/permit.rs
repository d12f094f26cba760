//! What a route allows one request to be sent as.

use std::sync::Arc;

use bottle_contract::decide::Allowed;
use bottle_contract::names::HTTP_PORT;
use bottle_contract::route::Route;
use http::header::HOST;
use http::{HeaderMap, HeaderName};

use super::credentials::CredentialRewrite;
use super::head::RequestHead;
use crate::inspect::head::OutgoingHead;
use crate::live;
use crate::report::record::RequestInfo;
use crate::upstream::Target;
use crate::vault::Vault;

/// An allowed request, in the form in which it is sent.
pub(super) struct Permit<'t> {
    pub(super) route: &'t Route,
    /// Canonical, as decided on.
    pub(super) info: Arc<RequestInfo>,
    pub(super) target: Target,
    /// Canonical, without credentials.
    pub(super) query: Option<String>,
    /// Keys of what was stripped from the query.
    pub(super) stripped_keys: Vec<String>,
    pub(super) rewrite: CredentialRewrite,
}

impl<'t> Permit<'t> {
    /// `None`: the route requires a credential that is not bound to this very destination. The decision checked only
    /// that its slot is loaded.
    pub(super) fn new(allowed: Allowed<'t, '_>, head: &RequestHead, vault: &Vault) -> Option<Self> {
        let Allowed { route, host, port, target, .. } = allowed;
        let rewrite = CredentialRewrite::for_route(route, vault)?;
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
        match &self.query {
            Some(query) => format!("{}?{query}", self.info.path),
            None => self.info.path.clone(),
        }
    }

    /// Calls `work` with the head as it is sent. Headers that the proxy strips or replaces are not in it: `Host` is
    /// rewritten from the decided host.
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
