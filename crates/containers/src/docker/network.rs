//! Creates a bottle's networks: an internal network for the agent and the bundle, and a network that connects the
//! bundle to the internet.
//!
//! On an ordinary internal network the host has an address, and containers reach every host service that listens on all
//! addresses. The host therefore gets no address. The network has the gateway mode `isolated` if the engine supports
//! this mode, and otherwise the option `inhibit_ipv4`. This module chooses a subnet for each network, and chooses again
//! if another launch has taken the subnet.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use bollard::models::{Ipam, IpamConfig, NetworkCreateRequest};
use bollard::query_parameters::ListNetworksOptions;
use bottle_backend::{BackendError, MAX_OTHER_LISTENERS, Resource, ResourceLog};
use bottle_policy::names::Slug;
use ipnet::Ipv4Net;

use super::engine::{Engine, EngineError};
use super::names::{self, Names, Part};
use super::{routes, subnets};

/// The [`Resource::kind`] of a network.
pub(super) const NETWORK: &str = "network";

/// The maximum number of attempts to find a free subnet while other launches take subnets. After the last attempt, the
/// launch fails.
const TRIES: usize = 64;

/// A network that was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Net {
    /// The engine's id of the network.
    pub(super) id: String,
    /// The subnet of the network.
    pub(super) subnet: Ipv4Net,
}

/// How the agent's container connects to the bundle's container.
#[derive(Debug, Clone)]
pub(super) enum Transport {
    /// Over this network, on which the bundle is the DNS resolver.
    Network(Net),
    /// Through sockets in this volume. The agent's container has no network.
    Socket(String),
}

/// Creates one of a bottle's networks with a subnet of `range`, and records it.
///
/// # Errors
/// [`BackendError`] when no subnet of the range is free, or the engine fails.
pub(super) async fn make(
    engine: &Engine,
    names: &Names,
    range: Ipv4Net,
    part: Part,
    slug: &Slug,
    resources: &dyn ResourceLog,
) -> Result<Net, BackendError> {
    let doing = "make the bottle's network";
    let mut taken = routes::from_host();
    for tried in 0..TRIES {
        let picked = subnets::pick(range, &taken, rand::random());
        let Some(subnet) = picked else { return Err(exhausted(range)) };
        let request = request(names, part, slug, subnet, engine.isolates_gateways());
        match engine.call(engine.docker().create_network(request)).await {
            Ok(made) => {
                resources.record(Resource::new(slug, NETWORK, made.id.clone()))?;
                return Ok(Net { id: made.id, subnet });
            }
            Err(error) if error.is_subnet_overlap() => {
                if tried == 0 {
                    taken.extend(engine_subnets(engine).await.map_err(|error| error.during(doing))?);
                }
                // Another launch may be creating a network with this subnet. The engine does not list that network yet.
                taken.push(subnet);
            }
            Err(error) => return Err(error.during(doing)),
        }
    }
    Err(exhausted(range))
}

fn exhausted(range: Ipv4Net) -> BackendError {
    BackendError::failed(format!("cannot make the bottle's network: no free subnet in {range}")).with_hint(
        "stop bottles (`bottle list active`), or remove their leftovers (`bottle cleanup`), or set a \
         larger range as `docker.subnets` in settings.yml",
    )
}

/// Builds the request that creates the network.
fn request(names: &Names, part: Part, slug: &Slug, subnet: Ipv4Net, isolates: bool) -> NetworkCreateRequest {
    let inner = part == Part::Inner;
    let gateway = (!inner).then(|| subnets::machine(subnet).to_string());
    let ipam = IpamConfig { subnet: Some(subnet.to_string()), gateway, ..IpamConfig::default() };
    NetworkCreateRequest {
        name: names.name(part, slug),
        driver: Some("bridge".to_owned()),
        internal: Some(inner),
        attachable: Some(false),
        enable_ipv6: Some(false),
        ipam: Some(Ipam { config: Some(vec![ipam]), ..Ipam::default() }),
        labels: Some(names.labels(part, slug)),
        options: inner.then(|| without_host(isolates)),
        ..NetworkCreateRequest::default()
    }
}

fn without_host(isolates: bool) -> HashMap<String, String> {
    let options: &[(&str, &str)] = if isolates {
        &[("gateway_mode_ipv4", "isolated"), ("gateway_mode_ipv6", "isolated")]
    } else {
        &[("inhibit_ipv4", "true")]
    };
    options
        .iter()
        .map(|(name, value)| (format!("com.docker.network.bridge.{name}"), (*value).to_owned()))
        .collect()
}

/// Returns the subnets of all networks of the engine.
async fn engine_subnets(engine: &Engine) -> Result<Vec<Ipv4Net>, EngineError> {
    let networks = engine.call(engine.docker().list_networks(None::<ListNetworksOptions>)).await?;
    let configs = networks.into_iter().filter_map(|network| network.ipam?.config).flatten();
    Ok(configs.filter_map(|config| config.subnet?.parse().ok()).collect())
}

/// Returns the addresses of other bottles' bundles, except on this bottle's networks.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn other_listeners(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
) -> Result<Vec<Ipv4Addr>, EngineError> {
    let filters = HashMap::from([("label".to_owned(), vec![names::SLUG.to_owned()])]);
    let options = ListNetworksOptions { filters: Some(filters) };
    let networks = engine.call(engine.docker().list_networks(Some(options))).await?;
    let own = names.name(Part::Inner, slug);
    let others = networks
        .into_iter()
        .filter(|network| network.internal == Some(true) && network.name.as_deref() != Some(&*own));
    let configs = others.filter_map(|network| network.ipam?.config).flatten();
    let subnets = configs.filter_map(|config| config.subnet?.parse().ok());
    Ok(subnets.map(subnets::bundle).take(MAX_OTHER_LISTENERS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(part: Part, isolates: bool) -> NetworkCreateRequest {
        let names = Names::new("0123abcd".to_owned());
        let subnet = "10.213.0.16/28".parse().expect("a network");
        request(&names, part, &"a-1".parse().expect("slug"), subnet, isolates)
    }

    #[test]
    fn the_inner_network_is_internal_and_without_the_host() {
        let old = built(Part::Inner, false);
        assert_eq!((old.internal, old.enable_ipv6), (Some(true), Some(false)));
        let option =
            |name: &str, value: &str| (format!("com.docker.network.bridge.{name}"), value.to_owned());
        assert_eq!(old.options, Some(HashMap::from([option("inhibit_ipv4", "true")])));
        let modes = [option("gateway_mode_ipv4", "isolated"), option("gateway_mode_ipv6", "isolated")];
        assert_eq!(built(Part::Inner, true).options, Some(HashMap::from(modes)));
    }

    #[test]
    fn the_outer_network_is_an_ordinary_one_with_the_chosen_subnet() {
        let outer = built(Part::Outer, true);
        assert_eq!((outer.internal, outer.options), (Some(false), None));
        assert_eq!(outer.name, "bottle-0123abcd-outer-a-1");
        let range = outer.ipam.expect("addresses").config.expect("one").remove(0);
        assert_eq!(range.subnet.as_deref(), Some("10.213.0.16/28"));
        assert_eq!(range.gateway.as_deref(), Some("10.213.0.17"), "where the machine is");
        assert_eq!(outer.labels.expect("labels").len(), 3);
    }
}
