//! The capabilities of an output stream: colours, characters beyond ASCII, and width.
//!
//! Uses only the terminal's sixteen colours. Black and white are not used, because they are invisible on some
//! backgrounds. Every meaning of a colour is also expressed in words.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use clap::ColorChoice;
use clap::builder::PossibleValuesParser;
use clap::builder::styling::{AnsiColor, Style};

use super::global::Global;
use super::layout;

/// The minimum width of a terminal, in columns, at which text is wrapped.
const NARROWEST: usize = 24;

/// The colours of labels: name, text colour, and cursor colour.
pub(crate) const LABEL_COLORS: [(&str, AnsiColor, &str); 6] = [
    ("red", AnsiColor::Red, "#d75f5f"),
    ("green", AnsiColor::Green, "#5faf5f"),
    ("yellow", AnsiColor::Yellow, "#d7af5f"),
    ("blue", AnsiColor::Blue, "#5f87d7"),
    ("magenta", AnsiColor::Magenta, "#af5faf"),
    ("cyan", AnsiColor::Cyan, "#5fafaf"),
];

/// Returns a clap parser for the colour of a label.
pub(crate) fn label_color_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(LABEL_COLORS.map(|(name, ..)| name))
}

/// The capabilities of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Styles {
    /// Whether colours are on.
    pub(crate) color: bool,
    /// Whether the stream can show characters beyond ASCII.
    pub(crate) unicode: bool,
    /// The width of the terminal in columns. `None` for a pipe.
    pub(crate) width: Option<usize>,
}

impl Styles {
    /// Plain text, for a pipe.
    pub(crate) const PLAIN: Self = Self { color: false, unicode: true, width: None };

    /// Reads the capabilities from the stream, the flags and the environment. A pipe gets all characters
    /// unchanged.
    pub(crate) fn for_stream(stream: &(impl AsFd + IsTerminal), global: &Global) -> Self {
        let terminal = stream.is_terminal();
        let color = match global.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => wants_color(terminal, |name| std::env::var(name).ok()),
        };
        let columns = usize::from(super::terminal::size_of(stream).columns);
        Self {
            color,
            unicode: !terminal || supports_unicode(|name| std::env::var(name).ok()),
            width: terminal.then_some(columns),
        }
    }

    /// Sets the width, for tests.
    #[cfg(test)]
    pub(crate) const fn with_columns(self, columns: usize) -> Self {
        Self { width: Some(columns), ..self }
    }

    /// Replaces characters that the stream cannot show. A character without an ASCII replacement is escaped,
    /// so that different names remain different.
    pub(crate) fn displayable(self, text: &str) -> Cow<'_, str> {
        if self.unicode || text.is_ascii() { Cow::Borrowed(text) } else { Cow::Owned(ascii(text)) }
    }

    /// Returns the mark of truncated text.
    pub(crate) fn ellipsis(self) -> &'static str {
        if self.unicode { "…" } else { "..." }
    }

    /// Returns the terminal's width, if the width is at least [`NARROWEST`].
    pub(crate) fn columns(self) -> Option<usize> {
        self.width.filter(|columns| *columns >= NARROWEST)
    }

    /// Wraps text that starts at column `indent`, and indents the following lines to the same column.
    pub(crate) fn hanging(self, text: &str, indent: usize) -> String {
        self.hanging_from(text, indent, indent)
    }

    /// Wraps text that starts at column `at`, and indents the following lines to column `indent`.
    pub(crate) fn hanging_from(self, text: &str, at: usize, indent: usize) -> String {
        layout::hanging(&self.displayable(text), at, indent, self.columns())
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.color { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.paint(Style::new().bold().fg_color(Some(AnsiColor::Red.into())), text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.paint(Style::new().fg_color(Some(AnsiColor::Yellow.into())), text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.paint(Style::new().fg_color(Some(AnsiColor::Green.into())), text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.paint(Style::new().fg_color(Some(AnsiColor::Cyan.into())), text)
    }

    /// Paints text in a label's colour. With an unknown colour, the text stays plain.
    pub(crate) fn named(self, color: Option<&str>, text: &str) -> String {
        let color = color.and_then(label_color).map(|(color, _)| color.into());
        self.paint(Style::new().fg_color(color), text)
    }
}

/// Returns the text and cursor colours for a label's colour. Returns `None` for an unknown name.
pub(crate) fn label_color(name: &str) -> Option<(AnsiColor, &'static str)> {
    let found = LABEL_COLORS.into_iter().find(|(known, ..)| *known == name);
    found.map(|(_, text, cursor)| (text, cursor))
}

/// Whether to use colours. The crate `anstream` does not decide this, because it turns colours on for
/// `CLICOLOR_FORCE=0`.
///
/// The order of precedence is: `NO_COLOR` (no-color.org), `CLICOLOR_FORCE`, `CLICOLOR` (bixense.com/clicolors), the
/// terminal's capabilities.
fn wants_color(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    let is_zero = |name| variable(name).is_some_and(|value| value == "0");
    if is_set("NO_COLOR") {
        return false;
    }
    if is_set("CLICOLOR_FORCE") && !is_zero("CLICOLOR_FORCE") {
        return true;
    }
    terminal && !is_zero("CLICOLOR") && supports_escapes(variable)
}

/// Whether the terminal understands escape sequences.
pub(crate) fn supports_escapes(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Reads the locale as the C library does: from the first of the three variables that is not empty. A locale without
/// UTF-8, such as `C` or `POSIX`, and no value at all mean ASCII.
fn supports_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|word| !word.is_empty());
    locale.is_some_and(|locale| {
        let letters = locale.to_ascii_lowercase();
        letters.contains("utf-8") || letters.contains("utf8")
    })
}

fn ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if letter.is_ascii() => plain.push(letter),
            '…' => plain.push_str("..."),
            '·' | '–' | '—' | '─' => plain.push('-'),
            '→' => plain.push_str("->"),
            '│' => plain.push('|'),
            '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┬' | '┴' | '┼' => plain.push('+'),
            '▲' => plain.push('^'),
            '▼' => plain.push('v'),
            '►' => plain.push('>'),
            '◄' => plain.push('<'),
            letter => drop(write!(plain, "{}", letter.escape_unicode())),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn colours_follow_terminal_and_environment() {
        const TERM: (&str, &str) = ("TERM", "xterm");
        for (terminal, set, wanted) in [
            (true, &[TERM][..], true),
            (false, &[TERM], false),
            (true, &[], false),
            (true, &[("TERM", "dumb")], false),
            (true, &[TERM, ("NO_COLOR", "1")], false),
            (true, &[TERM, ("NO_COLOR", "")], true),
            (true, &[TERM, ("CLICOLOR", "0")], false),
            (true, &[TERM, ("CLICOLOR", "1")], true),
            (false, &[TERM, ("CLICOLOR_FORCE", "1")], true),
            (false, &[TERM, ("CLICOLOR_FORCE", "0")], false),
            (true, &[TERM, ("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        ] {
            assert_eq!(wants_color(terminal, among(set)), wanted, "{terminal} {set:?}");
        }
    }

    #[test]
    fn characters_follow_the_locale() {
        for (set, unicode) in [
            (&[("LANG", "en_GB.UTF-8")][..], true),
            (&[("LANG", "C.utf8")], true),
            (&[("LANG", "en_GB.UTF-8"), ("LC_ALL", "C")], false),
            (&[("LANG", "C"), ("LC_CTYPE", "de_DE.UTF-8")], true),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "")], true),
            (&[("LANG", "de_DE.ISO-8859-1")], false),
            (&[("LANG", "POSIX")], false),
            (&[], false),
        ] {
            assert_eq!(supports_unicode(among(set)), unicode, "{set:?}");
        }
    }

    #[test]
    fn escapes_characters_without_an_ascii_form() {
        let styles = Styles { unicode: false, ..Styles::PLAIN };
        assert_eq!(styles.displayable("a … b · 名 é"), "a ... b - \\u{540d} \\u{e9}");
        assert_eq!(Styles::PLAIN.displayable("a … 名"), "a … 名");
    }
}
