//! Parses `docker:` of `settings.yml`: how bottles use a container engine.

use std::net::Ipv4Addr;

use bottle_contract::yaml::{Node, Spanned, Value};
use ipnet::Ipv4Net;
use serde::Deserialize;

/// The settings of the Docker backend, with defaults applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerSettings {
    /// `transport`: how a bottle reaches its bundle.
    pub transport: DockerTransport,
    /// `subnets`: the range of the bottles' networks.
    pub subnets: Ipv4Net,
    /// `runtime`: the OCI runtime of the agent's container (`runsc`); the engine's default when absent.
    pub runtime: Option<String>,
}

/// The connection between a bottle and its bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DockerTransport {
    /// A private network of bottle and bundle.
    Network,
    /// Sockets in a shared volume; the bottle has no network.
    Socket,
}

impl DockerTransport {
    /// The value in `settings.yml`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Socket => "socket",
        }
    }
}

/// The default range: private, and not in an engine's default pools.
const SUBNETS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16);

/// The longest prefix that has room for one bottle's two networks.
const LONGEST_PREFIX: u8 = 27;

impl Default for DockerSettings {
    fn default() -> Self {
        Self { transport: DockerTransport::Network, subnets: SUBNETS, runtime: None }
    }
}

/// The section as written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Written {
    transport: Option<DockerTransport>,
    subnets: Option<Spanned<String>>,
    runtime: Option<Spanned<String>>,
}

/// Renames the keys of the section from their old names.
pub(super) fn rename_old_keys(section: &mut Node) {
    for (key, _) in section.entries_mut().into_iter().flatten() {
        if key.text() == "door" {
            key.value = Value::Text("transport".to_owned());
        }
    }
}

impl Written {
    /// Applies defaults and checks values.
    ///
    /// # Errors
    /// The value with its position, and the message.
    pub(super) fn settle(self) -> Result<DockerSettings, (Spanned<String>, &'static str)> {
        let default = DockerSettings::default();
        Ok(DockerSettings {
            transport: self.transport.unwrap_or(default.transport),
            subnets: self.subnets.map_or(Ok(default.subnets), subnets)?,
            runtime: self.runtime.map(runtime).transpose()?,
        })
    }
}

fn subnets(text: Spanned<String>) -> Result<Ipv4Net, (Spanned<String>, &'static str)> {
    match text.value.parse::<Ipv4Net>() {
        Ok(range) if range.prefix_len() <= LONGEST_PREFIX && range == range.trunc() => Ok(range),
        Ok(range) if range.prefix_len() > LONGEST_PREFIX => {
            Err((text, "`docker.subnets` has no room for a bottle, which needs a /27"))
        }
        _ => Err((text, "`docker.subnets` must be an IPv4 network, as in `10.213.0.0/16`")),
    }
}

fn runtime(name: Spanned<String>) -> Result<String, (Spanned<String>, &'static str)> {
    let valid =
        !name.value.is_empty() && name.value.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if valid { Ok(name.value) } else { Err((name, "`docker.runtime` must be a name, as in `runsc`")) }
}
