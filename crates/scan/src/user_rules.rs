//! Runs the user's rules, in gitleaks' configuration format (see `rule_toml`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::AhoCorasick;

use crate::entropy::bits_per_byte;
use crate::go_regex::Pattern;
use crate::rule_filter::{self, Filter};
use crate::rule_toml::{Allow, MAX_RULES, MAX_TEXT, RawFile, RawRule, Target};

/// The reason why a rule file is invalid. Line numbers begin at 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// The file is not valid TOML.
    #[error("line {line}: {problem}")]
    Syntax {
        /// The line of the error.
        line: usize,
        /// The parser's message.
        problem: String,
    },
    /// A value in the file has the wrong type.
    #[error("line {line}: {key} of the file must be {wanted}")]
    Type {
        /// The line of the error.
        line: usize,
        /// The key whose value has the wrong type.
        key: &'static str,
        /// The expected type.
        wanted: &'static str,
    },
    /// The file is too large or has too many rules.
    #[error("the rules are too large: at most {MAX_TEXT} bytes and {MAX_RULES} rules are read")]
    TooLarge,
}

/// The rules of one file and of the files that it extends.
pub(crate) struct UserRules {
    keywords: AhoCorasick,
    /// The index of the rule of each keyword.
    owners: Vec<usize>,
    rules: Vec<Rule>,
    everywhere: Vec<Allow>,
}

struct Rule {
    id: Arc<str>,
    description: String,
    /// The regular expression for texts. `None` for a rule that checks only file names.
    regex: Option<Pattern>,
    /// A pattern for the paths of the files to which the rule applies. `None` if the rule applies to every text.
    path: Option<Pattern>,
    group: usize,
    entropy: f64,
    /// Whether the rule has no keywords and therefore runs on every text.
    always: bool,
    allows: Vec<Allow>,
    filters: Vec<Filter>,
    required: Vec<Required>,
    /// Whether the matches of this rule are not findings. Such a rule is only a requirement of other rules, or cannot
    /// be used.
    silent: bool,
}

/// Another rule that must match near a match of this rule.
struct Required {
    rule: usize,
    lines: Option<usize>,
    columns: Option<usize>,
}

impl fmt::Debug for UserRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rules.iter().map(|rule| &rule.id)).finish()
    }
}

impl UserRules {
    /// Prepares the rules in `raw` for the search. If a rule is left out, `warn` receives the index of its file and a
    /// warning.
    ///
    /// # Errors
    /// Fails with [`RulesError`] if there are too many keywords.
    pub(crate) fn new(raw: RawFile, mut warn: impl FnMut(usize, String)) -> Result<Self, RulesError> {
        let RawFile { rules: raws, everywhere, .. } = raw;
        let (mut rules, mut owners, mut keywords) = (Vec::new(), Vec::new(), Vec::new());
        let mut required = Vec::new();
        for raw in raws {
            if let Err(problem) = check(&raw) {
                warn(raw.file, format!("line {}: rule {:?} is left out: {problem}", raw.line, raw.id));
                continue;
            }
            owners.extend(raw.keywords.iter().map(|_| rules.len()));
            rules.push(Rule {
                id: raw.id.into(),
                description: raw.description.unwrap_or_default(),
                regex: raw.regex,
                path: raw.path,
                group: raw.group.unwrap_or_default(),
                entropy: raw.entropy.unwrap_or_default(),
                always: raw.keywords.is_empty(),
                allows: raw.allows,
                filters: raw.filters,
                required: Vec::new(),
                silent: raw.silent,
            });
            keywords.extend(raw.keywords);
            required.push((raw.file, raw.line, raw.required));
        }
        let index = |rules: &[Rule], id: &str| rules.iter().position(|rule| &*rule.id == id);
        for (own, (file, line, needs)) in required.into_iter().enumerate() {
            for need in needs {
                match index(&rules, &need.id) {
                    Some(rule) => {
                        let Some(own) = rules.get_mut(own) else { continue };
                        own.required.push(Required { rule, lines: need.lines, columns: need.columns });
                    }
                    None => {
                        let Some(own) = rules.get_mut(own) else { continue };
                        own.silent = true;
                        let (id, other) = (&own.id, &need.id);
                        warn(
                            file,
                            format!("line {line}: rule {id:?} is left out: it requires rule {other:?}"),
                        );
                    }
                }
            }
        }
        let keywords = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(&keywords)
            .map_err(|_| RulesError::TooLarge)?;
        Ok(Self { keywords, owners, rules, everywhere })
    }

    /// Returns the ids and descriptions of the rules.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rules.iter().map(|rule| (&*rule.id, rule.description.as_str()))
    }

    /// Finds every match of the rules in `text`, and calls `found` with the rule's id and the range of the match.
    /// `path` is the path of the file, or `None` if the text is not the content of a file. Rules and allowlists with a
    /// path apply only to files.
    pub(crate) fn find(&self, text: &[u8], path: Option<&str>, mut found: impl FnMut(&str, Range<usize>)) {
        let mut wanted: Vec<bool> = self.rules.iter().map(|rule| rule.always).collect();
        for hit in self.keywords.find_overlapping_iter(text) {
            wanted[self.owners[hit.pattern().as_usize()]] = true;
        }
        let mut lines = None;
        let mut others: Vec<Option<Vec<(usize, usize)>>> = Vec::new();
        for (rule, _) in self.rules.iter().zip(&wanted).filter(|(rule, wanted)| **wanted && !rule.silent) {
            if rule.required.is_empty() {
                self.each(rule, text, path, |range| found(&rule.id, range));
                continue;
            }
            let mut own = Vec::new();
            self.each(rule, text, path, |range| own.push(range));
            if own.is_empty() {
                continue;
            }
            let lines: &Vec<usize> = lines.get_or_insert_with(|| memchr::memchr_iter(b'\n', text).collect());
            let place = |at: usize| {
                let line = lines.partition_point(|end| *end < at);
                (line, at - line.checked_sub(1).map_or(0, |before| lines[before] + 1))
            };
            others.resize_with(self.rules.len(), || None);
            for need in &rule.required {
                let places = others[need.rule].get_or_insert_with(|| {
                    let mut places = Vec::new();
                    if wanted[need.rule] {
                        self.each(&self.rules[need.rule], text, path, |range| {
                            places.push(place(range.start))
                        });
                    }
                    places
                });
                own.retain(|range| {
                    let (line, column) = place(range.start);
                    let near = |most: Option<usize>, one: usize, other: usize| {
                        most.is_none_or(|most| one.abs_diff(other) <= most)
                    };
                    // The positions are sorted, so only positions in nearby lines are compared.
                    let start =
                        need.lines.map_or(0, |most| places.partition_point(|place| place.0 + most < line));
                    places[start..]
                        .iter()
                        .take_while(|place| near(need.lines, place.0, line) || place.0 < line)
                        .any(|place| near(need.columns, place.1, column))
                });
            }
            own.into_iter().for_each(|range| found(&rule.id, range));
        }
    }

    /// Returns the ids and descriptions of the rules that check only file names and match `path`.
    pub(crate) fn of_name<'s>(&'s self, path: &'s str) -> impl Iterator<Item = (&'s str, &'s str)> {
        let fits = move |rule: &&Rule| {
            let by_path = |allow: &Allow| allow.concerns(&rule.id) && allow.covers_path(path);
            rule.regex.is_none()
                && !rule.silent
                && rule.path.as_ref().is_some_and(|regex| regex.is_match(path.as_bytes()))
                && !rule.allows.iter().chain(&self.everywhere).any(by_path)
        };
        self.rules.iter().filter(fits).map(|rule| (&*rule.id, rule.description.as_str()))
    }

    /// Calls `found` with the range of the secret in every match of one rule.
    fn each(&self, rule: &Rule, text: &[u8], path: Option<&str>, mut found: impl FnMut(Range<usize>)) {
        let Some(regex) = &rule.regex else { return };
        if let Some(of_files) = &rule.path
            && !path.is_some_and(|path| of_files.is_match(path.as_bytes()))
        {
            return;
        }
        let allows = || rule.allows.iter().chain(&self.everywhere).filter(|allow| allow.concerns(&rule.id));
        let path = path.unwrap_or_default();
        for captures in regex.matches(text) {
            let Some(whole) = captures.get(0).filter(|whole| !whole.is_empty()) else { continue };
            // Selects the secret as gitleaks does. The secret is the group in `secretGroup`, otherwise the first group
            // that is not empty, otherwise the complete match.
            let secret = match rule.group {
                0 => captures.iter().skip(1).flatten().find(|group| !group.is_empty()).unwrap_or(whole),
                group => captures.get(group).unwrap_or(whole),
            };
            if rule.entropy > 0.0 && bits_per_byte(secret.as_bytes()) <= rule.entropy {
                continue;
            }
            let seen = rule_filter::Match {
                secret: secret.as_bytes(),
                whole: whole.as_bytes(),
                line: surrounding_line(text, whole.range()),
                path,
                rule: &rule.id,
                description: &rule.description,
            };
            if !rule.filters.iter().any(|filter| filter.discards(seen))
                && !allows().any(|allow| allow.covers(seen))
            {
                found(secret.range());
            }
        }
    }
}

/// Checks whether a rule can be used. Returns the reason if it cannot.
fn check(rule: &RawRule) -> Result<(), &'static str> {
    match (&rule.regex, &rule.path) {
        (None, None) => Err("it has neither a regex nor a path"),
        (Some(regex), _) if rule.group.is_some_and(|group| group >= regex.groups()) => {
            Err("its secretGroup is not the number of a group of its regex")
        }
        _ => Ok(()),
    }
}

impl Allow {
    fn concerns(&self, rule: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|id| id == rule)
    }

    /// Returns whether the allowlist covers every match in the file at `path`.
    fn covers_path(&self, path: &str) -> bool {
        let alone = !self.all || self.regexes.is_none() && self.stopwords.is_none();
        alone && self.paths.as_ref().is_some_and(|paths| paths.is_match(path.as_bytes()))
    }

    fn covers(&self, found: rule_filter::Match<'_>) -> bool {
        if let Some(filter) = &self.filter {
            return filter.discards(found);
        }
        let seen = match self.target {
            Target::Secret => found.secret,
            Target::Match => found.whole,
            Target::Line => found.line,
        };
        let by_path = |paths: &Pattern| !found.path.is_empty() && paths.is_match(found.path.as_bytes());
        let criteria = [
            self.regexes.as_ref().map(|regexes| regexes.is_match(seen)),
            self.stopwords.as_ref().map(|words| words.is_match(found.secret)),
            self.paths.as_ref().map(by_path),
        ];
        let mut criteria = criteria.into_iter().flatten().peekable();
        if self.all { criteria.peek().is_some() && criteria.all(|met| met) } else { criteria.any(|met| met) }
    }
}

fn surrounding_line(text: &[u8], whole: Range<usize>) -> &[u8] {
    let start = memchr::memrchr(b'\n', &text[..whole.start]).map_or(0, |at| at + 1);
    let end = memchr::memchr(b'\n', &text[whole.end..]).map_or(text.len(), |at| whole.end + at);
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::RuleFiles;

    fn rules(text: &str) -> RuleFiles {
        RuleFiles::parse([("a.toml", text)]).expect("rules")
    }

    fn found_in(rules: &str, text: &str, path: Option<&str>) -> Vec<String> {
        let mut found = Vec::new();
        self::rules(rules)
            .find(text.as_bytes(), path, |id, range| found.push(format!("{id}: {}", &text[range])));
        found
    }

    fn found(rules: &str, text: &str) -> Vec<String> {
        found_in(rules, text, None)
    }

    const NOTHING: [&str; 0] = [];

    const RULES: &str = r#"
title = "ours"

[[rules]]
id = "acme"
description = "an Acme key"
regex = '''(?i)acme[_-]?key\s*=\s*"?([a-z0-9]{10,20})'''
keywords = ["ACME"]
entropy = 2
[[rules.allowlists]]
stopwords = ["sample"]
regexes = ['^0+', '^\${(?:[A-Z_]+|{\d+})}$']

[[rules]]
id = "second-group"
regex = '(id|name)=(\d{4})'
secretGroup = 2

[[rules]]
id = "in-yaml"
regex = 'secret-[0-9]{4}'
path = '(?i)\.ya?ml$'

[[rules]]
id = "key-file"
description = "a key file"
path = '\.p12$'

[[rules]]
id = "both"
regex = 'both-[0-9]+'
[[rules.allowlists]]
condition = "AND"
paths = ['^tests/']
regexes = ['-1$']

[allowlist]
regexTarget = "line"
regexes = ['nothing here']
paths = ['(^|/)fixtures/']
"#;

    #[test]
    fn rules_match_as_configured() {
        assert_eq!(found(RULES, "Acme_Key = \"q1w2e3r4t5y6\""), ["acme: q1w2e3r4t5y6"]);
        assert_eq!(found(RULES, "acme-key=q1w2sample9z"), NOTHING, "a stopword");
        assert_eq!(found(RULES, "acme-key=000000000000000"), NOTHING, "no entropy");
        assert_eq!(found(RULES, "id=1234\nname=5678 nothing here"), ["second-group: 1234"]);
        assert!(rules(RULES).remarks()[0].notes.is_empty() && rules(RULES).remarks()[0].warnings.is_empty());
        assert_eq!(rules(RULES).count(), 5);
    }

    #[test]
    fn paths_limit_rules_and_allowlists() {
        assert_eq!(found(RULES, "secret-1234"), NOTHING, "no file");
        assert_eq!(found_in(RULES, "secret-1234", Some("a.rs")), NOTHING);
        assert_eq!(found_in(RULES, "secret-1234", Some("deploy/a.YML")), ["in-yaml: secret-1234"]);
        assert_eq!(found_in(RULES, "secret-1234", Some("fixtures/a.yml")), NOTHING);
        assert_eq!(found_in(RULES, "both-1 both-2", Some("tests/a")), ["both: both-2"]);
        assert_eq!(found_in(RULES, "both-1 both-2", Some("src/a")), ["both: both-1", "both: both-2"]);
        assert_eq!(found(RULES, "both-1"), ["both: both-1"]);
        let rules = rules(RULES);
        assert_eq!(rules.of_name("keys/a.p12").collect::<Vec<_>>(), [("key-file", "a key file")]);
        assert_eq!(rules.of_name("fixtures/a.p12").count() + rules.of_name("a.yml").count(), 0);
    }

    #[test]
    fn a_composite_rule_needs_its_other_rules() {
        let composite = "[[rules]]\nid = 'pair'\nregex = 'key-[0-9]+'\n\
            [[rules.required]]\nid = 'name'\nwithinLines = 1\n\
            [[rules]]\nid = 'name'\nregex = 'name-[0-9]+'\nkeywords = ['name-']\nskipReport = true\n";
        assert_eq!(found(composite, "key-1 name-1"), ["pair: key-1"]);
        assert_eq!(found(composite, "name-1\nkey-1\n\nkey-2\n"), ["pair: key-1"]);
        assert_eq!(found(composite, "name-1\n\n\nkey-1\nname-2"), ["pair: key-1"]);
        assert_eq!(found(composite, "name-1\n\nkey-1"), NOTHING);
        assert_eq!(found(composite, "name-1"), NOTHING);
        let wide = composite.replace("withinLines = 1\n", "");
        assert_eq!(found(&wide, "name-1\n\n\nkey-1"), ["pair: key-1"]);
        let near = composite.replace("withinLines = 1", "withinColumns = 6");
        assert_eq!(found(&near, "name-1      key-1"), NOTHING);
        assert_eq!(found(&near, "name-1\n key-1"), ["pair: key-1"]);
    }

    #[test]
    fn filters_of_betterleaks_apply() {
        let filtered = "filter = 'finding[\"secret\"] == \"acme-00000000\"'\n\
            [[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\n\
            filter = 'entropy(finding[\"secret\"]) <= 2.5 || matchesAny(attributes[\"path\"] ?? \"\", [`^docs/`])'\n";
        assert_eq!(found(filtered, "acme-12345678 acme-11111111 acme-00000000"), ["acme: acme-12345678"]);
        assert_eq!(found_in(filtered, "acme-12345678", Some("docs/a")), NOTHING);
    }

    #[test]
    fn notes_unknown_keys() {
        let rules = rules("[extra]\na = 1\n[[rules]]\nid = \"p\"\nregex = 'x'\nscore = 2\ntags = ['a']\n");
        assert_eq!(rules.count(), 1);
        let notes = rules.remarks()[0].notes.join("\n");
        assert_eq!(
            notes,
            "line 1: extra of the file is not known and left out\nline 6: score of rule \"p\" is not known and left out"
        );
    }

    #[test]
    fn what_cannot_be_used_is_left_out_and_named() {
        let good = "[[rules]]\nid = 'good'\nregex = 'good'\n";
        for (text, warning) in [
            (
                "[[rules]]\nid = \"a\"\nregex = '(['\n",
                "line 3: rule \"a\" is left out: its regex cannot be used",
            ),
            ("[[rules]]\nid = \"a\"\nregex = 'a(?!b)'\n", "line 3: rule \"a\" is left out: its regex"),
            ("[[rules]]\nid = \"a\"\nregex = '(?:[a-z]{900}){900}'\n", "line 3: rule \"a\" is left out"),
            ("[[rules]]\nid = 4\n", "line 1: rule number 1 is left out: its id must be a string"),
            (
                "[[rules]]\nid = \"a\"\nregex = 'a'\nsecretGroup = 1\n",
                "line 4: rule \"a\" is left out: its secretGroup",
            ),
            (
                "[[rules]]\nid = \"a\"\nregex = 'a'\nkeywords = [1]\n",
                "line 4: rule \"a\" is left out: its keywords",
            ),
            ("[[rules]]\nid = 'a'\n", "line 1: rule \"a\" is left out: it has neither a regex nor a path"),
            (
                "[[rules]]\nid = 'a'\nregex = 'a'\nfilter = 'let x'\n",
                "line 4: rule \"a\" is left out: its filter",
            ),
            ("[[rules]]\nid = 'a'\nregex = 'a'\n[[rules.required]]\nid = 'b'\n", "it requires rule \"b\""),
        ] {
            let rules = rules(&format!("{text}{good}"));
            let warnings = rules.remarks()[0].warnings.join("\n");
            assert!(warnings.contains(warning), "{text}: {warnings}");
            let mut found = Vec::new();
            rules.find(b"good a", None, |id, _| found.push(id.to_owned()));
            assert_eq!(found, ["good"], "{text}");
        }
        // An allowlist that cannot be used is left out, but its rule is still used.
        let text = "[[rules]]\nid = 'a'\nregex = 'a'\n[[rules.allowlists]]\nregexes = ['a', '(']\n";
        assert_eq!(found(text, "a"), ["a: a"]);
        for (allowlist, part) in [
            (
                "regexes = ['(']",
                "line 2: an allowlist of the file is left out: the expression \"(\" cannot be used",
            ),
            ("regexTarget = 'word'", "its regexTarget \"word\" is not known"),
            ("condition = 'xor'", "its condition \"xor\" is not known"),
            ("condition = 'AND'\ncommits = ['a']\npaths = ['a']", "its commits are not known here"),
        ] {
            let rules = rules(&format!("[[allowlists]]\n{allowlist}\n{good}"));
            assert!(rules.remarks()[0].warnings.join("\n").contains(part), "{:?}", rules.remarks());
        }
    }

    #[test]
    fn an_invalid_file_is_an_error() {
        for (text, part) in [("title = \n", "line 1: "), ("rules = 3\n", "line 1: rules of the file must be")]
        {
            let error = RuleFiles::parse([("a.toml", text)]).expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
        let long = "#".repeat(crate::rule_toml::MAX_TEXT + 1);
        let error = RuleFiles::parse([("a.toml", long.as_str())]).expect_err("large");
        assert_eq!(error.error, super::RulesError::TooLarge);
    }

    #[test]
    fn an_allowlist_for_some_rules_applies_to_them() {
        let text = "[[allowlists]]\ntargetRules = ['a']\nregexes = ['1']\n\
            [[rules]]\nid = 'a'\nregex = 'a[0-9]'\n[[rules]]\nid = 'b'\nregex = 'b[0-9]'\n";
        assert_eq!(found(text, "a1 a2 b1"), ["a: a2", "b: b1"]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}", tail in "[\\[\\]a-z='\"\n]{0,60}") {
            let _ = RuleFiles::parse([("a", text.as_str())]);
            let _ = RuleFiles::parse([("a", format!("[[rules]]\n{tail}").as_str())]);
        }
    }
}
