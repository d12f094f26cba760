//! A full-screen list in which the user filters items and chooses one of them, or several in order.
//!
//! ```text
//! list    items, filter, cursor, selection and keys: pure
//! screen  drawing
//! ```
//! On a terminal without screen control, a numbered list is shown instead
//! ([`crate::console::terminal::TerminalUser::choose`]).

mod list;
mod screen;

use std::io;
use std::time::Duration;

use self::list::Outcome;
pub(crate) use self::list::{Choice, List};
use crate::console::output::{Styles, inert};
use crate::console::terminal::{FullScreen, TerminalUser, Typed};

/// The time after which the list is drawn again if no key is pressed.
const REDRAW: Duration = Duration::from_secs(3600);

/// Lets the user choose. Returns the indices of the chosen items in the order of the selection. Returns `None` on Esc
/// or Ctrl-C. Restores the previous content of the terminal.
///
/// # Errors
/// Returns an error if there is no terminal, or if the terminal hung up.
pub(crate) fn pick(question: &str, mut list: List, styles: Styles) -> io::Result<Option<Vec<usize>>> {
    let Some(mut full) = FullScreen::enter()? else { return in_lines(question, &list, styles) };
    loop {
        full.draw(|frame| screen::draw(frame, question, &list, styles))?;
        let Some(Typed::Key(key)) = full.typed_within(REDRAW)? else { continue };
        match list.press(key) {
            Outcome::Open => {}
            Outcome::Done(chosen) => return Ok(Some(chosen)),
            Outcome::Cancelled => return Ok(None),
        }
    }
}

/// Lets the user choose one of these items.
///
/// # Errors
/// Returns the same errors as [`pick`].
pub(crate) fn pick_one<T>(question: &str, items: Vec<(T, Choice)>, styles: Styles) -> io::Result<Option<T>> {
    let (values, choices): (Vec<T>, Vec<Choice>) = items.into_iter().unzip();
    let chosen = pick(question, List::one(choices), styles)?.unwrap_or_default();
    Ok(chosen.first().and_then(|&index| values.into_iter().nth(index)))
}

fn in_lines(question: &str, list: &List, styles: Styles) -> io::Result<Option<Vec<usize>>> {
    let mut user = TerminalUser::find()?;
    let name = |choice: &Choice| styles.displayable(&inert(&choice.name)).into_owned();
    let names: Vec<String> = list.choices().iter().map(name).collect();
    let question = styles.displayable(question);
    let chosen = list.chosen();
    // A numbered list cannot return several items in order, so the user can only accept the preselected items
    // or choose one item.
    if !chosen.is_empty() {
        let words: Vec<&str> = chosen.iter().map(|&index| names[index].as_str()).collect();
        match user.confirm(&format!("{question} {}?", words.join(", ")))? {
            Some(true) => return Ok(Some(chosen.to_vec())),
            Some(false) => {}
            None => return Ok(None),
        }
    }
    Ok(user.choose(&question, &names)?.map(|index| vec![index]))
}
