//! Canonical hosts: lower case, IDNA, no trailing dot, one spelling of each address.

use std::borrow::Cow;

/// The longest accepted host name, in characters without the trailing dot (RFC 1035).
const MAX_HOST: usize = 253;
/// The longest accepted label of a host name, in characters (RFC 1035).
const MAX_LABEL: usize = 63;

/// Text that is not a valid host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host:?} is not a host: {why}")]
pub struct BadHost {
    /// The rejected text, cut to a printable length.
    pub host: String,
    /// The cause, as a sentence fragment.
    pub why: &'static str,
}

impl BadHost {
    fn new(host: &str, why: &'static str) -> Self {
        Self { host: host.chars().take(MAX_HOST).collect(), why }
    }
}

/// Converts `raw` to canonical form: lower case, international names in ASCII form, one trailing dot removed,
/// IPv4 in dotted decimal from any notation (`0x7f.1` is `127.0.0.1`), IPv6 compressed and in brackets.
///
/// Rejects a percent sign: no client percent-encodes a host, and servers differ in how they interpret an
/// encoded host. A host that is already canonical is borrowed.
///
/// # Errors
/// [`BadHost`] if `raw` is neither a name nor an address.
pub fn host(raw: &str) -> Result<Cow<'_, str>, BadHost> {
    if is_plain_name(raw) {
        return Ok(Cow::Borrowed(raw));
    }
    if raw.is_empty() {
        return Err(BadHost::new(raw, "it is empty"));
    }
    if raw.bytes().any(|b| b == b'%' || b.is_ascii_whitespace() || b.is_ascii_control()) {
        return Err(BadHost::new(raw, "it contains a space, a control character or `%`"));
    }
    if raw.len() > 4 * MAX_HOST {
        return Err(BadHost::new(raw, "it is too long"));
    }
    match url::Host::parse(raw) {
        Ok(url::Host::Domain(name)) => domain(raw, name),
        Ok(address) => Ok(Cow::Owned(address.to_string())),
        Err(_) => Err(BadHost::new(raw, "it is neither a host name nor an address")),
    }
}

fn domain<'a>(raw: &str, mut name: String) -> Result<Cow<'a, str>, BadHost> {
    if name.ends_with('.') {
        name.pop();
    }
    if name.len() > MAX_HOST {
        return Err(BadHost::new(raw, "it is longer than 253 characters"));
    }
    if name.split('.').any(|label| label.is_empty() || label.len() > MAX_LABEL) {
        return Err(BadHost::new(raw, "its labels are 1 to 63 characters long"));
    }
    if !name.bytes().all(is_name_byte) {
        return Err(BadHost::new(raw, "a host name is letters, digits, `-`, `_` and dots"));
    }
    Ok(Cow::Owned(name))
}

/// Whether `host`, in canonical form, is an IP address.
#[must_use]
pub fn is_ip_literal(host: &str) -> bool {
    host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok()
}

/// A canonical host and the port, if one is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority<'a> {
    /// The canonical host.
    pub host: Cow<'a, str>,
    /// The port; `None` if none is written.
    pub port: Option<u16>,
}

/// Parses `host`, `host:port` or `[v6]:port`, as in `Host`, `:authority` and `CONNECT`.
///
/// Rejects user information (`user:password@`), which none of these three fields allows.
///
/// # Errors
/// [`BadHost`] if the host is invalid, or the port is not a number from 1 to 65535.
pub fn authority(raw: &str) -> Result<Authority<'_>, BadHost> {
    if raw.contains('@') {
        return Err(BadHost::new("", "it contains user information"));
    }
    let (name, port) = split_port(raw);
    let port = match port {
        None => None,
        Some(digits) => Some(
            number(digits).ok_or_else(|| BadHost::new(raw, "its port is not a number from 1 to 65535"))?,
        ),
    };
    Ok(Authority { host: host(name)?, port })
}

/// Splits at the colon after the host. Colons inside brackets belong to the address.
fn split_port(raw: &str) -> (&str, Option<&str>) {
    let host_end = raw.rfind(']').map_or(0, |bracket| bracket + 1);
    match raw.get(host_end..).and_then(|rest| rest.rfind(':')) {
        Some(colon) => (&raw[..host_end + colon], Some(&raw[host_end + colon + 1..])),
        None => (raw, None),
    }
}

fn number(digits: &str) -> Option<u16> {
    let plain = !digits.is_empty() && digits.len() <= 5 && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten().filter(|port| *port != 0)
}

fn is_name_byte(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.')
}

/// Whether a quick check without full parsing shows that `raw` is canonical. The check does not allocate, and accepts
/// nearly every host that clients send. International names (`xn--`) and text that may be an address are fully parsed.
fn is_plain_name(raw: &str) -> bool {
    let last_is_word =
        raw.rsplit('.').next().is_some_and(|label| label.starts_with(|c: char| c.is_ascii_lowercase()));
    last_is_word
        && raw.len() <= MAX_HOST
        && raw.bytes().all(is_name_byte)
        && raw.split('.').all(|label| (1..=MAX_LABEL).contains(&label.len()) && !label.starts_with("xn--"))
}
