//! Parses the section `environments:` of `settings.yml`: how `bottle env` makes the bottle of a task.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bottle_policy::names::Name;
use bottle_text::yaml::Spanned;
use serde::Deserialize;

use super::pause::Pause;

/// The default of `environments.idle`.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// The settings of `bottle env`, with defaults applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentSettings {
    /// `idle`: how long a bottle without work keeps running before it is stopped. `None` if it is never stopped.
    pub idle: Option<Duration>,
    /// The choices for all tasks.
    pub all: Choices,
    /// `tasks`: the choices for some tasks. The key is a task id, or a pattern of task ids. These choices override
    /// `all`.
    pub tasks: BTreeMap<String, Choices>,
}

/// How `bottle env` makes the bottle of a task. Absent fields are chosen as for `bottle start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Choices {
    /// The agent.
    pub agent: Option<Name>,
    /// The bottle manifests, in the order in which they are merged.
    pub bottles: Option<Vec<Name>>,
    /// The backend.
    pub backend: Option<String>,
    /// The directory whose files are copied into the workspace. Absolute.
    pub cwd: Option<PathBuf>,
}

impl Choices {
    /// Fills absent fields with the choices of `other`.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            agent: self.agent.or_else(|| other.agent.clone()),
            bottles: self.bottles.or_else(|| other.bottles.clone()),
            backend: self.backend.or_else(|| other.backend.clone()),
            cwd: self.cwd.or_else(|| other.cwd.clone()),
        }
    }
}

impl Default for EnvironmentSettings {
    fn default() -> Self {
        Self { idle: Some(IDLE), all: Choices::default(), tasks: BTreeMap::new() }
    }
}

impl EnvironmentSettings {
    /// Returns the choices for a task. They come from the entry of the task's id, or else from the longest pattern that
    /// matches the id. Fields that this entry does not set come from the choices for all tasks.
    #[must_use]
    pub fn of_task(&self, task: &str) -> Choices {
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => task.starts_with(start),
            None => task == pattern,
        };
        // A pattern without a `*` matches only the same id. It is therefore at least as long as each other pattern that
        // matches.
        let found = self.tasks.iter().filter(|(pattern, _)| matches(pattern));
        let own = found.max_by_key(|(pattern, _)| (pattern.len(), !pattern.ends_with('*')));
        own.map(|(_, choices)| choices.clone()).unwrap_or_default().or(&self.all)
    }
}

/// The section `environments:`, as written in the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Written {
    pub(super) idle: Option<Spanned<Pause>>,
    agent: Option<Name>,
    bottles: Option<Vec<Name>>,
    backend: Option<String>,
    cwd: Option<Spanned<PathBuf>>,
    tasks: BTreeMap<String, Spanned<Choices>>,
}

impl Written {
    /// Checks the values. `idle` is the parsed value of the key `idle`.
    ///
    /// # Errors
    /// Returns the error message, which begins with the position of the value, and a hint.
    pub(super) fn settle(
        self,
        idle: Option<Duration>,
    ) -> Result<EnvironmentSettings, (String, Option<String>)> {
        let relative = |at, key: &str| {
            let hint = "an environment is the same wherever the command runs, so write the whole path";
            Err((format!("{at}: `{key}` is not an absolute path"), Some(hint.to_owned())))
        };
        let cwd = match self.cwd {
            Some(cwd) if !cwd.value.is_absolute() => return relative(cwd.at, "environments.cwd"),
            cwd => cwd.map(|cwd| cwd.value),
        };
        let mut tasks = BTreeMap::new();
        for (pattern, choices) in self.tasks {
            if choices.value.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) {
                return relative(choices.at, &format!("environments.tasks.{pattern}.cwd"));
            }
            tasks.insert(pattern, choices.value);
        }
        let all = Choices { agent: self.agent, bottles: self.bottles, backend: self.backend, cwd };
        Ok(EnvironmentSettings { idle, all, tasks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(agent: &str, backend: Option<&str>) -> Choices {
        let backend = backend.map(str::to_owned);
        Choices { agent: Some(agent.parse().expect("name")), backend, ..Choices::default() }
    }

    #[test]
    fn the_longest_pattern_applies_before_the_choices_for_all() {
        let tasks = [
            ("django-*", choices("django", Some("docker"))),
            ("django-1*", choices("first", None)),
            ("django-12", choices("exact", None)),
            ("other", Choices { backend: Some("fake".to_owned()), ..Choices::default() }),
        ];
        let settings = EnvironmentSettings {
            all: choices("all", Some("linux")),
            tasks: tasks.map(|(pattern, choices)| (pattern.to_owned(), choices)).into(),
            ..EnvironmentSettings::default()
        };
        for (task, agent, backend) in [
            ("django-2", "django", "docker"),
            ("django-13", "first", "linux"),
            ("django-12", "exact", "linux"),
            ("other", "all", "fake"),
            ("others", "all", "linux"),
            ("", "all", "linux"),
        ] {
            assert_eq!(settings.of_task(task), choices(agent, Some(backend)), "{task}");
        }
    }
}
