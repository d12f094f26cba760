//! Remembers the links to which allowed hosts redirected.
//!
//! Such a link often contains a signed token that lets the client download one file, for example a release. The host
//! itself created the token, so the token is not a finding when the client follows the link.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bottle_policy::canonical;
use http::header::LOCATION;
use http::uri::Scheme;
use http::{Response, Uri};
use sha2::{Digest, Sha256};

use super::permit::Permit;
use crate::report::record::RequestInfo;

/// The most links that are remembered. Further links replace the oldest links.
const MAX_LINKS: usize = 1024;
/// The longest link that is remembered, in bytes.
const MAX_LENGTH: usize = 16 << 10;

/// The hashes of host, port, path and query of the links, oldest first.
#[derive(Default)]
pub(crate) struct IssuedLinks(Mutex<VecDeque<[u8; 32]>>);

impl IssuedLinks {
    /// Remembers the target of a redirect in the response to the request `info`.
    pub(super) fn remember<B>(&self, info: &RequestInfo, response: &Response<B>) {
        if !response.status().is_redirection() {
            return;
        }
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let Some(link) =
            location.filter(|text| text.len() <= MAX_LENGTH).and_then(|text| hash_of(text, info))
        else {
            return;
        };
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if links.contains(&link) {
            return;
        }
        if links.len() >= MAX_LINKS {
            links.pop_front();
        }
        links.push_back(link);
    }

    /// Whether an allowed host redirected to exactly this request.
    pub(super) fn contains(&self, permit: &Permit<'_>) -> bool {
        let link = hash(permit.host(), permit.info.port, &permit.path_and_query());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&link)
    }
}

/// Returns the hash of a link. A link that begins with one slash belongs to the host of the request `info`. Other
/// relative links are not remembered.
fn hash_of(location: &str, info: &RequestInfo) -> Option<[u8; 32]> {
    // Clients do not send the fragment of a link.
    let location = location.split('#').next().unwrap_or_default();
    if location.starts_with("//") {
        return None;
    }
    let uri: Uri = location.parse().ok()?;
    let path_and_query = canonical::target(uri.path_and_query()?.as_str()).to_forward();
    match (uri.scheme(), uri.host()) {
        (Some(scheme), Some(host)) => {
            let default = if *scheme == Scheme::HTTPS { 443 } else { 80 };
            let host = host.to_ascii_lowercase();
            Some(hash(&host, uri.port_u16().unwrap_or(default), &path_and_query))
        }
        (None, None) => Some(hash(&info.host, info.port, &path_and_query)),
        _ => None,
    }
}

fn hash(host: &str, port: u16, path_and_query: &str) -> [u8; 32] {
    let hash = Sha256::new().chain_update(host).chain_update([0]).chain_update(port.to_be_bytes());
    hash.chain_update(path_and_query).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_a_bounded_number_of_redirects() {
        let links = IssuedLinks::default();
        let info = RequestInfo { host: "a.example".into(), port: 443, ..RequestInfo::default() };
        let respond = |status: u16, location: &str| {
            let response = Response::builder().status(status).header(LOCATION, location).body(());
            links.remember(&info, &response.expect("response"));
            links.0.lock().expect("links").len()
        };
        assert_eq!(respond(200, "https://b.example/x?a=1"), 0);
        assert_eq!(respond(302, "https://b.example/x?a=1#part"), 1);
        assert_eq!(respond(307, "https://B.example:443/x?a=1"), 1);
        assert_eq!(respond(303, "/y?a=1"), 2);
        assert_eq!(respond(302, "//b.example/x"), 2);
        assert!(links.0.lock().expect("links").contains(&hash("a.example", 443, "/y?a=1")));
        for number in 0..2 * MAX_LINKS {
            respond(302, &format!("/{number}"));
        }
        assert_eq!(respond(302, "/last"), MAX_LINKS);
    }
}
