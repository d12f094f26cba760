//! What an image's configuration says, and what of it holds in a bottle. Pure.

use std::collections::BTreeMap;

/// Of an image's configuration, what a bottle needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Config {
    /// The system it is for; empty when it does not say.
    pub(crate) os: String,
    /// The processor it is for, in an engine's word; empty when it does not say.
    pub(crate) architecture: String,
    /// `USER`.
    pub(crate) user: String,
    /// `ENV`, as `NAME=value`.
    pub(crate) env: Vec<String>,
    /// `VOLUME`.
    pub(crate) volumes: Vec<String>,
    /// Whether it has an `ENTRYPOINT`.
    pub(crate) entrypoint: bool,
    /// `HEALTHCHECK`.
    pub(crate) healthcheck: Vec<String>,
    /// Whether it has an `ONBUILD`.
    pub(crate) on_build: bool,
}

impl Config {
    /// Whether a bottle can be made of it where programs for `architecture` run; `machine` is how that is called
    /// (`this engine`).
    ///
    /// # Errors
    /// Why not, as the rest of a sentence that begins with the image's name.
    pub(crate) fn expect_for(&self, architecture: &str, machine: &str) -> Result<(), String> {
        if !self.os.is_empty() && self.os != "linux" {
            return Err(format!("is for {}, and a bottle is Linux", self.os));
        }
        if !self.architecture.is_empty() && self.architecture != architecture {
            return Err(format!("is for {}, and {machine} runs {architecture}", self.architecture));
        }
        Ok(())
    }

    /// The instructions that have no effect in a bottle (`ENTRYPOINT`).
    pub(crate) fn left_out(&self) -> Vec<String> {
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

/// `NAME=value`, as an image has them.
pub(crate) fn variables(env: &[String]) -> BTreeMap<String, String> {
    let pairs = env.iter().filter_map(|variable| variable.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Whether `USER` says root, which no agent is. Saying nothing means the same and promises less.
fn is_root(user: &str) -> bool {
    matches!(user.split(':').next(), Some("root" | "0"))
}

/// What a user should know of an image whose instructions are left out and that has these volumes.
pub(crate) fn notes(left_out: &[String], volumes: &[String]) -> Vec<String> {
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
    fn notes_say_what_has_no_effect_and_what_does_not_last() {
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
