//! Reads rule files in gitleaks' configuration format, including betterleaks' additions.
//!
//! A rule or an allowlist that cannot be used is left out with a warning. The rest of the file is still used. Source:
//! <https://github.com/gitleaks/gitleaks#configuration>.

use std::ops::Range;

use aho_corasick::AhoCorasick;
use toml_edit::{Document, Item, Table, Value};

use crate::go_regex::Pattern;
use crate::rule_filter::Filter;
use crate::user_rules::RulesError;

/// The maximum size of a rule file, in bytes. A larger file is invalid.
pub const MAX_TEXT: usize = 4 << 20;
/// The maximum number of rules in a file. A file with more rules is invalid. No published rule list has this many
/// rules.
pub(crate) const MAX_RULES: usize = 2000;

/// The content of one rule file, without the content of the files that it extends.
#[derive(Default)]
pub(crate) struct RawFile {
    pub(crate) rules: Vec<RawRule>,
    pub(crate) everywhere: Vec<Allow>,
    pub(crate) extend: Extend,
    /// Remarks about parts of the file that are ignored and do not affect the results.
    pub(crate) notes: Vec<String>,
    /// Warnings about parts of the file that are left out although they would affect the results.
    pub(crate) warnings: Vec<String>,
}

/// The content of the table `[extend]`.
#[derive(Default)]
pub(crate) struct Extend {
    pub(crate) line: usize,
    pub(crate) path: Option<String>,
    pub(crate) default: bool,
    pub(crate) disabled: Vec<String>,
}

/// A rule as it is written in the file. A rule that changes a rule of an extended file may have only some of the
/// fields.
#[derive(Default)]
pub(crate) struct RawRule {
    pub(crate) id: String,
    /// The index of the file that contains the rule. `line` is the line in which the rule begins.
    pub(crate) file: usize,
    pub(crate) line: usize,
    pub(crate) description: Option<String>,
    pub(crate) regex: Option<Pattern>,
    pub(crate) path: Option<Pattern>,
    pub(crate) group: Option<usize>,
    pub(crate) entropy: Option<f64>,
    pub(crate) keywords: Vec<String>,
    pub(crate) allows: Vec<Allow>,
    pub(crate) filters: Vec<Filter>,
    pub(crate) required: Vec<RawRequired>,
    pub(crate) silent: bool,
}

/// Another rule that must match near a match of this rule.
pub(crate) struct RawRequired {
    pub(crate) id: String,
    pub(crate) lines: Option<usize>,
    pub(crate) columns: Option<usize>,
}

/// An allowlist, which describes matches that are not findings.
#[derive(Default)]
pub(crate) struct Allow {
    pub(crate) regexes: Option<Pattern>,
    pub(crate) stopwords: Option<AhoCorasick>,
    pub(crate) paths: Option<Pattern>,
    /// A filter expression of betterleaks. If it is set, the other criteria are not used.
    pub(crate) filter: Option<Filter>,
    pub(crate) target: Target,
    /// The ids of the rules to which an allowlist of the whole file applies. Empty if the allowlist applies to all
    /// rules.
    pub(crate) only: Vec<String>,
    /// Whether a match must meet all criteria. Otherwise, one criterion suffices.
    pub(crate) all: bool,
}

/// The text with which an allowlist compares its `regexes`.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) enum Target {
    #[default]
    Secret,
    Match,
    Line,
}

/// The keys of a rule that do not affect the results: metadata, and requests with which betterleaks tests whether a
/// secret is valid.
const RULE_METADATA: [&str; 3] = ["tags", "validate", "specificity"];

/// Parses a rule file. `file` is the index of the file, which is stored in each of its rules.
pub(crate) fn read(text: &str, file: usize) -> Result<RawFile, RulesError> {
    if text.len() > MAX_TEXT {
        return Err(RulesError::TooLarge);
    }
    let document = Document::parse(text).map_err(|error| RulesError::Syntax {
        line: line(text, error.span()),
        problem: error.message().to_owned(),
    })?;
    Reader { text, file, read: RawFile::default() }.file(document.as_table())
}

/// Reads only the path in `[extend]`.
pub(crate) fn read_extend(text: &str) -> Option<String> {
    let document = Document::parse(text).ok().filter(|_| text.len() <= MAX_TEXT)?;
    Some(document.as_table().get("extend")?.get("path")?.as_str()?.to_owned())
}

/// Returns the line number of the start of `span`, counted from 1.
fn line(text: &str, span: Option<Range<usize>>) -> usize {
    let end = span.map_or(0, |span| span.start.min(text.len()));
    memchr::memchr_iter(b'\n', &text.as_bytes()[..end]).count() + 1
}

/// The reason why a rule or an allowlist cannot be used, and its line.
struct Unusable {
    line: usize,
    problem: String,
}

type Result<T, E = Unusable> = std::result::Result<T, E>;

struct Reader<'t> {
    text: &'t str,
    file: usize,
    read: RawFile,
}

impl Reader<'_> {
    fn file(mut self, root: &Table) -> Result<RawFile, RulesError> {
        let known = [
            "title",
            "description",
            "minVersion",
            "betterleaksMinVersion",
            "rules",
            "allowlist",
            "allowlists",
        ];
        self.note_others(root, &[&known[..], &["extend", "prefilter", "filter"]].concat(), "the file");
        let tables = match root.get("rules") {
            None => Vec::new(),
            Some(item) => tables(item).ok_or_else(|| RulesError::Type {
                line: self.line(Some(item)),
                key: "rules",
                wanted: "a list of tables",
            })?,
        };
        if tables.len() > MAX_RULES {
            return Err(RulesError::TooLarge);
        }
        for key in ["prefilter", "filter"] {
            match self.filter(root, key) {
                Ok(filter) => self.read.everywhere.extend(filter.map(allow_of)),
                Err(error) => self.warn(&error, "the filter of the file"),
            }
        }
        let allows = self.allows(root, "the file");
        self.read.everywhere.extend(allows);
        if let Some(item) = root.get("extend") {
            match self.extend(item) {
                Ok(extend) => self.read.extend = extend,
                Err(error) => self.warn(&error, "extend"),
            }
        }
        for (number, table) in tables.into_iter().enumerate() {
            let id = table.get("id").and_then(Item::as_str).map(str::to_owned);
            let name =
                id.clone().map_or_else(|| format!("rule number {}", number + 1), |id| format!("rule {id:?}"));
            match self.rule(table, id, &name) {
                Ok(rule) => self.read.rules.push(rule),
                Err(error) => self.warn(&error, &name),
            }
        }
        Ok(self.read)
    }

    fn rule(&mut self, table: &Table, id: Option<String>, name: &str) -> Result<RawRule> {
        let known = ["id", "description", "regex", "path", "secretGroup", "entropy", "keywords", "allowlist"];
        let more = ["allowlists", "filter", "required", "skipReport"];
        self.note_others(table, &[&known[..], &more, &RULE_METADATA].concat(), name);
        let line = line(self.text, table.span());
        let id = id.ok_or_else(|| Unusable { line, problem: "its id must be a string".to_owned() })?;
        let regex = self.pattern(table, "regex")?;
        let group = match table.get("secretGroup") {
            None => None,
            Some(item) => {
                let group = item.as_integer().and_then(|group| usize::try_from(group).ok());
                let groups = regex.as_ref().map_or(usize::MAX, Pattern::groups);
                Some(group.filter(|group| *group < groups).ok_or_else(|| {
                    self.unusable(item, "its secretGroup must be the number of a group of its regex")
                })?)
            }
        };
        let entropy = match table.get("entropy") {
            None => None,
            Some(item) => Some(
                item.as_float()
                    .or_else(|| {
                        item.as_integer().and_then(|number| i32::try_from(number).ok()).map(f64::from)
                    })
                    .ok_or_else(|| self.unusable(item, "its entropy must be a number"))?,
            ),
        };
        Ok(RawRule {
            file: self.file,
            line,
            description: self.string(table, "description")?,
            regex,
            path: self.pattern(table, "path")?,
            group: group.filter(|group| *group > 0),
            entropy,
            keywords: self.strings(table, "keywords")?,
            filters: self.filter(table, "filter")?.into_iter().collect(),
            required: self.required(table)?,
            silent: table.get("skipReport").and_then(Item::as_bool).unwrap_or(false),
            allows: self.allows(table, name),
            id,
        })
    }

    fn required(&self, table: &Table) -> Result<Vec<RawRequired>> {
        let Some(item) = table.get("required") else { return Ok(Vec::new()) };
        let tables = tables(item).ok_or_else(|| self.unusable(item, "required must be a list of tables"))?;
        let number = |table: &Table, key: &'static str| match table.get(key) {
            None => Ok(None),
            Some(item) => item
                .as_integer()
                .and_then(|number| usize::try_from(number).ok())
                .map(Some)
                .ok_or_else(|| self.unusable(item, &format!("{key} must be a number"))),
        };
        let required = |table: &&Table| {
            let id = self.string(table, "id")?;
            let id = id.ok_or_else(|| self.unusable(item, "a required rule must have an id"))?;
            Ok(RawRequired {
                id,
                lines: number(table, "withinLines")?,
                columns: number(table, "withinColumns")?,
            })
        };
        tables.iter().map(required).collect()
    }

    fn extend(&mut self, item: &Item) -> Result<Extend> {
        let Some(table) = item.as_table() else { return Err(self.unusable(item, "it must be a table")) };
        self.note_others(table, &["path", "useDefault", "disabledRules"], "extend");
        Ok(Extend {
            line: line(self.text, table.span()),
            path: self.string(table, "path")?,
            default: table.get("useDefault").and_then(Item::as_bool).unwrap_or(false),
            disabled: self.strings(table, "disabledRules")?,
        })
    }

    /// Returns the allowlists in a table. An allowlist that cannot be used is left out, because a rule without an
    /// allowlist only finds more.
    fn allows(&mut self, table: &Table, name: &str) -> Vec<Allow> {
        let mut allows = Vec::new();
        for key in ["allowlist", "allowlists"] {
            let Some(item) = table.get(key) else { continue };
            let Some(tables) = tables(item) else {
                self.warn(&self.unusable(item, "it must be a table"), &format!("an allowlist of {name}"));
                continue;
            };
            for table in tables {
                match self.allow(table, name) {
                    Ok(allow) => allows.push(allow),
                    Err(error) => self.warn(&error, &format!("an allowlist of {name}")),
                }
            }
        }
        allows
    }

    fn allow(&mut self, table: &Table, name: &str) -> Result<Allow> {
        let known =
            ["description", "regexes", "regexTarget", "stopwords", "paths", "condition", "targetRules"];
        self.note_others(table, &known, &format!("an allowlist of {name}"));
        let line = || line(self.text, table.span());
        let target = match self.string(table, "regexTarget")?.as_deref() {
            None | Some("secret" | "") => Target::Secret,
            Some("match") => Target::Match,
            Some("line") => Target::Line,
            Some(other) => {
                return Err(Unusable {
                    line: line(),
                    problem: format!("its regexTarget {other:?} is not known"),
                });
            }
        };
        let all = match self.string(table, "condition")?.unwrap_or_default().to_ascii_lowercase().as_str() {
            "" | "or" | "||" => false,
            "and" | "&&" => true,
            other => {
                return Err(Unusable {
                    line: line(),
                    problem: format!("its condition {other:?} is not known"),
                });
            }
        };
        if all && table.contains_key("commits") {
            let problem = "its commits are not known here, and its condition requires them".to_owned();
            return Err(Unusable { line: line(), problem });
        }
        let words = self.strings(table, "stopwords")?;
        let stopwords = AhoCorasick::builder().ascii_case_insensitive(true).build(&words);
        let stopwords = stopwords.map_err(|error| Unusable { line: line(), problem: error.to_string() })?;
        Ok(Allow {
            regexes: self.patterns(table, "regexes")?,
            stopwords: (!words.is_empty()).then_some(stopwords),
            paths: self.patterns(table, "paths")?,
            filter: None,
            only: self.strings(table, "targetRules")?,
            target,
            all,
        })
    }

    fn filter(&self, table: &Table, key: &'static str) -> Result<Option<Filter>> {
        let Some(text) = self.string(table, key)? else { return Ok(None) };
        let unusable =
            |error| self.unusable_item(table.get(key), &format!("its {key} cannot be used: {error}"));
        Filter::parse(&text).map(Some).map_err(unusable)
    }

    fn pattern(&self, table: &Table, key: &'static str) -> Result<Option<Pattern>> {
        let Some(text) = self.string(table, key)? else { return Ok(None) };
        let unusable =
            |error| self.unusable_item(table.get(key), &format!("its {key} cannot be used: {error}"));
        if text.is_empty() { Ok(None) } else { Pattern::new(&text).map(Some).map_err(unusable) }
    }

    fn patterns(&self, table: &Table, key: &'static str) -> Result<Option<Pattern>> {
        Pattern::any_of(&self.strings(table, key)?).map_err(|(pattern, error)| {
            self.unusable_item(table.get(key), &format!("the expression {pattern:?} cannot be used: {error}"))
        })
    }

    fn string(&self, table: &Table, key: &'static str) -> Result<Option<String>> {
        let Some(item) = table.get(key) else { return Ok(None) };
        let text = item.as_str().map(|text| Some(text.to_owned()));
        text.ok_or_else(|| self.unusable(item, &format!("its {key} must be a string")))
    }

    fn strings(&self, table: &Table, key: &'static str) -> Result<Vec<String>> {
        let Some(item) = table.get(key) else { return Ok(Vec::new()) };
        let texts = item.as_array().map(|array| array.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let texts = texts.flatten();
        let texts =
            texts.ok_or_else(|| self.unusable(item, &format!("its {key} must be a list of strings")))?;
        Ok(texts.into_iter().map(str::to_owned).collect())
    }

    fn line(&self, item: Option<&Item>) -> usize {
        line(self.text, item.and_then(Item::span))
    }

    fn unusable(&self, item: &Item, problem: &str) -> Unusable {
        self.unusable_item(Some(item), problem)
    }

    fn unusable_item(&self, item: Option<&Item>, problem: &str) -> Unusable {
        Unusable { line: self.line(item), problem: problem.to_owned() }
    }

    fn warn(&mut self, error: &Unusable, name: &str) {
        self.read.warnings.push(format!("line {}: {name} is left out: {}", error.line, error.problem));
    }

    fn note_others(&mut self, table: &Table, known: &[&str], place: &str) {
        for (key, item) in table.iter().filter(|(key, _)| !known.contains(key)) {
            let line = self.line(Some(item));
            self.read.notes.push(format!("line {line}: {key} of {place} is not known and left out"));
        }
    }
}

/// Creates an allowlist that consists only of a filter expression.
fn allow_of(filter: Filter) -> Allow {
    Allow { filter: Some(filter), ..Allow::default() }
}

/// Returns the tables in an item. The item may be one table or an array of tables.
fn tables(item: &Item) -> Option<Vec<&Table>> {
    match item {
        Item::Table(table) => Some(vec![table]),
        Item::ArrayOfTables(tables) => Some(tables.iter().collect()),
        _ => None,
    }
}
