//! What a bottle's things are called on an engine, and which of an engine's things are a bottle's.
//!
//! A name alone says home, part and bottle (`bottle-<home>-<part>-<slug>`), so that whatever was made in the
//! moment before it could be recorded is found again. Labels say the same once more: a thing is ours only
//! when both do.

use std::collections::HashMap;

use bottle_contract::names::Slug;

/// The label with the home's hash.
pub(super) const HOME: &str = "bottle.home";
/// The label with the bottle's slug.
pub(super) const SLUG: &str = "bottle.slug";
/// The label with what it is to its bottle.
pub(super) const ROLE: &str = "bottle.role";

/// What a thing is to its bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Part {
    /// The container that the agent lives in.
    Agent,
    /// The container of its sidecars.
    Bundle,
    /// The network that the two share.
    Inside,
    /// The network through which the bundle reaches the world.
    Outside,
    /// The volume with the proxy's sockets.
    Sockets,
    /// The container of an agent, set aside while another takes its place. Its role is still the agent's.
    Kept,
}

impl Part {
    const ALL: [Self; 6] =
        [Self::Agent, Self::Bundle, Self::Inside, Self::Outside, Self::Sockets, Self::Kept];

    /// One word; no dash, so that a name is read in one way only.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Bundle => "bundle",
            Self::Inside => "inner",
            Self::Outside => "outer",
            Self::Sockets => "sockets",
            Self::Kept => "kept",
        }
    }
}

/// The names of one home.
#[derive(Debug, Clone)]
pub(super) struct Names {
    home: String,
}

impl Names {
    /// Of the home with this hash.
    pub(super) fn of(home_hash: String) -> Self {
        Self { home: home_hash }
    }

    /// The home's hash.
    pub(super) fn home(&self) -> &str {
        &self.home
    }

    /// The name of this part: 63 characters at most, as a host name may have.
    pub(super) fn name(&self, part: Part, slug: &Slug) -> String {
        format!("bottle-{}-{}-{slug}", self.home, part.word())
    }

    /// Its labels.
    pub(super) fn labels(&self, part: Part, slug: &Slug) -> HashMap<String, String> {
        let labels = [(HOME, self.home.as_str()), (SLUG, slug.as_str()), (ROLE, part.word())];
        labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    /// Home and slug, as the bottle's processes are labelled.
    pub(super) fn arguments(&self, slug: &Slug) -> [String; 2] {
        [self.home.clone(), slug.to_string()]
    }

    /// The filter for everything of this home, as an engine's lists take it.
    pub(super) fn filter(&self) -> HashMap<String, Vec<String>> {
        HashMap::from([("label".to_owned(), vec![format!("{HOME}={}", self.home)])])
    }

    /// Which part of which bottle a thing with this name and these labels is; none unless both agree.
    pub(super) fn owned(&self, name: &str, labels: &HashMap<String, String>) -> Option<(Part, Slug)> {
        let slug: Slug = labels.get(SLUG)?.parse().ok()?;
        let part = Part::ALL.into_iter().find(|part| labels.get(ROLE).is_some_and(|r| r == part.word()))?;
        let named = match part {
            // Names change, labels do not.
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
    fn every_part_has_a_name_of_its_own_that_fits_a_host_name() {
        let names = Names::of("0123abcd".to_owned());
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
    fn a_thing_is_ours_when_name_and_labels_agree() {
        let names = Names::of("0123abcd".to_owned());
        for part in Part::ALL {
            let (one, name) = (slug("a-1"), names.name(part, &slug("a-1")));
            let labels = names.labels(part, &one);
            assert_eq!(names.owned(&name, &labels), Some((part, one)));
            assert_eq!(Names::of("ffffffff".to_owned()).owned(&name, &labels), None, "another home");
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
