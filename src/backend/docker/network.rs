//! A bottle's networks: one that agent and bundle share and that leads nowhere, one through which the bundle
//! reaches the world.
//!
//! An ordinary internal network still has the host on it, with every service that listens on all addresses.
//! So the host's end gets no address: by the gateway mode `isolated` where the engine knows it, else by
//! `inhibit_ipv4`. Subnets are chosen here, and chosen again when another launch was faster.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use bollard::models::{Ipam, IpamConfig, NetworkCreateRequest};
use bollard::query_parameters::ListNetworksOptions;
use bottle_contract::names::Slug;
use ipnet::Ipv4Net;

use super::engine::{Engine, EngineError};
use super::inventory::NETWORK;
use super::names::{self, Names, Part};
use super::{routes, subnets};
use crate::backend::{BackendError, Ledger, OTHERS, Resource};

/// Launches that may be faster, one after the other, before something else must be wrong.
const TRIES: usize = 64;

/// A network that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Net {
    /// The engine's id of it.
    pub(super) id: String,
    /// Its addresses.
    pub(super) subnet: Ipv4Net,
}

/// Makes one of a bottle's networks, out of `range`, and records it.
///
/// # Errors
/// [`BackendError`] when the range is used up, or the engine cannot.
pub(super) async fn make(
    engine: &Engine,
    names: &Names,
    range: Ipv4Net,
    part: Part,
    slug: &Slug,
    ledger: &dyn Ledger,
) -> Result<Net, BackendError> {
    let doing = "make the bottle's network";
    let mut taken = routes::of_this_host();
    for tried in 0..TRIES {
        let picked = subnets::pick(range, &taken, rand::random());
        let Some(subnet) = picked else { return Err(exhausted(range)) };
        let request = request(names, part, slug, subnet, engine.isolates_gateways());
        match engine.ask(engine.docker().create_network(request)).await {
            Ok(made) => {
                ledger.record(Resource {
                    slug: slug.clone(),
                    kind: NETWORK.to_owned(),
                    id: made.id.clone(),
                })?;
                return Ok(Net { id: made.id, subnet });
            }
            Err(error) if error.overlaps() => {
                if tried == 0 {
                    taken.extend(of_engine(engine).await.map_err(|error| error.during(doing))?);
                }
                // It may be another launch's, not listed yet.
                taken.push(subnet);
            }
            Err(error) => return Err(error.during(doing)),
        }
    }
    Err(exhausted(range))
}

fn exhausted(range: Ipv4Net) -> BackendError {
    BackendError::failed(format!("no subnet is free in {range}, from which bottles get their networks")).with_hint(
        "end bottles (`bottle list active`), or remove what is left of them (`bottle cleanup`), or name a \
         larger range as `docker.subnets` in settings.yml",
    )
}

/// What the engine is asked for.
fn request(names: &Names, part: Part, slug: &Slug, subnet: Ipv4Net, isolates: bool) -> NetworkCreateRequest {
    let inside = part == Part::Inside;
    let gateway = (!inside).then(|| subnets::machine(subnet).to_string());
    let ipam = IpamConfig { subnet: Some(subnet.to_string()), gateway, ..IpamConfig::default() };
    NetworkCreateRequest {
        name: names.name(part, slug),
        driver: Some("bridge".to_owned()),
        internal: Some(inside),
        attachable: Some(false),
        enable_ipv6: Some(false),
        ipam: Some(Ipam { config: Some(vec![ipam]), ..Ipam::default() }),
        labels: Some(names.labels(part, slug)),
        options: inside.then(|| without_host(isolates)),
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

/// Every subnet that some network of the engine has.
async fn of_engine(engine: &Engine) -> Result<Vec<Ipv4Net>, EngineError> {
    let networks = engine.ask(engine.docker().list_networks(None::<ListNetworksOptions>)).await?;
    let configs = networks.into_iter().filter_map(|network| network.ipam?.config).flatten();
    Ok(configs.filter_map(|config| config.subnet?.parse().ok()).collect())
}

/// The proxies of other bottles: where their bundles listen, in networks that are not this bottle's.
///
/// # Errors
/// [`EngineError`] when the engine cannot be asked.
pub(super) async fn listeners_of_others(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
) -> Result<Vec<Ipv4Addr>, EngineError> {
    let filters = HashMap::from([("label".to_owned(), vec![names::SLUG.to_owned()])]);
    let options = ListNetworksOptions { filters: Some(filters) };
    let networks = engine.ask(engine.docker().list_networks(Some(options))).await?;
    let own = names.name(Part::Inside, slug);
    let others = networks
        .into_iter()
        .filter(|network| network.internal == Some(true) && network.name.as_deref() != Some(&*own));
    let configs = others.filter_map(|network| network.ipam?.config).flatten();
    let subnets = configs.filter_map(|config| config.subnet?.parse().ok());
    Ok(subnets.map(subnets::bundle).take(OTHERS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(part: Part, isolates: bool) -> NetworkCreateRequest {
        let names = Names::of("0123abcd".to_owned());
        let subnet = "10.213.0.16/28".parse().expect("a network");
        request(&names, part, &"a-1".parse().expect("slug"), subnet, isolates)
    }

    #[test]
    fn the_shared_network_leads_nowhere_and_the_host_is_not_on_it() {
        let old = built(Part::Inside, false);
        assert_eq!((old.internal, old.enable_ipv6), (Some(true), Some(false)));
        let option =
            |name: &str, value: &str| (format!("com.docker.network.bridge.{name}"), value.to_owned());
        assert_eq!(old.options, Some(HashMap::from([option("inhibit_ipv4", "true")])));
        let modes = [option("gateway_mode_ipv4", "isolated"), option("gateway_mode_ipv6", "isolated")];
        assert_eq!(built(Part::Inside, true).options, Some(HashMap::from(modes)));
    }

    #[test]
    fn the_bundles_network_is_an_ordinary_one_with_addresses_of_ours() {
        let outside = built(Part::Outside, true);
        assert_eq!((outside.internal, outside.options), (Some(false), None));
        assert_eq!(outside.name, "bottle-0123abcd-outer-a-1");
        let range = outside.ipam.expect("addresses").config.expect("one").remove(0);
        assert_eq!(range.subnet.as_deref(), Some("10.213.0.16/28"));
        assert_eq!(range.gateway.as_deref(), Some("10.213.0.17"), "where the machine is");
        assert_eq!(outside.labels.expect("labels").len(), 3);
    }
}
