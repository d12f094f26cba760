//! The rows of a screen, and its cursor.

use std::collections::VecDeque;

/// The maximum size in bytes of the combining characters in a cell.
const MARKS_MAX: usize = 32;

/// The content of one column.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cell {
    /// Nothing was printed.
    Blank,
    /// A character with the characters that combine with it.
    Text(char, String),
    /// The second column of the character before it.
    Tail,
}

/// One row. Columns behind its last cell are blank.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    cells: Vec<Cell>,
    /// Whether the line continues in the next row.
    pub(super) wrapped: bool,
}

impl Row {
    /// The text of the row.
    pub(super) fn text(&self) -> String {
        let mut text = String::with_capacity(self.cells.len());
        for cell in &self.cells {
            match cell {
                Cell::Blank => text.push(' '),
                Cell::Text(character, marks) => {
                    text.push(*character);
                    text.push_str(marks);
                }
                Cell::Tail => {}
            }
        }
        text
    }

    fn clear(&mut self) {
        self.cells.clear();
        self.wrapped = false;
    }

    /// Clears the cells from one column to before another. A character of which only one column is cleared is cleared.
    fn erase(&mut self, from: usize, to: usize, columns: usize) {
        self.split(from);
        self.split(to);
        let end = to.min(self.cells.len());
        self.cells.get_mut(from..end).into_iter().flatten().for_each(|cell| *cell = Cell::Blank);
        if to >= columns {
            self.cells.truncate(from);
            self.wrapped = false;
        }
    }

    /// Clears the character that has a column on both sides of this place.
    fn split(&mut self, at: usize) {
        if self.cells.get(at) == Some(&Cell::Tail) {
            self.cells[at] = Cell::Blank;
            if let Some(before) = at.checked_sub(1) {
                self.cells[before] = Cell::Blank;
            }
        }
    }

    /// Makes cells up to this column.
    fn extend_to(&mut self, columns: usize) {
        if self.cells.len() < columns {
            self.cells.resize(columns, Cell::Blank);
        }
    }

    fn insert_blanks(&mut self, at: usize, count: usize, columns: usize) {
        self.wrapped = false;
        if at >= self.cells.len() {
            return;
        }
        self.split(at);
        let count = count.min(columns - at);
        self.cells.splice(at..at, std::iter::repeat_n(Cell::Blank, count));
        self.split(columns);
        self.cells.truncate(columns);
    }

    fn delete(&mut self, at: usize, count: usize) {
        self.wrapped = false;
        self.split(at);
        let end = at.saturating_add(count).min(self.cells.len());
        self.split(end);
        if at < end {
            self.cells.drain(at..end);
        }
    }
}

/// A place on the screen, from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    row: usize,
    /// The number of columns if the next character begins a new row.
    column: usize,
}

/// A cursor that a program saved.
#[derive(Debug, Clone, Copy, Default)]
struct Saved {
    position: Position,
    origin: bool,
}

/// The rows and the cursor.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    rows: VecDeque<Row>,
    columns: usize,
    cursor: Position,
    saved: Saved,
    /// The first and the last row of the region that scrolls.
    region: (usize, usize),
    /// Whether positions are relative to the region.
    origin: bool,
    /// Whether a character behind the last column begins a new row.
    pub(super) autowrap: bool,
}

impl Grid {
    /// Creates empty rows. There is at least one row and one column.
    pub(super) fn new(rows: usize, columns: usize) -> Self {
        let (rows, columns) = (rows.max(1), columns.max(1));
        Self {
            rows: std::iter::repeat_n(Row::default(), rows).collect(),
            columns,
            cursor: Position::default(),
            saved: Saved::default(),
            region: (0, rows - 1),
            origin: false,
            autowrap: true,
        }
    }

    /// An empty grid of this size, with the cursor at the same place.
    pub(super) fn empty(&self) -> Self {
        Self { cursor: self.cursor, ..Self::new(self.rows.len(), self.columns) }
    }

    /// Clears everything.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.rows.len(), self.columns);
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    fn row(&mut self) -> &mut Row {
        &mut self.rows[self.cursor.row]
    }

    fn last_row(&self) -> usize {
        self.rows.len() - 1
    }

    fn is_in_region(&self) -> bool {
        (self.region.0..=self.region.1).contains(&self.cursor.row)
    }

    // The cursor

    pub(super) fn set_column(&mut self, column: usize) {
        self.cursor.column = column.min(self.columns - 1);
    }

    pub(super) fn set_row(&mut self, row: usize) {
        self.cursor.row = row.min(self.last_row());
    }

    pub(super) fn set_position(&mut self, row: usize, column: usize) {
        self.cursor.row = match self.origin {
            true => self.region.0.saturating_add(row).min(self.region.1),
            false => row.min(self.last_row()),
        };
        self.set_column(column);
    }

    /// Moves up, at most to the top of the region that contains the cursor.
    pub(super) fn up(&mut self, count: usize) {
        let top = if self.is_in_region() { self.region.0 } else { 0 };
        self.cursor.row = self.cursor.row.saturating_sub(count).max(top);
    }

    pub(super) fn down(&mut self, count: usize) {
        let bottom = if self.is_in_region() { self.region.1 } else { self.last_row() };
        self.cursor.row = self.cursor.row.saturating_add(count).min(bottom);
    }

    pub(super) fn left(&mut self, count: usize) {
        self.cursor.column = self.cursor.column.saturating_sub(count);
    }

    pub(super) fn right(&mut self, count: usize) {
        self.set_column(self.cursor.column.saturating_add(count));
    }

    pub(super) fn tab(&mut self) {
        self.set_column((self.cursor.column / 8 + 1) * 8);
    }

    /// Moves down by one row. Returns true if the region has to scroll up instead.
    pub(super) fn down_or_scroll(&mut self) -> bool {
        let scrolls = self.cursor.row == self.region.1;
        if !scrolls {
            self.cursor.row = (self.cursor.row + 1).min(self.last_row());
        }
        scrolls
    }

    /// Moves up by one row, or scrolls the region down.
    pub(super) fn up_or_scroll(&mut self) {
        if self.cursor.row == self.region.0 {
            self.scroll_down(1);
        } else {
            self.cursor.row = self.cursor.row.saturating_sub(1);
        }
    }

    pub(super) fn save_cursor(&mut self) {
        self.saved = Saved { position: self.cursor, origin: self.origin };
    }

    pub(super) fn restore_cursor(&mut self) {
        self.cursor = self.saved.position;
        self.origin = self.saved.origin;
    }

    pub(super) fn set_origin(&mut self, origin: bool) {
        self.origin = origin;
        self.set_position(0, 0);
    }

    /// Sets the region that scrolls, from the row `top` to before the row `end`, or to the last one if `end` is 0.
    pub(super) fn set_region(&mut self, top: usize, end: usize) {
        let bottom = if end == 0 { self.last_row() } else { (end - 1).min(self.last_row()) };
        self.region = if top < bottom { (top, bottom) } else { (0, self.last_row()) };
        self.cursor = Position { row: self.region.0, column: 0 };
    }

    // Text

    /// Whether a character of this width does not fit into the row. The cursor then goes to the first column, and the
    /// caller begins the next row.
    pub(super) fn wraps_before(&mut self, width: usize) -> bool {
        if self.cursor.column + width <= self.columns {
            return false;
        }
        if !self.autowrap {
            self.cursor.column = self.columns.saturating_sub(width);
            return false;
        }
        let (columns, is_last) = (self.columns, self.cursor.row == self.last_row());
        let moves = self.is_in_region() || !is_last;
        let row = self.row();
        let is_full = row.cells.get(columns - 1).is_some_and(|cell| *cell != Cell::Blank);
        row.wrapped = is_full && moves;
        self.cursor.column = 0;
        true
    }

    /// Prints a character, and moves the cursor behind it.
    pub(super) fn put(&mut self, character: char, width: usize, inserts: bool) {
        let (column, columns) = (self.cursor.column, self.columns);
        let end = (column + width).min(columns);
        let row = self.row();
        if inserts {
            row.insert_blanks(column, width, columns);
        }
        row.extend_to(end);
        row.split(column);
        row.split(end);
        row.cells[column..end].fill(Cell::Tail);
        row.cells[column] = Cell::Text(character, String::new());
        self.cursor.column = end;
    }

    /// Adds a character without width to the character before the cursor.
    pub(super) fn combine(&mut self, mark: char) {
        let column = self.cursor.column;
        let row = self.row();
        let Some(mut at) = column.checked_sub(1) else { return };
        if row.cells.get(at) == Some(&Cell::Tail) {
            at = at.saturating_sub(1);
        }
        if let Some(Cell::Text(_, marks)) = row.cells.get_mut(at)
            && marks.len() < MARKS_MAX
        {
            marks.push(mark);
        }
    }

    // Changes of rows

    pub(super) fn erase_in_row(&mut self, mode: u16) {
        let (column, columns) = (self.cursor.column.min(self.columns), self.columns);
        if (mode == 0 && column == 0) || mode == 2 {
            // What is written here now does not continue the row above.
            if let Some(above) = self.cursor.row.checked_sub(1) {
                self.rows[above].wrapped = false;
            }
        }
        let row = self.row();
        match mode {
            0 => row.erase(column, columns, columns),
            1 => row.erase(0, (column + 1).min(columns), columns),
            2 => row.clear(),
            _ => {}
        }
    }

    pub(super) fn erase_cells(&mut self, count: usize) {
        let (column, columns) = (self.cursor.column, self.columns);
        self.row().erase(column, column.saturating_add(count).min(columns), columns);
    }

    pub(super) fn insert_cells(&mut self, count: usize) {
        let (column, columns) = (self.cursor.column, self.columns);
        self.row().insert_blanks(column.min(columns), count, columns);
    }

    pub(super) fn delete_cells(&mut self, count: usize) {
        let column = self.cursor.column;
        self.row().delete(column, count);
    }

    pub(super) fn erase_below(&mut self) {
        let next = self.cursor.row + 1;
        self.rows.iter_mut().skip(next).for_each(Row::clear);
        self.erase_in_row(0);
    }

    pub(super) fn erase_above(&mut self) {
        let row = self.cursor.row;
        self.rows.iter_mut().take(row).for_each(Row::clear);
        self.erase_in_row(1);
    }

    pub(super) fn erase_all(&mut self) {
        self.rows.iter_mut().for_each(Row::clear);
    }

    /// Scrolls the region up. `lost` gets each row that leaves the screen at its top.
    pub(super) fn scroll_up(&mut self, count: usize, mut lost: impl FnMut(&Row)) {
        let (top, bottom) = self.region;
        for _ in 0..count.min(bottom + 1 - top) {
            if let Some(row) = self.rows.remove(top)
                && top == 0
            {
                lost(&row);
            }
            self.rows.insert(bottom, Row::default());
        }
    }

    pub(super) fn scroll_down(&mut self, count: usize) {
        self.move_down(self.region.0, count);
    }

    /// Inserts empty rows at the cursor.
    pub(super) fn insert_lines(&mut self, count: usize) {
        if self.is_in_region() {
            self.move_down(self.cursor.row, count);
        }
    }

    /// Moves rows of the region down, from this one on.
    fn move_down(&mut self, from: usize, count: usize) {
        let bottom = self.region.1;
        for _ in 0..count.min(bottom + 1 - from) {
            self.rows.remove(bottom);
            self.rows.insert(from, Row::default());
            // The row after it was lost.
            self.rows[bottom].wrapped = false;
        }
    }

    /// Removes rows at the cursor.
    pub(super) fn delete_lines(&mut self, count: usize) {
        if !self.is_in_region() {
            return;
        }
        let (from, bottom) = (self.cursor.row, self.region.1);
        for _ in 0..count.min(bottom + 1 - from) {
            self.rows.remove(from);
            self.rows.insert(bottom, Row::default());
        }
    }
}
