//! Combines the rules from all of the user's rule files.

use std::ops::Range;

use crate::finding::{Detector, Finding};
use crate::user_rules::{RulesError, UserRules};

/// The rules from all of the user's rule files. The allowlists of a file apply only to the rules of that
/// file.
#[derive(Debug, Default)]
pub struct RuleFiles(Vec<UserRules>);

/// An invalid rule file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {error}")]
pub struct BadRuleFile {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// The error, with the line number.
    pub error: RulesError,
}

impl RuleFiles {
    /// Parses rule files, given as pairs of name and text.
    ///
    /// # Errors
    /// Fails with [`BadRuleFile`] for the first file that is invalid or that repeats a rule id of an earlier
    /// file.
    pub fn parse<'f>(files: impl IntoIterator<Item = (&'f str, &'f str)>) -> Result<Self, BadRuleFile> {
        let mut read: Vec<(&str, UserRules)> = Vec::new();
        for (file, text) in files {
            let bad = |error| BadRuleFile { file: file.to_owned(), error };
            let rules = UserRules::parse(text).map_err(bad)?;
            for (other, known) in &read {
                if let Some((rule, _)) = rules.names().find(|(id, _)| known.line_of(id).is_some()) {
                    let line = rules.line_of(rule).unwrap_or_default();
                    let file = Some((*other).to_owned());
                    return Err(bad(RulesError::DuplicateId { line, rule: rule.to_owned(), file }));
                }
            }
            read.push((file, rules));
        }
        Ok(Self(read.into_iter().map(|(_, rules)| rules).collect()))
    }

    /// The number of rules in all files.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().map(|rules| rules.names().count()).sum()
    }

    /// For each file, in the order of the files: notes for the user about the parts of the file that are
    /// ignored.
    pub fn notes(&self) -> impl Iterator<Item = &[String]> {
        self.0.iter().map(UserRules::notes)
    }

    /// Whether one of these rules reported `finding` and its allowlists accept it in a file at `path`. Only
    /// callers that scan files need this method.
    #[must_use]
    pub fn allows(&self, finding: &Finding, path: &str) -> bool {
        let of_it = |rules: &&UserRules| rules.line_of(&finding.rule).is_some();
        finding.detector == Detector::OwnRules
            && self.0.iter().filter(of_it).any(|rules| rules.allows_path(&finding.rule, path))
    }

    /// Finds every match in `text` and reports the rule's id.
    pub(crate) fn find(&self, text: &[u8], mut found: impl FnMut(&str, Range<usize>)) {
        for rules in &self.0 {
            rules.find(text, &mut found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{KnownSecrets, Scanner};

    const ACME: &str = "[[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\nkeywords = ['acme-']\n";
    const OTHER: &str =
        "[[rules]]\nid = 'other'\nregex = 'other-[0-9]{8}'\n[allowlist]\npaths = ['^tests/']\n";

    #[test]
    fn each_files_allowlist_applies_to_its_own_rules() {
        let rules = RuleFiles::parse([("a.toml", ACME), ("b.toml", OTHER)]).expect("rules");
        assert_eq!(rules.count(), 2);
        let rules = Arc::new(rules);
        let known = Arc::new(KnownSecrets::new([]).expect("none"));
        let scanner = Scanner::outbound(known).with_rules(Arc::clone(&rules));
        let found = scanner.scan(b"acme-12345678 other-12345678 acme-1").findings;
        let results: Vec<(&str, bool, bool)> = found
            .iter()
            .map(|finding| (&*finding.rule, rules.allows(finding, "tests/a"), rules.allows(finding, "src/a")))
            .collect();
        assert_eq!(results, [("acme", false, false), ("other", true, false)]);
        assert!(found[0].preview.contains("`acme`"), "{}", found[0].preview);
        // The user's allowlists do not apply to a built-in rule with the same id.
        let ours = Finding { detector: Detector::TokenPatterns, ..found[1].clone() };
        assert!(!rules.allows(&ours, "tests/a"));
    }

    #[test]
    fn a_duplicate_id_error_names_both_files_and_the_line() {
        let twice = format!("title = 'x'\n\n{ACME}");
        let error = RuleFiles::parse([("a.toml", ACME), ("b.toml", &twice)]).expect_err("twice").to_string();
        assert_eq!(error, "b.toml: line 3: rule \"acme\" is there already, in a.toml");
        let error = RuleFiles::parse([("a.toml", ACME), ("b.toml", "[[rules]\n")]).expect_err("no TOML");
        assert!(error.to_string().starts_with("b.toml: line 1: "), "{error}");
    }
}
