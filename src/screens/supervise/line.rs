//! A single-line text input.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The maximum length of the text, in characters. Further characters are ignored.
const MAX_CHARACTERS: usize = 400;

/// The typed text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TypedLine(String);

/// The result of handling a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputResult {
    Open,
    Done,
    Cancelled,
}

impl TypedLine {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn press(&mut self, key: KeyEvent) -> InputResult {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return InputResult::Done,
            KeyCode::Esc => return InputResult::Cancelled,
            KeyCode::Char('c' | 'g') if control => return InputResult::Cancelled,
            KeyCode::Char('j' | 'm') if control => return InputResult::Done,
            KeyCode::Char('u') if control => self.0.clear(),
            KeyCode::Char('w') if control => {
                let kept = self.0.trim_end().trim_end_matches(|letter: char| !letter.is_whitespace()).len();
                self.0.truncate(kept);
            }
            KeyCode::Backspace => drop(self.0.pop()),
            KeyCode::Char('h') if control => drop(self.0.pop()),
            KeyCode::Char(letter) if !control => self.paste(letter.encode_utf8(&mut [0; 4])),
            _ => {}
        }
        InputResult::Open
    }

    /// Inserts pasted text, without its control characters.
    pub(crate) fn paste(&mut self, text: &str) {
        let room = MAX_CHARACTERS.saturating_sub(self.0.chars().count());
        let letters = text.chars().map(|letter| if letter == '\n' || letter == '\t' { ' ' } else { letter });
        self.0.extend(letters.filter(|letter| !letter.is_control()).take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_w_deletes_the_last_word() {
        // The last space is a no-break space, which is encoded in several bytes.
        for (typed, left) in
            [("", ""), ("one", ""), ("one two", "one "), ("one  ", ""), ("one\u{a0}zwei", "one\u{a0}")]
        {
            let mut line = TypedLine::default();
            line.paste(typed);
            line.press(KeyEvent::new(KeyCode::Char('w'), KeyModifiers::CONTROL));
            assert_eq!(line.text(), left, "{typed:?}");
        }
    }
}
