//! Draws a picker: question, filter, items, details of the item under the cursor, and keys. Uses only ASCII,
//! so that the picker looks the same in every font. Every meaning of a colour is also expressed in words.

use dialoguer::console::measure_text_width;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::list::{Choice, List};
use crate::console::output::{Styles, inert};
use crate::console::text_layout::{bold, dim, fitted, padded, tinted};

/// The maximum widths of an item's name and of its mark, in columns. A longer text is truncated.
const NAME: usize = 28;
const MARK: usize = 24;

/// The maximum number of detail lines. A screen with few lines shows fewer detail lines.
const DETAIL: u16 = 4;

/// The widths of the parts of a line, in columns.
struct Columns {
    number: usize,
    name: usize,
    mark: usize,
    whole: usize,
}

pub(super) fn draw(frame: &mut Frame<'_>, question: &str, list: &List, styles: Styles) {
    let area = frame.area();
    let about = DETAIL.min(area.height / 5) + 1;
    // The items get the height of the unfiltered list, so that the filter does not move the lines below the items.
    let total = u16::try_from(list.choices().len()).unwrap_or(u16::MAX);
    let height = total.clamp(1, area.height.saturating_sub(about + 3).max(1));
    let rows = [1, 1, height, about, 1].map(Constraint::Length);
    let [head, typed, body, detail, keys] = Layout::vertical(rows).areas(area);
    let shown = list.filtered();
    let columns = usize::from(area.width);
    let question = fitted(question, columns, styles);
    frame.render_widget(Line::styled(question, bold()), head);
    frame.render_widget(filter(list, shown.len(), styles), typed);
    frame.render_widget(Paragraph::new(lines(list, &shown, body, styles)), body);
    frame.render_widget(details(list, &shown, styles), detail);
    frame.render_widget(footer(list, columns, styles), keys);
}

fn filter<'a>(list: &'a List, found: usize, styles: Styles) -> Line<'a> {
    let total = list.choices().len();
    let count = if list.typed().is_empty() { String::new() } else { format!("  {found} of {total}") };
    let hint = if list.typed().is_empty() { "type to filter" } else { "" };
    Line::from(vec![
        Span::raw("> "),
        Span::raw(styles.displayable(&inert(list.typed())).into_owned()),
        Span::styled(hint, dim()),
        Span::styled(count, dim()),
    ])
}

/// Returns the part of the list that fits around the cursor.
fn lines<'a>(list: &'a List, shown: &[usize], area: Rect, styles: Styles) -> Vec<Line<'a>> {
    if shown.is_empty() {
        return vec![Line::styled("  no match; Backspace deletes a letter", dim())];
    }
    let height = usize::from(area.height.max(1));
    let first = list.cursor().saturating_sub(height / 2).min(shown.len().saturating_sub(height));
    let widest = |of: fn(&Choice) -> &str, most: usize| {
        let width = |choice: &Choice| measure_text_width(&styles.displayable(&inert(of(choice))));
        list.choices().iter().map(width).max().unwrap_or(0).min(most)
    };
    // On a narrow screen, a long name is truncated to leave room for the description.
    let half = usize::from(area.width) / 2;
    let columns = Columns {
        number: list.chosen().len().to_string().len(),
        name: widest(|choice| &choice.name, NAME.min(half)),
        mark: widest(|choice| &choice.mark, MARK.min(half / 2)),
        whole: usize::from(area.width),
    };
    let visible = shown.iter().enumerate().skip(first).take(height);
    visible
        .map(|(at, &index)| {
            let number = list.is_several().then(|| list.place(index));
            line(&list.choices()[index], at == list.cursor(), number, &columns, styles)
        })
        .collect()
}

/// Draws one item. `number` is `None` in a list where the user chooses one item. In a list where the user chooses several
/// items, it is the position of the item among the chosen items, or `Some(None)` if the item is not chosen.
fn line<'a>(
    choice: &'a Choice,
    under_cursor: bool,
    number: Option<Option<usize>>,
    columns: &Columns,
    styles: Styles,
) -> Line<'a> {
    let chosen = number.flatten();
    let pointer = if under_cursor { "> " } else { "  " };
    let number = match (number, chosen) {
        (None, _) => String::new(),
        (Some(_), None) => " ".repeat(columns.number + 1),
        (Some(_), Some(place)) => format!("{:>width$} ", place + 1, width = columns.number),
    };
    let name = padded(&choice.name, columns.name, styles);
    let mark = if columns.mark > 0 { padded(&choice.mark, columns.mark, styles) } else { String::new() };
    let taken: usize = [pointer, &number, &name, &mark].into_iter().map(measure_text_width).sum();
    let bold = if under_cursor || chosen.is_some() { Modifier::BOLD } else { Modifier::empty() };
    let about = if choice.broken { tinted(Color::Red, styles) } else { dim() };
    Line::from(vec![
        Span::raw(pointer),
        Span::styled(number, tinted(Color::Green, styles)),
        Span::styled(name, Style::new().add_modifier(bold)),
        Span::styled(mark, tinted(Color::Cyan, styles)),
        Span::styled(fitted(&choice.about, columns.whole.saturating_sub(taken), styles), about),
    ])
}

fn details<'a>(list: &'a List, shown: &[usize], styles: Styles) -> Paragraph<'a> {
    let detail = shown.get(list.cursor()).map_or(&[][..], |&index| &list.choices()[index].detail);
    let raw = |text: &str| Line::raw(styles.displayable(&inert(text)).into_owned());
    let mut lines = vec![Line::default()];
    // The selected names are shown even if the screen has no room for their lines.
    if list.is_several() && !list.chosen().is_empty() {
        let names: Vec<&str> = list.chosen().iter().map(|&at| list.choices()[at].name.as_str()).collect();
        lines.push(raw(&format!("chosen, bottom layer first: {}", names.join(", "))));
    }
    lines.extend(detail.iter().map(|line| raw(line)));
    Paragraph::new(lines).wrap(Wrap { trim: false })
}

/// Draws the last line: why the last key changed nothing, otherwise what each key does.
fn footer<'a>(list: &List, columns: usize, styles: Styles) -> Line<'a> {
    match list.note() {
        Some(note) => Line::styled(fitted(note, columns, styles), tinted(Color::Yellow, styles)),
        None => Line::styled(help(list, columns), dim()),
    }
}

/// Returns the longest key help that fits. The help of a list where the user chooses several items names only the keys
/// that have an effect: without a chosen item, Enter takes the item under the cursor.
fn help(list: &List, columns: usize) -> &'static str {
    let help: &[&str] = match (list.is_several(), list.chosen().is_empty()) {
        (true, false) => &[
            "Tab adds to the end   Shift-Tab removes   Left/Right reorders   Enter accepts   Esc cancels",
            "Tab appends  Shift-Tab removes  Left/Right reorders  Enter accepts  Esc cancels",
            "Tab adds  Shift-Tab removes  Enter  Esc",
        ],
        (true, true) => &[
            "Tab adds to the end   Enter takes only this one   Esc cancels",
            "Tab adds  Enter takes this  Esc cancels",
        ],
        (false, _) => &["Up/Down moves   Enter selects   Esc cancels", "Up/Down  Enter  Esc cancels"],
    };
    let shortest = help.last().copied().unwrap_or_default();
    help.iter().copied().find(|text| text.len() <= columns).unwrap_or(shortest)
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn screen(list: &List, columns: u16, rows: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
        terminal.draw(|frame| draw(frame, "Which bottles?", list, Styles::PLAIN)).expect("drawn");
        terminal
            .backend()
            .to_string()
            .lines()
            // The test backend appends a note to lines with wide characters.
            .map(|line| line.split('"').nth(1).unwrap_or_default().trim_end().to_owned() + "\n")
            .collect()
    }

    fn bottles() -> List {
        let choice = |name: &str, about: &str, mark: &str| Choice {
            name: name.to_owned(),
            about: about.to_owned(),
            mark: mark.to_owned(),
            detail: vec![format!("{name} is made of: base, {name}")],
            broken: about.starts_with("line"),
        };
        let choices = vec![
            choice("claude", "The provider's own bottle.", "default"),
            choice(
                "dev",
                "Package registries, read-only, which is a line that is much too long for eighty columns",
                "shipped",
            ),
            choice("torn", "line 3: `egres` is no key here; did you mean `egress`?", "yours"),
            choice("名前", "a name in another script", "yours"),
        ];
        List::several(choices, vec![1, 0])
    }

    #[test]
    fn draws_a_list() {
        insta::assert_snapshot!(screen(&bottles(), 80, 16));
    }

    fn last_line(list: &List, columns: u16) -> String {
        screen(list, columns, 16).trim_end().lines().last().unwrap_or_default().to_owned()
    }

    fn press(list: &mut List, code: KeyCode) {
        list.press(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn the_last_line_says_what_each_key_does() {
        let mut list = bottles();
        let whole =
            "Tab adds to the end   Shift-Tab removes   Left/Right reorders   Enter accepts   Esc cancels";
        assert_eq!(last_line(&list, 100), whole);
        for columns in [40, 80] {
            let line = last_line(&list, columns);
            assert!(line.contains("Tab a") && line.contains("Shift-Tab removes"), "{line}");
            assert!(line.contains("Enter") && line.contains("Esc"), "{line}");
        }
        press(&mut list, KeyCode::Tab);
        assert_eq!(last_line(&list, 80), "claude is already number 2; Shift-Tab removes it");
        press(&mut list, KeyCode::BackTab);
        press(&mut list, KeyCode::Down);
        press(&mut list, KeyCode::BackTab);
        assert_eq!(last_line(&list, 80), "Tab adds to the end   Enter takes only this one   Esc cancels");
        assert_eq!(last_line(&list, 40), "Tab adds  Enter takes this  Esc cancels");
    }

    #[test]
    fn ten_numbers_align() {
        let many = (0..12).map(|at| Choice { name: format!("b{at}"), ..Choice::default() }).collect();
        let list = List::several(many, (0..10).collect());
        let screen = screen(&list, 60, 24);
        for line in [">  1 b0", "  10 b9", "     b10"] {
            assert!(screen.lines().any(|shown| shown == line), "{line:?} is missing:\n{screen}");
        }
    }

    #[test]
    fn the_smallest_screen_shows_the_cursor() {
        let many = (0..50).map(|at| Choice { name: format!("agent-{at}"), ..Choice::default() }).collect();
        let mut list = List::one(many);
        for _ in 0..37 {
            press(&mut list, KeyCode::Down);
        }
        insta::assert_snapshot!(screen(&list, 40, 10));
    }
}
