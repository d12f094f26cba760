//! Reads the environment variables of bot-bottle. [`Host::read_bot_bottle_variables`] reads the variables that `bottle`
//! supports too. [`Host::unused_bot_bottle_variables`] reports the variables that have no effect in `bottle`, and
//! [`Host::stale_bot_bottle_manifests`] the files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Host;

/// The name prefix of bot-bottle's variables.
const THEIRS: &str = "BOT_BOTTLE_";

/// The name prefix of `bottle`'s variables.
const OURS: &str = "BOTTLE_";

/// The variables, without their prefix, that are read under both prefixes. `HOME` is not one of them: bot-bottle's
/// home has another format.
const SHARED: [&str; 4] = ["BACKEND", "DRY_RUN", "RUNTIME", "SENSITIVE_PREFIXES"];

/// The variable, without its prefix, that names the home of bot-bottle.
const THEIR_HOME: &str = "HOME";

/// The home of bot-bottle in the user's home directory, if no variable names another directory.
const DEFAULT_HOME: &str = ".bot-bottle";

/// The file in which old versions of bot-bottle kept all agents and bottles.
const STALE_MANIFEST: &str = "bot-bottle.json";

impl Host {
    /// Renames each variable of bot-bottle that has a meaning for `bottle`, unless a variable of the new name is set.
    /// For example, `BOT_BOTTLE_BACKEND` becomes `BOTTLE_BACKEND`. Returns a note that names the renamed variables;
    /// `None` if no variable was renamed.
    pub fn read_bot_bottle_variables(&mut self) -> Option<String> {
        let mut notes = Vec::new();
        for name in SHARED {
            let (theirs, ours) = (format!("{THEIRS}{name}"), format!("{OURS}{name}"));
            if self.var(&theirs).is_none() || self.env.contains_key(OsStr::new(&ours)) {
                continue;
            }
            if let Some(value) = self.env.remove(OsStr::new(&theirs)) {
                notes.push(format!("{theirs} is read as {ours}"));
                self.env.insert(ours.into(), value);
            }
        }
        let them = if notes.len() == 1 { "it" } else { "them" };
        (!notes.is_empty()).then(|| format!("{}; rename {them}", notes.join(", ")))
    }

    /// Returns notes about the variables of bot-bottle that are set and have no effect in `bottle`: one note about
    /// timeouts, and one about the other variables. Each note names the variables, and says where `bottle` has the
    /// setting.
    #[must_use]
    pub fn unused_bot_bottle_variables(&self) -> Vec<String> {
        let set = self.env.iter().filter(|(_, value)| !value.is_empty());
        let names = set.filter_map(|(name, _)| name.to_str()?.strip_prefix(THEIRS));
        let unused = names.filter(|name| !SHARED.contains(name) && *name != THEIR_HOME);
        let (waits, others): (Vec<_>, Vec<_>) =
            unused.partition(|name| name.contains("TIMEOUT") || name.contains("WAIT"));
        let note = |names: &[&str], instead: &str| {
            let verb = if names.len() == 1 { "has" } else { "have" };
            let names: Vec<_> = names.iter().map(|name| format!("{THEIRS}{name}")).collect();
            (!names.is_empty()).then(|| format!("{} {verb} no effect: {instead}", names.join(", ")))
        };
        let waits = note(
            &waits,
            "`settings.yml` has the keys supervise.token_timeout, supervise.git_timeout and supervise.call_wait",
        );
        let others =
            note(&others, "`bottle settings` lists the settings, and `bottle help commands` the variables");
        waits.into_iter().chain(others).collect()
    }

    /// Returns a note that names each `bot-bottle.json` in the user's home directory, in the home of bot-bottle, in the
    /// working directory and in the directory `imported`. These files have no effect. `None` if there is no such file.
    #[must_use]
    pub fn stale_bot_bottle_manifests(&self, imported: Option<&Path>) -> Option<String> {
        let (theirs, imported) = (self.bot_bottle_home(), imported.map(Path::to_owned));
        let directories = [Some(self.user_home.clone()), Some(theirs), Some(self.cwd.clone()), imported];
        let mut files: Vec<PathBuf> =
            directories.into_iter().flatten().map(|directory| directory.join(STALE_MANIFEST)).collect();
        files.sort();
        files.dedup();
        files.retain(|file| file.is_file());
        let verb = if files.len() == 1 { "has" } else { "have" };
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "{} {verb} no effect: write each agent to `agents/NAME.md` and each bottle to `bottles/NAME.md` in {} \
                 (`bottle help manifests`)",
                names.join(", "),
                self.home.display()
            )
        })
    }

    /// Returns the home of bot-bottle: the directory that `BOT_BOTTLE_HOME` names, otherwise `~/.bot-bottle`. The
    /// directory may not exist.
    #[must_use]
    pub fn bot_bottle_home(&self) -> PathBuf {
        let named = self.var(&format!("{THEIRS}{THEIR_HOME}"));
        named.map_or_else(|| self.user_home.join(DEFAULT_HOME), |named| self.cwd.join(named))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(env: &[(&str, &str)]) -> Host {
        Host {
            env: env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: "/work".into(),
            home: "/home/x/.bottle".into(),
            user_home: "/home/x".into(),
            runtime: "/run/x".into(),
            program: "/bin/bottle".into(),
        }
    }

    #[test]
    fn renames_variables_that_have_a_meaning_here() {
        let mut host = host(&[
            ("BOT_BOTTLE_BACKEND", "docker"),
            ("BOT_BOTTLE_RUNTIME", "runsc"),
            ("BOTTLE_RUNTIME", "runc"),
            ("BOT_BOTTLE_SENSITIVE_PREFIXES", ""),
            ("BOT_BOTTLE_DRY_RUN", "1"),
            ("BOT_BOTTLE_HOME", "/elsewhere"),
        ]);
        let note = host.read_bot_bottle_variables();
        let both = "BOT_BOTTLE_BACKEND is read as BOTTLE_BACKEND, BOT_BOTTLE_DRY_RUN is read as BOTTLE_DRY_RUN; rename them";
        assert_eq!(note.as_deref(), Some(both));
        assert_eq!(host.var("BOTTLE_DRY_RUN"), Some("1"));
        assert_eq!(host.var("BOTTLE_BACKEND"), Some("docker"));
        assert_eq!(host.var("BOTTLE_RUNTIME"), Some("runc"), "our own name wins");
        assert_eq!(host.var("BOTTLE_SENSITIVE_PREFIXES"), None);
        assert_eq!(host.var("BOTTLE_HOME"), None, "its home has another format");
        assert_eq!(host.read_bot_bottle_variables(), None, "the note appears once");
        assert_eq!(host.unused_bot_bottle_variables(), [""; 0]);
    }

    #[test]
    fn names_variables_that_have_no_effect() {
        let host = host(&[
            ("BOT_BOTTLE_TOKEN_TIMEOUT", "9"),
            ("BOT_BOTTLE_DEBUG", "1"),
            ("BOT_BOTTLE_LOG", "2"),
            ("BOT_BOTTLE_EMPTY", ""),
            ("BOT_BOTTLE_HOME", "/elsewhere"),
            ("BOTTLE_HOME", "/home/x/.bottle"),
        ]);
        insta::assert_snapshot!(host.unused_bot_bottle_variables().join("\n"), @r"
        BOT_BOTTLE_TOKEN_TIMEOUT has no effect: `settings.yml` has the keys supervise.token_timeout, supervise.git_timeout and supervise.call_wait
        BOT_BOTTLE_DEBUG, BOT_BOTTLE_LOG have no effect: `bottle settings` lists the settings, and `bottle help commands` the variables
        ");
    }

    #[test]
    fn names_each_old_manifest_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |path: &str| directory.path().join(path);
        for path in ["home/.bot-bottle", "home/.bottle", "work", "old"] {
            std::fs::create_dir_all(at(path)).expect("a directory");
        }
        let mut host = Host { cwd: at("work"), home: at("home/.bottle"), user_home: at("home"), ..host(&[]) };
        assert_eq!(host.stale_bot_bottle_manifests(Some(&at("old"))), None);
        // A directory of this name is no manifest.
        std::fs::create_dir(at("home/.bot-bottle/bot-bottle.json")).expect("a directory");
        for file in ["home/bot-bottle.json", "home/.bottle/bot-bottle.json", "old/bot-bottle.json"] {
            std::fs::write(at(file), "{}").expect("a file");
        }
        let shown = |note: Option<String>| {
            note.map(|note| note.replace(&directory.path().display().to_string(), "")).unwrap_or_default()
        };
        insta::assert_snapshot!(shown(host.stale_bot_bottle_manifests(Some(&at("old")))), @"/home/bot-bottle.json, /old/bot-bottle.json have no effect: write each agent to `agents/NAME.md` and each bottle to `bottles/NAME.md` in /home/.bottle (`bottle help manifests`)");
        // The working directory may be the home directory.
        host.cwd = at("home");
        insta::assert_snapshot!(shown(host.stale_bot_bottle_manifests(None)), @"/home/bot-bottle.json has no effect: write each agent to `agents/NAME.md` and each bottle to `bottles/NAME.md` in /home/.bottle (`bottle help manifests`)");
    }

    #[test]
    fn finds_the_home_of_bot_bottle() {
        assert_eq!(host(&[]).bot_bottle_home(), PathBuf::from("/home/x/.bot-bottle"));
        assert_eq!(host(&[("BOT_BOTTLE_HOME", "old")]).bot_bottle_home(), PathBuf::from("/work/old"));
    }
}
