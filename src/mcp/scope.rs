//! The permissions of a client: which bottles and which tools it may use, and how strictly the command policy decides.

use bottle_command_policy::Mode;
use bottle_host::Host;
use bottle_instance::environments::{self, Environments};
use bottle_instance::record::Record;
use bottle_instance::{State, Store};
use bottle_policy::names::Slug;
use globset::{Glob, GlobSet, GlobSetBuilder};

/// The word for the bottles that the client started.
pub(crate) const STARTED: &str = "started";

/// The word for all bottles.
const ALL: &str = "all";

/// The permissions of a client.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// The client's name. Bottles that the client starts have this name as their parent.
    pub(crate) name: String,
    pub(crate) bottles: Bottles,
    /// The patterns of the names of tools. `None` allows all tools.
    pub(crate) tools: Option<GlobSet>,
    /// The mode of the command policy. `None` selects the mode in the settings.
    pub(crate) mode: Option<Mode>,
}

/// Which bottles a client may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bottles {
    all: bool,
    started: bool,
    named: GlobSet,
}

impl Bottles {
    /// Parses `started`, `all`, or patterns of names.
    ///
    /// # Errors
    /// Returns a part of an error message that names the invalid pattern.
    pub(crate) fn parse<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Self, String> {
        let mut bottles = Self::default();
        let mut patterns = Vec::new();
        for word in words {
            match word {
                ALL => bottles.all = true,
                STARTED => bottles.started = true,
                pattern => patterns.push(pattern),
            }
        }
        bottles.named = globs(patterns)?;
        Ok(bottles)
    }

    /// Whether these bottles include the bottle `slug`, which `parent` started.
    fn have(&self, slug: &Slug, parent: Option<&str>, client: &str) -> bool {
        self.all || self.named.is_match(slug.as_str()) || (self.started && parent == Some(client))
    }
}

/// Compiles patterns. In a pattern, `*` matches any text.
///
/// # Errors
/// Returns a part of an error message that names the invalid pattern.
pub(crate) fn globs<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(
            Glob::new(pattern).map_err(|error| format!("{pattern:?} is not a pattern: {}", error.kind()))?,
        );
    }
    set.build().map_err(|error| error.kind().to_string())
}

impl Scope {
    /// Whether the client may use this tool.
    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.is_match(name))
    }

    /// Returns the slug of an existing bottle that the client may use.
    ///
    /// # Errors
    /// Returns a sentence for the model. The sentence is the same for a bottle of another client and for a bottle that
    /// does not exist. Unlike the errors of the commands, the sentence suggests no similar names.
    pub(crate) fn bottle(&self, host: &Host, name: &str) -> Result<Slug, String> {
        let shown: String = name.chars().take(80).collect();
        let unknown =
            || format!("you have no bottle named {shown:?}; bottle_list shows those that you may use");
        let slug: Slug = name.parse().map_err(|_| unknown())?;
        let Some(state) = Store::of(host).state(&slug) else { return Err(unknown()) };
        let record = record_in(state);
        let parent = record.as_ref().and_then(|record| record.parent.as_deref());
        if self.bottles.have(&slug, parent, &self.name) { Ok(slug) } else { Err(unknown()) }
    }

    /// Returns the slug of the bottle of a task, if the client may use that bottle, and whether the bottle exists.
    ///
    /// # Errors
    /// Returns a sentence for the model. For a task of another client, returns the sentence of [`no_task`]. Returns the
    /// same sentence if the client may not start a bottle for the task.
    pub(crate) fn environment(&self, host: &Host, task: &str) -> Result<(Slug, bool), String> {
        let slug = environments::slug_of(task).map_err(|why| {
            let shown: String = task.chars().take(80).collect();
            format!("cannot use the task id {shown:?}: {why}; begin with letters and digits")
        })?;
        let environment = Environments::of(host)
            .map_err(|error| format!("cannot use the directory of environments: {error}"))?
            .get(&slug);
        let record = record_of(host, &slug);
        let exists = record.is_some() || environment.is_some();
        let parent = match record {
            Some(record) => record.parent,
            None => environment.and_then(|environment| environment.parent),
        };
        // The client becomes the parent of a bottle that it starts.
        let parent = if exists { parent } else { Some(self.name.clone()) };
        match self.bottles.have(&slug, parent.as_deref(), &self.name) {
            true => Ok((slug, exists)),
            false => Err(no_task(task)),
        }
    }
}

/// Returns the sentence for a task without a bottle. The sentence is the same for a task that has a bottle of another
/// client.
pub(crate) fn no_task(task: &str) -> String {
    let shown: String = task.chars().take(80).collect();
    format!("you have no task {shown:?}; env_list shows yours")
}

/// Returns the record of a bottle that exists.
fn record_of(host: &Host, slug: &Slug) -> Option<Record> {
    record_in(Store::of(host).state(slug)?)
}

fn record_in(state: State) -> Option<Record> {
    match state {
        State::Alive(record) | State::Dead(record) | State::Kept(record) => Some(*record),
        State::Damaged(_) | State::Newer(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_names_bottles_by_patterns_and_tools_too() {
        let bottles = Bottles::parse(["ci-*", "one"]).expect("patterns");
        let slug = |name: &str| name.parse::<Slug>().expect("a slug");
        for (name, has) in [("ci-1", true), ("one", true), ("one-2", false), ("xci-1", false)] {
            assert_eq!(bottles.have(&slug(name), None, "me"), has, "{name}");
        }
        assert!(Bottles::parse(["all"]).expect("a word").have(&slug("any"), None, "me"));
        assert!(!Bottles::parse([STARTED]).expect("a word").have(&slug("any"), None, "me"));
        assert!(Bottles::parse(["{a"]).is_err());
        let scope = Scope {
            name: "me".to_owned(),
            bottles,
            tools: Some(globs(["file_*", "terminal"]).expect("patterns")),
            mode: None,
        };
        for (name, has) in [("file_read", true), ("terminal", true), ("bottle_start", false)] {
            assert_eq!(scope.has_tool(name), has, "{name}");
        }
    }
}
