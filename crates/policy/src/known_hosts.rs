//! Package registries and forges that many bottles use. Finds the shipped bottle manifest that opens a host (has a
//! route for it), and the intended host for a mistyped name.

/// The hosts that shipped bottle manifests open, each with the name of the manifest.
const OPENED: &[(&str, &str)] = &[
    ("index.crates.io", "dev"),
    ("static.crates.io", "dev"),
    ("static.rust-lang.org", "dev"),
    ("pypi.org", "dev"),
    ("files.pythonhosted.org", "dev"),
    ("registry.npmjs.org", "dev"),
    ("github.com", "github-read"),
    ("codeload.github.com", "github-read"),
    ("raw.githubusercontent.com", "github-read"),
    ("objects.githubusercontent.com", "github-read"),
    ("release-assets.githubusercontent.com", "github-read"),
];

/// Further well-known hosts, for [`intended`].
const OTHERS: &[&str] = &[
    "api.github.com",
    "api.nuget.org",
    "archive.ubuntu.com",
    "bitbucket.org",
    "conda.anaconda.org",
    "crates.io",
    "deb.debian.org",
    "gitlab.com",
    "huggingface.co",
    "packagist.org",
    "plugins.gradle.org",
    "proxy.golang.org",
    "registry-1.docker.io",
    "registry.yarnpkg.com",
    "repo.maven.apache.org",
    "repo1.maven.org",
    "rubygems.org",
    "security.ubuntu.com",
    "sum.golang.org",
];

/// Returns the name of the shipped bottle manifest that opens this host.
#[must_use]
pub fn opened_by(host: &str) -> Option<&'static str> {
    OPENED.iter().find(|(known, _)| *known == host).map(|(_, manifest)| *manifest)
}

/// Returns every host that a shipped bottle manifest opens, with the name of the manifest.
pub fn opened() -> impl Iterator<Item = (&'static str, &'static str)> {
    OPENED.iter().copied()
}

/// Returns the well-known host from which `host` differs by one typing error: one character that is missing, added,
/// replaced or swapped with its neighbour. A different digit is not a typing error, because the names of mirrors differ
/// by digits.
#[must_use]
pub fn intended(host: &str) -> Option<&'static str> {
    let without_digits = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let known = OPENED.iter().map(|(known, _)| *known).chain(OTHERS.iter().copied());
    let mut near = None;
    for candidate in known {
        if candidate == host {
            return None;
        }
        let is_near = strsim::damerau_levenshtein(host, candidate) == 1;
        if is_near && without_digits(host) != without_digits(candidate) {
            near = Some(candidate);
        }
    }
    near
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_typing_errors_of_known_hosts() {
        for (host, meant) in [
            ("pypi.ogr", Some("pypi.org")),
            ("pipy.org", None),
            ("pyp.org", Some("pypi.org")),
            ("registry.npmjs.com", None),
            ("registry.nmpjs.org", Some("registry.npmjs.org")),
            ("githib.com", Some("github.com")),
            ("pypi.org", None),
            ("repo2.maven.org", None),
            ("api.example.com", None),
        ] {
            assert_eq!(intended(host), meant, "{host}");
        }
    }

    #[test]
    fn no_known_host_looks_like_another() {
        for host in OPENED.iter().map(|(host, _)| *host).chain(OTHERS.iter().copied()) {
            assert_eq!(intended(host), None, "{host}");
        }
    }
}
