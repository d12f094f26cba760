//! Combines the rules from all of the user's rule files.
//!
//! A rule file may extend another rule file with the table `[extend]`. Both files then become one set of rules. A rule
//! of the extending file changes the rule with the same id in the extended file.

use std::ops::Range;

use crate::rule_toml::{self, RawFile, RawRule};
use crate::user_rules::{RulesError, UserRules};

/// The names of the files that a file with `useDefault` extends. The default rules of gitleaks and betterleaks are not
/// part of this crate. Users may save these rules under these names.
pub const DEFAULT_FILES: [&str; 2] = ["gitleaks.toml", "betterleaks.toml"];

/// The maximum length of a chain of files that extend each other. gitleaks has the same limit.
const MAX_CHAIN: usize = 3;

/// The rules from all of the user's rule files. The allowlists of a file apply only to the rules of that
/// file and of the files that it extends.
#[derive(Debug, Default)]
pub struct RuleFiles {
    rules: Vec<UserRules>,
    remarks: Vec<Remarks>,
}

/// Notes and warnings for the user about one rule file.
#[derive(Debug, Default)]
pub struct Remarks {
    /// Parts of the file that are ignored and do not affect the results.
    pub notes: Vec<String>,
    /// Rules, allowlists and other parts of the file that are left out because they cannot be used. Each warning
    /// contains the line and the reason.
    pub warnings: Vec<String>,
}

/// An invalid rule file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {error}")]
pub struct BadRuleFile {
    /// The file name that the caller passed.
    pub file: String,
    /// The error, with the line number.
    pub error: RulesError,
}

impl RuleFiles {
    /// Parses rule files. `files` contains the name and the text of each file. Rules that cannot be used are left out,
    /// and [`remarks`](Self::remarks) contains a warning for each of them.
    ///
    /// # Errors
    /// Fails with [`BadRuleFile`] for the first file that is not TOML or is too large.
    pub fn parse<'f>(files: impl IntoIterator<Item = (&'f str, &'f str)>) -> Result<Self, BadRuleFile> {
        let (mut names, mut raws, mut remarks) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (name, text)) in files.into_iter().enumerate() {
            let raw = rule_toml::read(text, number);
            let mut raw = raw.map_err(|error| BadRuleFile { file: name.to_owned(), error })?;
            let (notes, warnings) = (std::mem::take(&mut raw.notes), std::mem::take(&mut raw.warnings));
            remarks.push(Remarks { notes, warnings });
            names.push(name);
            raws.push(Some(raw));
        }
        let bases = bases(&names, &raws, &mut remarks);
        let mut read = Self { rules: Vec::new(), remarks };
        let mut owners: Vec<(String, usize)> = Vec::new();
        for number in (0..raws.len()).filter(|number| !bases.contains(&Some(*number))) {
            let Some(mut raw) = merged(number, &bases, &mut raws, &mut read.remarks) else { continue };
            let mut kept: Vec<RawRule> = Vec::new();
            for rule in raw.rules {
                let other = owners.iter().find(|(id, _)| *id == rule.id);
                if let Some((_, other)) = other {
                    let there = if *other == rule.file { "above" } else { names[*other] };
                    let (line, id) = (rule.line, &rule.id);
                    let warning =
                        format!("line {line}: rule {id:?} is left out: it is there already, {there}");
                    read.remarks[rule.file].warnings.push(warning);
                    continue;
                }
                owners.push((rule.id.clone(), rule.file));
                kept.push(rule);
            }
            raw.rules = kept;
            let remarks = &mut read.remarks;
            let rules = UserRules::new(raw, |file, warning| remarks[file].warnings.push(warning));
            read.rules.push(rules.map_err(|error| BadRuleFile { file: names[number].to_owned(), error })?);
        }
        Ok(read)
    }

    /// Returns the path in the table `[extend]` of a rule file, relative to the directory of rule files. Returns `None`
    /// if the file has no such path or is not TOML.
    #[must_use]
    pub fn extended_path(text: &str) -> Option<String> {
        if !text.contains("extend") {
            return None;
        }
        let path = rule_toml::read_extend(text)?;
        Some(plain_name(&path).to_owned())
    }

    /// Returns the number of rules in all files.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rules.iter().map(|rules| rules.names().count()).sum()
    }

    /// Returns the remarks about each file, in the order in which the files were passed to [`parse`](Self::parse).
    #[must_use]
    pub fn remarks(&self) -> &[Remarks] {
        &self.remarks
    }

    /// Returns the ids and descriptions of the rules that check only file names and match `path`.
    pub fn of_name<'s>(&'s self, path: &'s str) -> impl Iterator<Item = (&'s str, &'s str)> {
        self.rules.iter().flat_map(move |rules| rules.of_name(path))
    }

    /// Finds every match of the rules in `text`, and calls `found` with the rule's id and the range of the match.
    /// `path` is the path of the file, or `None` if the text is not the content of a file.
    pub(crate) fn find(&self, text: &[u8], path: Option<&str>, mut found: impl FnMut(&str, Range<usize>)) {
        for rules in &self.rules {
            rules.find(text, path, &mut found);
        }
    }
}

fn plain_name(path: &str) -> &str {
    path.trim_start_matches("./")
}

/// Returns the index of the extended file for each file. The index is `None` if the file extends no other file.
fn bases(names: &[&str], raws: &[Option<RawFile>], remarks: &mut [Remarks]) -> Vec<Option<usize>> {
    let mut bases: Vec<Option<usize>> = vec![None; names.len()];
    for (number, raw) in raws.iter().enumerate() {
        let Some(extend) = raw.as_ref().map(|raw| &raw.extend) else { continue };
        let place = |wanted: &str| names.iter().position(|name| *name == wanted);
        let base = match &extend.path {
            Some(path) => place(plain_name(path)).ok_or_else(|| format!("no rule file {path:?} is there")),
            None if extend.default => {
                DEFAULT_FILES.iter().filter_map(|name| place(name)).find(|place| *place != number).ok_or_else(
                    || {
                        format!(
                            "useDefault needs the default rules of gitleaks, which bottle does not contain; save them \
                             as {:?} in the same directory",
                            DEFAULT_FILES[0]
                        )
                    },
                )
            }
            None => continue,
        };
        let base = base.and_then(|base| {
            // Rejects a file that extends itself, and a chain that exceeds the limit.
            let chain =
                std::iter::successors(Some(base), |base| bases[*base]).take(MAX_CHAIN).collect::<Vec<_>>();
            let above = std::iter::successors(Some(number), |file| {
                bases.iter().position(|base| *base == Some(*file))
            });
            let above = above.take(MAX_CHAIN).count();
            if chain.contains(&number) || chain.len() + above > MAX_CHAIN {
                Err(format!("too many files extend each other, up to {:?}", names[base]))
            } else if let Some(other) = bases.iter().position(|other| *other == Some(base)) {
                Err(format!("{:?} extends {:?} already", names[other], names[base]))
            } else {
                Ok(base)
            }
        });
        match base {
            Ok(base) => bases[number] = Some(base),
            Err(error) => {
                remarks[number].warnings.push(format!("line {}: extend is left out: {error}", extend.line));
            }
        }
    }
    bases
}

/// Removes a file and the files that it extends from `raws`, and merges the rules of these files as gitleaks does.
fn merged(
    number: usize,
    bases: &[Option<usize>],
    raws: &mut [Option<RawFile>],
    remarks: &mut [Remarks],
) -> Option<RawFile> {
    let mut raw = raws[number].take()?;
    let Some(mut base) = bases[number].and_then(|base| merged(base, bases, raws, remarks)) else {
        return Some(raw);
    };
    for id in &raw.extend.disabled {
        if base.rules.iter().all(|rule| rule.id != *id) {
            let warning = format!("line {}: disabledRules names {id:?}, which is no rule", raw.extend.line);
            remarks[number].warnings.push(warning);
        }
    }
    base.rules.retain(|rule| !raw.extend.disabled.contains(&rule.id));
    for rule in raw.rules {
        match base.rules.iter_mut().find(|other| other.id == rule.id && other.file != number) {
            Some(other) => change(other, rule),
            None => base.rules.push(rule),
        }
    }
    raw.rules = base.rules;
    raw.everywhere.extend(base.everywhere);
    Some(raw)
}

/// Changes `rule` by the rule `by`, which has the same id and is in an extending file.
fn change(rule: &mut RawRule, by: RawRule) {
    rule.file = by.file;
    rule.line = by.line;
    rule.description = by.description.or(rule.description.take());
    rule.regex = by.regex.or(rule.regex.take());
    rule.path = by.path.or(rule.path.take());
    rule.group = by.group.or(rule.group);
    rule.entropy = by.entropy.filter(|entropy| *entropy > 0.0).or(rule.entropy);
    rule.keywords.extend(by.keywords);
    rule.allows.extend(by.allows);
    rule.filters.extend(by.filters);
    rule.required.extend(by.required);
    rule.silent |= by.silent;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{KnownSecrets, Scanner};

    const ACME: &str = "[[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\nkeywords = ['acme-']\n";
    const OTHER: &str =
        "[[rules]]\nid = 'other'\nregex = 'other-[0-9]{8}'\n[allowlist]\npaths = ['^tests/']\n";

    fn found(rules: &RuleFiles, text: &str, path: Option<&str>) -> Vec<String> {
        let mut found = Vec::new();
        rules.find(text.as_bytes(), path, |id, range| found.push(format!("{id}: {}", &text[range])));
        found
    }

    fn warnings(rules: &RuleFiles) -> String {
        rules.remarks().iter().flat_map(|remarks| remarks.warnings.clone()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn each_files_allowlist_applies_to_its_own_rules() {
        let rules = RuleFiles::parse([("a.toml", ACME), ("b.toml", OTHER)]).expect("rules");
        assert_eq!(rules.count(), 2);
        let text = "acme-12345678 other-12345678 acme-1";
        assert_eq!(found(&rules, text, Some("tests/a")), ["acme: acme-12345678"]);
        assert_eq!(found(&rules, text, Some("src/a")), ["acme: acme-12345678", "other: other-12345678"]);
        let known = Arc::new(KnownSecrets::new([]).expect("none"));
        let scanner = Scanner::outbound(known).with_rules(Arc::new(rules));
        let report = scanner.scan(text.as_bytes()).findings;
        assert_eq!(report.iter().map(|finding| &*finding.rule).collect::<Vec<_>>(), ["acme", "other"]);
        assert!(report[0].preview.contains("`acme`"), "{}", report[0].preview);
        let mut stream = scanner.stream_of(Some("tests/a"));
        stream.feed(text.as_bytes());
        assert_eq!(stream.finish().findings.len(), 1);
    }

    #[test]
    fn a_duplicate_rule_is_left_out_and_named() {
        let twice = format!("title = 'x'\n\n{ACME}{ACME}");
        let rules = RuleFiles::parse([("a.toml", ACME), ("b.toml", &twice)]).expect("rules");
        assert_eq!(rules.count(), 1);
        let warning = "line 3: rule \"acme\" is left out: it is there already, a.toml";
        assert!(warnings(&rules).starts_with(warning), "{}", warnings(&rules));
        let error = RuleFiles::parse([("a.toml", ACME), ("b.toml", "[[rules]\n")]).expect_err("no TOML");
        assert!(error.to_string().starts_with("b.toml: line 1: "), "{error}");
    }

    #[test]
    fn a_file_extends_another_one() {
        let base = format!("{ACME}[[rules]]\nid = 'noisy'\nregex = 'noisy-[0-9]+'\n{OTHER}",);
        let ours = "[extend]\npath = './base.toml'\ndisabledRules = ['noisy', 'nothing']\n\
            [[rules]]\nid = 'acme'\ndescription = 'ours'\n\
            [[rules.allowlists]]\nregexes = ['^acme-0+$']\n\
            [[rules]]\nid = 'new'\nregex = 'new-[0-9]+'\n\
            [[allowlists]]\nregexes = ['-99999999$']\n";
        let text = "acme-12345678 acme-00000000 noisy-1 new-2 other-12345678 other-99999999";
        for (path, name) in [("./base.toml", "base.toml"), ("/etc/x/base.toml", "/etc/x/base.toml")] {
            let ours = ours.replace("./base.toml", path);
            assert_eq!(RuleFiles::extended_path(&ours).as_deref(), Some(name));
            let rules = RuleFiles::parse([(name, base.as_str()), ("ours.toml", &ours)]).expect("rules");
            let expected = ["acme: acme-12345678", "other: other-12345678", "new: new-2"];
            assert_eq!(found(&rules, text, None), expected);
            assert_eq!(warnings(&rules), "line 1: disabledRules names \"nothing\", which is no rule");
            // The allowlist of the extended file applies to all rules.
            assert_eq!(found(&rules, text, Some("tests/a")), [""; 0]);
        }
        let default = ours.replace("path = './base.toml'", "useDefault = true");
        for name in DEFAULT_FILES {
            let rules = RuleFiles::parse([(name, base.as_str()), ("ours.toml", &default)]).expect("rules");
            assert_eq!(found(&rules, text, None).len(), 3);
        }
    }

    #[test]
    fn a_file_that_cannot_be_extended_is_named() {
        let extending =
            |id: &str, extend: &str| format!("[extend]\n{extend}\n[[rules]]\nid = '{id}'\nregex = 'a'\n");
        for (files, part) in [
            (
                vec![("a.toml", "path = 'b.toml'")],
                "line 1: extend is left out: no rule file \"b.toml\" is there",
            ),
            (vec![("gitleaks.toml", "useDefault = true")], "which bottle does not contain"),
            (vec![("a.toml", "path = 'a.toml'")], "too many files extend each other"),
            (
                vec![("a.toml", "path = 'b.toml'"), ("b.toml", "path = 'a.toml'")],
                "too many files extend each other",
            ),
            (
                vec![
                    ("a.toml", "path = 'b.toml'"),
                    ("b.toml", "path = 'c.toml'"),
                    ("c.toml", "path = 'd.toml'"),
                    ("d.toml", ""),
                ],
                "too many files extend each other",
            ),
            (
                vec![("a.toml", "path = 'c.toml'"), ("b.toml", "path = 'c.toml'"), ("c.toml", "")],
                "\"a.toml\" extends \"c.toml\" already",
            ),
        ] {
            let texts: Vec<_> = files.iter().map(|(name, extend)| (*name, extending(name, extend))).collect();
            let rules =
                RuleFiles::parse(texts.iter().map(|(name, text)| (*name, text.as_str()))).expect("rules");
            assert!(warnings(&rules).contains(part), "{part}: {}", warnings(&rules));
        }
    }
}
