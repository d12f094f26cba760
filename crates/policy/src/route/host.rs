//! Host patterns: one host, or all subdomains of a host.

use std::fmt;

use crate::canonical;
use crate::names::{EGRESS_HOST, GIT_GATE_HOST, INTROSPECTION_HOST, SUPERVISE_HOST};

/// The hosts of a route, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// Exactly this host: a name or an address (IPv6 in brackets).
    Exact(String),
    /// Every subdomain of this name, but not the name itself and never an IP address.
    Wildcard(String),
}

impl HostPattern {
    /// Parses a host as a user writes it.
    ///
    /// # Errors
    /// A sentence fragment with the correction.
    pub fn parse(raw: &str) -> Result<Self, String> {
        if let Some((_, rest)) = raw.split_once("://") {
            let host = rest.split(['/', ':', '?']).next().unwrap_or(rest);
            return Err(format!("write the host alone: `{}`", host.escape_debug()));
        }
        if raw.contains('/') {
            return Err("write the host alone; paths go into `matches`".to_owned());
        }
        match raw.strip_prefix("*.") {
            Some(base) => Self::wildcard(base),
            None if raw.contains('*') => {
                Err("`*` stands for whole labels at the front only, as in `*.example.com`".to_owned())
            }
            None => Self::exact(raw),
        }
    }

    fn wildcard(base: &str) -> Result<Self, String> {
        let base = name_or_address(base)?;
        if canonical::is_ip_literal(&base) {
            return Err("an address has no subdomains".to_owned());
        }
        if !base.contains('.') {
            return Err(format!(
                "`*.{base}` is a whole top-level domain; name a domain, as in `*.example.{base}`"
            ));
        }
        Ok(Self::Wildcard(base))
    }

    fn exact(raw: &str) -> Result<Self, String> {
        let host = name_or_address(raw)?;
        if [EGRESS_HOST, SUPERVISE_HOST, GIT_GATE_HOST, INTROSPECTION_HOST].contains(&host.as_str()) {
            return Err(format!("`{host}` is the proxy's own name in every bottle; it needs no route"));
        }
        if host == "localhost" {
            let instead = "is the bottle itself; for a server on your machine choose a name and `connect_to: host:PORT`";
            return Err(format!("`localhost` {instead}"));
        }
        Ok(Self::Exact(host))
    }

    /// Whether the pattern matches `host`, which must be canonical.
    #[must_use]
    pub fn covers(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name == host,
            Self::Wildcard(base) => {
                host.strip_suffix(base.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
        }
    }

    /// Whether the pattern matches hosts of many owners: every name below a public suffix such as `co.uk` or
    /// `github.io` (<https://publicsuffix.org/>), below which anybody can have a name.
    #[must_use]
    pub fn spans_owners(&self) -> bool {
        let is_suffix = |name: &str| {
            psl::suffix(name.as_bytes())
                .is_some_and(|suffix| suffix.is_known() && suffix.as_bytes() == name.as_bytes())
        };
        match self {
            Self::Exact(_) => false,
            // For example, each name below `compute.amazonaws.com` is a public suffix.
            Self::Wildcard(base) => is_suffix(base) || is_suffix(&format!("a.{base}")),
        }
    }

    /// Whether the pattern matches every host that `other` matches.
    #[must_use]
    pub fn covers_pattern(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(host)) => self.covers(host),
            (Self::Exact(_), Self::Wildcard(_)) => false,
            (Self::Wildcard(base), Self::Wildcard(inner)) => base == inner || self.covers(inner),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(base) => write!(f, "*.{base}"),
        }
    }
}

/// Parses a host name or an address. Accepts an IPv4 address only in canonical form: nobody writes `0x7f.1`
/// by accident, and readers of the manifest must see the real address.
fn name_or_address(raw: &str) -> Result<String, String> {
    let unbracketed = raw.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(raw);
    if unbracketed.parse::<std::net::Ipv6Addr>().is_ok() {
        return match canonical::host(&format!("[{unbracketed}]")) {
            Ok(host) => Ok(host.into_owned()),
            Err(error) => Err(error.to_string()),
        };
    }
    if !raw.starts_with('[') && raw.contains(':') {
        return Err("write the host alone; ports go into `ports`".to_owned());
    }
    let host = canonical::host(raw).map_err(|error| format!("{} ({})", error.why, raw.escape_debug()))?;
    if canonical::is_ip_literal(&host) && host != raw {
        return Err(format!("this is the address `{host}`; write it in that form"));
    }
    Ok(host.into_owned())
}
