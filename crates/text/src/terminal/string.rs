//! Control strings: `ESC ] … ST` and similar sequences. The filter drops most of these strings.
//!
//! A string is buffered, up to a limit, until the filter can decide whether it is allowed. For an image, the beginning
//! of the string suffices. The rest of an image is then streamed, so the image need not fit into memory.

use super::Pass;

/// The largest number of bytes that are buffered for a decision about a string, for example a title, a hyperlink or a
/// notification. A longer string is dropped.
const LONGEST: usize = 4096;

/// The longest write to the clipboard that terminals accept, in bytes. A longer write is dropped.
const LONGEST_CLIPBOARD: usize = 128 * 1024;

/// The allowed schemes of hyperlinks. A `file:` link would open a file on the user's machine, not in the
/// bottle. Other schemes start programs.
const LINKS: [&str; 3] = ["https://", "http://", "mailto:"];

/// String terminator (ST).
const TERMINATOR: &[u8] = b"\x1b\\";

/// The sequence that introduces a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Operating system command.
    Osc,
    /// Device control.
    Dcs,
    /// Application program command.
    Apc,
    /// `ESC k`, the title of screen and tmux.
    Title,
    /// Privacy message or start of string, which are always dropped.
    Other,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Collect,
    /// The beginning of the string is allowed and was forwarded. The rest is streamed: the filter forwards only the
    /// bytes that this function accepts.
    Stream(fn(u8) -> bool),
    Drop,
}

/// A string that is being parsed.
#[derive(Debug)]
pub(super) struct ControlString {
    kind: Kind,
    mode: Mode,
    collected: Vec<u8>,
}

impl ControlString {
    pub(super) fn new(kind: Kind, pass: Pass) -> Self {
        let wanted = match kind {
            Kind::Osc => true,
            Kind::Dcs | Kind::Apc => pass.images,
            Kind::Title => pass.title,
            Kind::Other => false,
        };
        let mode = if wanted { Mode::Collect } else { Mode::Drop };
        Self { kind, mode, collected: Vec::new() }
    }

    /// Whether BEL terminates the string.
    pub(super) fn ends_with_bell(&self) -> bool {
        self.kind == Kind::Osc
    }

    /// Adds the bytes of a printable character.
    pub(super) fn push(&mut self, character: &[u8], pass: Pass, shown: &mut Vec<u8>) {
        match self.mode {
            Mode::Drop => {}
            Mode::Stream(is_data) => shown.extend(character.iter().filter(|byte| is_data(**byte))),
            Mode::Collect => {
                self.collected.extend_from_slice(character);
                self.try_decide(pass, shown);
            }
        }
    }

    /// Decides whether the string is allowed, as soon as its head is complete.
    fn try_decide(&mut self, pass: Pass, shown: &mut Vec<u8>) {
        let bound =
            if pass.clipboard && self.collected.starts_with(b"52;") { LONGEST_CLIPBOARD } else { LONGEST };
        let last = self.collected.last().copied().unwrap_or(0);
        let head = match self.kind {
            // The final byte ends the head of a device control.
            Kind::Dcs if (0x40..=0x7e).contains(&last) => Some(sixel(&self.collected)),
            Kind::Apc if last == b';' => Some(kitty(&self.collected)),
            Kind::Osc if last == b':' && self.collected.starts_with(b"1337;") => {
                Some(inline_file(&self.collected, pass))
            }
            _ if self.collected.len() > bound => Some(None),
            _ => None,
        };
        match head {
            None => {}
            Some(None) => self.decide(Mode::Drop),
            Some(Some((head, is_data))) => {
                shown.extend_from_slice(&head);
                self.decide(Mode::Stream(is_data));
            }
        }
    }

    fn decide(&mut self, mode: Mode) {
        self.mode = mode;
        self.collected = Vec::new();
    }

    /// Handles the terminator of the string.
    pub(super) fn end(self, pass: Pass, shown: &mut Vec<u8>) {
        match (self.mode, self.kind) {
            (Mode::Stream(_), _) => shown.extend_from_slice(TERMINATOR),
            (Mode::Collect, Kind::Osc) => {
                if let Some(body) = command(&self.collected, pass) {
                    shown.extend_from_slice(b"\x1b]");
                    shown.extend_from_slice(&body);
                    shown.extend_from_slice(TERMINATOR);
                }
            }
            // An image command without data, for example "show image n".
            (Mode::Collect, Kind::Apc) => {
                if let Some((head, _)) = kitty(&self.collected) {
                    shown.extend_from_slice(&head);
                    shown.extend_from_slice(TERMINATOR);
                }
            }
            (Mode::Collect, Kind::Title) => {
                shown.extend_from_slice(b"\x1b]2;");
                shown.extend_from_slice(&self.collected);
                shown.extend_from_slice(TERMINATOR);
            }
            (Mode::Collect | Mode::Drop, _) => {}
        }
    }

    /// Handles an aborted string. If the beginning of the string was already forwarded, terminates it.
    pub(super) fn abort(self, shown: &mut Vec<u8>) {
        if let Mode::Stream(_) = self.mode {
            shown.extend_from_slice(TERMINATOR);
        }
    }
}

type Head = Option<(Vec<u8>, fn(u8) -> bool)>;

/// Returns the part of a complete operating system command that is forwarded.
fn command(body: &[u8], pass: Pass) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let (number, rest) = text.split_once(';')?;
    let allowed = match number {
        "8" => return Some(hyperlink(rest)),
        "0" | "1" | "2" => pass.title,
        "9" => pass.notify && !is_conemu_command(rest),
        "777" => pass.notify && rest.starts_with("notify;"),
        "52" => pass.clipboard && is_clipboard_write(rest),
        _ => false,
    };
    allowed.then(|| body.to_vec())
}

/// Returns an allowed web hyperlink, or the end of a hyperlink. The end also replaces a link that is not allowed,
/// because the text after that link would otherwise become part of the previous link.
fn hyperlink(rest: &str) -> Vec<u8> {
    let allowed = rest.split_once(';').filter(|(parameters, uri)| {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        plain(parameters) && plain(uri) && LINKS.iter().any(|scheme| uri.starts_with(scheme))
    });
    match allowed {
        Some((parameters, uri)) => format!("8;{parameters};{uri}").into_bytes(),
        None => b"8;;".to_vec(),
    }
}

/// Whether the text is a ConEmu command. OSC 9 with a number is a ConEmu command and not a notification. A ConEmu
/// command can, for example, sleep or run a macro.
fn is_conemu_command(rest: &str) -> bool {
    let first = rest.split(';').next().unwrap_or_default();
    first.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the text writes to the clipboard. A question mark in place of the data would query the clipboard.
fn is_clipboard_write(rest: &str) -> bool {
    rest.split_once(';').is_some_and(|(which, data)| {
        which.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && !data.is_empty()
            && data.bytes().all(is_base64)
    })
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

/// Accepts `DCS numbers q`, a sixel image. Other device controls query the terminal, define keys or pass data to
/// another terminal.
fn sixel(collected: &[u8]) -> Head {
    let (final_byte, parameters) = collected.split_last()?;
    let plain = parameters.iter().all(|byte| byte.is_ascii_digit() || *byte == b';');
    let head = [b"\x1bP", collected].concat();
    (plain && *final_byte == b'q').then_some((head, |byte| (0x21..=0x7e).contains(&byte)))
}

/// Accepts `APC G keys ; data`, a Kitty image with its data in the control string. With other transmission modes, the
/// terminal would read and delete files on the user's machine. Adds the key `q=2`, so that the terminal sends no
/// response.
fn kitty(collected: &[u8]) -> Head {
    let text = std::str::from_utf8(collected).ok()?.strip_prefix('G')?;
    let (keys, semicolon) = match text.strip_suffix(';') {
        Some(keys) => (keys, ";"),
        None => (text, ""),
    };
    let mut kept = String::new();
    for key in keys.split(',').filter(|key| !key.is_empty()) {
        let (name, value) = key.split_once('=')?;
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        match (name, value) {
            _ if name.len() != 1 || !plain(name) || !plain(value) => return None,
            ("a", value) if !matches!(value, "t" | "T" | "p" | "d" | "f" | "a" | "c") => return None,
            ("t", value) if value != "d" => return None,
            ("q", _) => {}
            _ => kept.push_str(&format!("{name}={value},")),
        }
    }
    Some((format!("\x1b_G{kept}q=2{semicolon}").into_bytes(), is_base64))
}

/// Accepts `OSC 1337 ; File = keys : data`, an inline image. Without `inline=1`, the terminal would save the file as a
/// download.
fn inline_file(collected: &[u8], pass: Pass) -> Head {
    let text = std::str::from_utf8(collected).ok()?;
    let keys = text.strip_prefix("1337;File=")?.strip_suffix(':')?;
    let inline = keys.split(';').any(|key| key == "inline=1") && keys.matches("inline=").count() == 1;
    (pass.images && inline && keys.is_ascii())
        .then(|| ([b"\x1b]", collected].concat(), is_base64 as fn(u8) -> bool))
}
