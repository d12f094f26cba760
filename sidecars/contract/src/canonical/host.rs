//! Hosts: lower case, IDNA, no trailing dot, addresses in one spelling.

use std::borrow::Cow;

/// The longest host name (RFC 1035), without its trailing dot.
const MAX_HOST: usize = 253;
/// The longest label of one.
const MAX_LABEL: usize = 63;

/// Text that names no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host:?} is not a host: {why}")]
pub struct BadHost {
    /// What was given, cut to a printable length.
    pub host: String,
    /// Why not, as a fragment.
    pub why: &'static str,
}

impl BadHost {
    fn new(host: &str, why: &'static str) -> Self {
        Self { host: host.chars().take(MAX_HOST).collect(), why }
    }
}

/// Brings `raw` into canonical form: lower case, international names in ASCII form, one trailing dot
/// removed, IPv4 in dotted decimal whatever way it was written (`0x7f.1` is `127.0.0.1`), IPv6
/// compressed and in brackets.
///
/// A percent sign is refused: no client sends an encoded host, and readers differ on what it means.
/// A host that is canonical already is borrowed.
///
/// # Errors
/// [`BadHost`] for anything that is neither a name nor an address.
pub fn host(raw: &str) -> Result<Cow<'_, str>, BadHost> {
    if is_plain_name(raw) {
        return Ok(Cow::Borrowed(raw));
    }
    if raw.is_empty() {
        return Err(BadHost::new(raw, "it is empty"));
    }
    if raw.bytes().any(|b| b == b'%' || b.is_ascii_whitespace() || b.is_ascii_control()) {
        return Err(BadHost::new(raw, "it holds a space, a control character or `%`"));
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

/// Whether `host`, in canonical form, is an address.
#[must_use]
pub fn is_ip_literal(host: &str) -> bool {
    host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok()
}

/// A canonical host with the port that was written with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Canonical.
    pub host: Cow<'a, str>,
    /// Absent when none was written.
    pub port: Option<u16>,
}

/// Reads `host`, `host:port` or `[v6]:port`, as in `Host`, `:authority` and `CONNECT`.
///
/// User information (`user:password@`) is refused: it has no place in any of the three.
///
/// # Errors
/// [`BadHost`], also for a port that is no number from 1 to 65535.
pub fn authority(raw: &str) -> Result<Authority<'_>, BadHost> {
    if raw.contains('@') {
        return Err(BadHost::new("", "it carries user information"));
    }
    let (name, port) = split_port(raw);
    let port = match port {
        None => None,
        Some(digits) => {
            Some(number(digits).ok_or_else(|| BadHost::new(raw, "its port is no number from 1 to 65535"))?)
        }
    };
    Ok(Authority { host: host(name)?, port })
}

/// Cuts at the colon that ends the host, which inside brackets is none.
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

/// Whether `raw` is canonical beyond doubt, judged without allocating: everything on the hot path is.
/// International names (`xn--`) and whatever may be an address take the long way.
fn is_plain_name(raw: &str) -> bool {
    let last_is_word =
        raw.rsplit('.').next().is_some_and(|label| label.starts_with(|c: char| c.is_ascii_lowercase()));
    last_is_word
        && raw.len() <= MAX_HOST
        && raw.bytes().all(is_name_byte)
        && raw.split('.').all(|label| (1..=MAX_LABEL).contains(&label.len()) && !label.starts_with("xn--"))
}
