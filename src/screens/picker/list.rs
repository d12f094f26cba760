//! The state of a picker: its items, filter, cursor and selection, and what each key does. This module does
//! no input or output.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The number of lines that a page key moves in the list.
const PAGE: usize = 10;

/// The maximum length of the filter, in bytes. Further characters are ignored.
const TYPED_MAX: usize = 64;

/// An item of the list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    /// The name of the item. The filter searches this text.
    pub(crate) name: String,
    /// The description of the item. The filter also searches this text.
    pub(crate) about: String,
    /// A short text that says where the item comes from.
    pub(crate) mark: String,
    /// Lines that are shown while the cursor is on the item.
    pub(crate) detail: Vec<String>,
    /// Whether the item cannot be chosen. In this case, `about` contains the reason.
    pub(crate) broken: bool,
}

/// The items, the filter and the selection.
#[derive(Debug)]
pub(crate) struct List {
    choices: Vec<Choice>,
    typed: String,
    /// The index of the cursor in the filtered items.
    cursor: usize,
    /// Whether the user chooses several items in order, rather than one.
    several: bool,
    chosen: Vec<usize>,
    /// Why the last key changed nothing. The next key removes the note.
    note: Option<String>,
}

/// The result of handling a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Open,
    /// The indices of the chosen items, in the order of the selection.
    Done(Vec<usize>),
    Cancelled,
}

impl List {
    /// Creates a list from which the user chooses one item.
    pub(crate) fn one(choices: Vec<Choice>) -> Self {
        Self { choices, typed: String::new(), cursor: 0, several: false, chosen: Vec::new(), note: None }
    }

    /// Creates a list from which the user chooses several items in order. The items `chosen` are preselected.
    pub(crate) fn several(choices: Vec<Choice>, chosen: Vec<usize>) -> Self {
        let chosen = chosen.into_iter().filter(|&index| index < choices.len()).collect();
        Self { several: true, chosen, ..Self::one(choices) }
    }

    pub(crate) fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Returns the indices of the selected items, in the order of the selection. Returns an empty list if the user
    /// chooses only one item.
    pub(crate) fn chosen(&self) -> &[usize] {
        &self.chosen
    }

    pub(super) fn is_several(&self) -> bool {
        self.several
    }

    pub(super) fn typed(&self) -> &str {
        &self.typed
    }

    /// Returns the indices of the items that contain every word of the filter.
    pub(super) fn filtered(&self) -> Vec<usize> {
        let words: Vec<String> = self.typed.split_whitespace().map(str::to_lowercase).collect();
        let fits = |choice: &Choice| {
            let text = format!("{} {} {}", choice.name, choice.about, choice.mark).to_lowercase();
            words.iter().all(|word| text.contains(word.as_str()))
        };
        // Items whose name starts with the first word are listed first.
        let called =
            |choice: &Choice| words.first().is_some_and(|word| choice.name.starts_with(word.as_str()));
        let mut shown: Vec<usize> = (0..self.choices.len()).filter(|&at| fits(&self.choices[at])).collect();
        shown.sort_by_key(|&at| !called(&self.choices[at]));
        shown
    }

    /// Returns the index of the cursor in the filtered items.
    pub(super) fn cursor(&self) -> usize {
        self.cursor
    }

    /// Returns the position of an item in the selection, counted from 0.
    pub(super) fn place(&self, index: usize) -> Option<usize> {
        self.chosen.iter().position(|&chosen| chosen == index)
    }

    /// Returns why the last key changed nothing. `None` if there is nothing to say about the last key.
    pub(super) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn under_cursor(&self) -> Option<usize> {
        self.filtered().get(self.cursor).copied()
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Outcome {
        self.note = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => return Outcome::Cancelled,
            KeyCode::Char('c' | 'g') if control => return Outcome::Cancelled,
            KeyCode::Char('d') if control && self.typed.is_empty() => return Outcome::Cancelled,
            KeyCode::Enter => return self.accept(),
            KeyCode::Char('j' | 'm') if control => return self.accept(),
            KeyCode::Up => self.step(-1),
            KeyCode::Char('p' | 'k') if control => self.step(-1),
            KeyCode::Down => self.step(1),
            KeyCode::Char('n') if control => self.step(1),
            KeyCode::PageUp => self.jump(self.cursor.saturating_sub(PAGE)),
            KeyCode::PageDown => self.jump(self.cursor + PAGE),
            KeyCode::Home => self.jump(0),
            KeyCode::End => self.jump(usize::MAX),
            // No key both adds and removes an item: a user who presses a key twice would not see that the second press
            // takes back the first.
            KeyCode::Tab | KeyCode::Char(' ') if self.several => self.add(),
            KeyCode::BackTab | KeyCode::Delete if self.several => self.remove(),
            KeyCode::Left if self.several => self.reorder(-1),
            KeyCode::Right if self.several => self.reorder(1),
            KeyCode::Backspace => self.backspace(),
            KeyCode::Char('h') if control => self.backspace(),
            KeyCode::Char('u' | 'w') if control => self.type_over(String::clear),
            KeyCode::Char(letter) if !control && !letter.is_control() && self.typed.len() < TYPED_MAX => {
                self.type_over(|typed| typed.push(letter));
            }
            _ => {}
        }
        Outcome::Open
    }

    /// Returns the selection, or the item under the cursor if nothing is selected.
    fn accept(&self) -> Outcome {
        if !self.chosen.is_empty() {
            return Outcome::Done(self.chosen.clone());
        }
        self.under_cursor().map_or(Outcome::Open, |index| Outcome::Done(vec![index]))
    }

    /// Moves the cursor by one item. After the last item, the cursor moves to the first one, and before the first item
    /// to the last one.
    fn step(&mut self, by: isize) {
        let length = self.filtered().len();
        if length > 0 {
            self.cursor = (self.cursor + length).wrapping_add_signed(by) % length;
        }
    }

    fn jump(&mut self, to: usize) {
        self.cursor = to.min(self.filtered().len().saturating_sub(1));
    }

    fn type_over(&mut self, change: impl FnOnce(&mut String)) {
        change(&mut self.typed);
        self.cursor = 0;
    }

    fn backspace(&mut self) {
        self.type_over(|typed| {
            typed.pop();
        });
    }

    /// Adds the item under the cursor to the end of the selection. An item that is already selected keeps its place.
    fn add(&mut self) {
        let Some(index) = self.under_cursor() else { return };
        match self.place(index) {
            Some(place) => {
                let name = &self.choices[index].name;
                self.note = Some(format!("{name} is already number {}; Shift-Tab removes it", place + 1));
            }
            None => self.chosen.push(index),
        }
    }

    /// Removes the item under the cursor from the selection.
    fn remove(&mut self) {
        if let Some(place) = self.selected_under_cursor() {
            self.chosen.remove(place);
        }
    }

    /// Moves the item under the cursor earlier or later in the selection.
    fn reorder(&mut self, by: isize) {
        let Some(place) = self.selected_under_cursor() else { return };
        let Some(other) = place.checked_add_signed(by) else { return };
        if other < self.chosen.len() {
            self.chosen.swap(place, other);
        }
    }

    /// Returns the position of the item under the cursor in the selection. Sets the note if the item is not selected.
    fn selected_under_cursor(&mut self) -> Option<usize> {
        let index = self.under_cursor()?;
        let place = self.place(index);
        if place.is_none() {
            self.note = Some(format!("{} is not chosen; Tab adds it", self.choices[index].name));
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn choices(names: &[&str]) -> Vec<Choice> {
        let one = |name: &&str| Choice { name: (*name).to_owned(), ..Choice::default() };
        names.iter().map(one).collect()
    }

    fn press(list: &mut List, code: KeyCode) -> Outcome {
        list.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn type_words(list: &mut List, words: &str) {
        for letter in words.chars() {
            assert_eq!(press(list, KeyCode::Char(letter)), Outcome::Open);
        }
    }

    #[test]
    fn typing_filters_and_enter_selects() {
        let mut list = List::one(choices(&["claude", "codex", "mini", "my-codex"]));
        type_words(&mut list, "cod");
        assert_eq!(list.filtered(), [1, 3]);
        press(&mut list, KeyCode::Down);
        assert_eq!(press(&mut list, KeyCode::Enter), Outcome::Done(vec![3]));
        press(&mut list, KeyCode::Down);
        assert_eq!(press(&mut list, KeyCode::Enter), Outcome::Done(vec![1]), "around the end");
        type_words(&mut list, "zzz");
        assert_eq!(press(&mut list, KeyCode::Enter), Outcome::Open, "there is nothing to take");
        press(&mut list, KeyCode::Esc);
    }

    #[test]
    fn a_match_at_the_start_of_the_name_sorts_first() {
        let mut about = choices(&["first", "pi"]);
        about[0].about = "like pi, but not".to_owned();
        let mut list = List::one(about);
        type_words(&mut list, "PI");
        // The filter is converted to lower case, so `PI` matches the start of the name `pi`.
        assert_eq!(list.filtered(), [1, 0]);
    }

    #[test]
    fn selects_several_in_order_and_reorders_them() {
        let mut list = List::several(choices(&["a", "b", "c"]), vec![0]);
        press(&mut list, KeyCode::End);
        press(&mut list, KeyCode::Tab);
        press(&mut list, KeyCode::Up);
        press(&mut list, KeyCode::Char(' '));
        assert_eq!(list.chosen(), [0, 2, 1]);
        press(&mut list, KeyCode::Left);
        press(&mut list, KeyCode::Left);
        press(&mut list, KeyCode::Left);
        assert_eq!(list.chosen(), [1, 0, 2]);
        press(&mut list, KeyCode::Right);
        assert_eq!(list.chosen(), [0, 1, 2]);
        press(&mut list, KeyCode::BackTab);
        assert_eq!(press(&mut list, KeyCode::Enter), Outcome::Done(vec![0, 2]));
    }

    #[test]
    fn tab_never_removes_an_item_or_moves_it() {
        let mut list = List::several(choices(&["a", "b", "c"]), vec![1, 0]);
        for add in [KeyCode::Tab, KeyCode::Char(' ')] {
            press(&mut list, add);
            assert_eq!(list.chosen(), [1, 0]);
            assert_eq!(list.note(), Some("a is already number 2; Shift-Tab removes it"));
        }
        press(&mut list, KeyCode::End);
        assert_eq!(list.note(), None, "the note is about the last key only");
        press(&mut list, KeyCode::Tab);
        assert_eq!((list.chosen(), list.note()), (&[1, 0, 2][..], None));
    }

    #[test]
    fn removing_or_reordering_an_item_that_is_not_chosen_says_so() {
        let mut list = List::several(choices(&["a", "b"]), vec![0]);
        press(&mut list, KeyCode::Down);
        for key in [KeyCode::BackTab, KeyCode::Delete, KeyCode::Left, KeyCode::Right] {
            press(&mut list, key);
            assert_eq!(list.chosen(), [0]);
            assert_eq!(list.note(), Some("b is not chosen; Tab adds it"), "{key:?}");
        }
        press(&mut list, KeyCode::Up);
        press(&mut list, KeyCode::Delete);
        assert_eq!((list.chosen(), list.note()), (&[][..], None));
    }

    #[test]
    fn a_key_without_an_item_under_the_cursor_changes_nothing() {
        let mut list = List::several(choices(&["a"]), vec![0]);
        type_words(&mut list, "zzz");
        for key in [KeyCode::Tab, KeyCode::BackTab, KeyCode::Left] {
            press(&mut list, key);
            assert_eq!((list.chosen(), list.note()), (&[0][..], None));
        }
    }

    #[test]
    fn enter_without_a_selection_takes_the_item_under_the_cursor() {
        let mut list = List::several(choices(&["a", "b"]), vec![]);
        press(&mut list, KeyCode::Down);
        assert_eq!(press(&mut list, KeyCode::Enter), Outcome::Done(vec![1]));
    }

    #[test]
    fn each_cancel_key_cancels() {
        for (code, modifiers) in [
            (KeyCode::Esc, KeyModifiers::NONE),
            (KeyCode::Char('c'), KeyModifiers::CONTROL),
            (KeyCode::Char('d'), KeyModifiers::CONTROL),
        ] {
            let mut list = List::several(choices(&["a"]), vec![0]);
            assert_eq!(list.press(KeyEvent::new(code, modifiers)), Outcome::Cancelled);
        }
    }

    proptest! {
        #[test]
        fn random_keys_keep_the_cursor_in_the_list(count in 0usize..6, keys in proptest::collection::vec(0usize..16, 0..60)) {
            let names: Vec<String> = (0..count).map(|at| format!("n{at}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut list = List::several(choices(&names), vec![0, 9]);
            let codes = [
                KeyCode::Up, KeyCode::Down, KeyCode::PageUp, KeyCode::PageDown, KeyCode::Home, KeyCode::End,
                KeyCode::Tab, KeyCode::Left, KeyCode::Right, KeyCode::Backspace, KeyCode::Char('n'),
                KeyCode::Char('1'), KeyCode::Char('é'), KeyCode::Char(' '), KeyCode::BackTab, KeyCode::Delete,
            ];
            for key in keys {
                press(&mut list, codes[key]);
                let mut chosen = list.chosen().to_vec();
                prop_assert!(chosen.iter().all(|&index| index < count));
                chosen.sort_unstable();
                chosen.dedup();
                prop_assert_eq!(chosen.len(), list.chosen().len());
                prop_assert!(list.cursor() == 0 || list.cursor() < list.filtered().len());
            }
        }
    }
}
