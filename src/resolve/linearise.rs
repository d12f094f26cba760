//! The graph of `extends` → a line: ancestors before descendants, parents left to right, each once.
//!
//! A shared ancestor stands at its earliest place, so that it can never undo what came between. The
//! order is that of a depth-first walk that writes a file down when it leaves it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bottle_contract::names::Name;

use super::error::{ResolveError, names_hint};
use crate::manifest::origin::{Origin, Traced, Via};
use crate::manifest::{BottleLayer, Located, ManifestError, Position, Source};

/// The most files one selection may reach: far above any honest tree.
const MAX_LAYERS: usize = 1_000;

/// A file in its place in the line.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) body: BottleLayer,
    /// The bottles that led here; none for a pick.
    pub(super) via: Option<Arc<Via>>,
}

/// Who asked for a bottle.
#[derive(Debug, Clone)]
pub(super) enum WantedBy {
    User,
    File { source: Source, at: Position },
}

impl WantedBy {
    /// The error for a bottle that is not there.
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

    /// An error at the place that asked; the user alone cannot cause one.
    fn fault(&self, message: String) -> ManifestError {
        match self {
            Self::User => {
                ManifestError { file: "the chosen bottles".to_owned(), position: None, message, hint: None }
            }
            Self::File { source, at } => ManifestError::at(source, *at, message),
        }
    }
}

/// Reads the bottle of a name, or says on behalf of whoever wanted it that it is not there.
pub(super) type Load<'a> = dyn FnMut(&Name, &WantedBy) -> Result<BottleLayer, ResolveError> + 'a;

/// Brings the picks and everything they extend into a line.
pub(super) fn linearise(picks: &[(Name, WantedBy)], load: &mut Load<'_>) -> Result<Vec<Layer>, ResolveError> {
    let mut walk = Walk { load, trail: Vec::new(), line: Vec::new(), placed: BTreeSet::new() };
    for (name, wanted_by) in picks {
        walk.enter(name, wanted_by)?;
        while walk.step()? {}
    }
    Ok(walk.line)
}

/// A depth-first walk with its stack in sight: a chain may be as long as it likes.
struct Walk<'a, 'b> {
    load: &'a mut Load<'b>,
    /// The bottles that have been entered and not left, each extended by the one before.
    trail: Vec<Visit>,
    line: Vec<Layer>,
    /// The names in the line.
    placed: BTreeSet<Name>,
}

/// A bottle that has been entered.
struct Visit {
    layer: Layer,
    /// The parent to enter next.
    next: usize,
}

impl Walk<'_, '_> {
    /// Reads a bottle and puts it on the trail, unless it stands in the line already.
    fn enter(&mut self, name: &Name, wanted_by: &WantedBy) -> Result<(), ResolveError> {
        if self.placed.contains(name) {
            return Ok(());
        }
        self.refuse_cycle(name, wanted_by)?;
        if self.line.len() + self.trail.len() == MAX_LAYERS {
            return Err(wanted_by.fault(format!("more than {MAX_LAYERS} bottles are combined")).into());
        }
        let body = (self.load)(name, wanted_by)?;
        let via = self.trail.last().map(|visit| Via::after(&visit.layer));
        self.trail.push(Visit { layer: Layer { body, via }, next: 0 });
        Ok(())
    }

    /// Enters the next parent of the bottle at the trail's end, or leaves it for the line. False when
    /// the trail is at its end.
    fn step(&mut self) -> Result<bool, ResolveError> {
        let Some(visit) = self.trail.last_mut() else { return Ok(false) };
        if let Some(parent) = visit.layer.body.extends.get(visit.next).cloned() {
            visit.next += 1;
            let wanted_by = WantedBy::File { source: visit.layer.body.source.clone(), at: parent.at };
            self.enter(&parent.value, &wanted_by)?;
        } else if let Some(visit) = self.trail.pop() {
            self.placed.insert(visit.layer.body.name.clone());
            self.line.push(visit.layer);
        }
        Ok(true)
    }

    fn refuse_cycle(&self, name: &Name, wanted_by: &WantedBy) -> Result<(), ManifestError> {
        let trail = || self.trail.iter().map(|visit| &visit.layer.body.name);
        let Some(start) = trail().position(|entered| entered == name) else { return Ok(()) };
        let chain: Vec<&str> = trail().skip(start).chain([name]).map(Name::as_str).collect();
        Err(wanted_by.fault(match chain.as_slice() {
            [itself, _] => format!("the bottle `{itself}` extends itself"),
            chain => format!("bottles extend each other in a circle: {}", chain.join(" → ")),
        }))
    }
}

/// Every bottle that a layer of the line extends, however far.
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
    /// A place in a layer's file.
    pub(super) fn of_layer(layer: &Layer, at: Position) -> Self {
        Self::File { source: layer.body.source.clone(), at, via: layer.via.clone() }
    }
}

impl Via {
    /// The way to what `layer` extends.
    pub(super) fn after(layer: &Layer) -> Arc<Self> {
        Arc::new(Self { name: layer.body.name.clone(), from: layer.via.clone() })
    }
}

impl<T> Traced<T> {
    /// A value of a layer.
    pub(super) fn of_layer(layer: &Layer, located: &Located<T>) -> Self
    where
        T: Clone,
    {
        Self { value: located.value.clone(), origin: Origin::of_layer(layer, located.at) }
    }
}
