//! What an agent writes, made fit for a user's terminal.
//!
//! A terminal obeys what it is shown: it takes text into the clipboard, opens notifications, stores files,
//! types answers to questions as if the user had. [`Filter`] lets through what draws (text, colours,
//! cursor movement, the alternate screen, mouse and paste modes, hyperlinks to the web) and nothing else;
//! what is not known is dropped. [`inert`] is for everything that is not a terminal session: log lines,
//! titles, proposals.
//!
//! ```text
//!  bytes ─► UTF-8 and C1 ─► text ───────────────────────────────► shown
//!           (filter)        CSI … final ─► on the list? (csi) ──► shown in 7-bit form, or dropped
//!                           OSC DCS APC … ST ─► allowed? (string) ─► shown, or dropped
//! ```
//! The terminal is taken to be one of this century: it reads UTF-8. Both forms of C1 controls (a raw byte
//! and the encoded code point) are understood as the control they are.

mod csi;
mod filter;
mod inert;
mod string;

pub use filter::Filter;
pub use inert::inert;

/// What else a user lets through (`terminal.pass` in the settings). Nothing by default. Whatever is set,
/// nothing that makes the terminal answer, reads the clipboard or touches files passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// Writes to the clipboard (OSC 52).
    pub clipboard: bool,
    /// Desktop notifications (OSC 9 and 777).
    pub notify: bool,
    /// The window's title (OSC 0, 1, 2).
    pub title: bool,
    /// Pictures within the stream: sixel, Kitty's and iTerm's.
    pub images: bool,
}

#[cfg(test)]
mod tests;
