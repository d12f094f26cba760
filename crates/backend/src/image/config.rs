//! Interprets an image's configuration for a bottle. The module has no side effects.

use std::collections::BTreeMap;

/// The parts of an image's configuration that `bottle` uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The operating system. Empty if the image does not name one.
    pub os: String,
    /// The processor architecture, as container engines name it: `amd64`, `arm64`. Empty if the image does not name
    /// one.
    pub architecture: String,
    /// The value of `USER`.
    pub user: String,
    /// The variables that `ENV` sets, as `NAME=value`.
    pub env: Vec<String>,
    /// The directories that `VOLUME` declares.
    pub volumes: Vec<String>,
    /// Whether the image has an `ENTRYPOINT`.
    pub entrypoint: bool,
    /// The command of `HEALTHCHECK`.
    pub healthcheck: Vec<String>,
    /// Whether the image has an `ONBUILD` instruction.
    pub on_build: bool,
    /// The labels. Backends whose code reads no labels leave them empty.
    pub labels: BTreeMap<String, String>,
}

impl Config {
    /// Checks that the image is for Linux on `architecture`. `machine` is the name of the machine in the error (`this
    /// engine`).
    ///
    /// # Errors
    /// Returns the difference, as the end of a sentence that begins with the image's name.
    pub fn expect_for(&self, architecture: &str, machine: &str) -> Result<(), String> {
        if !self.os.is_empty() && self.os != "linux" {
            return Err(format!("is for {}, not for Linux", self.os));
        }
        if !self.architecture.is_empty() && self.architecture != architecture {
            return Err(format!("is for {}, not for {machine} ({architecture})", self.architecture));
        }
        Ok(())
    }

    /// Lists the image's instructions that have no effect in a bottle, such as `ENTRYPOINT`.
    pub fn left_out(&self) -> Vec<String> {
        let checked = !self.healthcheck.is_empty() && self.healthcheck != ["NONE"];
        [
            ("ENTRYPOINT", self.entrypoint),
            ("HEALTHCHECK", checked),
            ("USER", is_root(&self.user)),
            ("ONBUILD", self.on_build),
        ]
        .into_iter()
        .filter(|(_, there)| *there)
        .map(|(instruction, _)| instruction.to_owned())
        .collect()
    }
}

/// Parses the `NAME=value` variables of an image.
pub fn variables(env: &[String]) -> BTreeMap<String, String> {
    let pairs = env.iter().filter_map(|variable| variable.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Whether `USER` explicitly names root. An agent never runs as root.
fn is_root(user: &str) -> bool {
    matches!(user.split(':').next(), Some("root" | "0"))
}

/// Returns notes for the user about instructions that have no effect in a bottle, and about volumes, because snapshots
/// exclude volumes.
pub fn notes(left_out: &[String], volumes: &[String]) -> Vec<String> {
    let runs: Vec<&str> = left_out.iter().map(String::as_str).filter(|one| *one != "USER").collect();
    let mut notes = Vec::new();
    if !runs.is_empty() {
        notes.push(format!("the image's {} has no effect in a bottle", runs.join(", ")));
    }
    if runs.len() < left_out.len() {
        notes.push("the image's USER is root, and the agent is another user of it".to_owned());
    }
    if !volumes.is_empty() {
        let list = volumes.join(", ");
        notes.push(format!("the image keeps {list} in a volume: no snapshot holds what is in it"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_name_instructions_without_effect_and_volumes() {
        let own = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        assert_eq!(notes(&[], &[]), [""; 0]);
        let all = notes(&own(&["ENTRYPOINT", "HEALTHCHECK", "USER"]), &own(&["/a", "/b"]));
        let expected = [
            "the image's ENTRYPOINT, HEALTHCHECK has no effect in a bottle",
            "the image's USER is root, and the agent is another user of it",
            "the image keeps /a, /b in a volume: no snapshot holds what is in it",
        ];
        assert_eq!(all, expected);
    }
}
