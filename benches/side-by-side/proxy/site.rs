//! Provides the site to which both proxies connect.

use std::sync::Arc;

use anyhow::Result;
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::whole;
use bottle_test_support::server::{Server, handler};
use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::BodyExt;

use crate::HOST;

/// A running site.
pub(crate) struct Site {
    pub(crate) authority: Authority,
    pub(crate) server: Server,
}

/// The beginning of each response, as of a model.
const BEGINNING: &str =
    r#"{"type":"message","model":"m-1","usage":{"input_tokens":300,"output_tokens":200},"text":""#;

/// Starts a site that answers every request with 1 KiB of JSON, as a model does.
pub(crate) fn start() -> Result<Site> {
    let authority = Authority::new("bench site")?;
    let tls = authority.server_config(&[HOST], Leaf::Valid, Alpn::Both)?;
    let json = Bytes::from(format!("{BEGINNING}{}\"}}", "x".repeat(1024 - BEGINNING.len() - 2)));
    let answer = handler(Arc::new(json), |json, request| async move {
        // Reads the complete body, as servers do.
        let mut body = request.into_body();
        while let Some(Ok(_)) = body.frame().await {}
        let mut response = Response::new(whole(Bytes::clone(&json)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Some(response)
    });
    Ok(Site { authority, server: Server::start(0, Some(tls), answer)? })
}
