//! Finds positions for new text in a YAML document by the lines of the document. The rest of the document keeps its
//! formatting and comments.
//!
//! These functions expect YAML in block style, because other styles have a different line structure. The caller must
//! therefore parse the changed document and check that it has the intended meaning.

use std::ops::Range;

use super::{Node, Value, parse};

/// Finds the position at which new items belong in the list `list` of the top-level map `outer`. `items` renders the
/// items with the given number of spaces as indentation and the given line break. Returns the byte offset and the text
/// to insert. The text includes keys that the document lacks. Returns `None` if there is no suitable position.
#[must_use]
pub fn insert_items(
    yaml: &str,
    outer: &str,
    list: &str,
    items: impl Fn(usize, &str) -> String,
) -> Option<(usize, String)> {
    let newline = if yaml.contains("\r\n") { "\r\n" } else { "\n" };
    let lines = Lines::new(yaml);
    let (at, more) = match lines.key(outer, 0, 0..lines.count()) {
        None => {
            let head = format!("{outer}:{newline}  {list}:{newline}");
            (lines.end(0..lines.count()), head + &items(4, newline))
        }
        Some(key) => {
            let block = lines.below(key, 0);
            let indent = block.clone().find_map(|line| lines.indent(line))?;
            match lines.key(list, indent, block.clone()) {
                None => {
                    let head = format!("{:indent$}{list}:{newline}", "");
                    (lines.end(block), head + &items(indent + 2, newline))
                }
                Some(key) => {
                    let list = lines.list_below(key, indent);
                    let own = list.clone().find_map(|line| lines.indent(line))?;
                    (lines.end(list), items(own, newline))
                }
            }
        }
    };
    Some((lines.start(at), more))
}

/// Returns the document without the list `list` of the map `outer`. A caller compares the results before and after an
/// insertion, to check that nothing outside of the list changed. Returns `None` if the document is not valid.
#[must_use]
pub fn without_list(yaml: &str, outer: &str, list: &str) -> Option<Node> {
    let mut root = parse(yaml).ok()?;
    if let Value::Map(keys) = &mut root.value {
        for (_, value) in keys.iter_mut().filter(|(key, _)| key.text() == outer) {
            match &mut value.value {
                Value::Map(keys) => keys.retain(|(key, _)| key.text() != list),
                other => *other = Value::Map(Vec::new()),
            }
        }
        keys.retain(|(key, value)| {
            key.text() != outer || !matches!(&value.value, Value::Map(keys) if keys.is_empty())
        });
    }
    Some(root)
}

/// The lines of a YAML document. The methods derive the structure of the document from the indentation of its lines.
#[derive(Debug)]
pub struct Lines<'y>(Vec<&'y str>);

impl<'y> Lines<'y> {
    /// Splits a document into its lines.
    #[must_use]
    pub fn new(yaml: &'y str) -> Self {
        Self(yaml.split_inclusive('\n').collect())
    }

    /// The number of lines.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the indentation of a line. Returns `None` for an empty line, a comment, or the opening `---`.
    #[must_use]
    pub fn indent(&self, line: usize) -> Option<usize> {
        let text = self.0.get(line)?;
        let words = text.trim_start_matches(' ');
        let blank =
            words.trim().is_empty() || words.starts_with('#') || (line == 0 && words.starts_with("---"));
        (!blank).then_some(text.len() - words.len())
    }

    /// Returns the number of the first line in `within` that has the key `name`, indented by `indent` spaces, and no
    /// value on the same line. Returns `None` if no line matches.
    #[must_use]
    pub fn key(&self, name: &str, indent: usize, within: Range<usize>) -> Option<usize> {
        within.into_iter().find(|line| {
            let rest = self
                .0
                .get(*line)
                .and_then(|text| text.get(indent..))
                .and_then(|text| text.strip_prefix(name));
            let rest = rest.and_then(|rest| rest.strip_prefix(':')).map(str::trim);
            self.indent(*line) == Some(indent)
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        })
    }

    /// Returns the numbers of the lines that are nested below the line `key`. `indent` is the indentation of the line
    /// `key`.
    #[must_use]
    pub fn below(&self, key: usize, indent: usize) -> Range<usize> {
        let further = |line: &usize| self.indent(*line).is_none_or(|own| own > indent);
        key + 1..(key + 1..self.count()).take_while(further).last().map_or(key, |last| last) + 1
    }

    /// Returns the lines of a list below a key. The dashes of the list may have the same indentation as the key.
    #[must_use]
    pub fn list_below(&self, key: usize, indent: usize) -> Range<usize> {
        let further = |line: &usize| {
            let item = self.is_item(*line);
            self.indent(*line).is_none_or(|own| own > indent || (own == indent && item))
        };
        key + 1..(key + 1..self.count()).take_while(further).last().map_or(key, |last| last) + 1
    }

    /// Returns the number of the line after the last line in `within` that has content.
    #[must_use]
    pub fn end(&self, within: Range<usize>) -> usize {
        let start = within.start;
        within.rev().find(|line| self.indent(*line).is_some()).map_or(start.max(1), |line| line + 1)
    }

    /// Returns the byte offset of a line.
    #[must_use]
    pub fn start(&self, line: usize) -> usize {
        self.0.iter().take(line).map(|text| text.len()).sum()
    }

    /// Whether an item of a list begins in this line.
    #[must_use]
    pub fn is_item(&self, line: usize) -> bool {
        self.0.get(line).is_some_and(|text| text.trim_start().starts_with('-'))
    }
}
