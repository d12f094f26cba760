//! The graph of `extends` → a line: ancestors before descendants, parents left to right, each once.
//!
//! A shared ancestor stands at its earliest place, so that it can never undo what came between. The
//! order is that of a depth-first walk that writes a file down when it leaves it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bottle_contract::names::Name;

use super::error::{ResolveError, names_hint};
use crate::manifest::{BottleLayer, ManifestError, Position, Source};

/// The most files one selection may reach, and so the deepest chain: far above any honest tree, far
/// below what would trouble the stack.
const MAX_LAYERS: usize = 1_000;

/// A file in its place in the line.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) body: BottleLayer,
    /// The bottles that led here, from the one that was picked; empty for a pick.
    pub(super) via: Arc<[Name]>,
    /// Every bottle it extends, however far.
    pub(super) ancestors: BTreeSet<Name>,
}

/// Who asked for a bottle.
#[derive(Debug, Clone)]
pub(super) enum WantedBy {
    Person,
    File { source: Source, at: Position },
}

impl WantedBy {
    /// The error for a bottle that is not there.
    pub(super) fn unknown(&self, name: &Name, available: &[Name]) -> ResolveError {
        match self {
            Self::Person => ResolveError::UnknownBottle { name: name.clone(), available: available.to_vec() },
            Self::File { source, at } => {
                ManifestError::at(source, *at, format!("no bottle is named `{name}`"))
                    .hint(names_hint(name, available))
                    .into()
            }
        }
    }

    /// An error at the place that asked; the person alone cannot cause one.
    fn fault(&self, message: String) -> ManifestError {
        match self {
            Self::Person => {
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
    let mut walk = Walk { load, trail: Vec::new(), line: Vec::new() };
    for (name, wanted_by) in picks {
        walk.visit(name, wanted_by)?;
    }
    Ok(walk.line)
}

struct Walk<'a, 'b> {
    load: &'a mut Load<'b>,
    /// The bottles between a pick and the one being visited.
    trail: Vec<Name>,
    line: Vec<Layer>,
}

impl Walk<'_, '_> {
    fn visit(&mut self, name: &Name, wanted_by: &WantedBy) -> Result<(), ResolveError> {
        if self.line.iter().any(|layer| layer.body.name == *name) {
            return Ok(());
        }
        if self.line.len() + self.trail.len() == MAX_LAYERS {
            return Err(wanted_by.fault(format!("more than {MAX_LAYERS} bottles are combined")).into());
        }
        let body = (self.load)(name, wanted_by)?;
        let via: Arc<[Name]> = self.trail.as_slice().into();
        self.trail.push(name.clone());
        for parent in &body.extends {
            let wanted_by = WantedBy::File { source: body.source.clone(), at: parent.at };
            self.refuse_cycle(&parent.value, &wanted_by)?;
            self.visit(&parent.value, &wanted_by)?;
        }
        self.trail.pop();
        let ancestors = self.ancestors(&body);
        self.line.push(Layer { body, via, ancestors });
        Ok(())
    }

    fn refuse_cycle(&self, parent: &Name, wanted_by: &WantedBy) -> Result<(), ManifestError> {
        let Some(start) = self.trail.iter().position(|name| name == parent) else { return Ok(()) };
        let chain = &self.trail[start..];
        if let [itself] = chain {
            return Err(wanted_by.fault(format!("the bottle `{itself}` extends itself")));
        }
        let chain: Vec<&str> = chain.iter().chain([parent]).map(Name::as_str).collect();
        Err(wanted_by.fault(format!("bottles extend each other in a circle: {}", chain.join(" → "))))
    }

    /// Parents and theirs; every parent stands in the line already.
    fn ancestors(&self, body: &BottleLayer) -> BTreeSet<Name> {
        let mut ancestors = BTreeSet::new();
        for parent in &body.extends {
            ancestors.insert(parent.value.clone());
            let layer = self.line.iter().find(|layer| layer.body.name == parent.value);
            ancestors.extend(layer.into_iter().flat_map(|layer| layer.ancestors.iter().cloned()));
        }
        ancestors
    }
}
