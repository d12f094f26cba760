//! Lays out text in columns: tables and wrapped lines. Widths are terminal columns; colour sequences have no width.
//!
//! This module does not use a table crate, because none keeps the naming column untruncated or avoids line breaks
//! inside backquotes.

use dialoguer::console::{Alignment, measure_text_width, pad_str, truncate_str};

use super::style::Styles;

/// The number of columns between two columns of a table.
const GAP: usize = 2;

/// The minimum width of a truncated table column.
const MIN_COLUMN: usize = 6;

/// The minimum width of a table's last column. The other columns shrink first.
const MIN_LAST_COLUMN: usize = 16;

/// A table.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    /// The column headings.
    pub(crate) heading: &'a [&'a str],
    /// The index of the column that names a row. This column is never truncated.
    pub(crate) name: usize,
    /// The rows. Each row has as many cells as there are headings.
    pub(crate) rows: &'a [Vec<String>],
}

impl Table<'_> {
    /// Renders each column as wide as its widest cell. On a narrow terminal the widest columns are truncated,
    /// and the last column wraps.
    pub(crate) fn aligned(&self, styles: Styles) -> String {
        let heading: Vec<String> = self.heading.iter().map(|word| styles.dim(word)).collect();
        let readable =
            |row: &Vec<String>| row.iter().map(|cell| styles.displayable(cell).into_owned()).collect();
        let rows: Vec<Vec<String>> = std::iter::once(heading).chain(self.rows.iter().map(readable)).collect();
        let widths = self.widths(&rows, styles.columns());
        let lines: Vec<String> = rows.iter().map(|row| line(row, &widths, styles)).collect();
        lines.join("\n")
    }

    /// Returns the width of every column except the last. The last column gets the remaining width.
    fn widths(&self, rows: &[Vec<String>], columns: Option<usize>) -> Vec<usize> {
        let count = self.heading.len();
        let mut widths = vec![0; count];
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(measure_text_width(cell));
            }
        }
        let Some(last) = widths.pop() else { return widths };
        let room =
            columns.unwrap_or(usize::MAX).saturating_sub(GAP * (count - 1) + last.min(MIN_LAST_COLUMN));
        while widths.iter().sum::<usize>() > room {
            let widest = (0..widths.len()).filter(|&at| at != self.name).max_by_key(|&at| widths[at]);
            match widest.filter(|&at| widths[at] > MIN_COLUMN) {
                Some(at) => widths[at] -= 1,
                None => break,
            }
        }
        widths
    }

    /// Renders one tab-separated line per row, without a heading.
    pub(crate) fn tab_separated(&self) -> String {
        let plain = |cell: &String| cell.replace(['\t', '\n'], " ");
        let row = |row: &Vec<String>| row.iter().map(plain).collect::<Vec<_>>().join("\t");
        self.rows.iter().map(row).collect::<Vec<_>>().join("\n")
    }
}

fn line(row: &[String], widths: &[usize], styles: Styles) -> String {
    let mut line = String::new();
    for (cell, &width) in row.iter().zip(widths) {
        let cell = truncate_str(cell, width, styles.ellipsis());
        line.push_str(&pad_str(&cell, width + GAP, Alignment::Left, None));
    }
    if let Some(last) = row.get(widths.len()) {
        let indent = widths.iter().map(|width| width + GAP).sum();
        line.push_str(&hanging(last, indent, indent, styles.columns()));
    }
    line.trim_end().to_owned()
}

/// Wraps text that starts at column `at`. Further lines start at column `indent`. Does not break backquoted text, so
/// that the user can copy a command. On a very narrow terminal, returns the text unwrapped, and the terminal breaks the
/// lines.
pub(crate) fn hanging(text: &str, at: usize, indent: usize, columns: Option<usize>) -> String {
    let rooms = columns.and_then(|columns| Some((columns.checked_sub(at)?, columns.checked_sub(indent)?)));
    let Some((first, rest)) = rooms.filter(|(first, rest)| *first.min(rest) >= MIN_LAST_COLUMN) else {
        return text.to_owned();
    };
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let first = if lines.is_empty() { first } else { rest };
        lines.extend(wrapped(line, first, rest));
    }
    lines.join(&format!("\n{:indent$}", ""))
}

/// Wraps a line. `first` is the width of the first line, and `rest` is the width of the further lines. A word that is
/// longer than the width is not broken.
pub(crate) fn wrapped(line: &str, first: usize, rest: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut current = String::new();
    let mut room = first;
    for (gap, word) in words(line) {
        let width = measure_text_width(&current) + gap.len() + measure_text_width(word);
        if width > room && !current.trim().is_empty() {
            lines.push(std::mem::take(&mut current));
            room = rest;
        } else {
            current.push_str(gap);
        }
        current.push_str(word);
    }
    lines.push(current);
    lines
}

/// Splits a line into words, each with the spaces before it.
fn words(line: &str) -> Vec<(&str, &str)> {
    let quotes = line.matches('`').count();
    let mut words = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let gap = rest.len() - rest.trim_start_matches(' ').len();
        let mut quoted = false;
        let end = rest[gap..].find(|letter: char| {
            // With an odd number of backquotes it is unclear which of them form pairs, so no backquote is treated as a
            // quote.
            quoted ^= letter == '`' && quotes.is_multiple_of(2);
            letter == ' ' && !quoted
        });
        let (word, after) = rest.split_at(end.map_or(rest.len(), |end| gap + end));
        words.push(word.split_at(gap));
        rest = after;
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(heading: &[&str], rows: &[&[&str]], styles: Styles) -> String {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        Table { heading, name: 0, rows: &rows }.aligned(styles)
    }

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows: [&[&str]; 3] = [&["a", "short"], &["日本", ""], &["long-one", "x"]];
        let text = table(&["SLUG", "LABEL"], &rows, Styles::PLAIN);
        assert_eq!(text, "SLUG      LABEL\na         short\n日本\nlong-one  x");
    }

    #[test]
    fn truncates_wide_columns_but_not_the_name() {
        let rows: [&[&str]; 1] =
            [&["a-name-to-be-typed", "a label that is long", "damaged: nobody can read it"]];
        let text = table(&["SLUG", "LABEL", "STATUS"], &rows, Styles::PLAIN.with_columns(44));
        assert_eq!(
            text,
            "SLUG                LABEL   STATUS\na-name-to-be-typed  a lab…  damaged: nobody\n                            can read it"
        );
    }

    #[test]
    fn a_pipe_gets_one_line_per_row() {
        let rows = [vec!["a".to_owned(), "b\tc".to_owned()], vec!["d\ne".to_owned(), "f".to_owned()]];
        let table = Table { heading: &["A", "B"], name: 0, rows: &rows };
        assert_eq!(table.tab_separated(), "a\tb c\nd e\tf");
    }

    #[test]
    fn wraps_between_words_and_keeps_commands_whole() {
        for (text, indent, columns, expected) in [
            ("one two three four five", 4, 22, "one two three four\n    five"),
            ("say `bottle list agents` now", 2, 20, "say\n  `bottle list agents`\n  now"),
            ("an odd ` is a letter like others", 0, 16, "an odd ` is a\nletter like\nothers"),
            ("  indented stays\nas do lines", 3, 40, "  indented stays\n   as do lines"),
            ("no room", 38, 40, "no room"),
            ("", 0, 40, ""),
        ] {
            assert_eq!(hanging(text, indent, indent, Some(columns)), expected, "{text:?}");
        }
        assert_eq!(hanging("one two three four five", 4, 4, None), "one two three four five");
        assert_eq!(hanging("one two three four five", 8, 4, Some(26)), "one two three four\n    five");
    }

    proptest! {
        #[test]
        fn wrapping_keeps_all_words_and_the_width(
            text in "[a-z名é`\u{1b}\n ]{0,80}", indent in 0usize..20, columns in 24usize..80,
        ) {
            let laid = hanging(&text, indent, indent, Some(columns));
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(words(&laid), words(&text));
            if columns - indent >= MIN_LAST_COLUMN {
                for (at, line) in laid.lines().enumerate() {
                    let taken = if at == 0 { indent } else { 0 };
                    let whole = line.trim_start().contains(' ') && !line.contains('`');
                    prop_assert!(!whole || taken + measure_text_width(line) <= columns, "{line:?}");
                }
            }
        }
    }
}
