//! The provider route: the route that the provider's template defines, and that no manifest declares.

use bottle_policy::route::{Route, RouteTable};

use super::linearise::Layer;
use crate::origin::{Origin, Traced};
use crate::provider::{self, ProviderConfig, UnsupportedSetting};
use crate::{ManifestError, Position};

/// Returns the template's route, with the changes that `agent_provider.route` makes.
///
/// # Errors
/// Returns an error if the provider does not support a value of `agent_provider`, or if `agent_provider.route`
/// would make the provider route wider. The error has the position of the value.
pub(super) fn route(provider: &ProviderConfig) -> Result<Option<Traced<Route>>, ManifestError> {
    let Some(built_in) =
        provider::for_template(provider.template.value).route(provider).map_err(unsupported)?
    else {
        return Ok(None);
    };
    let origin = provider.template.origin.clone();
    let Some(narrowing) = &provider.route else {
        // An invalid route is reported here, and not only at launch.
        RouteTable::new(vec![built_in.clone()]).map_err(|error| fault(&origin, None, error.to_string()))?;
        return Ok(Some(Traced { value: built_in, origin }));
    };
    let value = narrowing
        .value
        .apply(&built_in)
        .map_err(|error| fault(&narrowing.origin, error.at, format!("`agent_provider.route`: {error}")))?;
    Ok(Some(Traced { value, origin }))
}

/// Refuses a route in a manifest that has the same host as the provider route.
pub(super) fn refuse_duplicate(
    provider_route: &Traced<Route>,
    template: impl std::fmt::Display,
    layers: &[Layer],
) -> Result<(), ManifestError> {
    let host = &provider_route.value.host;
    let duplicate = layers.iter().find_map(|layer| {
        layer.body.egress.routes.iter().find(|route| route.value.host == *host).map(|route| (layer, route.at))
    });
    let Some((layer, at)) = duplicate else { return Ok(()) };
    let message = format!("`{host}` is the host of the template `{template}`, which has a built-in route");
    Err(ManifestError::at(&layer.body.source, at, message).hint(
        "remove the route; restrict the built-in one with `agent_provider.route`, set its credential with \
         `agent_provider.auth_token`",
    ))
}

fn unsupported(error: UnsupportedSetting) -> ManifestError {
    fault(&error.origin, None, error.message).hint(error.hint)
}

/// Creates an error at a value, or at a position in the value's file.
fn fault(origin: &Origin, at: Option<Position>, message: String) -> ManifestError {
    match origin {
        Origin::File { source, at: value, .. } => ManifestError::at(source, at.unwrap_or(*value), message),
        Origin::Default => ManifestError::in_selection(message),
    }
}
