//! Choosing from a list on the whole terminal: filter as you type, one or several in order.
//!
//! ```text
//! list    what is shown, chosen and under the cursor; what a key does to it: pure
//! screen  how it looks
//! ```
//! A terminal that can show no screen is asked in lines instead ([`super::terminal::TerminalUser::choose`]).

mod list;
mod screen;

use std::io;

use self::list::Outcome;
pub(crate) use self::list::{Choice, List};
use super::output::{Styles, inert};
use super::terminal::{FullScreen, TerminalUser};

/// Asks the user to choose; indices in order of choice, or nothing when they press Esc or Ctrl-C. The terminal
/// shows afterwards what it showed before.
///
/// # Errors
/// When there is no terminal, or it is gone.
pub(crate) fn pick(question: &str, mut list: List, styles: Styles) -> io::Result<Option<Vec<usize>>> {
    let Some(mut full) = FullScreen::enter()? else { return in_lines(question, &list, styles) };
    loop {
        full.draw(|frame| screen::draw(frame, question, &list, styles))?;
        let Some(key) = full.key()? else { continue };
        match list.press(key) {
            Outcome::Open => {}
            Outcome::Done(chosen) => return Ok(Some(chosen)),
            Outcome::Cancelled => return Ok(None),
        }
    }
}

fn in_lines(question: &str, list: &List, styles: Styles) -> io::Result<Option<Vec<usize>>> {
    let mut user = TerminalUser::find()?;
    let name = |choice: &Choice| styles.letters(&inert(&choice.name)).into_owned();
    let names: Vec<String> = list.choices().iter().map(name).collect();
    let question = styles.letters(question);
    let chosen = list.chosen();
    // Several in order cannot be had by one number: what was chosen for the user is offered as it is.
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
