//! Defines the state of the gate, which all requests share, and finds the repository of a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::http::Uri;
use bottle_daemon::Lockout;
use bottle_queue::Questions;
use tokio::sync::Semaphore;

use crate::git::ReservedFds;
use crate::received::DiskSpace;
use crate::repo::Repo;
use crate::search::Searches;

/// The separator between the repository's name and the rest of a request's path.
const SUFFIX: &str = ".git/";

/// The state of the gate after the parent process has sent the repositories.
pub(crate) struct Gate {
    pub(crate) repos: BTreeMap<String, Arc<Repo>>,
    /// Maps the `HOST/PATH` of each upstream to the name of the repository.
    pub(crate) addresses: BTreeMap<String, String>,
    pub(crate) searches: Arc<Searches>,
    pub(crate) fds: Arc<ReservedFds>,
    pub(crate) questions: Questions,
    pub(crate) lockout: Arc<Lockout>,
    /// The time limit for the user to approve a push. `None` if the user cannot approve pushes.
    pub(crate) approval_timeout: Option<Duration>,
    /// The time limit for an upstream to accept a push.
    pub(crate) forward: Duration,
    /// The permits that limit concurrent pushes.
    pub(crate) pushes: Arc<Semaphore>,
    /// The permits that limit concurrent fetches.
    pub(crate) fetches: Arc<Semaphore>,
    /// The permit to unpack and scan a push. There is only one permit, so the gate needs memory for only one push.
    pub(crate) unpacking: Arc<Semaphore>,
    /// The disk space for pushes that are being received or unpacked, or that wait for the user.
    pub(crate) disk_space: DiskSpace,
}

impl Gate {
    /// Returns the repository of a request, and the rest of the request's path. A request identifies the repository by
    /// its name (`/NAME.git/…`), or by the host and path of the upstream. The host and path of the upstream are either
    /// in the request's path (`/HOST/PATH.git/…`) or in an absolute URL as for a proxy (`http://HOST/PATH.git/…`).
    /// After the path of an upstream, `.git` is optional.
    pub(crate) fn repo<'a>(&self, uri: &'a Uri) -> Option<(Arc<Repo>, &'a str)> {
        // The path is not percent-decoded, because no repository path needs encoding.
        let path = uri.path();
        let whole = address(uri);
        let named = self.addresses.iter().filter_map(|(address, name)| {
            let rest = whole.strip_prefix(address)?;
            let rest = rest.strip_prefix(".git").unwrap_or(rest).strip_prefix('/')?;
            Some((address.len(), name.as_str(), &path[path.len() - rest.len()..]))
        });
        let named = named.max_by_key(|(length, ..)| *length).map(|(_, name, rest)| (name, rest));
        let (name, rest) = named.or_else(|| path.strip_prefix('/')?.split_once(SUFFIX))?;
        Some((Arc::clone(self.repos.get(name)?), rest))
    }

    /// Returns the upstream URL of a request for an undeclared repository, if a declared repository is in the same
    /// directory of the upstream. git in the bottle replaces URL prefixes, so it also replaces the URL of a repository
    /// if its name begins with the name of a declared repository.
    pub(crate) fn elsewhere(&self, uri: &Uri) -> Option<String> {
        let whole = address(uri);
        let is_beside = |address: &String| {
            let directory = address.rfind('/').map_or("", |end| &address[..=end]);
            whole.starts_with(directory) && whole.len() > directory.len()
        };
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        self.addresses.keys().any(is_beside).then(|| format!("https://{whole}{query}"))
    }

    /// Returns the message for an unknown repository. The message lists the known repositories.
    pub(crate) fn unknown_repo(&self) -> String {
        let names: Vec<&str> = self.repos.keys().map(String::as_str).collect();
        format!(
            "no such repository; this bottle has: {} (declared by the user under `git-gate.repos`)",
            names.join(", ")
        )
    }
}

/// Returns the `HOST/PATH` of a request. The host and the path are in the request's path, or in an absolute URL as for
/// a proxy.
fn address(uri: &Uri) -> String {
    match uri.authority() {
        Some(authority) => {
            let host = authority.as_str().rsplit('@').next().unwrap_or_default();
            format!("{host}{}", uri.path())
        }
        None => uri.path().trim_start_matches('/').to_owned(),
    }
}
