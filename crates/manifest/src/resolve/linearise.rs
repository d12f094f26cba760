//! Arranges the graph of `extends` in a linear order: a manifest follows all manifests that it extends, parents are
//! ordered left to right, and each manifest occurs once.
//!
//! The order is the post-order of a depth-first search. A shared ancestor gets its earliest possible
//! position, so that it cannot override layers that come between its descendants.

use std::collections::BTreeSet;
use std::sync::Arc;

use bottle_policy::names::Name;

use super::error::{ResolveError, names_hint};
use crate::origin::{Origin, Traced, Via};
use crate::{BottleLayer, ManifestError, Position, Source, Spanned};

/// The maximum number of bottle manifests that are merged. A larger number is an error. The limit is far above the
/// number that a user needs.
const MAX_LAYERS: usize = 1_000;

/// A bottle manifest in the linear order.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) body: BottleLayer,
    /// The chain of `extends` that leads to the manifest; `None` if the bottle was selected.
    pub(super) via: Option<Arc<Via>>,
}

/// Who requested a bottle: the user, or a position in a file.
#[derive(Debug, Clone)]
pub(super) enum RequestedBy {
    User,
    File { source: Source, at: Position },
}

impl RequestedBy {
    /// Creates the error for a bottle that does not exist.
    pub(super) fn unknown(&self, name: &Name, available: &[Name]) -> ResolveError {
        match self {
            Self::User => ResolveError::UnknownBottle { name: name.clone(), available: available.to_vec() },
            Self::File { source, at } => {
                ManifestError::at(source, *at, format!("no bottle is named `{name}`"))
                    .hint(names_hint(name, available))
                    .into()
            }
        }
    }

    /// Creates an error at the position in a file that names the bottle. For a bottle that only the user named, no such
    /// error occurs.
    fn fault(&self, message: String) -> ManifestError {
        match self {
            Self::User => ManifestError::in_selection(message),
            Self::File { source, at } => ManifestError::at(source, *at, message),
        }
    }
}

/// Reads a bottle manifest by name. An error names who requested the bottle.
pub(super) type Load<'a> = dyn FnMut(&Name, &RequestedBy) -> Result<BottleLayer, ResolveError> + 'a;

/// Arranges the selected bottles, and all bottles that they extend, in a linear order.
pub(super) fn linearise(
    picks: &[(Name, RequestedBy)],
    load: &mut Load<'_>,
) -> Result<Vec<Layer>, ResolveError> {
    let mut walk = Walk { load, stack: Vec::new(), line: Vec::new(), done: BTreeSet::new() };
    for (name, requested_by) in picks {
        walk.enter(name, requested_by)?;
        while walk.step()? {}
    }
    Ok(walk.line)
}

/// A depth-first search. Its stack is explicit, so that a long chain of `extends` cannot overflow the call
/// stack.
struct Walk<'a, 'b> {
    load: &'a mut Load<'b>,
    /// The manifests that were entered. Each manifest in the stack is a parent of the manifest below it.
    stack: Vec<Visit>,
    line: Vec<Layer>,
    /// The names of the manifests in `line`.
    done: BTreeSet<Name>,
}

/// A manifest that was entered.
struct Visit {
    layer: Layer,
    /// The index of the parent to enter next.
    next: usize,
}

impl Walk<'_, '_> {
    /// Reads a manifest and pushes it on the stack, unless it is already in the line.
    fn enter(&mut self, name: &Name, requested_by: &RequestedBy) -> Result<(), ResolveError> {
        if self.done.contains(name) {
            return Ok(());
        }
        self.refuse_cycle(name, requested_by)?;
        if self.line.len() + self.stack.len() == MAX_LAYERS {
            return Err(requested_by.fault(format!("more than {MAX_LAYERS} bottles are combined")).into());
        }
        let body = (self.load)(name, requested_by)?;
        let via = self.stack.last().map(|visit| Via::through(&visit.layer));
        self.stack.push(Visit { layer: Layer { body, via }, next: 0 });
        Ok(())
    }

    /// Enters the next parent of the manifest on top of the stack. If there is none, moves this manifest from
    /// the stack to the line. Returns false if the stack is empty.
    fn step(&mut self) -> Result<bool, ResolveError> {
        let Some(visit) = self.stack.last_mut() else { return Ok(false) };
        if let Some(parent) = visit.layer.body.extends.get(visit.next).cloned() {
            visit.next += 1;
            let requested_by = RequestedBy::File { source: visit.layer.body.source.clone(), at: parent.at };
            self.enter(&parent.value, &requested_by)?;
        } else if let Some(visit) = self.stack.pop() {
            self.done.insert(visit.layer.body.name.clone());
            self.line.push(visit.layer);
        }
        Ok(true)
    }

    fn refuse_cycle(&self, name: &Name, requested_by: &RequestedBy) -> Result<(), ManifestError> {
        let entered = || self.stack.iter().map(|visit| &visit.layer.body.name);
        let Some(start) = entered().position(|bottle| bottle == name) else { return Ok(()) };
        let chain: Vec<&str> = entered().skip(start).chain([name]).map(Name::as_str).collect();
        Err(requested_by.fault(match chain.as_slice() {
            [itself, _] => format!("the bottle `{itself}` extends itself"),
            chain => format!("bottles extend each other in a circle: {}", chain.join(" → ")),
        }))
    }
}

/// Returns the names of all manifests that a layer extends, directly or indirectly.
pub(super) fn ancestors(line: &[Layer], layer: &Layer) -> BTreeSet<Name> {
    let mut ancestors = BTreeSet::new();
    let mut open: Vec<&Layer> = vec![layer];
    while let Some(layer) = open.pop() {
        for parent in &layer.body.extends {
            if ancestors.insert(parent.value.clone()) {
                open.extend(line.iter().find(|layer| layer.body.name == parent.value));
            }
        }
    }
    ancestors
}

impl Origin {
    /// Creates the origin of a value at this position of a layer's file.
    pub(super) fn in_layer(layer: &Layer, at: Position) -> Self {
        Self::File { source: layer.body.source.clone(), at, via: layer.via.clone() }
    }
}

impl Via {
    /// Returns the chain of `extends` that leads to the parents of `layer`.
    pub(super) fn through(layer: &Layer) -> Arc<Self> {
        Arc::new(Self { name: layer.body.name.clone(), from: layer.via.clone() })
    }
}

impl<T> Traced<T> {
    /// Creates a value that comes from this layer.
    pub(super) fn in_layer(layer: &Layer, spanned: &Spanned<T>) -> Self
    where
        T: Clone,
    {
        Self { value: spanned.value.clone(), origin: Origin::in_layer(layer, spanned.at) }
    }
}
