//! Checks who may use the web dashboard.
//!
//! ```text
//! request ─► Host ─► style and script ─► answered
//!              └───► one-time link ─────► a cookie, once
//!              └───► cookie ─► site ─► (POST: Origin, token) ─► page
//! ```
//! The server listens on the loopback interface, which every user and every web page on this machine can reach.
//! - `Host` must be the server's address, so that a page cannot reach the server by another name (DNS rebinding).
//! - The link works once. The response to the link sets a cookie that no script can read. All pages are below a
//!   directory with a random name, and the cookie is valid for this directory only. Browsers send cookies to every port
//!   of a host, but no other server has this directory.
//! - `Sec-Fetch-Site` keeps other sites from loading a page. `Origin` and a token in each form keep other sites from
//!   submitting a form.

use std::sync::Mutex;
use std::sync::PoisonError;

use http::header::{COOKIE, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method};
use sha2::{Digest, Sha256};

use super::assets::{SCRIPT, STYLE};

/// The number of random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// The number of random bytes in the name of the directory.
const DIRECTORY_BYTES: usize = 16;

/// The directory in the path of the one-time link.
const LINK: &str = "/open/";

/// The header that says which site a request comes from. Pages cannot set it in a browser.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The header with which a browser says that it loads a page before the user opens the page (prefetch).
const SEC_PURPOSE: HeaderName = HeaderName::from_static("sec-purpose");

/// The server's address and its secrets.
pub(super) struct Access {
    /// The address and port, in the form that browsers use.
    authority: String,
    /// The directory of all pages, with slashes at both ends.
    directory: String,
    cookie: String,
    token: String,
    /// The key of the one-time link. `None` after the link was used.
    key: Mutex<Option<String>>,
}

/// What a request gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// The request gets a file that contains no data of the user.
    Asset,
    /// The request used the one-time link, and gets the cookie.
    Opened,
    /// The request gets the page at this path below the directory.
    Page(String),
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request names another host.
    WrongHost,
    /// The link was used before, or belongs to another dashboard.
    UsedLink,
    /// A browser prefetches the link before the user opens the link.
    Prefetch,
    /// The request has no cookie, or the cookie of another dashboard.
    NoCookie,
    /// Another site sent the request.
    OtherSite,
    /// The form has no token, or the token of another dashboard.
    BadToken,
    /// The method is neither GET, HEAD nor POST.
    BadMethod,
}

impl Access {
    pub(super) fn new(authority: String) -> Self {
        let secret = || hex::encode(rand::random::<[u8; SECRET_BYTES]>());
        Self {
            authority,
            directory: format!("/{}/", hex::encode(rand::random::<[u8; DIRECTORY_BYTES]>())),
            cookie: secret(),
            token: secret(),
            key: Mutex::new(Some(secret())),
        }
    }

    /// Returns the directory of all pages, with slashes at both ends.
    pub(super) fn directory(&self) -> &str {
        &self.directory
    }

    /// Returns the token that each form contains.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Returns the one-time link. Returns `None` after the link was used.
    pub(super) fn link(&self) -> Option<String> {
        let key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        key.as_ref().map(|key| format!("http://{}{LINK}{key}", self.authority))
    }

    /// Returns the value of the header `Set-Cookie` that sets the cookie.
    pub(super) fn set_cookie(&self) -> String {
        format!("{}={}; Path={}; HttpOnly; SameSite=Strict", self.cookie_name(), self.cookie, self.directory)
    }

    /// Returns the name of the cookie. The port is a part of the name, so that two dashboards do not replace each
    /// other's cookies.
    fn cookie_name(&self) -> String {
        format!("bottle-{}", self.authority.rsplit(':').next().unwrap_or_default())
    }

    /// Checks a request, except for the token of a form, which is in the request body.
    ///
    /// # Errors
    /// Returns why the request is refused.
    pub(super) fn check(&self, request: &Parts) -> Result<Entry, Refusal> {
        if only(&request.headers, &HOST) != Some(self.authority.as_str()) {
            return Err(Refusal::WrongHost);
        }
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        if !reads && request.method != Method::POST {
            return Err(Refusal::BadMethod);
        }
        let path = request.uri.path();
        if reads && matches!(path, STYLE | SCRIPT) {
            return Ok(Entry::Asset);
        }
        if let Some(key) = path.strip_prefix(LINK) {
            return self.open(key, request);
        }
        let Some(page) = path.strip_prefix(self.directory.as_str()) else { return Err(Refusal::NoCookie) };
        if !self.has_cookie(&request.headers) {
            return Err(Refusal::NoCookie);
        }
        // Another port of this host is the same site for cookies, but not the same origin.
        match only(&request.headers, &SEC_FETCH_SITE) {
            None if !request.headers.contains_key(SEC_FETCH_SITE) => {}
            Some("same-origin" | "none") => {}
            _ => return Err(Refusal::OtherSite),
        }
        let origin = format!("http://{}", self.authority);
        if !reads && only(&request.headers, &ORIGIN) != Some(origin.as_str()) {
            return Err(Refusal::OtherSite);
        }
        Ok(Entry::Page(page.to_owned()))
    }

    /// Checks the token of a form.
    ///
    /// # Errors
    /// Returns [`Refusal::BadToken`] if the token is not the token of this dashboard.
    pub(super) fn check_token(&self, token: Option<&str>) -> Result<(), Refusal> {
        let is_right = token.is_some_and(|token| same(token, &self.token));
        if is_right { Ok(()) } else { Err(Refusal::BadToken) }
    }

    fn open(&self, key: &str, request: &Parts) -> Result<Entry, Refusal> {
        if request.headers.contains_key(SEC_PURPOSE) || request.method != Method::GET {
            return Err(Refusal::Prefetch);
        }
        let mut unused = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        let opens = unused.take_if(|unused| same(key, unused)).is_some();
        if opens { Ok(Entry::Opened) } else { Err(Refusal::UsedLink) }
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie_name();
        let pairs = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        pairs
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .any(|(found, value)| found == name && same(value, &self.cookie))
    }
}

/// Returns the value of a header that a request contains exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// Whether two secrets are equal. The comparison uses digests, so its duration does not reveal how many bytes of the
/// secret are equal.
fn same(given: &str, secret: &str) -> bool {
    Sha256::digest(given) == Sha256::digest(secret)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const HERE: &str = "127.0.0.1:4000";

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    /// Returns the cookie in the form that a browser sends.
    fn cookie(access: &Access) -> String {
        access.set_cookie().split(';').next().unwrap_or_default().to_owned()
    }

    #[test]
    fn the_link_opens_once() {
        let access = Access::new(HERE.to_owned());
        let link = access.link().expect("a link");
        let path = link.strip_prefix("http://127.0.0.1:4000").expect("this server").to_owned();
        let host = [("host", HERE)];
        assert_eq!(access.check(&request("GET", "/open/", &host)), Err(Refusal::UsedLink));
        assert_eq!(access.check(&request("GET", "/open/00", &host)), Err(Refusal::UsedLink));
        let early = [("host", HERE), ("sec-purpose", "prefetch")];
        assert_eq!(access.check(&request("GET", &path, &early)), Err(Refusal::Prefetch));
        assert_eq!(access.check(&request("HEAD", &path, &host)), Err(Refusal::Prefetch));
        assert_eq!(
            access.check(&request("GET", &path, &[("host", "evil.example")])),
            Err(Refusal::WrongHost)
        );
        assert_eq!(access.check(&request("GET", &path, &host)), Ok(Entry::Opened));
        assert_eq!(access.check(&request("GET", &path, &host)), Err(Refusal::UsedLink));
        assert_eq!(access.link(), None);
    }

    #[test]
    fn every_page_needs_the_cookie_and_the_same_site() {
        let access = Access::new(HERE.to_owned());
        let other = Access::new(HERE.to_owned());
        let (own, foreign) = (cookie(&access), cookie(&other));
        let page = format!("{}usage", access.directory());
        let origin = format!("http://{HERE}");
        let refused = |method: &str, path: &str, headers: &[(&str, &str)]| {
            access.check(&request(method, path, headers)).expect_err("refused")
        };
        let host = ("host", HERE);
        let with = ("cookie", own.as_str());
        let site = |site| ("sec-fetch-site", site);
        for headers in [
            &[host, with][..],
            &[host, with, site("none")],
            &[host, with, site("same-origin")],
            &[host, ("cookie", &format!("a=b; {own}; c"))],
            &[host, ("cookie", &foreign), with],
        ] {
            assert_eq!(
                access.check(&request("GET", &page, headers)),
                Ok(Entry::Page("usage".to_owned())),
                "{headers:?}"
            );
        }
        for (headers, why) in [
            (&[host][..], Refusal::NoCookie),
            (&[host, ("cookie", &foreign)], Refusal::NoCookie),
            (&[host, ("cookie", "bottle-4000=")], Refusal::NoCookie),
            (&[host, with, site("same-site")], Refusal::OtherSite),
            (&[host, with, site("cross-site")], Refusal::OtherSite),
            (&[host, with, site("none"), site("none")], Refusal::OtherSite),
            (&[with], Refusal::WrongHost),
            (&[("host", "localhost:4000"), with], Refusal::WrongHost),
            (&[("host", "127.0.0.1"), with], Refusal::WrongHost),
            (&[host, host, with], Refusal::WrongHost),
        ] {
            assert_eq!(refused("GET", &page, headers), why, "{headers:?}");
        }
        assert_eq!(refused("GET", "/", &[host, with]), Refusal::NoCookie);
        assert_eq!(refused("GET", &format!("{}usage", other.directory()), &[host, with]), Refusal::NoCookie);
        assert_eq!(refused("PUT", &page, &[host, with]), Refusal::BadMethod);
        for (origin, allowed) in [
            (Some(origin.as_str()), true),
            (None, false),
            (Some("null"), false),
            (Some("http://127.0.0.1:4001"), false),
            (Some("https://127.0.0.1:4000"), false),
            (Some("https://evil.example"), false),
        ] {
            let mut headers = vec![host, with];
            headers.extend(origin.map(|origin| ("origin", origin)));
            assert_eq!(access.check(&request("POST", &page, &headers)).is_ok(), allowed, "{origin:?}");
        }
        assert_eq!(access.check(&request("GET", STYLE, &[host])), Ok(Entry::Asset));
        assert_eq!(access.check_token(Some(access.token())), Ok(()));
        for token in [None, Some(""), Some(other.token())] {
            assert_eq!(access.check_token(token), Err(Refusal::BadToken));
        }
    }
}
