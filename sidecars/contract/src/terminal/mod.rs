//! Filters agent output before it reaches the user's terminal.
//!
//! A terminal executes the control sequences that it displays: it writes to the clipboard, shows
//! notifications, stores files, and types query responses as if the user had. [`Filter`] passes only
//! sequences that draw (text, colours, cursor movement, the alternate screen, mouse and paste modes, web
//! hyperlinks) and drops all others, unknown ones included. [`inert()`] escapes text outside a terminal
//! session: log lines, titles, proposals.
//!
//! ```text
//!  bytes ─► UTF-8 and C1 ─► text ───────────────────────────────► shown
//!           (filter)        CSI … final ─► on the list? (csi) ──► shown in 7-bit form, or dropped
//!                           OSC DCS APC … ST ─► allowed? (string) ─► shown, or dropped
//! ```
//! The filter assumes a UTF-8 terminal. It treats both forms of C1 controls (raw byte and encoded code point)
//! as controls.

mod csi;
mod filter;
mod inert;
mod string;

pub use filter::Filter;
pub use inert::inert;

/// Additional sequences that the user allows (`terminal.pass` in the settings). None by default. No setting
/// allows sequences that make the terminal respond, read the clipboard or touch files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// Writes to the clipboard (OSC 52).
    pub clipboard: bool,
    /// Desktop notifications (OSC 9 and 777).
    pub notify: bool,
    /// Window titles (OSC 0, 1, 2).
    pub title: bool,
    /// Inline images: sixel, Kitty's and iTerm's.
    pub images: bool,
}

#[cfg(test)]
mod tests;
