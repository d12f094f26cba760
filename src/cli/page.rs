//! Renders a page of `docs/` for the width of a terminal. In a pipe the Markdown stays unchanged.

use termimad::crossterm::style::{Attribute, Color};
use termimad::{Alignment, MadSkin};

use crate::console::style::Styles;

/// The maximum width of text, because longer lines are hard to read.
const WIDEST: usize = 100;

/// Renders the page for a stream with these styles.
pub(crate) fn render(markdown: &str, styles: Styles) -> String {
    let Some(columns) = styles.columns() else { return markdown.to_owned() };
    // Without colours there is no bold text, so headings keep their `#`.
    let mark = if styles.color { "" } else { "# " };
    let markdown = unwrapped(&styles.displayable(markdown), mark);
    skin(styles).text(&markdown, Some(columns.min(WIDEST))).to_string()
}

fn skin(styles: Styles) -> MadSkin {
    let mut skin = MadSkin::no_style();
    skin.headers.iter_mut().for_each(|header| header.align = Alignment::Left);
    skin.code_block.left_margin = 2;
    if styles.color {
        skin.headers.iter_mut().for_each(|header| header.add_attr(Attribute::Bold));
        skin.bold.add_attr(Attribute::Bold);
        skin.italic.add_attr(Attribute::Italic);
        skin.inline_code.set_fg(Color::DarkCyan);
        skin.code_block.set_fg(Color::DarkCyan);
    }
    if !styles.unicode {
        skin.limit_to_ascii();
    }
    skin
}

/// Joins each paragraph and each list item into one line, so that the lines can be wrapped to the terminal's width.
/// Removes the languages of code fences, because only tests use these languages. Puts `mark` before headings.
fn unwrapped(markdown: &str, mark: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let (mut fenced, mut open) = (false, false);
    for line in markdown.lines() {
        let fence = line.starts_with("```");
        let begins = fence || fenced || begins(line);
        match lines.last_mut() {
            Some(last) if open && !begins => {
                last.push(' ');
                last.push_str(line.trim_start());
            }
            _ if fence => lines.push("```".to_owned()),
            _ if fenced => lines.push(line.to_owned()),
            _ if line.starts_with('#') => lines.push(format!("{mark}{line}")),
            _ => lines
                .push(line.strip_prefix("- ").map_or_else(|| line.to_owned(), |point| format!("* {point}"))),
        }
        fenced ^= fence;
        open = !fence && !fenced && (!begins || line.starts_with("- "));
    }
    lines.join("\n")
}

/// Whether a line starts a new block.
fn begins(line: &str) -> bool {
    line.is_empty() || ["    ", "#", "|", "- ", "> "].iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use dialoguer::console::measure_text_width;

    use super::*;

    const PAGE: &str = "# Title\n\nWords with `code` that go on until the end of a line and then some more.\n\n\
        | key | means |\n|---|---|\n| `one` | the first of them, at some length |\n\n```yaml bottle\nkey: value\n```\n";

    #[test]
    fn wraps_for_a_terminal_and_not_for_a_pipe() {
        assert_eq!(render(PAGE, Styles::PLAIN), PAGE);
        let narrow = render(PAGE, Styles::PLAIN.with_columns(40));
        for line in narrow.lines() {
            assert!(measure_text_width(line) <= 40, "{line:?} in\n{narrow}");
            assert!(!line.contains("```"), "{line:?}");
        }
        for words in ["# Title", "code", "one", "key: value"] {
            assert!(narrow.contains(words), "{words:?} is missing in\n{narrow}");
        }
        assert!(!narrow.contains('\x1b'), "{narrow:?}");
    }

    #[test]
    fn joins_only_paragraphs_and_list_items() {
        let written = "# T\n\nOne\ntwo\n`three`.\n\n- a\n  b\n- c\n\n| x |\n| y |\n\n    k  v\n    l  w\n\n```sh a\nx\n\ny\n```\nend\n";
        let page = "# T\n\nOne two `three`.\n\n* a b\n* c\n\n| x |\n| y |\n\n    k  v\n    l  w\n\n```\nx\n\ny\n```\nend";
        assert_eq!(unwrapped(written, ""), page);
    }

    #[test]
    fn every_topic_fits_eighty_columns() {
        for topic in super::super::help::TOPICS {
            for line in render(topic.text, Styles::PLAIN.with_columns(80)).lines() {
                assert!(measure_text_width(line) <= 80, "{}: {line:?}", topic.name);
            }
        }
    }
}
