//! Merges the services of all layers, and finds the order in which they start.

use std::collections::BTreeMap;

use bottle_protocol::session::process::ProcessName;

use super::linearise::Layer;
use crate::ManifestError;
use crate::origin::Traced;
use crate::services::ServiceLayer;

/// Merges services by name: the last layer that declares a service replaces the whole service. In the result, each
/// service comes after the services that it names in `after`.
pub(super) fn services(layers: &[Layer]) -> Result<Vec<(ProcessName, Traced<ServiceLayer>)>, ManifestError> {
    let mut declared: BTreeMap<&ProcessName, &Layer> = BTreeMap::new();
    for layer in layers {
        for name in layer.body.services.keys() {
            declared.insert(name, layer);
        }
    }
    let mut ordered: Vec<(ProcessName, Traced<ServiceLayer>)> = Vec::new();
    for name in declared.keys() {
        add(name, &declared, &mut ordered, &mut Vec::new())?;
    }
    Ok(ordered)
}

/// Adds a service after the services that it needs. `path` contains the services that need this service.
fn add<'l>(
    name: &'l ProcessName,
    declared: &BTreeMap<&'l ProcessName, &'l Layer>,
    ordered: &mut Vec<(ProcessName, Traced<ServiceLayer>)>,
    path: &mut Vec<&'l ProcessName>,
) -> Result<(), ManifestError> {
    if ordered.iter().any(|(earlier, _)| earlier == name) {
        return Ok(());
    }
    let Some((layer, service)) =
        declared.get(name).and_then(|layer| Some((*layer, layer.body.services.get(name)?)))
    else {
        return Ok(());
    };
    path.push(name);
    for needed in &service.value.after {
        let refused = |why: String| {
            let message = format!("`services.{name}.after`: {why}");
            ManifestError::at(&layer.body.source, service.at, message)
        };
        if !declared.contains_key(needed) {
            let names: Vec<&str> = declared.keys().map(|name| name.as_str()).collect();
            return Err(refused(format!("there is no service {needed}"))
                .hint(format!("the services are {}", names.join(", "))));
        }
        if path.contains(&needed) {
            return Err(refused(format!("{needed} starts after {name}, so neither can start first")));
        }
        add(needed, declared, ordered, path)?;
    }
    path.pop();
    ordered.push((name.clone(), Traced::in_layer(layer, service)));
    Ok(())
}
