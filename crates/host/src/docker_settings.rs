//! Parses the section `docker:` of `settings.yml`, which sets how bottles use a container engine.

use std::net::Ipv4Addr;

use bottle_text::yaml::{Node, Spanned, Value};
use ipnet::Ipv4Net;
use serde::Deserialize;

/// The settings of the Docker backend, with defaults applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerSettings {
    /// `transport`: how a bottle is connected to its sidecars. If it is `None`, the backend chooses
    /// [`DockerTransport::Socket`], or [`DockerTransport::Network`] if the runtime does not support sockets.
    pub transport: Option<DockerTransport>,
    /// `subnets`: the address range for the networks of bottles.
    pub subnets: Ipv4Net,
    /// `runtime`: the OCI runtime for the agent's container, for example `runc`. If it is `None` (`auto`), the backend
    /// uses gVisor if the engine has gVisor and gVisor works. Otherwise the backend uses the engine's default runtime.
    pub runtime: Option<String>,
}

/// How a bottle is connected to its bundle (the container of its sidecars).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DockerTransport {
    /// Through a private network that contains only the bottle and its bundle.
    Network,
    /// Through sockets in a shared volume. The bottle has no network.
    Socket,
}

impl DockerTransport {
    /// Returns the value as written in `settings.yml`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Socket => "socket",
        }
    }
}

/// The value of `docker.runtime` that leaves the choice to the backend.
pub const AUTO: &str = "auto";

/// The default of `docker.subnets`: a private range that is not in the default address pools of container engines.
const SUBNETS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16);

/// The longest prefix of `docker.subnets`. A range with a longer prefix has no room for the two networks of one bottle,
/// and is refused.
const LONGEST_PREFIX: u8 = 27;

impl Default for DockerSettings {
    fn default() -> Self {
        Self { transport: None, subnets: SUBNETS, runtime: None }
    }
}

/// The section `docker:`, as written in the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Written {
    transport: Option<DockerTransport>,
    subnets: Option<Spanned<String>>,
    runtime: Option<Spanned<String>>,
}

/// Renames the keys of earlier versions: `door` becomes `transport`.
pub(super) fn rename_old_keys(section: &mut Node) {
    for (key, _) in section.entries_mut().into_iter().flatten() {
        if key.text() == "door" {
            key.value = Value::Text("transport".to_owned());
        }
    }
}

impl Written {
    /// Applies defaults and checks the values.
    ///
    /// # Errors
    /// Returns the invalid value with its position, and the error message.
    pub(super) fn settle(self) -> Result<DockerSettings, (Spanned<String>, &'static str)> {
        let default = DockerSettings::default();
        Ok(DockerSettings {
            transport: self.transport,
            subnets: self.subnets.map_or(Ok(default.subnets), subnets)?,
            runtime: self.runtime.map(runtime).transpose()?.filter(|name| name != AUTO),
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
