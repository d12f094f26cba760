//! Names and labels of a bottle's objects on an engine.
//!
//! A name contains the hash of `$BOTTLE_HOME`, the part and the slug (`bottle-<home>-<part>-<slug>`). An object that
//! was created but not recorded can therefore be found by its name. The labels contain the same data. An object belongs
//! to a bottle only if both its name and its labels match.

use std::collections::HashMap;

use bottle_backend::BackendError;
use bottle_policy::names::Slug;

/// The label that contains the hash of `$BOTTLE_HOME`.
pub(crate) const HOME: &str = "bottle.home";
/// The label that contains the bottle's slug.
pub(crate) const SLUG: &str = "bottle.slug";
/// The label that contains the word of the object's [`Part`].
pub(crate) const ROLE: &str = "bottle.role";

/// The label of an agent's container that contains a hash of the settings that the container cannot change. A launch
/// with the same settings starts a kept container again.
pub(crate) const WIRING: &str = "bottle.wiring";

/// The part of a bottle that an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Part {
    /// The agent's container.
    Agent,
    /// The container of the sidecars.
    Bundle,
    /// The network between the agent and the bundle.
    Inner,
    /// The network that connects the bundle to the internet.
    Outer,
    /// The volume of the proxy's sockets.
    Sockets,
    /// The volume in which the sidecars keep their files.
    State,
    /// A container that only reads a copy of the kept files. The container is removed when it ends.
    Reader,
    /// An agent's container that was set aside while another container replaces it. Its labels still name the part
    /// `Agent`.
    Kept,
}

impl Part {
    const ALL: [Self; 8] = [
        Self::Agent,
        Self::Bundle,
        Self::Inner,
        Self::Outer,
        Self::Sockets,
        Self::State,
        Self::Reader,
        Self::Kept,
    ];

    /// Returns the word for the part in names and labels. The word contains no dash, so that names are unambiguous.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Bundle => "bundle",
            Self::Inner => "inner",
            Self::Outer => "outer",
            Self::Sockets => "proxy",
            Self::State => "state",
            Self::Reader => "reader",
            Self::Kept => "kept",
        }
    }
}

/// Creates the error for a volume that has the name of a bottle's volume but not its labels.
pub(crate) fn foreign_volume(name: &str) -> BackendError {
    BackendError::failed(format!("the engine has a volume {name} that is not bottle's"))
        .with_hint(format!("`docker volume rm {name}` makes room for it"))
}

/// The names of the objects of one `$BOTTLE_HOME`.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    home: String,
}

impl Names {
    /// Creates the names for the `$BOTTLE_HOME` with this hash.
    pub(crate) fn new(home_hash: String) -> Self {
        Self { home: home_hash }
    }

    /// Returns the hash of `$BOTTLE_HOME`.
    pub(crate) fn home(&self) -> &str {
        &self.home
    }

    /// Returns the name of this part. The name has at most 63 characters, like a host name.
    pub(crate) fn name(&self, part: Part, slug: &Slug) -> String {
        format!("bottle-{}-{}-{slug}", self.home, part.word())
    }

    /// Returns the labels of this part.
    pub(crate) fn labels(&self, part: Part, slug: &Slug) -> HashMap<String, String> {
        let labels = [(HOME, self.home.as_str()), (SLUG, slug.as_str()), (ROLE, part.word())];
        labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    /// Returns the hash of `$BOTTLE_HOME` and the slug, which are arguments of the bottle's processes.
    pub(crate) fn arguments(&self, slug: &Slug) -> [String; 2] {
        [self.home.clone(), slug.to_string()]
    }

    /// Returns the filter, for a list request, that selects the containers, networks and volumes of this
    /// `$BOTTLE_HOME`.
    pub(crate) fn filter(&self) -> HashMap<String, Vec<String>> {
        HashMap::from([("label".to_owned(), vec![format!("{HOME}={}", self.home)])])
    }

    /// Returns the part and the slug of an object with this name and these labels. `None` if the name does not match
    /// the labels.
    pub(crate) fn owned(&self, name: &str, labels: &HashMap<String, String>) -> Option<(Part, Slug)> {
        let slug: Slug = labels.get(SLUG)?.parse().ok()?;
        let part = Part::ALL.into_iter().find(|part| labels.get(ROLE).is_some_and(|r| r == part.word()))?;
        let named = match part {
            // Renaming a container does not change its labels.
            Part::Agent if name == self.name(Part::Kept, &slug) => Part::Kept,
            _ => part,
        };
        let ours = labels.get(HOME) == Some(&self.home) && name == self.name(named, &slug);
        ours.then_some((named, slug))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slug(text: &str) -> Slug {
        text.parse().expect("slug")
    }

    #[test]
    fn the_names_of_parts_are_unique_and_valid_host_names() {
        let names = Names::new("0123abcd".to_owned());
        let long = slug(&"a".repeat(40));
        let mut all: Vec<String> = Part::ALL
            .into_iter()
            .flat_map(|part| [names.name(part, &long), names.name(part, &slug("bundle-a"))])
            .collect();
        assert!(all.iter().all(|name| name.len() <= 63), "{all:?}");
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 2 * Part::ALL.len());
    }

    #[test]
    fn an_object_is_owned_only_when_name_and_labels_match() {
        let names = Names::new("0123abcd".to_owned());
        for part in Part::ALL {
            let (one, name) = (slug("a-1"), names.name(part, &slug("a-1")));
            let labels = names.labels(part, &one);
            assert_eq!(names.owned(&name, &labels), Some((part, one)));
            assert_eq!(Names::new("ffffffff".to_owned()).owned(&name, &labels), None, "another home");
            assert_eq!(names.owned("bottle-0123abcd-agent-b", &labels), None, "another name");
            let aside = names.name(Part::Kept, &slug("a-1"));
            let kept = (part == Part::Agent || part == Part::Kept).then(|| (Part::Kept, slug("a-1")));
            assert_eq!(names.owned(&aside, &labels), kept, "set aside");
            for lost in [HOME, SLUG, ROLE] {
                let mut fewer = labels.clone();
                fewer.remove(lost);
                assert_eq!(names.owned(&name, &fewer), None, "without {lost}");
            }
            let mut forged = labels;
            forged.insert(SLUG.to_owned(), "../a".to_owned());
            assert_eq!(names.owned(&name, &forged), None, "no slug");
        }
    }
}
