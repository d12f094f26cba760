//! The provider's own route: the one host that a manifest does not declare.

use bottle_contract::route::{Route, RouteTable};

use super::linearise::Layer;
use crate::manifest::origin::{Origin, Traced};
use crate::manifest::{ManifestError, Position};
use crate::provider::{self, ProviderConfig, Unfit};

/// The route that comes with the template, narrowed as the manifest says.
///
/// # Errors
/// At the value that the provider cannot work with, or that reaches further than its route.
pub(super) fn route(provider: &ProviderConfig) -> Result<Option<Traced<Route>>, ManifestError> {
    let Some(own) = provider::of(provider.template.value).route(provider).map_err(unfit)? else {
        return Ok(None);
    };
    let origin = provider.template.origin.clone();
    let Some(narrowing) = &provider.route else {
        // One that no proxy takes is found here, not at the launch.
        RouteTable::new(vec![own.clone()]).map_err(|error| fault(&origin, None, error.to_string()))?;
        return Ok(Some(Traced { value: own, origin }));
    };
    let value = narrowing
        .value
        .apply(&own)
        .map_err(|error| fault(&narrowing.origin, error.at, format!("`agent_provider.route`: {error}")))?;
    Ok(Some(Traced { value, origin }))
}

/// Refuses a route of a manifest for the provider's own host.
pub(super) fn refuse_again(
    own: &Traced<Route>,
    template: impl std::fmt::Display,
    layers: &[Layer],
) -> Result<(), ManifestError> {
    let host = &own.value.host;
    let again = layers.iter().find_map(|layer| {
        layer.body.egress.routes.iter().find(|route| route.value.host == *host).map(|route| (layer, route.at))
    });
    let Some((layer, at)) = again else { return Ok(()) };
    let message = format!("`{host}` is the host of the template `{template}`, which brings its own route");
    Err(ManifestError::at(&layer.body.source, at, message).hint(
        "take it out; `agent_provider.route` narrows the provider's route, `agent_provider.auth_token` names \
         its credential",
    ))
}

fn unfit(unfit: Unfit) -> ManifestError {
    fault(&unfit.origin, None, unfit.message).hint(unfit.hint)
}

/// An error at a value, or at a place in its file.
fn fault(origin: &Origin, at: Option<Position>, message: String) -> ManifestError {
    match origin {
        Origin::File { source, at: value, .. } => ManifestError::at(source, at.unwrap_or(*value), message),
        Origin::Default => {
            ManifestError { file: "the chosen bottles".to_owned(), position: None, message, hint: None }
        }
    }
}
