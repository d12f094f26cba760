//! `docker:` of `settings.yml`: how bottles stand on a container engine.

use std::net::Ipv4Addr;

use bottle_contract::yaml::Spanned;
use ipnet::Ipv4Net;
use serde::Deserialize;

/// What a user set for the Docker backend, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerSettings {
    /// `transport`: how a bottle reaches its bundle.
    pub transport: DockerTransport,
    /// `subnets`: the range that bottles' networks come from.
    pub subnets: Ipv4Net,
    /// `runtime`: what runs the agent's container (`runsc`); the engine's own default when absent.
    pub runtime: Option<String>,
}

/// See [`DockerSettings::transport`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DockerTransport {
    /// Over a network that bottle and bundle have for themselves.
    Network,
    /// By sockets in a shared volume; the bottle has no network at all.
    Socket,
}

impl DockerTransport {
    /// As it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Socket => "socket",
        }
    }
}

/// The range when nobody sets one: private, and in no engine's own pools.
const SUBNETS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16);

/// The longest prefix that has room for one bottle's two networks.
const LONGEST_PREFIX: u8 = 27;

impl Default for DockerSettings {
    fn default() -> Self {
        Self { transport: DockerTransport::Network, subnets: SUBNETS, runtime: None }
    }
}

/// As it is written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Written {
    /// `door` until the key had its name.
    #[serde(alias = "door")]
    transport: Option<DockerTransport>,
    subnets: Option<Spanned<String>>,
    runtime: Option<Spanned<String>>,
}

impl Written {
    /// The complete value.
    ///
    /// # Errors
    /// The key's place, and what is wrong with its value, as the rest of a sentence that begins with it.
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
    let good =
        !name.value.is_empty() && name.value.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if good { Ok(name.value) } else { Err((name, "`docker.runtime` must be a name, as in `runsc`")) }
}
