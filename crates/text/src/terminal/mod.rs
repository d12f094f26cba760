//! Filters agent output before it reaches the user's terminal.
//!
//! A terminal executes the control sequences that it receives. A control sequence can write to the clipboard, show
//! notifications, store files, or make the terminal type a response as if the user had typed it. [`Filter`] forwards
//! text, and sequences that draw (colours, cursor movement, the alternate screen), that set how keys, clicks and pastes
//! are reported, or that link to a web page. The filter also forwards sequences that the user allows ([`Pass`]). The
//! filter drops all other sequences, including unknown ones. [`inert()`] escapes text that is displayed outside a
//! terminal session: log lines, titles, proposals.
//!
//! ```text
//!  bytes ─► UTF-8 and C1 ─► text ───────────────────────────────► shown
//!           (filter)        CSI … final ─► on the list? (csi) ──► shown in 7-bit form, or dropped
//!                           OSC DCS APC … ST ─► allowed? (string) ─► shown, or dropped
//! ```
//! The filter assumes a UTF-8 terminal. The filter treats both forms of C1 controls (raw byte and encoded
//! code point) as control characters.

mod csi;
mod filter;
mod inert;
mod string;

pub use filter::Filter;
pub use inert::{inert, inert_json};

/// Additional sequences that the user allows (`terminal.pass` in the settings). By default, no additional sequence is
/// allowed. No setting allows sequences that make the terminal respond, read the clipboard or access files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// Writes to the clipboard (OSC 52).
    pub clipboard: bool,
    /// Desktop notifications (OSC 9 and 777).
    pub notify: bool,
    /// Window titles (OSC 0, 1, 2).
    pub title: bool,
    /// Inline images in the formats sixel, Kitty and iTerm.
    pub images: bool,
}

#[cfg(test)]
mod tests;
