//! Parses and runs the user's rules, in gitleaks' configuration format.
//!
//! The following keys are supported: `[[rules]]` with `id`, `description`, `regex`, `secretGroup`, `entropy`,
//! `keywords` and `allowlist` or `allowlists` (`regexes`, `regexTarget`, `stopwords`, `paths`, `condition`),
//! and an `[allowlist]` or `[[allowlists]]` for all rules. All other keys are ignored, with a note for the
//! user.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use regex::bytes::{Regex, RegexBuilder};
use toml_edit::{Document, Item, Table, Value};

use crate::entropy::bits_per_byte;

/// The maximum size of a rule file, in bytes. A larger file is invalid.
const MAX_TEXT: usize = 1 << 20;
/// The maximum number of rules in a file. A file with more is invalid. No published rule list has as many.
const MAX_RULES: usize = 2000;
/// The maximum memory of one compiled regular expression, in bytes. A file with an expression that needs more
/// is invalid.
const MAX_REGEX: usize = 1 << 20;

/// Why a rule file is invalid. Line numbers begin at 1.
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
    /// A value has the wrong type.
    #[error("line {line}: {key} of rule {rule:?} must be {wanted}")]
    Type {
        /// The line of the error.
        line: usize,
        /// The rule's id, or its number if the rule has no id.
        rule: String,
        /// The key whose value has the wrong type.
        key: &'static str,
        /// The expected type.
        wanted: &'static str,
    },
    /// A regular expression does not compile.
    #[error("line {line}: the expression of rule {rule:?} cannot be used: {problem}")]
    Regex {
        /// The line of the error.
        line: usize,
        /// The rule's id.
        rule: String,
        /// The message of the regular expression compiler.
        problem: String,
    },
    /// Two rules have the same id, so a finding's rule would be ambiguous.
    #[error("line {line}: rule {rule:?} is there already{}", .file.as_ref().map(|file| format!(", in {file}")).unwrap_or_default())]
    DuplicateId {
        /// The line of the second rule.
        line: usize,
        /// The id that both rules have.
        rule: String,
        /// The file that contains the first rule; `None` if it is the same file.
        file: Option<String>,
    },
    /// The file is too large or has too many rules.
    #[error("the rules are too large: at most {MAX_TEXT} bytes and {MAX_RULES} rules are read")]
    TooLarge,
}

/// The compiled rules of one file.
#[derive(Debug)]
pub struct UserRules {
    keywords: AhoCorasick,
    /// For each keyword: the index of its rule.
    owners: Vec<usize>,
    rules: Vec<Rule>,
    everywhere: Vec<Allow>,
    notes: Vec<String>,
}

struct Rule {
    id: Arc<str>,
    /// The line of the file in which the rule begins.
    line: usize,
    description: String,
    regex: Regex,
    group: usize,
    entropy: f64,
    /// Whether the rule has no keywords and therefore runs on every text.
    always: bool,
    allows: Vec<Allow>,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("id", &self.id)
            .field("description", &self.description)
            .finish_non_exhaustive()
    }
}

/// An allowlist, which describes matches that are not findings.
#[derive(Debug, Default)]
struct Allow {
    regexes: Vec<Regex>,
    stopwords: Vec<Vec<u8>>,
    paths: Vec<Regex>,
    target: Target,
    all: bool,
}

#[derive(Debug, Default, Clone, Copy)]
enum Target {
    #[default]
    Secret,
    Match,
    Line,
}

impl UserRules {
    /// Parses a rule file.
    ///
    /// # Errors
    /// Fails with [`RulesError`] if the file is invalid.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        if text.len() > MAX_TEXT {
            return Err(RulesError::TooLarge);
        }
        let document = Document::parse(text).map_err(|error| RulesError::Syntax {
            line: line(text, error.span()),
            problem: error.message().to_owned(),
        })?;
        Reader { text, notes: Vec::new() }.rules(document.as_table())
    }

    /// Notes for the user about the parts of the file that are ignored.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The ids and descriptions of the rules.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rules.iter().map(|rule| (&*rule.id, rule.description.as_str()))
    }

    /// The line in which the rule with the id `rule` begins.
    pub(crate) fn line_of(&self, rule: &str) -> Option<usize> {
        self.rules.iter().find(|known| &*known.id == rule).map(|rule| rule.line)
    }

    /// Whether an allowlist accepts findings of `rule` in a file at `path`. Only callers that scan files need
    /// this method.
    #[must_use]
    pub fn allows_path(&self, rule: &str, path: &str) -> bool {
        let own = self.rules.iter().filter(|known| &*known.id == rule).flat_map(|known| &known.allows);
        let fits = |allow: &Allow| {
            let alone = !allow.all || allow.regexes.is_empty() && allow.stopwords.is_empty();
            alone && allow.paths.iter().any(|regex| regex.is_match(path.as_bytes()))
        };
        self.everywhere.iter().chain(own).any(fits)
    }

    /// Finds every match in `text` and reports the rule's id.
    pub(crate) fn find(&self, text: &[u8], mut found: impl FnMut(&str, Range<usize>)) {
        let mut wanted: Vec<bool> = self.rules.iter().map(|rule| rule.always).collect();
        for hit in self.keywords.find_overlapping_iter(text) {
            wanted[self.owners[hit.pattern().as_usize()]] = true;
        }
        for (rule, _) in self.rules.iter().zip(wanted).filter(|(_, wanted)| *wanted) {
            rule.find(text, &self.everywhere, &mut found);
        }
    }
}

impl Rule {
    fn find(&self, text: &[u8], everywhere: &[Allow], found: &mut impl FnMut(&str, Range<usize>)) {
        for captures in self.regex.captures_iter(text) {
            let Some(whole) = captures.get(0).filter(|whole| !whole.is_empty()) else { continue };
            // Selects the secret as gitleaks does: the group in `secretGroup`, otherwise the first group that
            // is not empty, otherwise the complete match.
            let secret = match self.group {
                0 => captures.iter().skip(1).flatten().find(|group| !group.is_empty()).unwrap_or(whole),
                group => captures.get(group).unwrap_or(whole),
            };
            let allowed = |allow: &Allow| allow.covers(text, whole.range(), secret.as_bytes());
            if bits_per_byte(secret.as_bytes()) >= self.entropy
                && !self.allows.iter().chain(everywhere).any(allowed)
            {
                found(&self.id, secret.range());
            }
        }
    }
}

impl Allow {
    /// Whether the allowlist accepts a match, judged by its text. False if the allowlist also requires a
    /// path, which only [`UserRules::allows_path`] checks.
    fn covers(&self, text: &[u8], whole: Range<usize>, secret: &[u8]) -> bool {
        let seen = match self.target {
            Target::Secret => secret,
            Target::Match => &text[whole],
            Target::Line => surrounding_line(text, whole),
        };
        let by_regex = self.regexes.iter().any(|regex| regex.is_match(seen));
        let lower = secret.to_ascii_lowercase();
        let by_word = self.stopwords.iter().any(|word| {
            !word.is_empty() && lower.windows(word.len()).any(|window| window == word.as_slice())
        });
        if self.all {
            self.paths.is_empty()
                && (self.regexes.is_empty() || by_regex)
                && (self.stopwords.is_empty() || by_word)
                && !(self.regexes.is_empty() && self.stopwords.is_empty())
        } else {
            by_regex || by_word
        }
    }
}

fn surrounding_line(text: &[u8], whole: Range<usize>) -> &[u8] {
    let start = text[..whole.start].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let end =
        text[whole.end..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| whole.end + at);
    &text[start..end]
}

/// The line number of a position, counted from 1.
fn line(text: &str, span: Option<Range<usize>>) -> usize {
    let end = span.map_or(0, |span| span.start.min(text.len()));
    text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1
}

struct Reader<'t> {
    text: &'t str,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn rules(mut self, root: &Table) -> Result<UserRules, RulesError> {
        self.note_others(
            root,
            &["title", "description", "minVersion", "rules", "allowlist", "allowlists"],
            "the file",
        );
        let everywhere = self.allows(root, "the file")?;
        let mut rules = Vec::new();
        let (mut owners, mut keywords) = (Vec::new(), Vec::new());
        let tables = match root.get("rules") {
            None => Vec::new(),
            Some(item) => {
                tables(item).ok_or_else(|| self.type_error(item, "the file", "rules", "a list of tables"))?
            }
        };
        if tables.len() > MAX_RULES {
            return Err(RulesError::TooLarge);
        }
        for (number, table) in tables.into_iter().enumerate() {
            let words = self.strings(table, "keywords", &format!("number {}", number + 1))?;
            if let Some(rule) = self.rule(table, number, words.is_empty())? {
                if rules.iter().any(|known: &Rule| known.id == rule.id) {
                    let (line, rule) = (rule.line, rule.id.to_string());
                    return Err(RulesError::DuplicateId { line, rule, file: None });
                }
                owners.extend(words.iter().map(|_| rules.len()));
                keywords.extend(words);
                rules.push(rule);
            }
        }
        let keywords = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(&keywords)
            .map_err(|_| RulesError::TooLarge)?;
        Ok(UserRules { keywords, owners, rules, everywhere, notes: self.notes })
    }

    fn rule(&mut self, table: &Table, number: usize, always: bool) -> Result<Option<Rule>, RulesError> {
        let numbered = format!("number {}", number + 1);
        let id = self.string(table, "id", &numbered)?.unwrap_or(numbered);
        let known = [
            "id",
            "description",
            "regex",
            "secretGroup",
            "entropy",
            "keywords",
            "allowlist",
            "allowlists",
            "tags",
        ];
        self.note_others(table, &known, &format!("rule {id:?}"));
        let Some(pattern) = self.string(table, "regex", &id)? else {
            self.notes.push(format!(
                "rule {id:?} has no regex and is left out: only texts are read here, no paths"
            ));
            return Ok(None);
        };
        let regex = self.regex(&pattern, table.get("regex"), &id)?;
        let group = match table.get("secretGroup") {
            None => 0,
            Some(item) => item
                .as_integer()
                .and_then(|group| usize::try_from(group).ok())
                .filter(|group| *group < regex.captures_len())
                .ok_or_else(|| {
                    self.type_error(item, &id, "secretGroup", "the number of a group of its regex")
                })?,
        };
        let entropy = match table.get("entropy") {
            None => 0.0,
            Some(item) => item
                .as_float()
                .or_else(|| item.as_integer().and_then(|number| i32::try_from(number).ok()).map(f64::from))
                .ok_or_else(|| self.type_error(item, &id, "entropy", "a number"))?,
        };
        let description = self.string(table, "description", &id)?.unwrap_or_default();
        let allows = self.allows(table, &id)?;
        let line = line(self.text, table.span());
        Ok(Some(Rule { id: id.into(), line, description, regex, group, entropy, always, allows }))
    }

    fn allows(&mut self, table: &Table, rule: &str) -> Result<Vec<Allow>, RulesError> {
        let mut allows = Vec::new();
        for key in ["allowlist", "allowlists"] {
            let Some(item) = table.get(key) else { continue };
            let found = tables(item).ok_or_else(|| self.type_error(item, rule, "allowlist", "a table"))?;
            for table in found {
                allows.push(self.allow(table, rule)?);
            }
        }
        Ok(allows)
    }

    fn allow(&mut self, table: &Table, rule: &str) -> Result<Allow, RulesError> {
        let known = ["description", "regexes", "regexTarget", "stopwords", "paths", "condition"];
        self.note_others(table, &known, &format!("an allowlist of {rule:?}"));
        let compiled = |key: &'static str, reader: &Self| -> Result<Vec<Regex>, RulesError> {
            let patterns = reader.strings(table, key, rule)?;
            patterns.iter().map(|pattern| reader.regex(pattern, table.get(key), rule)).collect()
        };
        let target = match self.string(table, "regexTarget", rule)?.as_deref() {
            Some("match") => Target::Match,
            Some("line") => Target::Line,
            _ => Target::Secret,
        };
        let all = self
            .string(table, "condition", rule)?
            .is_some_and(|condition| condition.eq_ignore_ascii_case("and"));
        let stopwords = self.strings(table, "stopwords", rule)?;
        Ok(Allow {
            regexes: compiled("regexes", self)?,
            stopwords: stopwords.into_iter().map(|word| word.to_ascii_lowercase().into_bytes()).collect(),
            paths: compiled("paths", self)?,
            target,
            all,
        })
    }

    fn note_others(&mut self, table: &Table, known: &[&str], place: &str) {
        for (key, item) in table.iter().filter(|(key, _)| !known.contains(key)) {
            let line = line(self.text, item.span());
            self.notes.push(format!("line {line}: {key} of {place} is not known and left out"));
        }
    }

    fn string(&self, table: &Table, key: &'static str, rule: &str) -> Result<Option<String>, RulesError> {
        let Some(item) = table.get(key) else { return Ok(None) };
        item.as_str()
            .map(|text| Some(text.to_owned()))
            .ok_or_else(|| self.type_error(item, rule, key, "a string"))
    }

    fn strings(&self, table: &Table, key: &'static str, rule: &str) -> Result<Vec<String>, RulesError> {
        let Some(item) = table.get(key) else { return Ok(Vec::new()) };
        let texts = item.as_array().map(|array| array.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let texts = texts.flatten().ok_or_else(|| self.type_error(item, rule, key, "a list of strings"))?;
        Ok(texts.into_iter().map(str::to_owned).collect())
    }

    fn regex(&self, pattern: &str, item: Option<&Item>, rule: &str) -> Result<Regex, RulesError> {
        let problem = |error: regex::Error| RulesError::Regex {
            line: line(self.text, item.and_then(Item::span)),
            rule: rule.to_owned(),
            // The last line of the message gives the cause; the lines before it draw the position.
            problem: error.to_string().lines().last().unwrap_or_default().replacen("error: ", "", 1),
        };
        let build = |unicode| RegexBuilder::new(pattern).unicode(unicode).size_limit(MAX_REGEX).build();
        // Character classes in Go match only ASCII, and compile to far smaller programs without Unicode. An
        // expression with non-ASCII letters is compiled with Unicode.
        build(false).or_else(|_| build(true)).map_err(problem)
    }

    fn type_error(&self, item: &Item, rule: &str, key: &'static str, wanted: &'static str) -> RulesError {
        RulesError::Type { line: line(self.text, item.span()), rule: rule.to_owned(), key, wanted }
    }
}

/// The tables of an item, which may be one table or a list of tables in either TOML notation.
fn tables(item: &Item) -> Option<Vec<&Table>> {
    match item {
        Item::Table(table) => Some(vec![table]),
        Item::ArrayOfTables(tables) => Some(tables.iter().collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(rules: &str, text: &str) -> Vec<String> {
        let rules = UserRules::parse(rules).expect("rules");
        let mut found = Vec::new();
        rules.find(text.as_bytes(), |id, range| found.push(format!("{id}: {}", &text[range])));
        found
    }

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
regexes = ['^0+']

[[rules]]
id = "second-group"
regex = '(id|name)=(\d{4})'
secretGroup = 2

[allowlist]
regexTarget = "line"
regexes = ['nothing here']
paths = ['(^|/)fixtures/']
"#;

    #[test]
    fn rules_match_as_configured() {
        assert_eq!(found(RULES, "Acme_Key = \"q1w2e3r4t5y6\""), ["acme: q1w2e3r4t5y6"]);
        assert_eq!(found(RULES, "acme-key=q1w2sample9z"), Vec::<String>::new(), "a stopword");
        assert_eq!(found(RULES, "acme-key=000000000000000"), Vec::<String>::new(), "no entropy");
        assert_eq!(found(RULES, "id=1234\nname=5678 nothing here"), ["second-group: 1234"]);
    }

    #[test]
    fn path_allowlists_apply_to_paths() {
        let rules = UserRules::parse(RULES).expect("rules");
        assert!(rules.allows_path("acme", "src/fixtures/a.txt"));
        assert!(!rules.allows_path("acme", "src/main.rs"));
        assert_eq!(rules.names().next(), Some(("acme", "an Acme key")));
        assert!(rules.notes().is_empty(), "{:?}", rules.notes());
    }

    #[test]
    fn notes_unknown_keys() {
        let rules = UserRules::parse("[extend]\nuseDefault = true\n[[rules]]\nid = \"p\"\npath = 'x'\n")
            .expect("rules");
        assert_eq!(rules.names().count(), 0);
        let notes = rules.notes().join("\n");
        for part in ["line 1: extend of the file", "path of rule \"p\"", "rule \"p\" has no regex"] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
    }

    #[test]
    fn errors_name_line_and_rule() {
        for (text, part) in [
            ("[[rules]]\nid = \"a\"\nregex = '(['\n", "line 3: the expression of rule \"a\""),
            (
                "[[rules]]\nid = \"a\"\nregex = '(?:[a-z]{900}){900}'\n",
                "line 3: the expression of rule \"a\"",
            ),
            ("[[rules]]\nid = 4\n", "line 2: id of rule \"number 1\" must be a string"),
            ("[[rules]]\nid = \"a\"\nregex = 'a'\nsecretGroup = 1\n", "line 4: secretGroup of rule \"a\""),
            ("[[rules]]\nid = \"a\"\nregex = 'a'\nkeywords = [1]\n", "line 4: keywords of rule"),
            ("title = \n", "line 1: "),
            (
                "[[rules]]\nid = 'a'\nregex = 'a'\n[[rules]]\nid = 'a'\nregex = 'b'\n",
                "line 4: rule \"a\" is there already",
            ),
            ("rules = 3\n", "line 1: rules of rule"),
        ] {
            let error = UserRules::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(UserRules::parse(&"#".repeat(MAX_TEXT + 1)).expect_err("large"), RulesError::TooLarge);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}", tail in "[\\[\\]a-z='\"\n]{0,60}") {
            let _ = UserRules::parse(&text);
            let _ = UserRules::parse(&format!("[[rules]]\n{tail}"));
        }
    }
}
