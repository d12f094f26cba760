//! The parameters of an image build besides the recipe.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bottle_protocol::session::guest::SecretText;

use super::logins::Login;

/// Time limit of a request to build, pull or load an image. After this time, the request fails. No request should take
/// this long, and the user can interrupt it earlier.
pub(super) const LONG_TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);

/// The builder of an image.
#[derive(Debug)]
pub(super) enum Builder {
    /// The classic builder, which every engine has.
    Classic,
    /// BuildKit, for Dockerfiles that need BuildKit.
    BuildKit {
        /// The secrets that the steps of the Dockerfile can mount, by id.
        secrets: BTreeMap<String, SecretText>,
    },
}

/// The parameters of [`build()`](super::build::build) besides the recipe.
#[derive(Debug)]
pub(super) struct BuildRequest<'a> {
    /// The image's name in messages (`the image for claude`).
    pub(super) name: &'a str,
    /// The hint if the build fails.
    pub(super) hint: &'a str,
    /// The hash of the `$BOTTLE_HOME` for which the image is built.
    pub(super) home: String,
    /// The path of a user's Dockerfile, for errors.
    pub(super) path: Option<&'a Path>,
    /// The repository name and tag that the image gets. `None` for an image that [`super::adopt`] prepares and tags
    /// later.
    pub(super) tag: Option<String>,
    /// The labels that the image gets in addition to the labels of its Dockerfile.
    pub(super) labels: Vec<(String, String)>,
    /// The proxy variables that [`proxies`](super::build::proxies) returned.
    pub(super) proxies: Vec<(String, String)>,
    /// Whether the builder runs every step again, even if the engine has cached the step's result.
    pub(super) no_cache: bool,
    /// The user's logins, by registry.
    pub(super) logins: BTreeMap<String, Login>,
    /// The builder.
    pub(super) builder: Builder,
}

impl<'a> BuildRequest<'a> {
    /// Creates a build with the classic builder and its cache.
    pub(super) fn new(name: &'a str, hint: &'a str, home: String) -> Self {
        Self {
            name,
            hint,
            home,
            path: None,
            tag: None,
            labels: Vec::new(),
            proxies: Vec::new(),
            no_cache: false,
            logins: BTreeMap::new(),
            builder: Builder::Classic,
        }
    }
}
